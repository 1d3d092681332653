//! Dirty pages: those that differ from the host's storage, and those that the host writes there.
//!
//! An entry with a frame number has three bits for this. A page is *dirty* from its first change
//! until the host is asked to write it, and *writing* from then until the host has ended the
//! request; it may become dirty again meanwhile. It is *writable* if a PTE may allow writes of
//! which the object learns nothing, and then it is dirty too.

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use arrayvec::ArrayVec;

use super::{
    DIRTY, Entry, FANOUT, FRAME, Index, READING, WANTED, WRITABLE, WRITING, frame_word, index_at, last_node_of, pfn_of,
};
use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::Frames;
use crate::platform::{MAX_REQUEST_FOLIOS, Part, Platform};

/// A page in memory, of which a change was recorded.
pub(in crate::page_cache) struct Changed {
    /// True if the page was clean before.
    pub(in crate::page_cache) was_clean: bool,
    /// The page's first frame.
    pub(in crate::page_cache) pfn: Pfn,
}

/// Dirty pages of one node that the host is to write.
#[derive(Default)]
pub(in crate::page_cache) struct Dirty {
    /// The pages, in ascending order.
    pub(in crate::page_cache) parts: ArrayVec<Part, MAX_REQUEST_FOLIOS>,
    /// True if a PTE may allow writes to one of them.
    pub(in crate::page_cache) writable: bool,
}

/// The result of a search of one index node for a page in some state.
pub(in crate::page_cache) enum NextPage {
    /// The first page in this state.
    At(u64),
    /// The node has no such page from the start of the search on. The number of the first page
    /// after the node, at which the search goes on.
    NotBelow(u64),
    /// No page from the start of the search on exists.
    End,
}

impl Index {
    /// Returns the number of dirty pages.
    pub(in crate::page_cache) fn dirty(&self) -> u64 {
        self.counts.dirty
    }

    /// Returns the number of pages that are being written.
    pub(in crate::page_cache) fn writing(&self) -> u64 {
        self.counts.writing
    }

