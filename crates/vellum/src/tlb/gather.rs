//! The gather: collects unmapped memory, flushes once, and frees it (Linux: `mmu_gather`).
//!
//! A gather's memory is fixed ([`Scratch`], INV-8): consecutive frames, of one folio or of several,
//! share one entry of the buffer, and unhooked page tables are chained through their own
//! descriptors. A full gather flushes, and collects again.
//!
//! The gather also drops each folio's refcount and mapcount, always after the flush and both
//! together, by one operation on one word (INV-2). Linux drops the mapcount after the flush only
//! for dirty file pages, whose writers must not be missed, and before it for all others. Here the
//! flush comes first for all pages: there is no second path, a folio's descriptor is touched once,
//! and no CPU sees a folio unmapped that another CPU can still write to. The gather also corrects
//! the space's statistics: the code that clears PTEs does not look at descriptors, and counts all
//! pages as anonymous ones.
//!
//! An operation may find PTEs empty that another operation's gather has cleared and not flushed
//! yet. Such an operation must not complete while a CPU can still use the old translations. So a
//! gather that ends while another gather of the space is open (begun and not yet ended) flushes the
//! whole range of its own operation, whatever PTEs it cleared itself (Linux:
//! `mm_tlb_flush_nested`).

use arrayvec::ArrayVec;

use crate::addr::{Pfn, VirtRange};
use crate::arch::UserRange;
use crate::frame::{Frame, FrameKind, Use, flag, prefetch};
use crate::machine::{FrameRange, Scratch};
use crate::memcg::Uncharger;
use crate::platform::{Event, Platform, trace};
use crate::stats::{Counter, SizeCounter};
use crate::swap::SwapRun;

use super::{Flushed, Shootdown};

/// The maximum number of runs of swap slots that are kept until the page table's lock is released.
const SWAP_RUNS: usize = 16;
/// The maximum number of ranges that are flushed separately. Further ranges are merged with the
/// last.
const RANGES: usize = 4;
/// The maximum cost of the work between two calls of `resched` (INV-11). Its unit is the cost of
/// unmapping one folio.
const BATCH_COST: u32 = 384;
/// The additional cost of freeing a range of frames, in the same unit as [`BATCH_COST`].
const FREE_COST: u32 = 8;
/// The distance, in folios, from the folio that is being freed to the folio whose descriptor is
/// prefetched.
const PREFETCH_AHEAD: usize = 12;
/// The maximum number of frames that wait for one flush: 256 MiB.
const MAX_WAITING: u32 = 1 << 16;

/// Frames that were taken out of a page table. Each page among them keeps its reference and its
/// mapping until the gather that takes this value has flushed. Only a gather or one of the methods
/// below may consume a value (INV-1).
#[must_use = "removed frames leak unless a gather takes them"]
#[derive(Debug)]
pub(crate) struct Removed {
    /// The first frame.
    pub(crate) pfn: Pfn,
    /// The number of frames.
    pub(crate) frames: u32,
    /// The addresses that mapped them.
    pub(crate) range: VirtRange,
    /// log2 of the number of bytes that one PTE mapped.
    pub(crate) shift: u32,
}

impl Removed {
    /// Consumes frames of the zero folio, which is never counted or freed. Returns the range, which
    /// the caller still has to invalidate.
    pub(crate) fn uncounted(self) -> VirtRange {
        self.range
    }

    /// Consumes frames of isolated folios (taken off the LRU lists for reclaim). The CPU that
    /// isolated them frees them whatever their counts are. Returns the range, which the caller
    /// still has to invalidate.
    pub(crate) fn isolated(self) -> VirtRange {
        self.range
    }

    /// Consumes frames that other PTEs map from now on, because a huge PTE was split or small PTEs
    /// were collapsed. The frames keep their references and mappings. Returns the range.
    pub(crate) fn unsplit(self) -> VirtRange {
        self.range
    }
}

