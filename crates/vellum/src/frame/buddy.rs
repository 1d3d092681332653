//! The buddy allocator: naturally aligned blocks of 2ⁿ frames, split on demand and merged when freed (Knowlton, CACM 1965).
//!
//! It remembers of each free block whether every byte of it is zero, so that nothing is zeroed twice: blocks that are and
//! blocks that are not stand on separate lists, a request says which it would rather have, and a merged block is zero if
//! both halves are.

use core::sync::atomic::Ordering::Relaxed;

use super::{FrameKind, FrameList, Frames, MAX_ORDER, Watermarks, flag};
use crate::addr::Pfn;
use crate::platform::Platform;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// The free blocks of a node. Lives behind a lock in [`super::node`].
#[derive(Debug)]
pub(super) struct Buddy {
    /// By "known to be zero", then by order.
    free: [[FrameList; ORDERS]; 2],
    frames: u64,
    marks: Watermarks,
}

impl Buddy {
    pub(super) const fn new(marks: Watermarks) -> Self {
        Buddy { free: [[FrameList::new(); ORDERS]; 2], frames: 0, marks }
    }

    /// Free frames.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// Whether part of what is to be kept was given out.
    pub(super) fn is_short(&self) -> bool {
        self.frames < self.marks.min
    }

    /// Whether so large a block would have to come from below the low watermark.
    pub(super) fn is_low(&self, order: u8) -> bool {
        self.frames < self.marks.low + (1 << order)
    }

    /// Free blocks of each order.
    pub(super) fn blocks(&self) -> [u64; ORDERS] {
        core::array::from_fn(|o| (self.free[0][o].len() + self.free[1][o].len()) as u64)
    }

    /// A block of `1 << order` frames and whether it is zero. The smallest block that serves is split, so that large ones
    /// last; among equally large ones `rather_zero` decides. The remainder's lower part is handed out first, so that a
    /// series of requests gets ascending, adjacent blocks. No more than there is above the low watermark, or, while memory is short,
    /// the lowest.
    pub(super) fn alloc<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
    ) -> Option<(Pfn, bool)> {
        let floor = if frames.short.load(Relaxed) { self.marks.min } else { self.marks.low };
        if self.frames < floor + (1 << order) {
            return None;
        }
        self.alloc_kept(frames, order, rather_zero)
    }

    /// The same, of the frames too that are kept for those who can't do without.
    pub(super) fn alloc_kept<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
    ) -> Option<(Pfn, bool)> {
        for from in order..=MAX_ORDER {
            for zero in [rather_zero, !rather_zero] {
                let Some(pfn) = self.free[zero as usize][from as usize].pop(frames) else { continue };
                let mut have = from;
                while have > order {
                    have -= 1;
                    self.insert(frames, pfn.add(1 << have), have, zero);
                }
                frames.frame(pfn).become_kind(FrameKind::Private, order, 0);
                self.frames -= 1 << order;
                return Some((pfn, zero));
            }
        }
        None
    }

    /// Give a block back, merging it with its buddy for as long as that is free too.
    pub(super) fn free<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        self.frames += 1 << order;
        let (mut pfn, mut order, mut zero) = (pfn, order, zero);
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ (1 << order));
            let Some(frame) = frames.get(buddy).filter(|f| f.is(FrameKind::Free, order)) else { break };
            let buddy_zero = frame.state().has(flag::ZERO);
            self.free[buddy_zero as usize][order as usize].remove(frames, buddy);
            frame.become_kind(FrameKind::Private, 0, 0);
            frames.frame(pfn).become_kind(FrameKind::Private, 0, 0);
            zero &= buddy_zero;
            pfn = pfn.align_down(order + 1);
            order += 1;
        }
        self.insert(frames, pfn, order, zero);
    }

    fn insert<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        let frame = frames.frame(pfn);
        frame.become_kind(FrameKind::Free, order, if zero { flag::ZERO } else { 0 });
        self.free[zero as usize][order as usize].push(frames, pfn, frame);
    }
}
