//! Pages on their way to swap devices and back, and those that are there.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::{DIRTY, Entry, Index, SWAP, WANTED, WRITABLE, WRITEBACK, index_at, swap_word};
use crate::addr::Pfn;
use crate::frame::Frames;
use crate::platform::Platform;
use crate::swap::{Slots, SwapRun};

/// The bits of an entry that record changes of a page which stays in memory or goes to swap.
const CHANGED: u64 = DIRTY | WRITABLE;

impl Index {
    /// Marks pages as under writeback to a swap device. Each page has `step` frames, and `first` is
    /// the first frame of the first of `pages`. Marks only those of `pages` that are in memory in
    /// these frames and not under writeback yet. Returns the number of pages that were marked.
    pub(in crate::page_cache) fn begin_writeback<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        first: Pfn,
        step: u32,
    ) -> u32 {
        let mut under_writeback = 0;
        self.for_each_word(frames, pages, first, step, |word, plain| {
            let found = word.load(Relaxed);
            if found & !CHANGED == plain {
                word.store(found | WRITEBACK, Relaxed);
                under_writeback += 1;
            }
        });
        under_writeback
    }

    /// Ends writeback of `pages`. Each page has `step` frames, and `first` is the first frame of
    /// the first page. If `slots` is given and no CPU wants any of the pages, swap entries that
    /// name these slots in order replace the frames. Otherwise the pages stay in memory.
    ///
    /// Calls `ended` for each page, with the page's index in `pages` and whether the page is
    /// swapped out now; a page that was removed from the object during writeback is not. Returns
    /// whether a CPU wanted a page ([`Index::mark_wanted`]).
    pub(in crate::page_cache) fn end_writeback<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        (first, step): (Pfn, u32),
        slots: Option<SwapRun>,
        mut ended: impl FnMut(u32, bool),
    ) -> bool {
        let mut wanted = false;
        self.for_each_word(frames, pages.clone(), first, step, |word, plain| {
            wanted |= word.load(Relaxed) & !CHANGED == plain | WRITEBACK | WANTED;
        });
        let slots = slots.filter(|_| !wanted);
        let (mut at, mut swapped, mut dirty) = (0, 0, 0);
        self.for_each_word(frames, pages, first, step, |word, plain| {
            let found = word.load(Relaxed);
            let under_writeback = found & !(WANTED | CHANGED) == plain | WRITEBACK;
            if under_writeback {
                let slot = |run: SwapRun| swap_word(run.device, run.slots.first + at * step);
                word.store(slots.map_or(found & !(WRITEBACK | WANTED), slot), Relaxed);
            }
            let is_swapped = under_writeback && slots.is_some();
            swapped += u64::from(is_swapped);
            dirty += u64::from(is_swapped && found & DIRTY != 0);
            ended(at, is_swapped);
            at += 1;
        });
        self.swapped += swapped;
        self.counts.dirty -= dirty;
        wanted
    }

    /// Returns the swap slots of `pages`, if all the pages are on one device in consecutive slots,
    /// `step` slots for each page.
    pub(in crate::page_cache) fn swap_run<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        step: u32,
    ) -> Option<SwapRun> {
        let node = self.last_node(frames, pages.start)?;
        let Some(Entry::Swapped { device, slot: first }) = Entry::decode(node.get(index_at(pages.start, 0))) else {
            return None;
        };
        let count = (pages.end - pages.start) as u32;
        let at = |i: u32| node.get(index_at(pages.start + u64::from(i), 0));
        let is_contiguous = (1..count).all(|i| at(i) == swap_word(device, first + i * step));
        is_contiguous.then_some(SwapRun { device, slots: Slots { first, count: count * step } })
    }

    /// Replaces the swap entries of `pages` by frames, and, with `dirty`, marks the pages as dirty.
    /// Each page has `step` frames, and `first` is the first frame of the first page.
    pub(in crate::page_cache) fn swap_in<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        (first, step): (Pfn, u32),
        dirty: bool,
    ) {
        let (count, mark) = (pages.end - pages.start, if dirty { DIRTY } else { 0 });
        self.swapped -= count;
        self.counts.dirty += if dirty { count } else { 0 };
        self.for_each_word(frames, pages, first, step, |word, plain| {
            debug_assert!(word.load(Relaxed) & SWAP != 0);
            word.store(plain | mark, Relaxed);
        });
    }
}
