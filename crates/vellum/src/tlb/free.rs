//! Frees unmapped frames in batches: drops their references and mappings, uncharges the folios
//! that have no reference left, and gives frames back in the largest possible ranges.

use arrayvec::ArrayVec;

use crate::addr::Pfn;
use crate::frame::{Counts, Frame, FrameKind, Use, flag};
use crate::memcg::Uncharger;
use crate::platform::Platform;
use crate::stats::{Counter, SizeCounter, SpaceCounter};

use super::Shootdown;

/// The maximum cost of the work between two calls of `resched` (INV-11). Its unit is the cost of
/// unmapping one folio.
const BATCH_COST: u32 = 384;
/// The additional cost of freeing a range of frames, in the same unit as [`BATCH_COST`].
const FREE_COST: u32 = 8;
/// The number of ranges of frames that are freed together.
const RANGES_PER_FREE: usize = 32;
/// Calls `is_gone` for each folio of `ranges`, with its size in frames. `is_gone` drops the
/// caller's references and returns true if the folio has no other reference and no CPU can find it;
/// this function then frees the folio, without a flush, because no PTE maps it. Otherwise it passes
/// the folio to `stays`. When this function calls `is_gone`, it may still hold the lock of the
/// lruvec from which it uncharged the folio before; for a folio in the swap cache it has released
/// it. It calls `stays` with no lock held. Returns the number of pages freed.
pub(crate) fn free_unmapped<'f, P: Platform>(
    machine: &crate::machine::Machine<'_, P>,
    ranges: impl Iterator<Item: IntoIterator<Item = (Pfn, &'f Frame, u32)>>,
    is_gone: impl Fn(Pfn, &Frame) -> bool,
    stays: impl Fn(Pfn, &Frame),
) -> u64 {
    let mut batch = FreeBatch::new(machine, Use::Folio);
    let mut freed = 0;
    for folios in ranges {
        for (head, frame, pages) in folios {
            if frame.has(flag::SWAP_CACHED) {
                batch.uncharger.unlock();
            }
            if is_gone(head, frame) {
                batch.free(head, frame, pages);
                batch.maybe_resched();
                freed += u64::from(pages);
            } else {
                batch.uncharger.unlock();
                stays(head, frame);
            }
        }
    }
    machine.count(Counter::FoliosFreed, batch.freed);
    freed
}

/// Uncharges and frees frames, consecutive ones together. Used only with the proof of a flush, by a
/// [`Gather`](super::Gather), or for frames that no PTE maps ([`free_unmapped`]): INV-1.
pub(super) struct FreeBatch<'a, 'm, P: Platform> {
    machine: &'a crate::machine::Machine<'m, P>,
    uncharger: Uncharger<'a, 'm, P>,
    usage: Use,
    /// The first frame of the range that grows, whose frames are uncharged already.
    start: u32,
    /// The number of these frames.
    len: u32,
    /// The ranges that are complete, and are freed together.
    complete: ArrayVec<(Pfn, u32), RANGES_PER_FREE>,
    /// True once `complete` was full, so that the batch has more frames than a CPU's cache should
    /// keep.
    many: bool,
    /// The cost of the work since the last call of `resched`.
    work: u32,
    /// The number of folios or page tables freed.
    freed: u64,
    /// The number of unmapped frames of page-cache objects without a store.
    shmem: u64,
    /// The number of unmapped frames of page-cache objects with a store.
    file: u64,
    /// The number of unmapped frames of huge pages from the pool.
    hugetlb: u64,
}

impl<'a, 'm, P: Platform> FreeBatch<'a, 'm, P> {
    pub(super) fn new(machine: &'a crate::machine::Machine<'m, P>, usage: Use) -> Self {
        let uncharger = Uncharger::new(machine.frames(), machine.memcgs());
        let complete = ArrayVec::new();
        FreeBatch {
            machine,
            uncharger,
            usage,
            start: 0,
            len: 0,
            complete,
            many: false,
            work: 0,
            freed: 0,
            shmem: 0,
            file: 0,
            hugetlb: 0,
        }
    }

