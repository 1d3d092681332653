//! The gather: collects unmapped memory, flushes once, and frees it (Linux: `mmu_gather`).
//!
//! A gather needs no memory but a fixed list ([`Scratch`], INV-8): consecutive frames, of one folio
//! or of several, share one entry of the list, and unhooked page tables are chained through their
//! own descriptors. If there is memory for it, the frames of a full list go to a [`FrameSet`];
//! otherwise a full gather flushes, and collects again. After the flush the frames are freed in the
//! order of their numbers: wherever they were mapped, their descriptors are visited in the order of
//! memory, each prefetched in time, and neighbours are freed together.
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
use crate::frame::{Use, prefetch_neighbours};
use crate::machine::{FrameRange, FrameSet, Machine, Scratch};
use crate::memcg::MemcgId;
use crate::platform::{Event, Platform, trace};
use crate::swap::SwapRun;

use super::free::FreeBatch;
use super::{Flushed, Shootdown};

/// The maximum number of runs of swap slots that are kept until the page table's lock is released.
const SWAP_RUNS: usize = 16;
/// The maximum number of ranges that are flushed separately. Further ranges are merged with the
/// last.
const RANGES: usize = 4;
/// The maximum number of frames in ranges that are joined before their references are dropped.
const MAX_JOINED: u32 = 1 << 10;
/// The distance, in ranges, to the range whose LRU neighbours' descriptors are prefetched; its own
/// first descriptor is prefetched as long before.
const PREFETCH_AHEAD: usize = 8;
/// The maximum number of frames in the list that wait for one flush: 256 MiB.
const MAX_WAITING: u32 = 1 << 16;
/// The maximum number of frames that wait for one flush once the gather has a set: 4 GiB.
const MAX_WAITING_IN_SET: u32 = 1 << 20;
/// The number of ranges of frames for each bitmap that the set may have: where frames are spread
/// so far that there would be fewer, a flush takes less time than the bitmaps.
const RANGES_PER_BITMAP: u64 = 32;

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
    /// The collected frames that are not in `set`: the first `used` entries.
    scratch: Scratch<'m, P>,
    used: usize,
    /// The number of entries of `scratch`.
    capacity: usize,
    /// Frames that were moved from `scratch`, to make room.
    set: FrameSet<'m, P>,
    /// The number of collected frames.
    waiting: u32,
    /// The number of collected frames at which the gather is full.
    max_waiting: u32,
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
        let scratch = Scratch::lease(tlb.machine);
        Gather {
            tlb,
            whole: range,
            whole_shift: shift,
            capacity: scratch.len(),
            scratch,
            used: 0,
            set: FrameSet::new(tlb.machine),
            waiting: 0,
            max_waiting: MAX_WAITING,
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
        self.used == self.capacity || self.waiting >= self.max_waiting || self.slots.is_full()
    }

    /// Makes room in a gather that is full: moves frames to a set, whose memory is charged to
    /// `memcg`, if the operation's range has enough further pages, or the space enough `resident`
    /// ones; or else flushes. The caller holds no spin lock.
    #[cold]
    pub(crate) fn make_room(&mut self, memcg: MemcgId, resident: u64) {
        self.release_slots();
        let ranges = resident.saturating_add(self.used as u64).min(self.whole.len() >> self.whole_shift);
        if self.set.is_empty() && ranges >= 2 * self.capacity as u64 {
            self.set.allow(memcg, (ranges / RANGES_PER_BITMAP) as usize);
        }
        if self.used == self.capacity {
            self.move_to_set();
        }
        // A set that takes only few frames, because memory is short or the frames are spread far or
        // collected twice, is not worth its time.
        if self.is_full() || self.used > self.capacity / 2 {
            self.flush();
        }
    }

    /// Moves the frames of the list to the set, except those that the set does not take
    /// ([`FrameSet::insert`]).
    fn move_to_set(&mut self) {
        self.used = self.set.insert(&mut self.scratch[..self.used]);
        if !self.set.is_empty() {
            self.max_waiting = MAX_WAITING_IN_SET;
        }
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

    /// Returns room for at most `most` ranges of frames, and the number of frames with the last of
    /// which the gather is full. For a caller that takes many frames out of one page table: it
    /// writes some ranges, then calls [`Gather::add`] and [`Gather::note`].
    #[inline]
    pub(crate) fn room(&mut self, most: usize) -> (&mut [FrameRange], u32) {
        let most = most.min(self.capacity - self.used);
        (&mut self.scratch[self.used..][..most], self.max_waiting.saturating_sub(self.waiting))
    }

    /// Takes the first `ranges` ranges of [`Gather::room`], which have `frames` frames in all.
    #[inline]
    pub(crate) fn add(&mut self, ranges: usize, frames: u32) {
        self.used += ranges;
        self.waiting += frames;
        // A run that goes on in the next page table comes by itself. Others are joined when they
        // are freed.
        if ranges == 1
            && self.merge
            && let [.., last, new] = &mut self.scratch[..self.used]
            && new.pfn == last.pfn + last.frames
        {
            last.frames += frames;
            self.used -= 1;
        }
    }

    /// Takes frames that were removed from a page table.
    ///
    /// # Panics
    /// If the gather is full.
    #[inline]
    pub(crate) fn push(&mut self, removed: Removed) {
        self.note(removed.range, removed.shift);
        self.room(1).0[0] = FrameRange { pfn: removed.pfn.0, frames: removed.frames };
        self.add(1, removed.frames);
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
        // Not only those of the list: the set may have taken all of them.
        if self.waiting != 0 {
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
        if !self.set.is_empty() {
            self.move_to_set();
        }
        let used = self.scratch.sort(self.used);
        put_ranges(machine, &mut batch, &self.scratch[..used]);
        if !self.set.is_empty() {
            loop {
                batch.unlock();
                let used = self.set.take(&mut self.scratch);
                if used == 0 {
                    break;
                }
                put_ranges(machine, &mut batch, &self.scratch[..used]);
            }
        }
        batch.end(self.tlb);
        self.set.clear();
        self.used = 0;
        self.waiting = 0;
        self.max_waiting = MAX_WAITING;
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

/// Drops a reference and a mapping of each frame of `ranges`, which are mostly in ascending order.
fn put_ranges<'m, P: Platform>(machine: &Machine<'m, P>, batch: &mut FreeBatch<'_, 'm, P>, ranges: &[FrameRange]) {
    let mut left = ranges;
    while let [first, rest @ ..] = left {
        left = rest;
        let mut range = *first;
        // Neighbours are one range, up to what may be joined between two preemption points.
        while let [next, rest @ ..] = left
            && next.pfn == range.pfn + range.frames
            && range.frames < MAX_JOINED
        {
            range.frames += next.frames;
            left = rest;
        }
        if let Some(ahead) = left.get(2 * PREFETCH_AHEAD) {
            machine.frames().prefetch(Pfn(ahead.pfn));
        }
        if let Some(ahead) = left.get(PREFETCH_AHEAD) {
            prefetch_neighbours(machine.frames(), Pfn(ahead.pfn));
        }
        batch.put_range(Pfn(range.pfn), range.frames);
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
