//! Takes isolated folios (those that reclaim took off their LRU lists) out of an object.

use core::ops::Range;

use super::index::{Entry, FreedNodes};
use super::swap_out::{NoSwapSpace, SwapOut};
use super::{Object, Writeback, Writes, mapping, remove};
use crate::addr::Pfn;
use crate::frame::{Counts, Frame};
use crate::platform::{FailPoint, Platform, allows};

impl<P: Platform> Object<'_, P> {
    /// Takes an isolated folio, which no PTE maps, out of the object: writes it to swap, or, if the
    /// object has a store, drops it, or has the host write its dirty pages, so that a later call
    /// drops it. It stays if there are other references to it, or if a CPU wants one of its pages.
    /// With `ends_wanted`, a page of a store does not count as wanted any more then, so that the
    /// next call drops it. The caller keeps its own reference to the folio. No lock is held.
    ///
    /// # Errors
    /// [`NoSwapSpace`]: the folio would have to be written to swap, and has not been, at least not
    /// as a whole.
    pub(crate) fn evict(&self, head: Pfn, frame: &Frame, ends_wanted: bool) -> Result<(), NoSwapSpace> {
        if self.head().has_store {
            if !start_write(self, frame) {
                drop_folio(self, head, frame, ends_wanted);
            }
            return Ok(());
        }
        SwapOut(self).swap_out(head, frame)
    }
}

/// Drops the folios of an object with a store that have pages in `pages` alone, unless a PTE maps
/// them, the host uses them, or they have dirty pages (Linux: `invalidate_mapping_pages`). No lock
/// is held.
pub fn drop_clean<P: Platform>(object: &Object<'_, P>, pages: Range<u64>) {
    if !object.head().has_store {
        return;
    }
    let (machine, frames) = (object.machine, object.machine.frames());
    let mut page = pages.start;
    while page < pages.end {
        let state = object.lock();
        let Some((found, entry)) = state.index.next(frames, page).filter(|(found, _)| *found < pages.end) else {
            return;
        };
        page = found + 1;
        let Entry::Resident(pfn) = entry else { continue };
        let (head, frame) = frames.head(pfn);
        let first = mapping::folio_index(frame.data());
        let folio = first..first + (1 << (frame.order() - object.page_order()));
        if first < pages.start || folio.end > pages.end || frames.get_counts_checked(head, frame, 1, 0).is_err() {
            continue;
        }
        drop(state);
        drop_folio(object, head, frame, true);
        machine.put_folio(head, 1, 0);
        page = folio.end.max(page);
        machine.platform().resched();
    }
}

/// Has the host write the dirty pages of an isolated folio, and returns whether it has any. No PTE
/// maps the folio: one that does by now stays, and the next call of this function finds it
/// unmapped.
fn start_write<P: Platform>(object: &Object<'_, P>, frame: &Frame) -> bool {
    let first = mapping::folio_index(frame.data());
    let mut pass = Writeback::start(first..first + (1 << (frame.order() - object.head().page_order)));
    let mut has_dirty = false;
    while let Ok(Some(batch)) = Writes(object).next_write(&mut pass, Some(frame)) {
        has_dirty = true;
        Writes(object).write(batch);
    }
    has_dirty
}

/// Removes a folio of an object with a store, to which the caller has a reference, from the object
/// (Linux: `__remove_mapping`). Its contents are in the host's storage. Leaves it if it is dirty,
/// if a PTE maps it, if there are other references to it, or while the object's gate is closed
/// (INV-21). Takes the object's lock.
fn drop_folio<P: Platform>(object: &Object<'_, P>, head: Pfn, frame: &Frame, ends_wanted: bool) {
    let (machine, frames) = (object.machine, object.machine.frames());
    let page_order = object.head().page_order;
    let first = mapping::folio_index(frame.data());
    let pages = first..first + (1 << (frame.order() - page_order));
    if object.head().gate.is_closed() {
        return;
    }
    let mut nodes = FreedNodes::new();
    let mut state = object.lock();
    // Other CPUs take references to the object's pages under its lock only, and those that find
    // the folio in another way do not use its contents.
    let is_unshared = |present| {
        frame.counts() == Counts { refs: present + 1, maps: 0 } && allows(machine.platform(), FailPoint::Unpinned)
    };
    let removed =
        state.index.remove_clean(frames, pages, (head, 1 << page_order, ends_wanted), is_unshared, &mut nodes);
    if removed > 0 {
        mapping::clear_object(frame);
    }
    drop(state);
    if removed > 0 {
        machine.count(object.head().pages_counter(), (u64::from(removed) << page_order).wrapping_neg());
        machine.put_refs(head, frame, removed);
        remove::free_nodes(machine, nodes);
    }
}