/// A page table that was unhooked. Only a gather takes it, like [`Removed`] (INV-1).
#[must_use = "an unhooked table leaks unless a gather takes it"]
#[derive(Debug)]
pub(crate) struct DeadTable {
    /// The page table's frame.
    pub(crate) pfn: Pfn,
    /// The addresses that it translated.
    pub(crate) range: VirtRange,
}

/// Collects unmapped frames and page tables of one operation, flushes, and frees them. Flushes when
/// it is dropped; the caller then holds no lock.
pub(crate) struct Gather<'t, 'm, P: Platform> {
    tlb: &'t Shootdown<'m, P>,
    /// The range of the operation.
    whole: UserRange,
    /// log2 of the smallest page that may be mapped in `whole`.
    whole_shift: u32,
    /// The collected frames: the first `used` entries.
    scratch: Scratch<'m, P>,
    used: usize,
    /// The number of collected frames.
    waiting: u32,
    /// True if consecutive frames share an entry. False if runs are limited to one page.
    merge: bool,
    /// The swap slots of swap PTEs that were cleared. The gather drops the references that these
    /// PTEs had.
    slots: ArrayVec<SwapRun, SWAP_RUNS>,
    /// The first of the collected page tables; each one's descriptor names the next.
    tables: Pfn,
    /// True if page tables were moved to other addresses (`mremap`). They are not freed, but CPUs
    /// may have cached pointers to them for the old addresses.
    moved: bool,
    /// The ranges to invalidate: the first `ranges_used` entries.
    ranges: [VirtRange; RANGES],
    ranges_used: usize,
    /// log2 of the smallest page that was mapped in `ranges`.
    stride_shift: u32,
}

impl<'t, 'm, P: Platform> Gather<'t, 'm, P> {
    /// Returns an empty gather for an operation on `range`, where pages are of `1 << shift` bytes
    /// or more. With `merge`, consecutive frames share an entry. The caller calls this before it
    /// clears its first PTE.
    pub(crate) fn new(tlb: &'t Shootdown<'m, P>, range: UserRange, shift: u32, merge: bool) -> Self {
        tlb.open_gather();
        Gather {
            tlb,
            whole: range,
            whole_shift: shift,
            scratch: Scratch::lease(tlb.machine),
            used: 0,
            waiting: 0,
            merge,
            slots: ArrayVec::new(),
            tables: Pfn::NONE,
            moved: false,
            ranges: [VirtRange { start: 0, end: 0 }; RANGES],
            ranges_used: 0,
            stride_shift: u32::MAX,
        }
    }

