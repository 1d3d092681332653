//! Removes pages from an object: truncation, hole punching, and the end of the object.

use core::ops::Range;

use arrayvec::ArrayVec;

use super::index::{Entry, FreedNodes, Index, NextHole, last_node_of};
use super::{Head, Hugetlb, MAX_SIZE, Object, ObjectError, ObjectPage, head, mapping};
use crate::addr::Pfn;
use crate::frame::Counts;
use crate::machine::Machine;
use crate::memcg::DirtyChange;
use crate::platform::Platform;
use crate::swap::{Slots, SwapRun};

/// The number of pages that are removed under one hold of the object's lock (INV-11).
const MAX_BATCH: usize = 32;
/// The number of last-level index nodes from which pages are removed under one hold of the object's
/// lock (INV-11). The search for a page that lies far from the one before reads up to all entries
/// of a node on each level.
const MAX_NODES: u32 = 3;

/// Pages that were removed from an object. Spaces may still map them: before the caller reports
/// that the operation is done, every space that maps the object must unmap them
/// ([`crate::space::unmap_removed`]; Linux: `unmap_mapping_range`). After that no space maps them
/// and no fault finds them (INV-12).
#[must_use = "spaces may still map these pages"]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemovedPages {
    /// The first page.
    pub first: u64,
    /// The page after the last.
    pub end: u64,
    /// True if private copies of the pages are to be unmapped too (Linux: `even_cows`), which is so
    /// after truncation but not after a hole was punched.
    pub even_cows: bool,
}

impl RemovedPages {
    /// Returns whether there is nothing to unmap.
    pub fn is_empty(&self) -> bool {
        self.first >= self.end
    }
}

