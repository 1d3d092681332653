//! Collect what was unmapped, flush once, free it.
//!
//! The gather's memory is fixed ([`Scratch`]): frames that follow each other, of one folio or of many, take one place
//! together, and unhooked tables are chained through their own descriptors. When it is full it flushes and goes on.
//!
//! It also does what a kernel's reverse map does at unmap, and always after the flush: each folio's references and mappings
//! are dropped together, in one operation on one word. Linux delays that only for dirty file memory, whose writers must
//! not go unnoticed; done for all there is no second path, a folio's descriptor is touched once, and nobody ever sees a
//! folio unmapped that some CPU can still write to. And it is where a space's counts learn what an object's folio was: who
//! empties entries looks at no descriptor, and counts all of them as anonymous.
//!
//! An operation may find entries empty that another one's gather has emptied and not flushed yet. It may not say that it is
//! done before nobody can use them any more; so if another gather is open when one ends, it flushes all of its operation's
//! range, whatever it found there itself.

use arrayvec::ArrayVec;

use crate::addr::{Pfn, VirtRange};
use crate::arch::UserRange;
use crate::frame::{Frame, FrameKind, Use, flag, prefetch};
use crate::machine::{Scratch, Stretch};
use crate::memcg::Uncharger;
use crate::platform::{Event, Platform, trace};
use crate::stats::{Counter, SizeCounter};
use crate::swap::SwapRun;

use super::{Flushed, Shootdown};

/// Runs of swap entries that wait until the lock of their table is back.
const SWAP_RUNS: usize = 16;
/// Ranges that are kept apart for the flush; more are merged.
const RANGES: usize = 4;
/// Work between two points where the CPU may do something else. A folio that is unmapped is one
/// piece of it.
const BATCH: u32 = 384;
/// What it is besides to give a row of frames back.
const ROW: u32 = 8;
/// Folios ahead of the one being freed whose descriptors are fetched.
const AHEAD: usize = 12;
/// Frames that may wait for a flush: 256 MiB.
const MOST_WAITING: u32 = 1 << 16;

/// Frames that were taken out of a table. Each page among them still holds its reference and its mapping; both go when the
/// gather that this is pushed to has flushed. There is no other way to get rid of one.
#[must_use = "removed frames leak unless a gather takes them"]
#[derive(Debug)]
pub(crate) struct Removed {
    pub(crate) pfn: Pfn,
    pub(crate) frames: u32,
    pub(crate) range: VirtRange,
    pub(crate) shift: u32,
}

impl Removed {
    /// The frames are the folio of zeros', which nobody counts or frees: what is left to do is to invalidate this range.
    pub(crate) fn uncounted(self) -> VirtRange {
        self.range
    }

    /// Who has isolated the frames frees them, whatever they count: what is left to do is to invalidate this range.
    pub(crate) fn isolated(self) -> VirtRange {
        self.range
    }

    /// The frames stay mapped, in pieces, with the references and mappings that they have.
    pub(crate) fn unsplit(self) -> VirtRange {
        self.range
    }
}

/// A table that was unhooked, and what it had translated. Goes to a gather, like [`Removed`].
#[must_use = "an unhooked table leaks unless a gather takes it"]
#[derive(Debug)]
pub(crate) struct DeadTable {
    pub(crate) pfn: Pfn,
    pub(crate) range: VirtRange,
}

/// See the module's text. Flushes and frees what is left when dropped; never while a lock is held.
pub(crate) struct Gather<'t, 'm, P: Platform> {
    tlb: &'t Shootdown<'m, P>,
    /// What the operation is about, and the smallest pages that may be there.
    whole: (UserRange, u32),
    scratch: Scratch<'m, P>,
    used: usize,
    waiting: u32,
    /// Whether frames in a row share a place; not when runs are capped at one page.
    merge: bool,
    /// Slots of swap entries that were taken out, whose references are still to be given up.
    slots: ArrayVec<SwapRun, SWAP_RUNS>,
    tables: Pfn,
    /// Whether tables went from where CPUs may still find them, though none of them is freed.
    moved: bool,
    ranges: [VirtRange; RANGES],
    ranges_used: usize,
    stride_shift: u32,
}

