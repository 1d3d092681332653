//! Allocates naturally aligned blocks of 2ⁿ frames by the buddy system: splits them on demand and
//! merges them when freed (Knowlton, CACM 1965).
//!
//! Each free block is known to be zero or not, so that no memory is zeroed twice: zero blocks and
//! other blocks are on separate lists, a request prefers one of the two, and a merged block is zero
//! if both halves are (INV-10).

use core::sync::atomic::Ordering::Relaxed;

use super::{FrameKind, FrameList, Frames, MAX_ORDER, Watermarks, flag};
use crate::addr::Pfn;
use crate::platform::Platform;

const ORDERS: usize = MAX_ORDER as usize + 1;

/// A block that was just taken off a free list.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreeBlock {
    /// Its first frame.
    pub(super) pfn: Pfn,
    /// True if every byte of it is zero (INV-10).
    pub(super) is_zero: bool,
}

/// The free blocks of a node. [`super::node`] keeps it behind a spin lock.
#[derive(Debug)]
pub(super) struct Buddy {
    /// The free lists, indexed by whether their blocks are all zero (0 or 1), and then by order.
    free: [[FrameList; ORDERS]; 2],
    /// The number of frames on all lists.
    frames: u64,
    /// The node's watermarks.
    marks: Watermarks,
}

impl Buddy {
    /// Returns an allocator without any free block.
    pub(super) const fn new(marks: Watermarks) -> Self {
        Buddy { free: [[FrameList::new(); ORDERS]; 2], frames: 0, marks }
    }

    /// Returns the number of free frames.
    pub(super) fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns whether the free frames are below the min watermark, so part of the reserve is in
    /// use.
    pub(super) fn is_below_min(&self) -> bool {
        self.frames < self.marks.min
    }

    /// Returns whether allocating a block of this order would leave less than the low watermark
    /// free (Linux: `zone_watermark_ok`).
    pub(super) fn would_cross_low(&self, order: u8) -> bool {
        self.frames < self.marks.low + (1 << order)
    }

    /// Returns the number of free blocks of each order.
    pub(super) fn blocks(&self) -> [u64; ORDERS] {
        core::array::from_fn(|o| (self.free[0][o].len() + self.free[1][o].len()) as u64)
    }

    /// Takes a block of `1 << order` frames. Returns `None` if no free block is large enough, or if
    /// fewer frames than the low watermark would stay free. While the machine is short of memory,
    /// the min watermark counts instead.
    ///
    /// The smallest sufficient block is split, so that large blocks last; among blocks of equal
    /// size `rather_zero` decides. Of a split block the lowest part is used first and the rest goes
    /// to the front of the lists, so a series of requests gets ascending, adjacent blocks.
    pub(super) fn alloc<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
    ) -> Option<FreeBlock> {
        let floor = if frames.short.load(Relaxed) { self.marks.min } else { self.marks.low };
        if self.frames < floor + (1 << order) {
            return None;
        }
        self.alloc_below_floor(frames, order, rather_zero)
    }

    /// Takes a block whatever the watermarks, for [`Frames::alloc_reserve`].
    pub(super) fn alloc_below_floor<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
    ) -> Option<FreeBlock> {
        for from in order..=MAX_ORDER {
            for zero in [rather_zero, !rather_zero] {
                let Some(pfn) = self.free[zero as usize][from as usize].pop(frames) else { continue };
                let mut have = from;
                while have > order {
                    have -= 1;
                    self.insert(frames, pfn.add(1 << have), have, zero);
                }
                frames.frame(pfn).set_kind(FrameKind::Private, order, 0);
                self.frames -= 1 << order;
                return Some(FreeBlock { pfn, is_zero: zero });
            }
        }
        None
    }

    /// Frees a block. Merges it with its buddy (the other half of the next larger block) as long as
    /// the buddy is free too. The merged block counts as zero only if both halves are zero
    /// (INV-10).
    pub(super) fn free<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        self.frames += 1 << order;
        let (mut pfn, mut order, mut zero) = (pfn, order, zero);
        while order < MAX_ORDER {
            let buddy = Pfn(pfn.0 ^ (1 << order));
            let Some(frame) = frames.get(buddy).filter(|f| f.is(FrameKind::Free, order)) else { break };
            let buddy_zero = frame.state().has(flag::ZERO);
            self.free[buddy_zero as usize][order as usize].remove(frames, buddy);
            frame.set_kind(FrameKind::Private, 0, 0);
            frames.frame(pfn).set_kind(FrameKind::Private, 0, 0);
            zero &= buddy_zero;
            pfn = pfn.align_down(order + 1);
            order += 1;
        }
        self.insert(frames, pfn, order, zero);
    }

    /// Puts a block, which is on no list, in front of the free list of its order.
    fn insert<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool) {
        let frame = frames.frame(pfn);
        frame.set_kind(FrameKind::Free, order, if zero { flag::ZERO } else { 0 });
        self.free[zero as usize][order as usize].push(frames, pfn, frame);
    }
}