impl<P: Platform> Object<'_, P> {
    /// Sets the size in bytes (Linux: `truncate`). Pages beyond it are removed, and the rest of the
    /// last page is zeroed; a larger object gets a hole at its end, or the pages that were
    /// preallocated there. The caller serialises calls for one object (Linux: the inode lock).
    ///
    /// Behind the end, in the last page, the storage may have anything if changes go there: the
    /// object writes zeros before it grows. If they stay in memory, and behind that page, the host
    /// grows the storage first, with zeros. It cuts the storage off after this call; and if the
    /// bytes that are cut off must not return when the file grows after a loss of power, it has the
    /// last page written in between ([`write_back`](crate::space::write_back)).
    ///
    /// A page that the host is writing is not removed before the write has ended, so that no write
    /// reaches the storage after the storage was cut off; the caller tries again then.
    ///
    /// # Errors
    /// Fails if the size is beyond [`MAX_SIZE`], or as [`Object::page`] does for the last page.
    /// Nothing was changed then. [`ObjectError::Pending`], for a page beyond `size`: the host is
    /// writing the page. The size was changed then, and some pages may have been removed.
    pub fn set_size(&self, size: u64) -> Result<RemovedPages, ObjectError> {
        if size > MAX_SIZE {
            return Err(ObjectError::TooLarge);
        }
        let first = size.div_ceil(1 << self.page_shift());
        let old = self.size();
        if size > old {
            zero_behind(self, old)?;
            self.lock().size = size;
            return Ok(RemovedPages { first, end: first, even_cows: true });
        }
        // A call that tries again has set the size before.
        if size < old {
            let tail_part = self.page_part(size..first << self.page_shift())?;
            self.lock().size = size;
            tail_part.zero();
            self.mark_dirty(tail_part.pages());
        }
        self.remove(first..u64::MAX)?;
        Hugetlb(self).unreserve(first..u64::MAX, None);
        Ok(RemovedPages { first, end: u64::MAX, even_cows: true })
    }

    /// Punches a hole: a range of bytes that will read as zeros (Linux: `fallocate` with
    /// `FALLOC_FL_PUNCH_HOLE`). Pages within the range are removed, and the parts of pages at its
    /// ends are zeroed.
    ///
    /// The pages of an object with a store are read again when they are needed. So the host ends
    /// no reads of them before its storage has the hole.
    ///
    /// # Errors
    /// As for [`Object::page`], for the pages at the ends. Nothing was changed then.
    /// [`ObjectError::Pending`], for a page within the range: the host is writing the page. Some
    /// pages may have been removed then, and the caller tries again.
    pub fn punch_hole(&self, bytes: Range<u64>) -> Result<RemovedPages, ObjectError> {
        let shift = self.page_shift();
        let end = bytes.end.min(MAX_SIZE);
        let start = bytes.start.min(end);
        let first = start.div_ceil(1 << shift);
        let pages = first..(end >> shift).max(first);
        let parts = [start..end.min(first << shift), (pages.end << shift).max(start).min(end)..end];
        let [head, tail] = parts.map(|bytes| self.page_part(bytes));
        let (head, tail) = (head?, tail?);
        for part in [head, tail] {
            part.zero();
            self.mark_dirty(part.pages());
        }
        self.remove(pages.clone())?;
        // Private copies of huge pages go too, and reservations of missing ones stay, as on Linux.
        Ok(RemovedPages { first: pages.start, end: pages.end, even_cows: Hugetlb(self).has_pages() })
    }

    /// Returns the first page from `page` on that exists, in memory or swapped out (Linux:
    /// `SEEK_DATA`).
    pub fn next_data(&self, page: u64) -> Option<u64> {
        self.next_page(page).map(|(page, _)| page)
    }

    /// Returns the first page from `page` on that does not exist (Linux: `SEEK_HOLE`). Takes the
    /// object's lock for one node of the index at a time.
    pub fn next_hole(&self, page: u64) -> u64 {
        next_hole_in(self, page..u64::MAX)
    }

    /// Returns whether a page exists, in memory or swapped out.
    pub fn has_page(&self, page: u64) -> bool {
        self.lock().index.find(self.machine.frames(), page).is_some()
    }

    /// Returns a range of bytes within one page, with a reference to the page if it exists. Reads
    /// the page from its swap device if necessary. No lock is held.
    ///
    /// # Errors
    /// As for [`Object::page`].
    fn page_part(&self, bytes: Range<u64>) -> Result<PagePart<'_, P>, ObjectError> {
        let shift = self.page_shift();
        let page = if bytes.is_empty() { None } else { self.page(bytes.start >> shift)? };
        let first = (bytes.start & ((1 << shift) - 1)) as usize;
        Ok(PagePart {
            page,
            number: bytes.start >> shift,
            first,
            count: (bytes.end.saturating_sub(bytes.start)) as usize,
        })
    }

    /// Removes a range of pages, a batch at a time, and frees each batch with the object unlocked.
    /// Spaces may still map the pages.
    ///
    /// # Errors
    /// [`ObjectError::Pending`]: the host is writing this page. The pages before it were removed.
    fn remove(&self, pages: Range<u64>) -> Result<(), ObjectError> {
        let mut from = pages.start;
        loop {
            let mut state = self.lock();
            let writing = RemovedBatch::is_writing_next(self.machine, &state.index, from..pages.end);
            let taken = RemovedBatch::take(self.machine, self.head(), &mut state.index, from..pages.end);
            drop(state);
            let Some(removed) = taken else {
                return writing.map_or(Ok(()), |page| Err(ObjectError::pending(self, page)));
            };
            from = removed.next;
            removed.free(self.machine, self.head());
        }
    }
}

/// Sets the size of an object with a store in which the host has moved bytes, from page `first` on
/// (Linux: `FALLOC_FL_COLLAPSE_RANGE`, `FALLOC_FL_INSERT_RANGE`). The object has no page from
/// `first` on, and these are on hold ([`Held`](super::Held)). Returns the
/// pages that [`unmap_removed`](crate::space::unmap_removed) takes from the spaces, whose private
/// copies go too, as on truncation.
pub fn move_from<P: Platform>(object: &Object<'_, P>, first: u64, size: u64) -> RemovedPages {
    object.lock().size = size.min(MAX_SIZE);
    RemovedPages { first, end: u64::MAX, even_cows: true }
}

/// Zeroes the part of the last page behind the end at `size`, before the object grows: programs may
/// have stored there, and the storage may have bytes there that another system left (Linux:
/// `pagecache_isize_extended`, `ext4_block_truncate_page`). Does nothing for an object without a
/// store, whose pages have zeros there.
///
/// # Errors
/// As for [`Object::page`].
fn zero_behind<P: Platform>(object: &Object<'_, P>, size: u64) -> Result<(), ObjectError> {
    let (head, shift) = (object.head(), object.page_shift());
    let behind = size..size.next_multiple_of(1 << shift);
    if head.writes_to_store() {
        let part = object.page_part(behind)?;
        part.zero();
        object.mark_dirty(part.pages());
    } else if head.store.is_some() && object.has_page(size >> shift) {
        object.page_part(behind)?.zero();
    }
    Ok(())
}

