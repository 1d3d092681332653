//! The index of an object's pages: a radix tree of frames with 512 entries each (Linux: the
//! `i_pages` xarray).
//!
//! An entry of the last level is 0 for a page that does not exist. Otherwise it holds the number of
//! a frame or of a swap slot, above bits that distinguish the two. Entries of upper levels hold the
//! frames of nodes.
//! A node's descriptor counts its entries that are not 0. A node is added with the first page below
//! it and removed with the last.
//!
//! Every caller holds the object's lock. Nothing is allocated or freed here: the caller provides
//! new nodes, and frees the nodes that are removed.

mod clean;
mod copy;
pub(super) mod dirty;
mod survey;
mod swap;

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::Frames;
use crate::platform::Platform;

/// log2 of the number of entries of a node.
const BITS: u32 = 9;
/// The number of entries of a node.
pub(super) const FANOUT: u64 = 1 << BITS;
/// The number of levels of the tree for the last page of the largest object: page numbers have 51
/// bits.
const LEVELS: u32 = 6;
/// The largest number of nodes that inserting a page may need: a new root for each level, and a
/// path from the root down to the last level.
pub(super) const MAX_NODES: usize = 2 * LEVELS as usize;
/// Bit of an entry: it holds a frame number.
const FRAME: u64 = 1;
/// Bit of an entry: it holds a slot of the swap device whose number begins at bit [`DEVICE_SHIFT`].
const SWAP: u64 = 1 << 1;
/// Bit of an entry: the frame is being written to a swap device. No other CPU may take a reference
/// to the page or map it (INV-16; Linux: `PG_writeback` in a locked folio).
const WRITEBACK: u64 = 1 << 2;
/// Bit of an entry with a frame number: a CPU waits for the page. The page stays in memory when
/// writeback ends, or, after a read, until it is looked up or reclaim has met it once.
const WANTED: u64 = 1 << 3;
/// Bit of an entry with a frame number: the host is reading the page into the frame. No other CPU
/// may take a reference to the page or map it.
const READING: u64 = 1 << 4;
/// Bit of an entry with a frame number: the page differs from the storage.
const DIRTY: u64 = 1 << 5;
/// Bit of an entry with a frame number: the host is writing the page to the storage.
const WRITING: u64 = 1 << 6;
/// Bit of an entry with a frame number: a PTE may allow writes to the page.
const WRITABLE: u64 = 1 << 7;
const DEVICE_SHIFT: u32 = 4;

/// The decoded entry of a page that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    /// The page is in memory; its first frame.
    Resident(Pfn),
    /// The page is in memory and under writeback to a swap device, so no other CPU may take a
    /// reference to it or map it; its first frame.
    Writeback(Pfn),
    /// The host is reading the page, so no other CPU may take a reference to it or map it; its
    /// first frame.
    Reading(Pfn),
    /// The page is on a swap device.
    Swapped {
        /// The number of the swap device.
        device: u8,
        /// The page's first slot.
        slot: u32,
    },
}

impl Entry {
    /// Decodes a word of a last-level node; `None` for a page that does not exist.
    #[inline]
    fn decode(entry: u64) -> Option<Entry> {
        let number = (entry >> FRAME_SHIFT) as u32;
        match entry & (FRAME | SWAP | WRITEBACK) {
            FRAME if entry & READING != 0 => Some(Entry::Reading(Pfn(number))),
            FRAME => Some(Entry::Resident(Pfn(number))),
            0 => None,
            SWAP => Some(Entry::Swapped { device: (entry >> DEVICE_SHIFT) as u8, slot: number }),
            _ => Some(Entry::Writeback(Pfn(number))),
        }
    }

    /// Returns the word of a last-level node that [`Entry::decode`] decodes to this entry.
    fn encode(self) -> u64 {
        match self {
            Entry::Resident(pfn) => frame_word(pfn),
            Entry::Writeback(pfn) => frame_word(pfn) | WRITEBACK,
            Entry::Reading(pfn) => frame_word(pfn) | READING,
            Entry::Swapped { device, slot } => swap_word(device, slot),
        }
    }

