//! Takes isolated folios (those that reclaim took off their LRU lists) out of an object.

use core::ops::Range;

use arrayvec::ArrayVec;

use super::index::{Entry, FreedNodes};
use super::swap_out::{NoSwapSpace, SwapOut};
use super::{Changes, Object, Writeback, Writes, mapping, remove};
use crate::addr::Pfn;
use crate::frame::{Counts, Frame};
use crate::machine::Dropped;
use crate::platform::{FailPoint, Platform, allows};

/// The number of folios that are dropped under one hold of the object's lock (INV-11).
const MAX_BATCH: usize = 16;

impl<P: Platform> Object<'_, P> {
    /// Takes isolated folios, which no PTE maps, out of the object: writes them to swap, or, if the
    /// storage has their contents, drops them. Has the host write the dirty pages that the storage
    /// takes, so that a later call drops these. A folio stays if there are other references to it,
    /// or if a CPU wants one of its pages. With `ends_wanted`, a page of a store does not count as
    /// wanted any more then, so that the next call drops it. The caller keeps its own references to
    /// the folios. No lock is held.
    ///
    /// # Errors
    /// [`NoSwapSpace`]: a folio would have to be written to swap, and has not been, at least not as
    /// a whole. Those after it were not tried.
    pub(crate) fn evict<'f>(
        &self,
        mut folios: impl Iterator<Item = (Pfn, &'f Frame)> + Clone,
        ends_wanted: bool,
    ) -> Result<(), NoSwapSpace> {
        let resched = || self.machine.platform().resched();
        let mut swap_out = |(head, frame)| {
            resched();
            SwapOut(self).swap_out(head, frame)
        };
        let Some(changes) = self.head().store else { return folios.try_for_each(swap_out) };
        let has_dirty = self.page_counts().dirty > 0;
        if has_dirty && changes == Changes::ToStore {
            folios.clone().for_each(|(_, frame)| {
                resched();
                start_write(self, frame);
            });
        }
        let mut times = Dropped::new(self.machine, self.serial());
        let unmapped = folios.clone().map(|(head, frame)| (head, frame, 0));
        drop_unused(self, unmapped, (ends_wanted, Some(&mut times)), |_| ());
        if has_dirty && changes == Changes::InMemory {
            // Those that were dropped have no page in the index any more, and are passed over.
            folios.filter(|(_, frame)| has_dirty_pages(self, frame)).try_for_each(&mut swap_out)?;
        }
        Ok(())
    }
}

/// Drops those of some isolated folios of an object with a store whose contents the storage has and
/// which have no use but that of the object, the isolation, and as many PTEs as the number that
/// comes with the folio: the caller has cleared these and flushed, and the folio's counts have them
/// still. A folio for which that is not 0 is passed to `dropped` when it is dropped, and keeps its
/// counts: the caller frees it whatever they are. Keeps the times of dropped folios in `times`:
/// reclaim has it, and a program that asks for its pages to be dropped does not, as they are no
/// working set. Drops no folio of another object. No lock is held.
pub(crate) fn drop_unused<'f, P: Platform>(
    object: &Object<'_, P>,
    mut folios: impl Iterator<Item = (Pfn, &'f Frame, u32)>,
    (ends_wanted, mut times): (bool, Option<&mut Dropped<'_, '_, P>>),
    dropped: impl Fn(&Frame),
) {
    while drop_batch(object, &mut folios, (ends_wanted, times.as_deref_mut()), &dropped) {
        object.machine.platform().resched();
    }
}