/// Removes those of `pages` that are as the storage has them, a batch at a time. Spaces may still
/// map them, but not writable: a page is clean only while no PTE allows writes to it, so that no
/// store is lost. Pages stay that are being read, and those of folios that the host uses. No lock
/// is held.
pub(crate) fn remove_clean<P: Platform>(object: &Object<'_, P>, pages: Range<u64>) -> RemovedPages {
    let (machine, head) = (object.machine, object.head());
    let frames = machine.frames();
    let goes = |index: &Index, page: u64, entry: Entry| {
        let Entry::Resident(pfn) = entry else { return false };
        let (frame, order) = (frames.head(pfn).1, head.page_order);
        let Counts { refs, maps } = frame.counts();
        let is_used = refs > maps + (1 << (frame.order() - order));
        !is_used && !index.is_writing(frames, page) && !index.has_dirty(frames, page..page + 1)
    };
    let mut from = pages.start;
    loop {
        let mut state = object.lock();
        let next = |index: &Index, from| index.next(frames, from).filter(|(page, _)| *page < pages.end);
        let Some((first, entry)) = next(&state.index, from) else { break };
        from = first + 1;
        let mut taken = None;
        if goes(&state.index, first, entry) {
            while from < first + MAX_BATCH as u64
                && next(&state.index, from).is_some_and(|(page, entry)| page == from && goes(&state.index, page, entry))
            {
                from += 1;
            }
            taken = RemovedBatch::take(machine, head, &mut state.index, first..from);
        }
        drop(state);
        if let Some(removed) = taken {
            from = removed.next;
            removed.free(machine, head);
        }
        machine.platform().resched();
    }
    RemovedPages { first: pages.start, end: pages.end, even_cows: false }
}

/// Removes and frees all pages of an object without references. The caller holds no lock.
pub(super) fn remove_all<P: Platform>(machine: &Machine<'_, P>, at: Pfn) {
    // SAFETY: the last reference was dropped, and the caller frees the head only after this call.
    let head = unsafe { head(machine, at) };
    let mut from = 0;
    loop {
        let taken = RemovedBatch::take(machine, head, &mut head.state.lock(machine.platform()).index, from..u64::MAX);
        let Some(removed) = taken else { return };
        from = removed.next;
        removed.free(machine, head);
    }
}

/// Frees index nodes that became empty and were removed. The caller holds no lock.
pub(super) fn free_nodes<P: Platform>(machine: &Machine<'_, P>, mut nodes: FreedNodes) {
    while let Some(node) = nodes.pop(machine.frames()) {
        free_node(machine, node);
    }
}

/// Frees an index node without entries, which belongs to the caller alone.
pub(super) fn free_node<P: Platform>(machine: &Machine<'_, P>, node: Pfn) {
    let frames = machine.frames();
    // SAFETY: the node belongs to the caller alone; without entries all its bits are zero (INV-10).
    unsafe { machine.memcgs().free(frames, node, 0, true) };
}

/// A range of bytes within a page, and a reference to the page if it exists.
struct PagePart<'m, P: Platform> {
    page: Option<ObjectPage<'m, P>>,
    /// The page's number.
    number: u64,
    /// The offset of the first byte in the page.
    first: usize,
    /// The number of bytes.
    count: usize,
}

impl<P: Platform> PagePart<'_, P> {
    /// Returns the page's number as a range, which is empty if the page does not exist.
    fn pages(&self) -> Range<u64> {
        self.number..self.number + u64::from(self.page.is_some())
    }

    /// Zeroes the bytes, if the page exists.
    fn zero(&self) {
        if let Some(page) = &self.page {
            page.zero(self.first, self.count);
        }
    }
}

/// Pages and nodes that were removed from an index, with the references that the object held.
struct RemovedBatch {
    /// The pages' entries, in ascending order.
    pages: ArrayVec<Entry, MAX_BATCH>,
    /// The index nodes that became empty.
    nodes: FreedNodes,
    /// The page at which to continue.
    next: u64,
}

