//! Which pages an object has: a radix tree whose nodes are frames of 512 entries.
//!
//! An entry is 0 (nothing), or the number of a frame above a bit that says so; the other low bits are there for what else a
//! page may become (a slot of a swap device). A node's descriptor counts its entries. Nodes come with the first page below
//! them and go with the last.
//!
//! Whoever calls holds the object's lock.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::Frames;
use crate::platform::Platform;

/// log2 of the entries of a node.
const BITS: u32 = 9;
const FANOUT: u64 = 1 << BITS;
/// Levels that the last page of the largest object needs: 51 bits of page number.
const LEVELS: u32 = 6;
/// The most nodes that a page may need: a new root for each level, and a path below the last.
pub(super) const MOST_NODES: usize = 2 * LEVELS as usize;
/// In an entry: there is a frame.
const FRAME: u64 = 1;

/// The tree. Does not free anything by itself: see [`Index::remove`].
pub(super) struct Index {
    root: Pfn,
    /// Levels of nodes; 0 if there is none.
    height: u32,
    pages: u64,
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
        Index { root: Pfn::NONE, height: 0, pages: 0 }
    }

    /// How many pages there are.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    #[inline]
    fn reaches(&self, page: u64) -> bool {
        self.height != 0 && page >> (BITS * self.height) == 0
    }

    /// The frame of a page.
    #[inline]
    pub(super) fn find<P: Platform>(&self, frames: &Frames<'_, P>, page: u64) -> Option<Pfn> {
        if !self.reaches(page) {
            return None;
        }
        let mut at = self.root;
        for level in (0..self.height).rev() {
            at = frame_of(Node { frames, at }.get(slot(page, level)))?;
        }
        Some(at)
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
    pub(super) fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, page: u64, dead: &mut Dead) -> Option<Pfn> {
        let pfn = self.find(frames, page)?;
        let mut path = [Pfn::NONE; LEVELS as usize];
        let mut at = self.root;
        for level in (0..self.height).rev() {
            path[level as usize] = at;
            at = frame_of(Node { frames, at }.get(slot(page, level))).unwrap_or(at);
        }
        self.pages -= 1;
        for level in 0..self.height {
            let at = path[level as usize];
            if (Node { frames, at }).clear(slot(page, level)) != 0 {
                return Some(pfn);
            }
            dead.push(frames, at);
        }
        (self.root, self.height) = (Pfn::NONE, 0);
        Some(pfn)
    }

    /// The first page from `from` on that there is.
    pub(super) fn next<P: Platform>(&self, frames: &Frames<'_, P>, from: u64) -> Option<(u64, Pfn)> {
        let mut page = from;
        'from_the_root: while self.reaches(page) {
            let mut at = self.root;
            for level in (0..self.height).rev() {
                let node = Node { frames, at };
                let shift = BITS * level;
                let first = slot(page, level);
                let found = (first..FANOUT).find_map(|slot| Some((slot, frame_of(node.get(slot))?)));
                let Some((slot, below)) = found else {
                    page = ((page >> shift >> BITS) + 1) << BITS << shift;
                    continue 'from_the_root;
                };
                if slot != first {
                    page = (page >> shift >> BITS << BITS | slot) << shift;
                }
                at = below;
            }
            return Some((page, at));
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
}
