//! Entries of pages whose contents are copied to another folio.

use core::ops::Range;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{DIRTY, FRAME, Index, Node, READING, SWAP, WANTED, WRITABLE, WRITEBACK, WRITING, frame_word, pfn_of};
use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::Frames;
use crate::platform::Platform;

impl Index {
    /// Returns in `old` the first frame of each of `pages`, all of which have their entries in one
    /// node, or [`Pfn::NONE`] for a page that is not in memory. Returns the number of pages that
    /// are swapped out, and whether any is being read, or under writeback to a swap device, or
    /// differs from the storage that it came from or may come to differ.
    pub(in crate::page_cache) fn frames_of<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        old: &mut [Pfn],
    ) -> (u64, bool) {
        let mut old = old.iter_mut();
        let (mut swapped, mut is_busy) = (0, false);
        self.for_each_word(frames, pages, Pfn(0), 0, |word, _| {
            let found = word.load(Relaxed);
            swapped += u64::from(found & SWAP != 0);
            is_busy |= found & FRAME != 0 && found & (WRITEBACK | READING | DIRTY | WRITING | WRITABLE) != 0;
            old.next().into_iter().for_each(|old| *old = pfn_of(found).unwrap_or(Pfn::NONE));
        });
        (swapped, is_busy)
    }

    /// Returns the first of `pages`, all of which have their entries in one node, that is being
    /// read.
    pub(in crate::page_cache) fn first_reading<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
    ) -> Option<u64> {
        let node = self.last_node(frames, pages.start)?;
        let is_reading = |word: &AtomicU64| word.load(Relaxed) & (FRAME | READING) == FRAME | READING;
        node.entries(&pages).iter().position(is_reading).map(|nth| pages.start + nth as u64)
    }

    /// Marks those of `pages` that are in memory as under writeback, so that no other CPU takes a
    /// reference to them or maps them.
    pub(in crate::page_cache) fn begin_copy<P: Platform>(&self, frames: &Frames<'_, P>, pages: Range<u64>) {
        self.for_each_word(frames, pages, Pfn(0), 0, |word, _| {
            let found = word.load(Relaxed);
            word.store(if found & FRAME != 0 { found | WRITEBACK } else { found }, Relaxed);
        });
    }

    /// Ends what [`Index::begin_copy`] began: the frames of the folio `new`, `step` for each page,
    /// replace those in `old`, and pages that did not exist are inserted. Returns the number of
    /// these. If pages were removed or inserted meanwhile, the others keep their frames, and this
    /// returns `None`.
    pub(in crate::page_cache) fn end_copy<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        old: &[Pfn],
        (new, step): (Pfn, u32),
    ) -> Option<u32> {
        let word_of = |old: Pfn| old.some().map_or(0, |pfn| frame_word(pfn) | WRITEBACK);
        let (mut is_same, mut nth) = (true, old.iter());
        self.for_each_word(frames, pages.clone(), Pfn(0), 0, |word, _| {
            is_same &= nth.next().is_some_and(|old| word.load(Relaxed) & !WANTED == word_of(*old));
        });
        let (mut inserted, mut at, mut nth) = (0, frame_word(new), old.iter());
        self.for_each_word(frames, pages.clone(), Pfn(0), 0, |word, _| {
            let found = word.load(Relaxed);
            let copied = nth.next().is_some_and(|old| old.some().is_some() && found & !WANTED == word_of(*old));
            if is_same {
                word.store(at, Relaxed);
                inserted += u32::from(found == 0);
            } else if copied {
                word.store(found & !(WRITEBACK | WANTED), Relaxed);
            }
            at += u64::from(step) << FRAME_SHIFT;
        });
        if !is_same {
            return None;
        }
        self.pages += u64::from(inserted);
        let Node { at, .. } = self.last_node(frames, pages.start)?;
        let node = Node { frames, at };
        frames.frame(at).link(1).store(node.live_count() + inserted, Relaxed);
        Some(inserted)
    }
}