impl RemovedBatch {
    /// Removes the first pages of a range, at most [`MAX_BATCH`], from at most [`MAX_NODES`] index
    /// nodes, and none from the first that the host is writing on. Returns `None` if it removes
    /// none. The caller holds the object's lock.
    fn take<P: Platform>(
        machine: &Machine<'_, P>,
        head: &Head,
        index: &mut Index,
        range: Range<u64>,
    ) -> Option<RemovedBatch> {
        let frames = machine.frames();
        let mut removed = RemovedBatch { pages: ArrayVec::new(), nodes: FreedNodes::new(), next: range.start };
        let mut tally = head.tally(machine, DirtyChange::Dropped);
        // When the next page is in another folio, removes the object from the previous folio's
        // descriptor, if the index has no page of that folio left (INV-16).
        let mut last = None;
        let clear_if_gone = |index: &Index, last: Option<(u64, Pfn)>| {
            last.into_iter().for_each(|(page, pfn)| mapping::clear_object_if_gone(machine, head, index, page, pfn));
        };
        let (mut node, mut nodes) = (None, 0);
        let mut has_time = |page| {
            nodes += u32::from(node.replace(last_node_of(page)) != Some(last_node_of(page)));
            nodes <= MAX_NODES
        };
        while !removed.pages.is_full()
            && let Some((page, _)) = index.next(frames, removed.next)
            && page < range.end
            && !index.is_writing(frames, page)
            && has_time(page)
            && let dirty = index.dirty()
            && let Some(entry) = index.remove(frames, page, &mut removed.nodes)
        {
            let now = entry.frame().map(|pfn| (page, pfn));
            let folio = |of: Option<(u64, Pfn)>| of.map(|(_, pfn)| frames.head(pfn).0);
            if folio(last) != folio(now) {
                clear_if_gone(index, last);
            }
            now.into_iter().for_each(|(_, pfn)| tally.add(pfn, dirty - index.dirty()));
            last = now;
            removed.pages.push(entry);
            removed.next = page + 1;
        }
        clear_if_gone(index, last);
        (!removed.pages.is_empty()).then_some(removed)
    }

    /// Returns the first page of a range if the host is writing it: [`RemovedBatch::take`] removes
    /// nothing then. The caller holds the object's lock.
    fn is_writing_next<P: Platform>(machine: &Machine<'_, P>, index: &Index, range: Range<u64>) -> Option<u64> {
        let (page, _) = index.next(machine.frames(), range.start).filter(|_| index.writing() > 0)?;
        (page < range.end && index.is_writing(machine.frames(), page)).then_some(page)
    }

    /// Drops the references to the pages and slots, uncharges them, and frees the nodes. The caller
    /// does not hold the object's lock.
    fn free<P: Platform>(self, machine: &Machine<'_, P>, object: &Head) {
        let order = object.page_order;
        let resident = self.pages.iter().filter_map(|page| page.frame()).count() as u64;
        let swapped = (self.pages.len() as u64 - resident) << order;
        machine.count(object.pages_counter(), (resident << order).wrapping_neg());
        machine.memcgs().count_swapped(object.memcg, -(swapped as i64));
        // The pages of a folio mostly follow each other in the batch: one call drops all their
        // references. One call also releases all slots of consecutive pages in consecutive slots.
        let head = |page: &Entry| page.frame().map(|pfn| machine.frames().head(pfn).0);
        let is_contiguous = |a: &Entry, b: &Entry| match (a, b) {
            (Entry::Swapped { device, slot: a }, Entry::Swapped { device: other, slot: b }) => {
                device == other && a + (1 << order) == *b
            }
            _ => head(a).is_some() && head(a) == head(b),
        };
        for contiguous in self.pages.chunk_by(is_contiguous) {
            if let Entry::Swapped { device, slot: first } = contiguous[0] {
                let slots = Slots { first, count: (contiguous.len() as u32) << order };
                // SAFETY: gives up the references that the index had to these slots.
                unsafe { machine.swaps().release(machine.frames(), SwapRun { device, slots }) };
            } else if let Some(head) = head(&contiguous[0]) {
                machine.put_folio(head, contiguous.len() as u32, 0);
            }
            machine.platform().resched();
        }
        free_nodes(machine, self.nodes);
    }
}

/// Returns the first of `pages` that does not exist, or the end of `pages` if all exist, as
/// [`Object::next_hole`] does.
pub(super) fn next_hole_in<P: Platform>(object: &Object<'_, P>, pages: Range<u64>) -> u64 {
    let Range { start: mut page, end } = pages;
    while page < end {
        let found = object.lock().index.next_hole(object.machine.frames(), page..end);
        match found {
            NextHole::At(hole) => return hole,
            NextHole::NotBelow(next) => page = next,
        }
        object.machine.platform().resched();
    }
    end
}
