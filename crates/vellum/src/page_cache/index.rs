//! Which pages an object has: a radix tree whose nodes are frames of 512 entries.
//!
//! An entry is 0 (nothing), or a number above a bit that says what it is the number of: a frame, or a slot of a swap device, which is
//! named beside it. A node's descriptor counts its entries. Nodes come with the first page below them and go with the last.
//!
//! Whoever calls holds the object's lock.

mod survey;

use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::Frames;
use crate::platform::Platform;
use crate::swap::{Slots, SwapRun};

/// log2 of the entries of a node.
const BITS: u32 = 9;
const FANOUT: u64 = 1 << BITS;
/// Levels that the last page of the largest object needs: 51 bits of page number.
const LEVELS: u32 = 6;
/// The most nodes that a page may need: a new root for each level, and a path below the last.
pub(super) const MOST_NODES: usize = 2 * LEVELS as usize;
/// In an entry: there is a frame.
const FRAME: u64 = 1;
/// Or a slot, of the device whose number begins at [`DEVICE_SHIFT`].
const SLOT: u64 = 1 << 1;
/// The frame is about to go to a device, and nobody may have it.
const HELD: u64 = 1 << 2;
/// Somebody would like to have it, though.
const WANTED: u64 = 1 << 3;
const DEVICE_SHIFT: u32 = 4;

/// What an object knows of a page that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Page {
    /// It is in memory: its first frame.
    Here(Pfn),
    /// It is in memory, and nobody may have it for a while, because it is about to go.
    Held(Pfn),
    /// It is on a swap device: which, and its first slot.
    Away(u8, u32),
}

impl Page {
    #[inline]
    fn of(entry: u64) -> Option<Page> {
        let number = (entry >> FRAME_SHIFT) as u32;
        match entry & (FRAME | SLOT | HELD) {
            FRAME => Some(Page::Here(Pfn(number))),
            0 => None,
            SLOT => Some(Page::Away((entry >> DEVICE_SHIFT) as u8, number)),
            _ => Some(Page::Held(Pfn(number))),
        }
    }

    /// Its first frame, if it is in memory.
    pub(super) fn frame(self) -> Option<Pfn> {
        match self {
            Page::Here(pfn) | Page::Held(pfn) => Some(pfn),
            Page::Away(..) => None,
        }
    }
}

fn slot_entry(device: u8, slot: u32) -> u64 {
    u64::from(slot) << FRAME_SHIFT | u64::from(device) << DEVICE_SHIFT | SLOT
}

/// The tree. Does not free anything by itself: see [`Index::remove`].
pub(super) struct Index {
    root: Pfn,
    /// Levels of nodes; 0 if there is none.
    height: u32,
    pages: u64,
    /// Of these, on swap devices.
    away: u64,
}

fn entry(pfn: Pfn) -> u64 {
    (pfn.0 as u64) << FRAME_SHIFT | FRAME
}

fn frame_of(entry: u64) -> Option<Pfn> {
    (entry & FRAME != 0).then_some(Pfn((entry >> FRAME_SHIFT) as u32))
}

/// The slot of a page in its node of this level, 0 being the last.
fn slot(page: u64, level: u32) -> u64 {
    page >> (BITS * level) & (FANOUT - 1)
}

/// How many levels it takes to reach a page.
fn levels(page: u64) -> u32 {
    (u64::BITS - page.leading_zeros()).div_ceil(BITS).max(1)
}

/// A node, in use by an index that is locked or not yet known to anybody.
struct Node<'f, 'p, P: Platform> {
    frames: &'f Frames<'p, P>,
    at: Pfn,
}

impl<P: Platform> Node<'_, '_, P> {
    #[inline]
    fn entry(&self, slot: u64) -> &AtomicU64 {
        debug_assert!(slot < FANOUT);
        // SAFETY: a node is a frame of `FANOUT` words that are only used as atomics; it came from an index, whose lock is
        // held, and nodes leave an index only under that lock.
        unsafe { self.frames.at(self.at.addr()).cast::<AtomicU64>().add(slot as usize).as_ref() }
    }

    #[inline]
    fn get(&self, slot: u64) -> u64 {
        self.entry(slot).load(Relaxed)
    }

    fn live(&self) -> u32 {
        self.frames.frame(self.at).link(1).load(Relaxed)
    }

    /// Fill an empty slot.
    fn fill(&self, slot: u64, pfn: Pfn) {
        debug_assert_eq!(self.get(slot), 0);
        self.entry(slot).store(entry(pfn), Relaxed);
        self.frames.frame(self.at).link(1).store(self.live() + 1, Relaxed);
    }

    /// Empty a slot; what is left.
    fn clear(&self, slot: u64) -> u32 {
        self.entry(slot).store(0, Relaxed);
        let left = self.live() - 1;
        self.frames.frame(self.at).link(1).store(left, Relaxed);
        left
    }
}