    /// Returns whether a page is being written.
    pub(in crate::page_cache) fn is_writing<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) -> bool {
        self.counts.writing != 0
            && self.last_node(frames, page).is_some_and(|node| is_frame(node.get(index_at(page, 0)), WRITING))
    }

    /// Returns true if one of `pages`, all of which have their entries in one node, is dirty.
    pub(in crate::page_cache) fn has_dirty<P: Platform>(&self, frames: &Frames<'_, P>, pages: Range<u64>) -> bool {
        let node = self.last_node(frames, pages.start).filter(|_| self.counts.dirty != 0);
        node.is_some_and(|node| node.entries(&pages).iter().any(|entry| is_frame(entry.load(Relaxed), DIRTY)))
    }

    /// Records that a page in memory differs from the storage, and, with `writable`, that a PTE may
    /// allow writes to it. With `pfn` only if the page is in this frame. Returns `None`, with
    /// nothing changed, if the page is not in memory, or is in another frame.
    pub(in crate::page_cache) fn set_dirty<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        page: u64,
        pfn: Option<Pfn>,
        writable: bool,
    ) -> Option<Changed> {
        let node = self.last_node(frames, page)?;
        let word = node.get(index_at(page, 0));
        let Some(Entry::Resident(at)) = Entry::decode(word) else { return None };
        if pfn.is_some_and(|pfn| pfn != at) {
            return None;
        }
        let was_clean = word & DIRTY == 0;
        node.entry(index_at(page, 0)).store(word | DIRTY | if writable { WRITABLE } else { 0 }, Relaxed);
        self.counts.dirty += u64::from(was_clean);
        Some(Changed { was_clean, pfn: at })
    }

    /// Searches the node that covers the first page from `from` on for a dirty page.
    pub(in crate::page_cache) fn next_dirty<P: Platform>(&self, frames: &Frames<'_, P>, from: u64) -> NextPage {
        if self.counts.dirty == 0 { NextPage::End } else { self.next_with(frames, from, DIRTY) }
    }

    /// Searches the node that covers the first page from `from` on for a page that is being
    /// written.
    pub(in crate::page_cache) fn next_writing<P: Platform>(&self, frames: &Frames<'_, P>, from: u64) -> NextPage {
        if self.counts.writing == 0 { NextPage::End } else { self.next_with(frames, from, WRITING) }
    }

    /// Searches the node that covers the first page from `from` on for a page with this bit.
    fn next_with<P: Platform>(&self, frames: &Frames<'_, P>, from: u64, bit: u64) -> NextPage {
        let Some((first, _)) = self.next(frames, from) else { return NextPage::End };
        let end = (last_node_of(first) + 1) * FANOUT;
        let node = self.last_node(frames, first);
        let found = node.and_then(|node| (first..end).find(|page| is_frame(node.get(index_at(*page, 0)), bit)));
        found.map_or(NextPage::NotBelow(end), NextPage::At)
    }

    /// Takes the dirty ones of `pages`, all of which have their entries in one node: they are being
    /// written from now on, and neither dirty nor writable any more. Stops before a dirty page that
    /// is still being written, and where the parts of the result are full. `may_take` gets the
    /// first frame of each part, and returns whether the part may be taken; the search stops at one
    /// that may not.
    pub(in crate::page_cache) fn begin_write<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        step: u32,
        mut may_take: impl FnMut(Pfn) -> bool,
    ) -> Dirty {
        let mut taken = Dirty::default();
        let Some(node) = self.last_node(frames, pages.start) else { return taken };
        let (entries, mut at, mut count) = (node.entries(&pages), 0, 0);
        while let Some(entry) = entries.get(at) {
            let word = entry.load(Relaxed);
            let is_dirty = |pfn: &Pfn| word & !(WRITING | WRITABLE | WANTED) == frame_word(*pfn) | DIRTY;
            let Some(pfn) = pfn_of(word).filter(is_dirty) else {
                at += 1;
                continue;
            };
            if word & WRITING != 0 {
                break;
            }
            if taken.parts.is_full() || !may_take(pfn) {
                break;
            }
            let (head, frame) = frames.head(pfn);
            let in_folio = ((head.0 + (1 << frame.order()) - pfn.0) / step) as usize;
            let (mut next, mut seen) = (word & !(WRITABLE | WANTED), 0);
            let take = |entry: &&AtomicU64| {
                let word = entry.load(Relaxed);
                let is_next = word & !(WRITABLE | WANTED) == next;
                if is_next {
                    seen |= word;
                    entry.store(word & !(DIRTY | WRITABLE) | WRITING, Relaxed);
                    next += u64::from(step) << FRAME_SHIFT;
                }
                is_next
            };
            let len = entries[at..].iter().take(in_folio).take_while(take).count();
            taken.parts.push(Part { page: pages.start + at as u64, pfn, pages: len as u32 });
            taken.writable |= seen & WRITABLE != 0;
            count += len as u64;
            at += len;
        }
        self.counts.dirty -= count;
        self.counts.writing += count;
        taken
    }

    /// Ends the write of `part`, of which each page has `step` frames: those of its pages that are
    /// still in these frames are not being written any more.
    pub(in crate::page_cache) fn end_write<P: Platform>(&mut self, frames: &Frames<'_, P>, part: &Part, step: u32) {
        let mut ended = 0;
        self.for_each_word(frames, part.range(), part.pfn, step, |word, plain| {
            let found = word.load(Relaxed);
            if found & !(DIRTY | WRITABLE | WANTED) == plain | WRITING {
                word.store(found & !WRITING, Relaxed);
                ended += 1;
            }
        });
        self.counts.writing -= ended;
    }
}

/// Returns whether an entry has a frame number and this bit.
pub(super) fn is_frame(word: u64, bit: u64) -> bool {
    debug_assert!(bit & (FRAME | READING) == 0);
    word & (FRAME | bit) == FRAME | bit
}
