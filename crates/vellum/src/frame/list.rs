//! Lists of frames, linked by frame number through the descriptors: no memory of their own, and half the size of pointers.

use core::sync::atomic::Ordering::Relaxed;

use super::Frames;
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

    /// Put `pfn`, which is on no list, in front.
    #[inline]
    pub fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn) {
        let frame = frames.frame(pfn);
        frame.link(0).store(Pfn::NONE.0, Relaxed);
        frame.link(1).store(self.head.0, Relaxed);
        match self.head.some() {
            Some(old) => frames.frame(old).link(0).store(pfn.0, Relaxed),
            None => self.tail = pfn,
        }
        self.head = pfn;
        self.len += 1;
    }

    /// Take `pfn`, which is on this list, off it.
    #[inline]
    pub fn remove<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn) {
        let frame = frames.frame(pfn);
        let prev = Pfn(frame.link(0).load(Relaxed));
        let next = Pfn(frame.link(1).load(Relaxed));
        match prev.some() {
            Some(p) => frames.frame(p).link(1).store(next.0, Relaxed),
            None => {
                debug_assert_eq!(self.head, pfn, "removed from a list that it is not on");
                self.head = next;
            }
        }
        match next.some() {
            Some(n) => frames.frame(n).link(0).store(prev.0, Relaxed),
            None => self.tail = prev,
        }
        self.len -= 1;
    }

    /// Take the first one off.
    #[inline]
    pub fn pop<P: Platform>(&mut self, frames: &Frames<'_, P>) -> Option<Pfn> {
        let pfn = self.head.some()?;
        self.remove(frames, pfn);
        Some(pfn)
    }
}