    /// Releases the lock of the lruvec of the last folio, for a caller that does something else
    /// before it passes the next frames.
    pub(super) fn unlock(&mut self) {
        self.uncharger.unlock();
    }

    /// Adds the batch to the counters of the machine and the space.
    pub(super) fn end(self, tlb: &Shootdown<'_, P>) {
        self.machine.count(Counter::FoliosFreed, self.freed);
        for (counter, frames) in
            [(SpaceCounter::Shmem, self.shmem), (SpaceCounter::File, self.file), (SpaceCounter::Hugetlb, self.hugetlb)]
        {
            if frames != 0 {
                tlb.recount(counter, frames);
            }
        }
    }

    /// Drops a reference and a mapping of each of `count` frames from `pfn` on, which may be many
    /// folios and parts of folios at both ends.
    #[inline]
    pub(super) fn put_range(&mut self, pfn: Pfn, count: u32) {
        let machine = self.machine;
        let mut folios = machine.frames().folios(pfn, count);
        loop {
            folios.while_alike(u32::MAX, |state, head, frame, pages| {
                if !state.is_private() {
                    return false;
                }
                if !self.put_last(head, frame, pages) {
                    self.put_pages(head, frame, pages);
                }
                true
            });
            // A loop of its own, as no store of a count replaces the atomic operation here.
            folios.while_alike(u32::MAX, |state, head, frame, pages| {
                if state.is_private() {
                    return false;
                }
                self.put_pages(head, frame, pages);
                true
            });
            let Some((head, frame, pages)) = folios.next() else { break };
            self.put_pages(head, frame, pages);
        }
    }

    /// Drops one reference and one mapping of each page of a private folio
    /// ([`FrameState::is_private`](crate::frame::FrameState::is_private)), and frees the folio, if
    /// these are the last ones and the lock of the folio's lruvec is held. Returns whether it did.
    ///
    /// Without a PTE and without a reference, a CPU finds such a folio only by its LRU list or the
    /// deferred-split queue, and takes a reference there under the lruvec's lock. So while this CPU
    /// holds that lock and the last references, no other CPU changes the counts: a store replaces
    /// the atomic operation, which takes as long as all else that is done for a page.
    #[inline(always)]
    fn put_last(&mut self, head: Pfn, frame: &Frame, pages: u32) -> bool {
        let is_last = self.uncharger.holds(frame) && frame.counts() == Counts { refs: pages, maps: pages };
        if is_last {
            self.machine.frames().set_counts(head, frame, Counts::NONE);
            self.uncharger.uncharge_held(head, frame, pages);
            self.grow(head, pages);
            self.maybe_resched();
        }
        is_last
    }

    /// Drops the references and mappings of `pages` pages of a folio, and frees the folio if none
    /// are left.
    #[inline(never)]
    fn put_pages(&mut self, head: Pfn, frame: &Frame, pages: u32) {
        let state = frame.state();
        debug_assert_eq!(state.kind(), FrameKind::Folio);
        let order = state.order();
        if state.has(flag::ZERO_FOLIO | flag::OBJECT | flag::HUGETLB) {
            if state.has(flag::ZERO_FOLIO) {
                return self.maybe_resched();
            }
            let unmapped = match state.has(flag::FILE) {
                _ if state.has(flag::HUGETLB) => &mut self.hugetlb,
                true => &mut self.file,
                false => &mut self.shmem,
            };
            *unmapped += u64::from(pages);
        }
        // `put_mappings` queues a partially mapped folio to be split. It is not called for a folio
        // that is queued already, or for one of a page-cache object, because the object needs all
        // pages, mapped or not. It is called for a folio in the swap cache even if all its pages
        // are unmapped here, because a fault may find and map some of its pages until the last
        // reference is dropped.
        let maps = if order != 0
            && !state.has(flag::PARTIALLY_MAPPED | flag::OBJECT | flag::HUGETLB)
            && (pages < 1 << order || state.has(flag::SWAP_CACHED) || frame.counts().maps != pages)
        {
            self.put_mappings(head, frame, order, pages);
            0
        } else {
            pages
        };
        if self.machine.frames().put(head, frame, pages, maps).refs == 0 {
            self.free(head, frame, 1 << order);
        }
        self.maybe_resched();
    }