impl<'t, 'm, P: Platform> Gather<'t, 'm, P> {
    /// Empty, for an operation on `range`, where pages are of `1 << shift` bytes or more. `merge`: see the field.
    pub(crate) fn new(tlb: &'t Shootdown<'m, P>, range: UserRange, shift: u32, merge: bool) -> Self {
        tlb.open_gather();
        Gather {
            tlb,
            whole: (range, shift),
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

    /// Whether there is no room for another [`Removed`], or for more slots.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.used == self.scratch.len() || self.waiting >= MOST_WAITING || self.slots.is_full()
    }

    /// Takes the slots of swap entries that were taken out. There must be room. They need no flush:
    /// the caller has them released ([`Gather::release_slots`]) when the lock of the table is back.
    pub(crate) fn push_slots(&mut self, slots: SwapRun) {
        self.slots.push(slots);
    }

    /// Gives up the references of all slots that were pushed. No spin lock may be held.
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
            // SAFETY: those of the entries that were there.
            unsafe { machine.swaps().release(machine.frames(), slots) };
        }
    }

    /// Take frames that were removed. There must be room.
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
        self.scratch[self.used] = Stretch { pfn: removed.pfn.0, frames: removed.frames };
        self.used += 1;
    }

    /// Take a table that was unhooked. There always is room.
    #[cold]
    pub(crate) fn push_table(&mut self, dead: DeadTable) {
        let frame = self.tlb.machine.frames().frame(dead.pfn);
        self.note(dead.range, u32::MAX);
        frame.set_data(self.tables.0 as u64);
        self.tables = dead.pfn;
    }

    /// Translations of `range` were changed; `shift` is the size of the pages there.
    #[inline]
    pub(crate) fn note(&mut self, range: VirtRange, shift: u32) {
        self.stride_shift = self.stride_shift.min(shift);
        if !self.ranges[..self.ranges_used].last_mut().is_some_and(|last| last.join(&range)) {
            self.note_apart(range);
        }
    }

    /// What translates `range` moved elsewhere, tables and all.
    pub(crate) fn note_tables(&mut self, range: VirtRange) {
        self.note(range, self.whole.1);
        self.moved = true;
    }

    #[cold]
    fn note_apart(&mut self, range: VirtRange) {
        if self.ranges_used < RANGES {
            self.ranges[self.ranges_used] = range;
            self.ranges_used += 1;
            return;
        }
        // No place left: what lies between is invalidated too, which is never wrong.
        let last = &mut self.ranges[RANGES - 1];
        *last = VirtRange { start: last.start.min(range.start), end: last.end.max(range.end) };
    }

    /// Flush, and free everything. No lock may be held, and no walk be under way.
    pub(crate) fn flush(&mut self) {
        self.release_slots();
        if self.ranges_used == 0 {
            return;
        }
        let stride = if self.stride_shift == u32::MAX { crate::addr::FRAME_SHIFT } else { self.stride_shift };
        let tables = core::mem::take(&mut self.moved) || self.tables != Pfn::NONE;
        // In ascending order and disjoint, as the platform is promised.
        let left = VirtRange::join_all(&mut self.ranges[..self.ranges_used]);
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

    /// Free frames that were removed by who has flushed them himself, under the lock of their table, which he has given back.
    pub(crate) fn put_flushed(tlb: &Shootdown<'m, P>, removed: &[Removed], _proof: &Flushed) {
        let mut release = Release::new(tlb.machine, Use::Folio);
        removed.iter().for_each(|removed| release.stretch(removed.pfn, removed.frames));
        release.end(tlb);
    }

    /// Drop the references and mappings of everything collected; what nobody refers to any more goes back, frames in a row
    /// together.
    fn free_frames(&mut self, _proof: &Flushed) {
        let machine = self.tlb.machine;
        let mut release = Release::new(machine, Use::Folio);
        for stretch in &self.scratch[..self.used] {
            release.stretch(Pfn(stretch.pfn), stretch.frames);
        }
        release.end(self.tlb);
        self.used = 0;
        self.waiting = 0;
    }

    fn free_tables(&mut self, _proof: &Flushed) {
        let machine = self.tlb.machine;
        machine.walkers().outwait(machine.platform());
        let mut release = Release::new(machine, Use::Kernel);
        while let Some(pfn) = self.tables.some() {
            let frame = machine.frames().frame(pfn);
            self.tables = Pfn(frame.data() as u32);
            // Walkers that came here are gone, but may be in line for the lock.
            frame.table_lock().drain(machine.platform());
            trace(machine.platform(), || Event::TableDead(pfn));
            release.free(pfn, frame, 1 << frame.order());
            release.rest();
        }
    }
}

