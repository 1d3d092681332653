//! Doubly linked lists of frames, linked by frame number through the descriptors. The lists need no
//! memory of their own, and their links are half the size of pointers.

use core::sync::atomic::Ordering::Relaxed;

use super::{Frame, Frames};
use crate::addr::Pfn;
use crate::platform::Platform;

/// A doubly linked list of frames (Linux: `list_head`). The list's owner, or the holder of the lock
/// that protects it, owns the links of every frame on it.
#[derive(Debug, Clone, Copy)]
pub struct FrameList {
    head: Pfn,
    tail: Pfn,
    len: u32,
}

impl Default for FrameList {
    fn default() -> Self {
        FrameList::new()
    }
}

impl FrameList {
    /// Returns an empty list.
    pub const fn new() -> Self {
        FrameList { head: Pfn::NONE, tail: Pfn::NONE, len: 0 }
    }

    /// Returns the number of frames on the list.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the list is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first frame.
    #[inline]
    pub fn first(&self) -> Option<Pfn> {
        self.head.some()
    }

    /// Inserts a frame, which is on no list, at the front.
    #[inline]
    pub fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, frame: &Frame) {
        frame.link(0).store(Pfn::NONE.0, Relaxed);
        frame.link(1).store(self.head.0, Relaxed);
        match self.head.some() {
            Some(old) => frames.frame(old).link(0).store(pfn.0, Relaxed),
            None => self.tail = pfn,
        }
        self.head = pfn;
        self.len += 1;
    }

    /// Inserts the frames of `cut`, which were removed from a list, at an end.
    pub(crate) fn insert<P: Platform>(&mut self, frames: &Frames<'_, P>, cut: &Cut, end: ListEnd) {
        if cut.len == 0 {
            return;
        }
        let (before, after) = match end {
            ListEnd::Front => (Pfn::NONE, self.head),
            ListEnd::Back => (self.tail, Pfn::NONE),
        };
        frames.frame(cut.first).link(0).store(before.0, Relaxed);
        frames.frame(cut.last).link(1).store(after.0, Relaxed);
        match before.some() {
            Some(before) => frames.frame(before).link(1).store(cut.first.0, Relaxed),
            None => self.head = cut.first,
        }
        match after.some() {
            Some(after) => frames.frame(after).link(0).store(cut.last.0, Relaxed),
            None => self.tail = cut.last,
        }
        self.len += cut.len;
    }

    /// Removes `pfn`, which is on this list.
    #[inline]
    pub fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn) {
        self.cut(frames, &Cut::one(pfn, frames.frame(pfn)));
    }

    /// Removes the frames of `cut`, which are neighbours on this list.
    #[inline]
    pub(crate) fn cut<P: Platform>(&mut self, frames: &Frames<'_, P>, cut: &Cut) {
        if cut.len == 0 {
            return;
        }
        match cut.before.some() {
            Some(p) => frames.frame(p).link(1).store(cut.after.0, Relaxed),
            None => {
                debug_assert_eq!(self.head, cut.first, "removed a frame from a list that it is not on");
                self.head = cut.after;
            }
        }
        match cut.after.some() {
            Some(n) => frames.frame(n).link(0).store(cut.before.0, Relaxed),
            None => self.tail = cut.before,
        }
        self.len -= cut.len;
    }

    /// Iterates from the last frame to the first. The caller may remove a frame that the iterator
    /// has returned.
    pub(crate) fn iter_rev<'f, 'p, P: Platform>(
        &self,
        frames: &'f Frames<'p, P>,
    ) -> impl Iterator<Item = (Pfn, &'p Frame)> + use<'f, 'p, P> {
        let mut at = self.tail;
        core::iter::from_fn(move || {
            let pfn = at.some()?;
            let frame = frames.frame(pfn);
            at = Pfn(frame.link(0).load(Relaxed));
            Some((pfn, frame))
        })
    }

    /// Removes and returns the first frame.
    #[inline]
    pub fn pop<P: Platform>(&mut self, frames: &Frames<'_, P>) -> Option<Pfn> {
        let pfn = self.head.some()?;
        self.remove(frames, pfn);
        Some(pfn)
    }
}

/// An end of a list.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ListEnd {
    /// Before the first frame: the young end of a LRU list.
    Front,
    /// Behind the last frame: the old end of a LRU list.
    Back,
}

/// Prefetches the descriptors of the neighbours of a folio on its LRU list. The folio's own
/// descriptor was prefetched. What its links say is no more than a hint here.
#[inline]
pub(crate) fn prefetch_neighbours<P: Platform>(frames: &Frames<'_, P>, pfn: Pfn) {
    if let Some(frame) = frames.get(pfn) {
        frame.neighbours().into_iter().for_each(|pfn| frames.prefetch(pfn));
    }
}

/// Neighbouring frames on a list, to be removed together. The removal writes only the links of the
/// list's frames before and after them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    /// The first of the frames.
    first: Pfn,
    /// The last of the frames.
    last: Pfn,
    /// The frame before them on the list, or [`Pfn::NONE`].
    before: Pfn,
    /// The frame after them on the list, or [`Pfn::NONE`].
    after: Pfn,
    /// The number of frames.
    len: u32,
}

impl Default for Cut {
    fn default() -> Self {
        Cut { first: Pfn::NONE, last: Pfn::NONE, before: Pfn::NONE, after: Pfn::NONE, len: 0 }
    }
}

impl Cut {
    /// Returns a cut of one frame, which is on a list whose lock the caller holds.
    #[inline]
    pub(crate) fn one(pfn: Pfn, frame: &Frame) -> Self {
        let [before, after] = [0, 1].map(|i| Pfn(frame.link(i).load(Relaxed)));
        Cut { first: pfn, last: pfn, before, after, len: 1 }
    }

    /// Extends the cut by a frame, if the frame is next to the cut on the list, before or after it.
    /// Returns whether the cut was extended. An empty cut is not extended.
    #[inline]
    pub(crate) fn extend(&mut self, pfn: Pfn, frame: &Frame) -> bool {
        if self.len == 0 {
            return false;
        }
        if pfn == self.before {
            self.first = pfn;
            self.before = Pfn(frame.link(0).load(Relaxed));
        } else if pfn == self.after {
            self.last = pfn;
            self.after = Pfn(frame.link(1).load(Relaxed));
        } else {
            return false;
        }
        self.len += 1;
        true
    }
}