    /// Drops mappings of a folio: those of a part of it, or those that one of several page tables
    /// had of all of it. If the folio is partially mapped from now on, queues it to be split. The
    /// references are dropped only after this, so that a CPU that unmaps the rest of the folio
    /// can't free it meanwhile.
    #[cold]
    fn put_mappings(&mut self, head: Pfn, frame: &Frame, order: u8, pages: u32) {
        self.work += 2;
        let left = self.machine.frames().put(head, frame, 0, pages);
        if left.maps != 0 && left.maps < 1 << order && self.uncharger.defer_split(head, frame) {
            self.machine.count_size(SizeCounter::SplitDeferred, order);
        }
    }

    /// Uncharges a folio without references, or a page table without walkers, and adds its frames
    /// to the range that is freed together.
    #[inline(always)]
    pub(super) fn free(&mut self, pfn: Pfn, frame: &Frame, pages: u32) {
        if frame.has(flag::SWAP_CACHED | flag::HUGETLB) {
            self.uncharger.unlock();
            if frame.has(flag::HUGETLB) {
                self.freed += 1;
                return self.machine.huge_pool().give_back(pfn);
            }
            self.machine.uncache_in_parts(pfn, frame, || true);
        }
        self.uncharger.uncharge(pfn, frame, pages);
        self.grow(pfn, pages);
    }

    /// Adds frames that are uncharged to the range that is freed together.
    ///
    /// A range grows at either end, because page tables mostly come in descending order of their
    /// frames: the gather's list has them in reverse order. Page tables must be freed in ranges.
    /// Frames that are freed one by one are allocated again in an ever more random order, and an
    /// unmap that frees page tables in random order takes twice as long.
    #[inline(always)]
    fn grow(&mut self, pfn: Pfn, pages: u32) {
        self.freed += 1;
        if pfn.0 + pages == self.start {
            self.start = pfn.0;
        } else if self.start + self.len != pfn.0 {
            self.complete_range();
            self.start = pfn.0;
        }
        self.len += pages;
    }

    /// Adds the range that grew to the complete ones, and begins an empty one. Frees the complete
    /// ranges if there are enough of them.
    #[inline(never)]
    fn complete_range(&mut self) {
        if self.len != 0 {
            self.complete.push((Pfn(self.start), self.len));
            self.len = 0;
            if self.complete.is_full() {
                self.many = true;
                self.free_ranges();
            }
        }
    }

    /// Frees the complete ranges.
    fn free_ranges(&mut self) {
        // Blocks of [`Use::Kernel`] are page tables here. An unhooked page table has only empty
        // PTEs, which are all zero bits, so it is freed as zeroed memory (INV-10).
        let (zero, frames) = (self.usage == Use::Kernel, self.machine.frames());
        if !zero && frames.zero_on_free() {
            self.uncharger.unlock();
        }
        self.work += FREE_COST * self.complete.len() as u32;
        // SAFETY: there is the proof of a flush, or no PTE mapped the frames. Every folio in the
        // ranges has no reference left and is uncharged. Every page table was unhooked, so no new
        // walk finds it, and walkers were waited for, so none is in it.
        unsafe {
            if self.many {
                frames.free_to_buddy(&self.complete, zero);
            } else {
                self.complete.iter().for_each(|&(pfn, count)| frames.free(pfn, count, zero, self.usage));
            }
        }
        self.complete.clear();
    }

    /// Counts a unit of work, and after [`BATCH_COST`] of them releases the lruvec's lock and calls
    /// `resched` (INV-11).
    #[inline]
    pub(super) fn maybe_resched(&mut self) {
        self.work += 1;
        if self.work >= BATCH_COST {
            self.work = 0;
            self.uncharger.unlock();
            self.machine.platform().resched();
        }
    }
}

impl<P: Platform> Drop for FreeBatch<'_, '_, P> {
    fn drop(&mut self) {
        self.complete_range();
        self.free_ranges();
    }
}