impl<P: Platform> Drop for Gather<'_, '_, P> {
    fn drop(&mut self) {
        let (whole, shift) = self.whole;
        if !whole.is_empty() && self.tlb.others_are_open() {
            self.note(*whole, shift);
        }
        self.flush();
        self.tlb.close_gather();
    }
}

/// Free those folios in rows of frames that nobody has any more, as the caller finds out: how many pages they are. The others are shown
/// to `stays`, with no lock held.
pub(crate) fn free_unmapped<P: Platform>(
    machine: &crate::machine::Machine<'_, P>,
    rows: impl Iterator<Item = (Pfn, u32)>,
    is_gone: impl Fn(Pfn, &Frame) -> bool,
    stays: impl Fn(Pfn, &Frame),
) -> u64 {
    let mut release = Release::new(machine, Use::Folio);
    let mut freed = 0;
    for (first, count) in rows {
        for (head, frame, pages) in machine.frames().folios(first, count) {
            if frame.has(flag::SWAP_CACHED) {
                release.uncharger.unlock();
            }
            if is_gone(head, frame) {
                release.free(head, frame, pages);
                release.rest();
                freed += u64::from(pages);
            } else {
                release.uncharger.unlock();
                stays(head, frame);
            }
        }
    }
    machine.count(Counter::FoliosFreed, release.freed);
    freed
}

/// Gives frames back, those in a row together. Exists only behind the proof of a flush ([`Gather::free_frames`],
/// [`Gather::free_tables`]), or where what is freed was mapped by nobody ([`free_unmapped`]).
struct Release<'a, 'm, P: Platform> {
    machine: &'a crate::machine::Machine<'m, P>,
    uncharger: Uncharger<'a, 'm, P>,
    usage: Use,
    /// Frames in a row that are free but not given back yet.
    start: u32,
    len: u32,
    work: u32,
    /// Folios, or tables.
    freed: u64,
    /// Frames of memory objects that were unmapped.
    objects: u64,
}

impl<'a, 'm, P: Platform> Release<'a, 'm, P> {
    fn new(machine: &'a crate::machine::Machine<'m, P>, usage: Use) -> Self {
        let uncharger = Uncharger::new(machine.frames(), machine.memcgs());
        Release { machine, uncharger, usage, start: 0, len: 0, work: 0, freed: 0, objects: 0 }
    }

    /// All is done; count it.
    fn end(self, tlb: &Shootdown<'_, P>) {
        self.machine.count(Counter::FoliosFreed, self.freed);
        if self.objects != 0 {
            tlb.were_objects(self.objects);
        }
    }