    /// Returns the page's first frame if it has one.
    pub(super) fn frame(self) -> Option<Pfn> {
        match self {
            Entry::Resident(pfn) | Entry::Writeback(pfn) | Entry::Reading(pfn) => Some(pfn),
            Entry::Swapped { .. } => None,
        }
    }
}

/// Returns the entry for a swapped-out page.
fn swap_word(device: u8, slot: u32) -> u64 {
    u64::from(slot) << FRAME_SHIFT | u64::from(device) << DEVICE_SHIFT | SWAP
}

/// The result of a search of one index node for a hole (a page that does not exist).
pub(super) enum NextHole {
    /// The number of the first page that does not exist.
    At(u64),
    /// There is none in the part of the node that was searched. The number of the page after that
    /// part, at which the search goes on.
    NotBelow(u64),
}

/// The index of an object's pages. It frees no node itself: [`Index::remove`] gives the caller the
/// nodes to be freed.
pub(super) struct Index {
    /// The root node's frame, or [`Pfn::NONE`].
    root: Pfn,
    /// The number of levels; 0 if there is no node.
    height: u32,
    /// The number of pages, in memory or swapped out.
    pages: u64,
    /// The number of pages that are swapped out.
    swapped: u64,
    /// The numbers of pages that are dirty or being written.
    counts: DirtyCounts,
}

/// The number of pages of an index that are dirty, and the number that are being written.
#[derive(Clone, Copy, Default)]
struct DirtyCounts {
    dirty: u64,
    writing: u64,
}

impl DirtyCounts {
    /// Subtracts a page that leaves the index.
    fn remove(&mut self, word: u64) {
        self.dirty -= u64::from(word & DIRTY != 0);
        self.writing -= u64::from(word & WRITING != 0);
    }
}

/// Returns the entry for a page in memory, or for a child node, by its frame.
fn frame_word(pfn: Pfn) -> u64 {
    (pfn.0 as u64) << FRAME_SHIFT | FRAME
}

/// Returns the frame that an entry names, or `None` if the entry names no frame.
fn pfn_of(entry: u64) -> Option<Pfn> {
    (entry & FRAME != 0).then_some(Pfn((entry >> FRAME_SHIFT) as u32))
}

/// Returns the number of the last-level node that has a page's entry.
pub(super) fn last_node_of(page: u64) -> u64 {
    page >> BITS
}

/// Returns the index of a page in its node of this level; level 0 is the last.
fn index_at(page: u64, level: u32) -> u64 {
    page >> (BITS * level) & (FANOUT - 1)
}

/// Returns the number of levels that a tree needs to have an entry for a page.
fn levels_for(page: u64) -> u32 {
    (u64::BITS - page.leading_zeros()).div_ceil(BITS).max(1)
}

/// A node of an index. The index's object is locked, or no other CPU can reach the node yet.
struct Node<'f, 'p, P: Platform> {
    frames: &'f Frames<'p, P>,
    at: Pfn,
}

impl<P: Platform> Node<'_, '_, P> {
    /// Returns an entry by its index.
    #[inline]
    fn entry(&self, index: u64) -> &AtomicU64 {
        debug_assert!(index < FANOUT);
        // SAFETY: a node is a frame of `FANOUT` words that are only used as atomics; it came from
        // an index, whose lock is held, and nodes leave an index only under that lock.
        unsafe { self.frames.at(self.at.addr()).cast::<AtomicU64>().add(index as usize).as_ref() }
    }

    /// Reads an entry.
    #[inline]
    fn get(&self, index: u64) -> u64 {
        self.entry(index).load(Relaxed)
    }