/// Make a node of a frame of zeros that nobody else knows.
pub(super) fn prepare<P: Platform>(frames: &Frames<'_, P>, node: Pfn) {
    frames.frame(node).link(1).store(0, Relaxed);
}

/// Nodes that have left an index, chained through their descriptors.
pub(super) struct Dead(Pfn);

impl Dead {
    pub(super) fn new() -> Self {
        Dead(Pfn::NONE)
    }

    fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, node: Pfn) {
        frames.frame(node).set_data(self.0.0 as u64);
        self.0 = node;
    }

    pub(super) fn pop<P: Platform>(&mut self, frames: &Frames<'_, P>) -> Option<Pfn> {
        let node = self.0.some()?;
        self.0 = Pfn(frames.frame(node).data() as u32);
        Some(node)
    }
}

impl Index {
    pub(super) fn new() -> Self {
        Index { root: Pfn::NONE, height: 0, pages: 0, away: 0 }
    }

    /// How many pages are in memory.
    pub(super) fn here(&self) -> u64 {
        self.pages - self.away
    }

    /// How many pages are on swap devices.
    pub(super) fn away(&self) -> u64 {
        self.away
    }

    #[inline]
    fn reaches(&self, page: u64) -> bool {
        self.height != 0 && page >> (BITS * self.height) == 0
    }

    /// The last node on the way to a page.
    #[inline]
    fn leaf<'f, 'p, P: Platform>(&self, frames: &'f Frames<'p, P>, page: u64) -> Option<Node<'f, 'p, P>> {
        if !self.reaches(page) {
            return None;
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            at = frame_of(Node { frames, at }.get(slot(page, level)))?;
        }
        Some(Node { frames, at })
    }

