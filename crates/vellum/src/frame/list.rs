//! Lists of frames, linked by frame number through the descriptors: no memory of their own, and half the size of pointers.

use core::sync::atomic::Ordering::Relaxed;

use super::{Frame, Frames};
use crate::addr::Pfn;
use crate::platform::Platform;

/// A doubly linked list. Whoever owns it, or holds the lock that protects it, owns the links of every frame on it.
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
    /// Empty.
    pub const fn new() -> Self {
        FrameList { head: Pfn::NONE, tail: Pfn::NONE, len: 0 }
    }

    /// How many frames are on it.
    #[inline]
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Whether none is.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The first one.
    #[inline]
    pub fn first(&self) -> Option<Pfn> {
        self.head.some()
    }

    /// Put a frame, which is on no list, in front.
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

    /// Put a frame, which is on no list, behind all others.
    pub(crate) fn push_back<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, frame: &Frame) {
        let Some(last) = self.tail.some() else { return self.push(frames, pfn, frame) };
        frame.link(0).store(last.0, Relaxed);
        frame.link(1).store(Pfn::NONE.0, Relaxed);
        frames.frame(last).link(1).store(pfn.0, Relaxed);
        self.tail = pfn;
        self.len += 1;
    }

    /// Take `pfn`, which is on this list, off it.
    #[inline]
    pub fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn) {
        self.cut(frames, &Cut::one(pfn, frames.frame(pfn)));
    }

    /// Take neighbours off.
    #[inline]
    pub(crate) fn cut<P: Platform>(&mut self, frames: &Frames<'_, P>, cut: &Cut) {
        if cut.len == 0 {
            return;
        }
        match cut.before.some() {
            Some(p) => frames.frame(p).link(1).store(cut.after.0, Relaxed),
            None => {
                debug_assert_eq!(self.head, cut.first, "removed from a list that it is not on");
                self.head = cut.after;
            }
        }
        match cut.after.some() {
            Some(n) => frames.frame(n).link(0).store(cut.before.0, Relaxed),
            None => self.tail = cut.before,
        }
        self.len -= cut.len;
    }

    /// The last one, and the one before each, which the list may lose when it has been shown.
    pub(crate) fn backward<'f, 'p, P: Platform>(
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

    /// Take the first one off.
    #[inline]
    pub fn pop<P: Platform>(&mut self, frames: &Frames<'_, P>) -> Option<Pfn> {
        let pfn = self.head.some()?;
        self.remove(frames, pfn);
        Some(pfn)
    }
}

/// Neighbours on a list, to be taken off together: what is left to do are the links at the two ends, and nothing is read
/// from or written to those in between any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cut {
    first: Pfn,
    before: Pfn,
    after: Pfn,
    len: u32,
}

impl Default for Cut {
    fn default() -> Self {
        Cut { first: Pfn::NONE, before: Pfn::NONE, after: Pfn::NONE, len: 0 }
    }
}

impl Cut {
    /// A frame by itself.
    #[inline]
    pub(crate) fn one(pfn: Pfn, frame: &Frame) -> Self {
        let [before, after] = [0, 1].map(|i| Pfn(frame.link(i).load(Relaxed)));
        Cut { first: pfn, before, after, len: 1 }
    }

    /// Take a frame in, if it is the next one in either direction. Whether it was.
    #[inline]
    pub(crate) fn extend(&mut self, pfn: Pfn, frame: &Frame) -> bool {
        if self.len == 0 {
            return false;
        }
        if pfn == self.before {
            self.first = pfn;
            self.before = Pfn(frame.link(0).load(Relaxed));
        } else if pfn == self.after {
            self.after = Pfn(frame.link(1).load(Relaxed));
        } else {
            return false;
        }
        self.len += 1;
        true
    }
}