    /// Returns the entries of `pages` in this node of the last level, which has them all.
    #[inline]
    fn entries(&self, pages: &Range<u64>) -> &[AtomicU64] {
        let (first, count) = (index_at(pages.start, 0), pages.end.saturating_sub(pages.start));
        debug_assert!(first + count <= FANOUT, "the pages of a folio are not in one node of the index");
        let count = count.min(FANOUT - first) as usize;
        // SAFETY: as in `entry`; the slice ends within the node.
        unsafe { core::slice::from_raw_parts(self.entry(first), count) }
    }

    /// Returns the number of entries that are not 0, from the node's descriptor.
    fn live_count(&self) -> u32 {
        self.frames.frame(self.at).link(1).load(Relaxed)
    }

    /// Writes an entry that is 0: a page's, or that of a child node.
    fn set(&self, index: u64, word: u64) {
        debug_assert_eq!(self.get(index), 0);
        self.entry(index).store(word, Relaxed);
        self.frames.frame(self.at).link(1).store(self.live_count() + 1, Relaxed);
    }

    /// Clears an entry that is not 0. Returns the number of entries of the node that are left.
    fn clear(&self, index: u64) -> u32 {
        self.entry(index).store(0, Relaxed);
        let left = self.live_count() - 1;
        self.frames.frame(self.at).link(1).store(left, Relaxed);
        left
    }
}

/// Calls `f` for each entry, eight in a row without a branch in between: a folio mostly has a
/// multiple of eight pages.
#[inline(always)]
fn for_each_entry(entries: &[AtomicU64], mut f: impl FnMut(&AtomicU64)) {
    let (eights, rest) = entries.as_chunks::<8>();
    for eight in eights {
        for entry in eight {
            f(entry);
        }
    }
    for entry in rest {
        f(entry);
    }
}

/// Returns whether entries have `word` and the words that follow it, `step` frames apart, but for
/// the bits in `ignored`. One pass without a branch, as this mostly holds.
#[inline]
fn are_in_a_row(entries: &[AtomicU64], mut word: u64, step: u32, ignored: u64) -> bool {
    let mut differs = 0;
    for_each_entry(entries, |entry| {
        differs |= entry.load(Relaxed) ^ word;
        word += u64::from(step) << FRAME_SHIFT;
    });
    differs & !ignored == 0
}

/// Initialises a node in a zeroed frame that no other CPU can reach.
pub(super) fn prepare<P: Platform>(frames: &Frames<'_, P>, node: Pfn) {
    frames.frame(node).link(1).store(0, Relaxed);
}

/// A chain of nodes that were removed from an index and are to be freed, linked through their
/// descriptors.
pub(super) struct FreedNodes(Pfn);

impl FreedNodes {
    /// Returns an empty chain.
    pub(super) fn new() -> Self {
        FreedNodes(Pfn::NONE)
    }

    /// Adds a node to the chain.
    fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, node: Pfn) {
        frames.frame(node).set_data(self.0.0 as u64);
        self.0 = node;
    }

    /// Removes a node from the chain and returns it.
    pub(super) fn pop<P: Platform>(&mut self, frames: &Frames<'_, P>) -> Option<Pfn> {
        let node = self.0.some()?;
        self.0 = Pfn(frames.frame(node).data() as u32);
        Some(node)
    }
}

impl Index {
    /// Returns an index without pages.
    pub(super) fn new() -> Self {
        Index { root: Pfn::NONE, height: 0, pages: 0, swapped: 0, counts: DirtyCounts::default() }
    }

    /// Returns the number of pages in memory.
    pub(super) fn resident(&self) -> u64 {
        self.pages - self.swapped
    }

    /// Returns the number of pages on swap devices.
    pub(super) fn swapped(&self) -> u64 {
        self.swapped
    }

    /// Returns whether the tree has enough levels for a page.
    #[inline]
    fn reaches(&self, page: u64) -> bool {
        self.height != 0 && page >> (BITS * self.height) == 0
    }