    /// Returns true if there is no room for another [`Removed`] or for more slots. The caller then
    /// releases its locks and flushes.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used == self.scratch.len() || self.waiting >= MAX_WAITING || self.slots.is_full()
    }

    /// Takes the slots of swap PTEs that were cleared. They need no flush, because no TLB caches a
    /// swap PTE: the caller calls [`Gather::release_slots`] when it has released the lock of the
    /// page table.
    ///
    /// # Panics
    /// If the gather is full.
    pub(crate) fn push_slots(&mut self, slots: SwapRun) {
        self.slots.push(slots);
    }

    /// Drops the references of all collected slots. The caller holds no spin lock.
    #[inline]
    pub(crate) fn release_slots(&mut self) {
        if !self.slots.is_empty() {
            self.release_some_slots();
        }
    }

    #[cold]
    fn release_some_slots(&mut self) {
        let machine = self.tlb.machine;
        for slots in self.slots.drain(..) {
            // SAFETY: the gather owns these references, which belonged to the PTEs that were
            // cleared.
            unsafe { machine.swaps().release(machine.frames(), slots) };
        }
    }

    /// Takes frames that were removed from a page table.
    ///
    /// # Panics
    /// If the gather is full.
    #[inline]
    pub(crate) fn push(&mut self, removed: Removed) {
        self.note(removed.range, removed.shift);
        self.waiting += removed.frames;
        if let Some(last) = self.scratch[..self.used].last_mut()
            && self.merge
            && last.pfn + last.frames == removed.pfn.0
        {
            last.frames += removed.frames;
            return;
        }
        self.scratch[self.used] = FrameRange { pfn: removed.pfn.0, frames: removed.frames };
        self.used += 1;
    }

    /// Takes a page table that was unhooked. There always is room.
    #[cold]
    pub(crate) fn push_table(&mut self, dead: DeadTable) {
        let frame = self.tlb.machine.frames().frame(dead.pfn);
        self.note(dead.range, u32::MAX);
        frame.set_data(self.tables.0 as u64);
        self.tables = dead.pfn;
    }

    /// Notes that translations of `range` were changed and must be flushed; `shift` is log2 of the
    /// smallest page there.
    #[inline]
    pub(crate) fn note(&mut self, range: VirtRange, shift: u32) {
        self.stride_shift = self.stride_shift.min(shift);
        if !self.ranges[..self.ranges_used].last_mut().is_some_and(|last| last.merge(&range)) {
            self.add_range(range);
        }
    }

    /// Notes that the PTEs of `range` were moved elsewhere, page tables included: paging-structure
    /// caches must be flushed too.
    pub(crate) fn note_tables(&mut self, range: VirtRange) {
        self.note(range, self.whole_shift);
        self.moved = true;
    }

    /// Adds a range that does not touch the last one.
    #[cold]
    fn add_range(&mut self, range: VirtRange) {
        if self.ranges_used < RANGES {
            self.ranges[self.ranges_used] = range;
            self.ranges_used += 1;
            return;
        }
        // No entry is left. The addresses between the last range and this one are invalidated too,
        // which is never wrong.
        let last = &mut self.ranges[RANGES - 1];
        *last = VirtRange { start: last.start.min(range.start), end: last.end.max(range.end) };
    }

    /// Flushes, and frees everything collected. The caller holds no lock, and is in no walk. Waits
    /// for the other CPUs' invalidation and, if page tables were collected, for walkers.
    pub(crate) fn flush(&mut self) {
        self.release_slots();
        if self.ranges_used == 0 {
            return;
        }
        let stride = if self.stride_shift == u32::MAX { crate::addr::FRAME_SHIFT } else { self.stride_shift };
        let tables = core::mem::take(&mut self.moved) || self.tables != Pfn::NONE;
        // The platform requires ranges that are ascending and disjoint.
        let left = VirtRange::merge_all(&mut self.ranges[..self.ranges_used]);
        let flushed = self.tlb.invalidate(&self.ranges[..left], stride, tables);
        self.ranges_used = 0;
        self.stride_shift = u32::MAX;
        if self.used != 0 {
            self.free_frames(&flushed);
        }
        if self.tables != Pfn::NONE {
            self.free_tables(&flushed);
        }
    }

    /// Frees removed frames without a gather, for a caller that has invalidated their range under
    /// the lock of their page table, and has released that lock since.
    pub(crate) fn put_flushed(tlb: &Shootdown<'m, P>, removed: &[Removed], _proof: &Flushed) {
        let mut batch = FreeBatch::new(tlb.machine, Use::Folio);
        removed.iter().for_each(|removed| batch.put_range(removed.pfn, removed.frames));
        batch.end(tlb);
    }

    /// Drops the references and mappings of the collected frames, and frees the folios that have no
    /// reference left, consecutive frames together.
    fn free_frames(&mut self, _proof: &Flushed) {
        let machine = self.tlb.machine;
        let mut batch = FreeBatch::new(machine, Use::Folio);
        for range in &self.scratch[..self.used] {
            batch.put_range(Pfn(range.pfn), range.frames);
        }
        batch.end(self.tlb);
        self.used = 0;
        self.waiting = 0;
    }

    /// Frees the collected page tables, after waiting until no walker can be in one.
    fn free_tables(&mut self, _proof: &Flushed) {
        let machine = self.tlb.machine;
        machine.walkers().wait_for_walkers(machine.platform());
        let mut batch = FreeBatch::new(machine, Use::Kernel);
        while let Some(pfn) = self.tables.some() {
            let frame = machine.frames().frame(pfn);
            self.tables = Pfn(frame.data() as u32);
            // Walkers that reached this page table have ended, but may still be queued for its
            // lock.
            frame.table_lock().drain(machine.platform());
            trace(machine.platform(), || Event::TableFreed(pfn));
            batch.free(pfn, frame, 1 << frame.order());
            batch.maybe_resched();
        }
    }
}