    /// Frames in a row, which may be many folios, or parts of folios at the ends.
    #[inline]
    fn stretch(&mut self, pfn: Pfn, count: u32) {
        let frames = self.machine.frames();
        let (mut pfn, mut left) = (pfn, count);
        while left > 0 {
            let here = frames.stretch(pfn, left);
            let mut at = 0;
            while at < here.len() {
                let first = &here[at];
                let state = first.state();
                let order = state.order();
                // Most folios of a stretch are of one size, and their descriptors have not been looked at for long.
                // (Single pages' lie side by side, and hardware sees that.) No further than the stretch: what comes after
                // it may be what another CPU is working on.
                if order != 0 && at + (AHEAD << order) < left as usize {
                    prefetch(core::ptr::from_ref(first).wrapping_add(AHEAD << order));
                }
                let skip = pfn.add(at as u32).0 & ((1 << order) - 1);
                let pages = ((1 << order) - skip).min(left - at as u32);
                let (head, frame) =
                    if skip == 0 { (pfn.add(at as u32), first) } else { frames.head(pfn.add(at as u32)) };
                self.unmapped(head, frame, order, pages);
                at += pages as usize;
            }
            // A folio may be larger than what stands in one piece.
            let done = (at as u32).min(left);
            pfn = pfn.add(done);
            left -= done;
        }
    }

    /// So many pages of a folio were unmapped.
    #[inline]
    fn unmapped(&mut self, head: Pfn, frame: &Frame, order: u8, pages: u32) {
        let state = frame.state();
        debug_assert_eq!(state.kind(), FrameKind::Folio);
        if state.has(flag::ZEROS | flag::OBJECT) {
            if state.has(flag::ZEROS) {
                return;
            }
            self.objects += pages as u64;
        }
        // An object has the rest of a folio of its own, mapped or not; and by its slots somebody may find a part of what this was
        // all of, in between.
        let maps = if order != 0
            && !state.has(flag::PARTIAL | flag::OBJECT)
            && (pages < 1 << order || state.has(flag::SWAP_CACHED) || frame.counts().maps != pages)
        {
            self.unmapped_in_part(head, frame, order, pages);
            0
        } else {
            pages
        };
        if self.machine.frames().put(head, frame, pages, maps).refs == 0 {
            self.free(head, frame, 1 << order);
        }
        self.rest();
    }

    /// Part of a folio was unmapped, or all of it in one of several places: if fewer of its pages can be mapped now than it has,
    /// it is queued to be split. The references are kept meanwhile, so that it can't be freed by whoever unmaps the rest.
    #[cold]
    fn unmapped_in_part(&mut self, head: Pfn, frame: &Frame, order: u8, pages: u32) {
        self.work += 2;
        let left = self.machine.frames().put(head, frame, 0, pages);
        if left.maps != 0 && left.maps < 1 << order && self.uncharger.defer_split(head, frame) {
            self.machine.count_size(SizeCounter::SplitDeferred, order);
        }
    }

    /// Nobody refers to this folio, or walks this table, any more.
    ///
    /// Tables come in the opposite order of their addresses, so a row grows at either end. They must go back in rows: what
    /// goes back one by one is handed out in ever less of an order, and tables in no order take twice as long to unmap.
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
            self.give_back();
            self.start = pfn.0;
        }
        self.len += pages;
    }

    fn give_back(&mut self) {
        if self.len != 0 {
            // Every entry of a table without live entries is empty, which is all zero bits.
            let zero = self.usage == Use::Kernel;
            if !zero && self.machine.frames().zero_on_free() {
                self.uncharger.unlock();
            }
            // SAFETY: behind the proof of a flush. Every folio in the row lost its last reference just now and left its
            // memcg. Every table was unhooked, so no new walk finds it, and outwaited, so no walker stands in it.
            unsafe { self.machine.frames().free(Pfn(self.start), self.len, zero, self.usage) };
            self.len = 0;
            self.work += ROW;
        }
    }

    /// Every so often, hold no lock and let others run.
    #[inline]
    fn rest(&mut self) {
        self.work += 1;
        if self.work >= BATCH {
            self.work = 0;
            self.uncharger.unlock();
            self.machine.platform().resched();
        }
    }
}

impl<P: Platform> Drop for Release<'_, '_, P> {
    fn drop(&mut self) {
        self.give_back();
    }
}