/// Drops the folios of an object with a store that have pages in `pages` alone, unless a PTE maps
/// them, the host uses them, or they have dirty pages (Linux: `invalidate_mapping_pages`). No lock
/// is held.
pub fn drop_clean<P: Platform>(object: &Object<'_, P>, pages: Range<u64>) {
    if object.head().store.is_none() {
        return;
    }
    let (machine, frames) = (object.machine, object.machine.frames());
    let (mut page, mut tried) = (pages.start, None);
    while page < pages.end {
        let state = object.lock();
        let Some((found, entry)) = state.index.next(frames, page).filter(|(found, _)| *found < pages.end) else {
            return;
        };
        page = found + 1;
        let Entry::Resident(pfn) = entry else { continue };
        let (head, frame) = frames.head(pfn);
        if tried.replace(head) == Some(head) {
            continue;
        }
        let first = mapping::folio_index(frame.data());
        let folio = first..first + (1 << (frame.order() - object.page_order()));
        if first < pages.start || folio.end > pages.end || frames.get_counts_checked(head, frame, 1, 0).is_err() {
            continue;
        }
        drop(state);
        drop_batch(object, &mut core::iter::once((head, frame, 0)), (true, None), |_| ());
        machine.put_folio(head, 1, 0);
        machine.platform().resched();
    }
}

/// Has the host write the dirty pages of an isolated folio. No PTE maps the folio: one that does by
/// now stays, and the next call of this function finds it unmapped.
fn start_write<P: Platform>(object: &Object<'_, P>, frame: &Frame) {
    let mut pass = Writeback::start(pages_of(object, frame));
    while let Ok(Some(batch)) = Writes(object).next_write(&mut pass, Some(frame)) {
        Writes(object).write(batch);
    }
}

/// Returns true if a folio, to which the caller has a reference, is the object's and has dirty
/// pages. Takes the object's lock.
fn has_dirty_pages<P: Platform>(object: &Object<'_, P>, frame: &Frame) -> bool {
    let state = object.lock();
    object.owns(frame) && state.index.has_dirty(object.machine.frames(), pages_of(object, frame))
}

/// Returns the pages that a folio of the object had when it was inserted.
fn pages_of<P: Platform>(object: &Object<'_, P>, frame: &Frame) -> Range<u64> {
    let first = mapping::folio_index(frame.data());
    first..first + (1 << (frame.order() - object.head().page_order))
}

/// Removes the first of these folios, to each of which the caller has a reference, from an object
/// with a store (Linux: `__remove_mapping`). Their contents are in the host's storage. Leaves those
/// that have dirty pages, that a PTE maps, except as many as the number that comes with the folio,
/// or to which there are other references, and all while the object's gate is closed (INV-21).
/// Keeps the times of those that it removes in `times`, if it is there. Returns whether there may
/// be more folios. Takes the object's lock.
fn drop_batch<'f, P: Platform>(
    object: &Object<'_, P>,
    folios: &mut impl Iterator<Item = (Pfn, &'f Frame, u32)>,
    (ends_wanted, mut times): (bool, Option<&mut Dropped<'_, '_, P>>),
    on_drop: impl Fn(&Frame),
) -> bool {
    let (machine, frames) = (object.machine, object.machine.frames());
    let page_order = object.head().page_order;
    if object.head().gate.is_closed() {
        return false;
    }
    let (mut nodes, mut dropped) = (FreedNodes::new(), ArrayVec::<_, MAX_BATCH>::new());
    let mut state = object.lock();
    let (mut tried, mut pages, mut node) = (0, 0, None);
    for (head, frame, maps) in folios.take(MAX_BATCH) {
        tried += 1;
        // Other CPUs take references to the object's pages under its lock only, and those that find
        // the folio in another way do not use its contents.
        let is_unshared = |present| {
            frame.counts() == Counts { refs: present + 1 + maps, maps }
                && allows(machine.platform(), FailPoint::Unpinned)
        };
        let (own, of_folio) = (pages_of(object, frame), (head, 1 << page_order, ends_wanted));
        let removed = state.index.remove_clean(frames, &mut node, own.clone(), of_folio, is_unshared, &mut nodes);
        if removed > 0 {
            if let Some(times) = &mut times {
                times.add(frame, own, u64::from(removed) << page_order);
            }
            mapping::clear_object(machine, object.head(), frame);
            pages += u64::from(removed);
            if maps > 0 {
                on_drop(frame);
            } else {
                dropped.push((head, frame, removed));
            }
        }
    }
    drop(state);
    machine.count(object.head().pages_counter(), (pages << page_order).wrapping_neg());
    dropped.into_iter().for_each(|(head, frame, removed)| machine.put_refs(head, frame, removed));
    remove::free_nodes(machine, nodes);
    tried == MAX_BATCH
}
