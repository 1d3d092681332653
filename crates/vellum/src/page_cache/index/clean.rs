//! Pages that the storage has: those that were read, those that a CPU waits for, and those that are
//! dropped.

use core::ops::Range;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use super::{
    DIRTY, FRAME, FreedNodes, Index, Node, READING, WANTED, WRITEBACK, are_in_a_row, for_each_entry, frame_word,
    index_at, last_node_of,
};
use crate::addr::Pfn;
use crate::frame::Frames;
use crate::platform::Platform;

/// A node of the last level, which stays in the index as long as the object's lock is held and no
/// page is removed but through this.
pub(in crate::page_cache) struct CachedNode<'f, 'p, P: Platform> {
    number: u64,
    node: Node<'f, 'p, P>,
    /// The number of entries that are not 0.
    live: &'f AtomicU32,
}

impl Index {
    /// Ends the read of `pages`, all of which have their entries in one node. Each page has `step`
    /// frames, and `first` is the first frame of the first page. Those of the pages that are still
    /// being read into these frames are in memory from now on, and, with `dirty`, differ from the
    /// storage. Returns the number of pages that are dirty now.
    pub(in crate::page_cache) fn end_read<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        (first, step): (Pfn, u32),
        dirty: bool,
    ) -> u64 {
        let (mark, mut dirtied) = (if dirty { DIRTY } else { 0 }, 0);
        self.for_each_word(frames, pages, first, step, |word, plain| {
            let found = word.load(Relaxed);
            if found & !WANTED == plain | READING {
                word.store(found & !READING | mark, Relaxed);
                dirtied += u64::from(dirty);
            }
        });
        self.counts.dirty += dirtied;
        dirtied
    }

    /// Removes those of `pages`, all of which have their entries in one node, that are in memory in
    /// these frames. Each page has `step` frames, and `first` is the first frame of the first page.
    /// `may_remove` gets their number, and returns whether they may be removed. If a CPU wants one
    /// of them, none is removed, and, with `ends_wanted`, none counts as wanted any more. Adds
    /// nodes that became empty to `freed`. `cache` is the node of the last call under this hold of
    /// the object's lock. Returns the number of pages that were removed.
    pub(in crate::page_cache) fn remove_clean<'f, 'p, P: Platform>(
        &mut self,
        frames: &'f Frames<'p, P>,
        cache: &mut Option<CachedNode<'f, 'p, P>>,
        pages: Range<u64>,
        (first, step, ends_wanted): (Pfn, u32, bool),
        may_remove: impl FnOnce(u32) -> bool,
        freed: &mut FreedNodes,
    ) -> u32 {
        let number = last_node_of(pages.start);
        if cache.as_ref().is_none_or(|cached| cached.number != number) {
            let node = self.last_node(frames, pages.start);
            *cache = node.map(|node| CachedNode { number, live: frames.frame(node.at).link(1), node });
        }
        let Some(CachedNode { node, live, .. }) = cache else { return 0 };
        let entries = node.entries(&pages);
        let before = live.load(Relaxed);
        // Most folios have all their pages here, and leave others in the node.
        let are_all = are_of_folio(entries, first, step);
        if are_all && before > entries.len() as u32 {
            let count = entries.len() as u32;
            if !may_remove(count) {
                return 0;
            }
            for_each_entry(entries, |entry| entry.store(0, Relaxed));
            live.store(before - count, Relaxed);
            self.pages -= u64::from(count);
            return count;
        }
        let plains = || (0..).map(|i| frame_word(first.add(i * step)));
        let (mut count, mut wanted, mut last) = (entries.len() as u32, false, pages.end.saturating_sub(1));
        if !are_all {
            count = 0;
            for ((page, word), plain) in (pages.start..).zip(entries).zip(plains()) {
                let found = word.load(Relaxed);
                if found & !WANTED == plain {
                    (count, last) = (count + 1, page);
                    if found & WANTED != 0 {
                        wanted = true;
                        word.store(if ends_wanted { plain } else { found }, Relaxed);
                    }
                }
            }
        }
        if count == 0 || wanted || !may_remove(count) {
            return 0;
        }
        // The last page of a node is removed as a page is, with the nodes that are empty then.
        let is_last = before == count;
        let cleared = node.entries(&if is_last { pages.start..last } else { pages });
        if are_all {
            for_each_entry(cleared, |entry| entry.store(0, Relaxed));
        } else {
            for (word, plain) in cleared.iter().zip(plains()) {
                if word.load(Relaxed) == plain {
                    word.store(0, Relaxed);
                }
            }
        }
        let cleared = count - u32::from(is_last);
        live.store(before - cleared, Relaxed);
        self.pages -= u64::from(cleared);
        if is_last {
            *cache = None;
            self.remove(frames, last, freed);
        }
        count
    }

    /// Marks a page that is under writeback or being read as wanted, so that
    /// [`Index::end_writeback`] and [`Index::remove_clean`] leave it in memory.
    pub(in crate::page_cache) fn mark_wanted<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) {
        if let Some(node) = self.last_node(frames, page) {
            let entry = node.get(index_at(page, 0));
            if entry & (WRITEBACK | READING) != 0 {
                node.entry(index_at(page, 0)).store(entry | WANTED, Relaxed);
            }
        }
    }

    /// Ends the mark of [`Index::mark_wanted`] of a page that is in memory.
    pub(in crate::page_cache) fn clear_wanted<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) {
        if let Some(node) = self.last_node(frames, page) {
            let entry = node.get(index_at(page, 0));
            if entry & (FRAME | WANTED) == FRAME | WANTED {
                node.entry(index_at(page, 0)).store(entry & !WANTED, Relaxed);
            }
        }
    }
}

/// Returns whether `entries`, those of all pages of a folio that begins with the frame `first`,
/// have that folio's frames and no marks.
#[inline]
fn are_of_folio(entries: &[AtomicU64], first: Pfn, step: u32) -> bool {
    let (eights, []) = entries.as_chunks::<8>() else {
        return are_in_a_row(entries, frame_word(first), step, 0);
    };
    // A page's entry names no other frame of a folio than that page's own. So it is enough that
    // each has the bits of the first word, and no bit that the last has not.
    let (mut common, mut all) = (!0, 0);
    for entry in eights.as_flattened() {
        let word = entry.load(Relaxed);
        common &= word;
        all |= word;
    }
    let after_first = (entries.len() as u32).saturating_sub(1) * step;
    common == frame_word(first) && all == frame_word(first.add(after_first))
}
