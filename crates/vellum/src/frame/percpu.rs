//! Per-CPU caches in front of the buddy allocator, for blocks up to a huge page.
//!
//! A CPU's cache has a lock of its own that nobody else wants, except when memory runs out and every cache is emptied.
//! Refills take one larger block and cut it up, so that what a CPU hands out in a row lies in a row, and so that page tables
//! lie among page tables: scattered, a few of them would split all of memory. A cache that grows
//! past its limit gives half of it back under one hold of the buddy's lock.

use core::sync::atomic::Ordering::Relaxed;

use super::{FrameKind, Frames, HUGE_ORDER, Use, flag};
use crate::addr::Pfn;
use crate::platform::Platform;

const ORDERS: usize = HUGE_ORDER as usize + 1;
/// log2 of how many blocks a refill brings when one piece of memory that large is there.
const REFILL_ORDER: u8 = 5;

/// One CPU's free blocks.
#[derive(Debug)]
pub(super) struct Cache {
    /// Heads of singly linked stacks, by [`Use`], then by "known to be zero", then by order.
    stacks: [[[Pfn; ORDERS]; 2]; 2],
    frames: u32,
    limit: u32,
}

impl Cache {
    pub(super) fn new(limit: u32) -> Self {
        Cache { stacks: [[[Pfn::NONE; ORDERS]; 2]; 2], frames: 0, limit }
    }

    /// Free frames in it.
    pub(super) fn frames(&self) -> u32 {
        self.frames
    }

    /// A block, and whether it is zero.
    #[inline]
    pub(super) fn alloc<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<(Pfn, bool)> {
        if let Some(found) = self.pop(frames, order, rather_zero, usage) {
            return Some(found);
        }
        self.refill(frames, order, rather_zero, usage);
        self.pop(frames, order, rather_zero, usage)
    }

    #[inline]
    fn pop<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<(Pfn, bool)> {
        for zero in [rather_zero, !rather_zero] {
            let top = &mut self.stacks[usage as usize][zero as usize][order as usize];
            if let Some(pfn) = top.some() {
                let frame = frames.frame(pfn);
                *top = Pfn(frame.link(1).load(Relaxed));
                frame.become_kind(FrameKind::Private, order, 0);
                self.frames -= 1 << order;
                return Some((pfn, zero));
            }
        }
        None
    }

    #[inline]
    fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool, usage: Use) {
        let frame = frames.frame(pfn);
        frame.become_kind(FrameKind::Cached, order, if zero { flag::ZERO } else { 0 });
        let top = &mut self.stacks[usage as usize][zero as usize][order as usize];
        frame.link(1).store(top.0, Relaxed);
        *top = pfn;
        self.frames += 1 << order;
    }

    #[cold]
    fn refill<P: Platform>(&mut self, frames: &Frames<'_, P>, order: u8, rather_zero: bool, usage: Use) {
        let mut buddy = frames.buddy.lock_irq(frames.platform());
        for extra in (0..=REFILL_ORDER).rev() {
            if extra > 0 && (self.frames + (1 << (order + extra)) > self.limit / 2 || order + extra > HUGE_ORDER) {
                continue;
            }
            if let Some((pfn, zero)) = buddy.alloc(frames, order + extra, rather_zero) {
                for i in (0..1u32 << extra).rev() {
                    self.push(frames, pfn.add(i << order), order, zero, usage);
                }
                return;
            }
        }
    }

    /// Give a block back.
    #[inline]
    pub(super) fn free<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool, usage: Use) {
        self.push(frames, pfn, order, zero, usage);
        if self.frames > self.limit {
            self.shrink(frames, self.limit / 2);
        }
    }

    /// Give blocks to the buddy allocator until no more than `keep` frames are left, the largest first.
    #[cold]
    pub(super) fn shrink<P: Platform>(&mut self, frames: &Frames<'_, P>, keep: u32) {
        let mut buddy = frames.buddy.lock_irq(frames.platform());
        for order in (0..ORDERS as u8).rev() {
            for usage in [Use::Folio, Use::Kernel] {
                while self.frames > keep
                    && let Some((pfn, zero)) = self.pop(frames, order, false, usage)
                {
                    buddy.free(frames, pfn, order, zero);
                }
            }
        }
    }
}