    /// A page.
    #[inline]
    pub(super) fn find<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) -> Option<Page> {
        Page::of(self.leaf(frames, page)?.get(slot(page, 0)))
    }

    /// How many nodes are missing on the way to a page.
    pub(super) fn missing<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) -> usize {
        if !self.reaches(page) {
            // New roots, of which the topmost has the page beside what is there, and the way down from it.
            let levels = levels(page).max(self.height);
            let roots = if self.height == 0 { 1 } else { levels - self.height };
            return (roots + levels - 1) as usize;
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            match frame_of(Node { frames, at }.get(slot(page, level))) {
                Some(child) => at = child,
                None => return level as usize,
            }
        }
        0
    }

    /// Put a page where none is. `spare` gives as many nodes as are [missing](Index::missing), each once.
    pub(super) fn insert<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        page: u64,
        pfn: Pfn,
        mut spare: impl FnMut() -> Pfn,
    ) {
        if self.height == 0 {
            (self.root, self.height) = (spare(), levels(page));
        }
        while !self.reaches(page) {
            let above = spare();
            Node { frames, at: above }.fill(0, self.root);
            (self.root, self.height) = (above, self.height + 1);
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            let node = Node { frames, at };
            at = frame_of(node.get(slot(page, level))).unwrap_or_else(|| {
                let child = spare();
                node.fill(slot(page, level), child);
                child
            });
        }
        Node { frames, at }.fill(slot(page, 0), pfn);
        self.pages += 1;
    }

    /// Take a page out, and the nodes that held nothing else.
    pub(super) fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, page: u64, dead: &mut Dead) -> Option<Page> {
        let was = self.find(frames, page)?;
        let mut path = [Pfn::NONE; LEVELS as usize];
        let mut at = self.root;
        for level in (0..self.height).rev() {
            path[level as usize] = at;
            at = frame_of(Node { frames, at }.get(slot(page, level))).unwrap_or(at);
        }
        self.pages -= 1;
        self.away -= u64::from(was.frame().is_none());
        for level in 0..self.height {
            let at = path[level as usize];
            if (Node { frames, at }).clear(slot(page, level)) != 0 {
                return Some(was);
            }
            dead.push(frames, at);
        }
        (self.root, self.height) = (Pfn::NONE, 0);
        Some(was)
    }

    /// The first page from `from` on that there is.
    pub(super) fn next<P: Platform>(&self, frames: &Frames<'_, P>, from: u64) -> Option<(u64, Page)> {
        let mut page = from;
        'from_the_root: while self.reaches(page) {
            let (mut at, mut last) = (self.root, 0);
            for level in (0..self.height).rev() {
                let node = Node { frames, at };
                let shift = BITS * level;
                let first = slot(page, level);
                let found = (first..FANOUT).map(|slot| (slot, node.get(slot))).find(|(_, entry)| *entry != 0);
                let Some((slot, below)) = found else {
                    page = ((page >> shift >> BITS) + 1) << BITS << shift;
                    continue 'from_the_root;
                };
                if slot != first {
                    page = (page >> shift >> BITS << BITS | slot) << shift;
                }
                (at, last) = (frame_of(below).unwrap_or(at), below);
            }
            return Some((page, Page::of(last)?));
        }
        None
    }

    /// The first page from `page` on that there is not, if it is below the end of the node that `page` is in; else where that
    /// node ends, as an error.
    pub(super) fn hole<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) -> Result<u64, u64> {
        if !self.reaches(page) {
            return Ok(page);
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            match frame_of(Node { frames, at }.get(slot(page, level))) {
                Some(child) => at = child,
                None => return Ok(page),
            }
        }
        let node = Node { frames, at };
        let base = page & !(FANOUT - 1);
        match (slot(page, 0)..FANOUT).find(|slot| node.get(*slot) == 0) {
            Some(slot) => Ok(base + slot),
            None => Err(base + FANOUT),
        }
    }

    /// These pages are about to go, if they are in memory where frames from `first` on, `step` to a page, say. How many pages that is.
    pub(super) fn hold<P: Platform>(&self, frames: &Frames<'_, P>, pages: Range<u64>, first: Pfn, step: u32) -> u32 {
        let mut held = 0;
        self.each_frame(frames, pages, first, step, |word, plain| {
            if word.load(Relaxed) == plain {
                word.store(plain | HELD, Relaxed);
                held += 1;
            }
        });
        held
    }

    /// Somebody would like to have a page that is held.
    pub(super) fn want<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) {
        if let Some(node) = self.leaf(frames, page) {
            let entry = node.get(slot(page, 0));
            if entry & HELD != 0 {
                node.entry(slot(page, 0)).store(entry | WANTED, Relaxed);
            }
        }
    }

    /// What was held goes to slots, unless somebody would like to have some of it, or there are none; then it stays. Whether somebody
    /// would; and by the page, whether it is away now: it may have been removed meanwhile.
    pub(super) fn settle<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        (first, step): (Pfn, u32),
        slots: Option<SwapRun>,
        mut settled: impl FnMut(u32, bool),
    ) -> bool {
        let mut wanted = false;
        self.each_frame(frames, pages.clone(), first, step, |word, plain| {
            wanted |= word.load(Relaxed) == plain | HELD | WANTED;
        });
        let slots = slots.filter(|_| !wanted);
        let (mut at, mut away) = (0, 0);
        self.each_frame(frames, pages, first, step, |word, plain| {
            let held = word.load(Relaxed) & !WANTED == plain | HELD;
            if held {
                let slot = |run: SwapRun| slot_entry(run.device, run.slots.first + at * step);
                word.store(slots.map_or(plain, slot), Relaxed);
            }
            let goes = held && slots.is_some();
            away += u64::from(goes);
            settled(at, goes);
            at += 1;
        });
        self.away += away;
        wanted
    }

    /// The slots of pages that are on a device all of them, in a row; `step` to a page.
    pub(super) fn slots<P: Platform>(&self, frames: &Frames<'_, P>, pages: Range<u64>, step: u32) -> Option<SwapRun> {
        let node = self.leaf(frames, pages.start)?;
        let Some(Page::Away(device, first)) = Page::of(node.get(slot(pages.start, 0))) else { return None };
        let count = (pages.end - pages.start) as u32;
        let at = |i: u32| node.get(slot(pages.start + u64::from(i), 0));
        let row = (1..count).all(|i| at(i) == slot_entry(device, first + i * step));
        row.then_some(SwapRun { device, slots: Slots { first, count: count * step } })
    }

    /// Pages that are on a device are in memory from now on, in frames from `first` on, `step` to a page.
    pub(super) fn bring_back<P: Platform>(&mut self, frames: &Frames<'_, P>, pages: Range<u64>, first: Pfn, step: u32) {
        self.away -= pages.end - pages.start;
        self.each_frame(frames, pages, first, step, |word, plain| {
            debug_assert!(word.load(Relaxed) & SLOT != 0);
            word.store(plain, Relaxed);
        });
    }

    /// Pages that one node has, with what they say if they are in memory in these frames.
    fn each_frame<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        pages: Range<u64>,
        first: Pfn,
        step: u32,
        mut visit: impl FnMut(&AtomicU64, u64),
    ) {
        let node = self.leaf(frames, pages.start);
        debug_assert!(
            pages.is_empty() || (pages.end - 1) / FANOUT == pages.start / FANOUT,
            "all of a folio is in one node"
        );
        for (i, page) in pages.enumerate() {
            // A node that is gone had nothing.
            let none = AtomicU64::new(0);
            let word = node.as_ref().map_or(&none, |node| node.entry(slot(page, 0)));
            visit(word, entry(first.add(i as u32 * step)));
        }
    }
}