    /// Returns the node of the last level that has a page's entry, if it exists.
    #[inline]
    fn last_node<'f, 'p, P: Platform>(&self, frames: &'f Frames<'p, P>, page: u64) -> Option<Node<'f, 'p, P>> {
        if !self.reaches(page) {
            return None;
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            at = pfn_of(Node { frames, at }.get(index_at(page, level)))?;
        }
        Some(Node { frames, at })
    }

    /// Returns the entry of a page, if the page exists.
    #[inline]
    pub(super) fn find<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) -> Option<Entry> {
        Entry::decode(self.last_node(frames, page)?.get(index_at(page, 0)))
    }

    /// Returns the number of nodes that inserting a page will need.
    pub(super) fn missing_nodes<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) -> usize {
        if !self.reaches(page) {
            // New roots above the present one, the topmost of which also covers the page, and the
            // nodes of the path from the topmost root down to the page.
            let levels = levels_for(page).max(self.height);
            let roots = if self.height == 0 { 1 } else { levels - self.height };
            return (roots + levels - 1) as usize;
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            match pfn_of(Node { frames, at }.get(index_at(page, level))) {
                Some(child) => at = child,
                None => return level as usize,
            }
        }
        0
    }

    /// Inserts the pages of a folio, none of which exists and all of which have their entries in
    /// one node. Each page has `step` frames. `entry` is the first page's, in memory or being read,
    /// and the others get their entries of the same kind. `spare` returns an initialised node; it
    /// is called as often as [`Index::missing_nodes`] returned for the first page.
    pub(super) fn insert<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        (entry, step): (Entry, u32),
        mut spare: impl FnMut() -> Pfn,
    ) {
        let page = pages.start;
        if self.height == 0 {
            (self.root, self.height) = (spare(), levels_for(page));
        }
        while !self.reaches(page) {
            let above = spare();
            Node { frames, at: above }.set(0, frame_word(self.root));
            (self.root, self.height) = (above, self.height + 1);
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            let node = Node { frames, at };
            at = pfn_of(node.get(index_at(page, level))).unwrap_or_else(|| {
                let child = spare();
                node.set(index_at(page, level), frame_word(child));
                child
            });
        }
        let node = Node { frames, at };
        let mut word = entry.encode();
        for entry in node.entries(&pages) {
            debug_assert_eq!(entry.load(Relaxed), 0);
            entry.store(word, Relaxed);
            word += u64::from(step) << FRAME_SHIFT;
        }
        let count = pages.end - pages.start;
        frames.frame(at).link(1).store(node.live_count() + count as u32, Relaxed);
        self.pages += count;
    }

    /// Returns the number of `pages`, all of which have their entries in one node, before the first
    /// that exists.
    pub(super) fn missing_run<P: Platform>(&self, frames: &Frames<'_, P>, pages: Range<u64>) -> u64 {
        let Some(node) = self.last_node(frames, pages.start) else { return pages.end - pages.start };
        node.entries(&pages).iter().take_while(|entry| entry.load(Relaxed) == 0).count() as u64
    }

    /// Returns the number of `pages` that are in memory in consecutive frames, from the first page
    /// in `first` on. Each page has `step` frames.
    pub(super) fn resident_run<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        first: Pfn,
        step: u32,
    ) -> u32 {
        const IGNORED: u64 = DIRTY | WRITING | WRITABLE | WANTED;
        let word = |page: u64| frame_word(first.add((page - pages.start) as u32 * step));
        let mut at = pages.start;
        while at < pages.end
            && let Some(node) = self.last_node(frames, at)
        {
            let part = at..pages.end.min((at | (FANOUT - 1)) + 1);
            let entries = node.entries(&part);
            if !are_in_a_row(entries, word(at), step, IGNORED) {
                let is_next = |i: &usize| are_in_a_row(&entries[*i..=*i], word(at + *i as u64), step, IGNORED);
                at += (0..entries.len()).take_while(is_next).count() as u64;
                break;
            }
            at = part.end;
        }
        (at - pages.start) as u32
    }

    /// Removes a page and returns its entry, or `None` if the page does not exist. Nodes that
    /// became empty are added to `freed`; the caller frees them with the object unlocked.
    pub(super) fn remove<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        page: u64,
        freed: &mut FreedNodes,
    ) -> Option<Entry> {
        let entry = self.find(frames, page)?;
        let mut path = [Pfn::NONE; LEVELS as usize];
        let mut at = self.root;
        for level in (0..self.height).rev() {
            path[level as usize] = at;
            at = pfn_of(Node { frames, at }.get(index_at(page, level))).unwrap_or(at);
        }
        self.pages -= 1;
        self.swapped -= u64::from(entry.frame().is_none());
        if entry.frame().is_some() {
            self.counts.remove(Node { frames, at: path[0] }.get(index_at(page, 0)));
        }
        for level in 0..self.height {
            let at = path[level as usize];
            if (Node { frames, at }).clear(index_at(page, level)) != 0 {
                return Some(entry);
            }
            freed.push(frames, at);
        }
        (self.root, self.height) = (Pfn::NONE, 0);
        Some(entry)
    }

    /// Returns the first page from `from` on that exists, with its entry.
    pub(super) fn next<P: Platform>(&self, frames: &Frames<'_, P>, from: u64) -> Option<(u64, Entry)> {
        let mut page = from;
        'from_the_root: while self.reaches(page) {
            let (mut at, mut last) = (self.root, 0);
            for level in (0..self.height).rev() {
                let node = Node { frames, at };
                let shift = BITS * level;
                let first = index_at(page, level);
                let found = (first..FANOUT).map(|index| (index, node.get(index))).find(|(_, entry)| *entry != 0);
                let Some((index, below)) = found else {
                    page = ((page >> shift >> BITS) + 1) << BITS << shift;
                    continue 'from_the_root;
                };
                if index != first {
                    page = (page >> shift >> BITS << BITS | index) << shift;
                }
                (at, last) = (pfn_of(below).unwrap_or(at), below);
            }
            return Some((page, Entry::decode(last)?));
        }
        None
    }

    /// Searches the node that covers the first of `pages` for the first of them that does not
    /// exist. The work is bounded by the node's size (INV-11).
    pub(super) fn next_hole<P: Platform>(&self, frames: &Frames<'_, P>, pages: Range<u64>) -> NextHole {
        let page = pages.start;
        if !self.reaches(page) {
            return NextHole::At(page);
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            match pfn_of(Node { frames, at }.get(index_at(page, level))) {
                Some(child) => at = child,
                None => return NextHole::At(page),
            }
        }
        let node = Node { frames, at };
        let end = pages.end.min((last_node_of(page) + 1) * FANOUT);
        let hole = node.entries(&(page..end)).iter().position(|entry| entry.load(Relaxed) == 0);
        hole.map_or(NextHole::NotBelow(end), |hole| NextHole::At(page + hole as u64))
    }

    /// Calls `f` for each of `pages`, all of which have their entries in one node. Passes the
    /// page's entry, and the value that the entry has while the page is in memory and not under
    /// writeback. Each page has `step` frames, and `first` is the first frame of the first page.
    fn for_each_word<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        first: Pfn,
        step: u32,
        mut f: impl FnMut(&AtomicU64, u64),
    ) {
        let mut plain = frame_word(first);
        let mut call = |word: &AtomicU64| {
            f(word, plain);
            plain += u64::from(step) << FRAME_SHIFT;
        };
        match self.last_node(frames, pages.start) {
            Some(node) => node.entries(&pages).iter().for_each(call),
            // If the node was removed, no page of it exists, so a zero word stands for each entry.
            None => pages.for_each(|_| call(&AtomicU64::new(0))),
        }
    }
}