impl<P: Platform> Drop for Gather<'_, '_, P> {
    fn drop(&mut self) {
        if !self.whole.is_empty() && self.tlb.has_other_gathers() {
            self.note(*self.whole, self.whole_shift);
        }
        self.flush();
        self.tlb.close_gather();
    }
}

/// Calls `is_gone` for each folio in `ranges` (first frame, number of frames). `is_gone` drops the
/// caller's references and returns true if the folio has no other reference and no CPU can find it;
/// this function then frees the folio, without a flush, because no PTE maps it. Otherwise it passes
/// the folio to `stays`. When this function calls `is_gone`, it may still hold the lock of the
/// lruvec from which it uncharged the folio before; for a folio in the swap cache it has released
/// it. It calls `stays` with no lock held. Returns the number of pages freed.
pub(crate) fn free_unmapped<P: Platform>(
    machine: &crate::machine::Machine<'_, P>,
    ranges: impl Iterator<Item = (Pfn, u32)>,
    is_gone: impl Fn(Pfn, &Frame) -> bool,
    stays: impl Fn(Pfn, &Frame),
) -> u64 {
    let mut batch = FreeBatch::new(machine, Use::Folio);
    let mut freed = 0;
    for (first, count) in ranges {
        for (head, frame, pages) in machine.frames().folios(first, count) {
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

/// Uncharges and frees frames, consecutive ones together. Used only with the proof of a flush
/// ([`Gather::free_frames`], [`Gather::free_tables`], [`Gather::put_flushed`]), or for frames that
/// no PTE maps ([`free_unmapped`]): INV-1.
struct FreeBatch<'a, 'm, P: Platform> {
    machine: &'a crate::machine::Machine<'m, P>,
    uncharger: Uncharger<'a, 'm, P>,
    usage: Use,
    /// The first frame of the range that is uncharged already and that [`FreeBatch::free_range`]
    /// frees.
    start: u32,
    /// The number of these frames.
    len: u32,
    /// The cost of the work since the last call of `resched`.
    work: u32,
    /// The number of folios or page tables freed.
    freed: u64,
    /// The number of frames of page-cache objects that were unmapped.
    shmem: u64,
}

impl<'a, 'm, P: Platform> FreeBatch<'a, 'm, P> {
    fn new(machine: &'a crate::machine::Machine<'m, P>, usage: Use) -> Self {
        let uncharger = Uncharger::new(machine.frames(), machine.memcgs());
        FreeBatch { machine, uncharger, usage, start: 0, len: 0, work: 0, freed: 0, shmem: 0 }
    }

    /// Adds the batch to the counters of the machine and the space.
    fn end(self, tlb: &Shootdown<'_, P>) {
        self.machine.count(Counter::FoliosFreed, self.freed);
        if self.shmem != 0 {
            tlb.recount_as_shmem(self.shmem);
        }
    }

    /// Drops a reference and a mapping of each of `count` frames from `pfn` on, which may be many
    /// folios and parts of folios at both ends.
    #[inline]
    fn put_range(&mut self, pfn: Pfn, count: u32) {
        let frames = self.machine.frames();
        let (mut pfn, mut left) = (pfn, count);
        while left > 0 {
            let here = frames.descriptors(pfn, left);
            let mut at = 0;
            while at < here.len() {
                let first = &here[at];
                let state = first.state();
                let order = state.order();
                // Most folios of a range are of one size, and their descriptors are not in the
                // cache. (Those of single pages are adjacent, and the hardware prefetches them.)
                // Descriptors beyond the range are not prefetched, because another CPU may be
                // writing to them.
                if order != 0 && at + (PREFETCH_AHEAD << order) < left as usize {
                    prefetch(core::ptr::from_ref(first).wrapping_add(PREFETCH_AHEAD << order));
                }
                let skip = pfn.add(at as u32).0 & ((1 << order) - 1);
                let pages = ((1 << order) - skip).min(left - at as u32);
                let (head, frame) =
                    if skip == 0 { (pfn.add(at as u32), first) } else { frames.head(pfn.add(at as u32)) };
                self.put_pages(head, frame, order, pages);
                at += pages as usize;
            }
            // A folio may extend beyond the descriptors that are contiguous.
            let done = (at as u32).min(left);
            pfn = pfn.add(done);
            left -= done;
        }
    }

    /// Drops the references and mappings of `pages` pages of a folio, and frees the folio if none
    /// are left.
    #[inline]
    fn put_pages(&mut self, head: Pfn, frame: &Frame, order: u8, pages: u32) {
        let state = frame.state();
        debug_assert_eq!(state.kind(), FrameKind::Folio);
        if state.has(flag::ZERO_FOLIO | flag::OBJECT) {
            if state.has(flag::ZERO_FOLIO) {
                return;
            }
            self.shmem += pages as u64;
        }
        // `put_mappings` queues a partially mapped folio to be split. It is not called for a folio
        // that is queued already, or for one of a page-cache object, because the object needs all
        // pages, mapped or not. It is called for a folio in the swap cache even if all its pages
        // are unmapped here, because a fault may find and map some of its pages until the last
        // reference is dropped.
        let maps = if order != 0
            && !state.has(flag::PARTIALLY_MAPPED | flag::OBJECT)
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
    ///
    /// A range grows at either end, because page tables mostly come in descending order of their
    /// frames: the gather's list has them in reverse order. Page tables must be freed in ranges.
    /// Frames that are freed one by one are allocated again in an ever more random order, and an
    /// unmap that frees page tables in random order takes twice as long.
    #[inline(always)]
    fn free(&mut self, pfn: Pfn, frame: &Frame, pages: u32) {
        if frame.has(flag::SWAP_CACHED) {
            self.uncharger.unlock();
            self.machine.uncache_in_parts(pfn, frame, || true);
        }
        self.uncharger.uncharge(pfn, frame, pages);
        self.freed += 1;
        if pfn.0 + pages == self.start {
            self.start = pfn.0;
        } else if self.start + self.len != pfn.0 {
            self.free_range();
            self.start = pfn.0;
        }
        self.len += pages;
    }

    /// Frees the range of frames that was collected.
    fn free_range(&mut self) {
        if self.len != 0 {
            // Blocks of [`Use::Kernel`] are page tables here. An unhooked page table has only empty
            // PTEs, which are all zero bits, so it is freed as zeroed memory (INV-10).
            let zero = self.usage == Use::Kernel;
            if !zero && self.machine.frames().zero_on_free() {
                self.uncharger.unlock();
            }
            // SAFETY: there is the proof of a flush, or no PTE mapped the frames. Every folio in
            // the range has no reference left and is uncharged. Every page table was unhooked, so
            // no new walk finds it, and walkers were waited for, so none is in it.
            unsafe { self.machine.frames().free(Pfn(self.start), self.len, zero, self.usage) };
            self.len = 0;
            self.work += FREE_COST;
        }
    }

    /// Counts a unit of work, and after [`BATCH_COST`] of them releases the lruvec's lock and calls
    /// `resched` (INV-11).
    #[inline]
    fn maybe_resched(&mut self) {
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
        self.free_range();
    }
}
