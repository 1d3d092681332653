//! Per-CPU caches in front of a node's buddy allocator, for blocks up to a huge page.
//!
//! A CPU's cache has a lock of its own that nobody else wants, except when memory runs out and every cache is emptied.
//! Refills take a large block and cut off what is asked for, so that what a CPU hands out in a row lies in a row, and so
//! that page tables lie among page tables: scattered, a few of them would split all of memory. A cache that grows past its
//! limit gives half of it back under one hold of the buddy's lock.
//!
//! For user memory a CPU has a *reserve* besides, one stretch of up to 256 MiB, of which it cuts huge pages. It keeps apart
//! what different CPUs use. Where their frames take turns in memory, so do the descriptors, and a processor that works its
//! way through its own fetches the neighbour's ahead: then each takes from the other's cache what that is about to need.
//! (Two CPUs that unmap side by side were slower than one after the other when their frames took turns every 2 MiB.)

use core::sync::atomic::Ordering::Relaxed;

use super::{FrameKind, Frames, HUGE_ORDER, Use, flag};
use crate::addr::Pfn;
use crate::platform::Platform;

const ORDERS: usize = HUGE_ORDER as usize + 1;
/// log2 of how many blocks a refill cuts off, so that there is one for many requests.
const REFILL_ORDER: u8 = 5;
/// Blocks of a kind that come back one by one before all go on to the buddy allocator, which makes large ones of them
/// again. If they stayed, they would be handed out in ever less of an order: page tables that lie in a row are unmapped in
/// half the time of those that don't, and single pages in a row are one run. And a few that stayed for good, here and there, would
/// leave no large block whole.
const LOOSE: u32 = 2 << REFILL_ORDER;
/// The largest reserve: 256 MiB.
const MAX_RESERVE: u8 = 16;

/// The free blocks of one shard: mostly, one CPU's.
#[derive(Debug)]
pub(super) struct Cache {
    /// By [`Use`], then by "known to be zero", then by order.
    stacks: [[[Stack; ORDERS]; 2]; 2],
    /// Frames on the stacks.
    frames: u32,
    limit: u32,
    /// Whose memory it has.
    node: usize,
    reserve: Reserve,
}

/// Blocks of a kind, linked one way.
#[derive(Clone, Copy, Debug)]
struct Stack {
    top: Pfn,
    len: u32,
}

/// Huge pages in a row.
#[derive(Debug)]
struct Reserve {
    /// log2 of its frames when it is full; no more than a huge page's means that this CPU has none.
    order: u8,
    next: Pfn,
    left: u32,
    zero: bool,
}

impl Reserve {
    #[inline]
    fn take(&mut self) -> Option<(Pfn, bool)> {
        self.left = self.left.checked_sub(1 << HUGE_ORDER)?;
        let pfn = self.next;
        self.next = pfn.add(1 << HUGE_ORDER);
        Some((pfn, self.zero))
    }

    /// Take the largest piece there is up to its size.
    fn fill<P: Platform>(&mut self, frames: &Frames<'_, P>, node: usize, rather_zero: bool) {
        for order in (HUGE_ORDER + 1..=self.order).rev() {
            if let Some((pfn, zero)) =
                frames.nodes[node].buddy.lock_irq(frames.platform()).alloc(frames, order, rather_zero)
            {
                (self.next, self.left, self.zero) = (pfn, 1 << order, zero);
                for start in (0..1 << order).step_by(1 << HUGE_ORDER) {
                    frames.frame(pfn.add(start)).become_kind(FrameKind::Cached, HUGE_ORDER, 0);
                }
                return;
            }
        }
    }
}

impl Cache {
    /// For memory of a node, of which it may keep `limit` frames of all kinds and a reserve of `reserve` frames.
    pub(super) fn new(node: usize, limit: u32, reserve: u64) -> Self {
        let order = (reserve.max(1).ilog2() as u8).min(MAX_RESERVE);
        let reserve = Reserve { order, next: Pfn::NONE, left: 0, zero: false };
        let none = Stack { top: Pfn::NONE, len: 0 };
        Cache { stacks: [[[none; ORDERS]; 2]; 2], frames: 0, limit, node, reserve }
    }

    /// Free frames in it.
    pub(super) fn frames(&self) -> u32 {
        self.frames + self.reserve.left
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
            let stack = &mut self.stacks[usage as usize][zero as usize][order as usize];
            if let Some(pfn) = stack.top.some() {
                let frame = frames.frame(pfn);
                *stack = Stack { top: Pfn(frame.link(1).load(Relaxed)), len: stack.len - 1 };
                frame.become_kind(FrameKind::Private, order, 0);
                self.frames -= 1 << order;
                return Some((pfn, zero));
            }
        }
        None
    }

    /// How many blocks of the kind there are now.
    #[inline]
    fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool, usage: Use) -> u32 {
        let frame = frames.frame(pfn);
        frame.become_kind(FrameKind::Cached, order, if zero { flag::ZERO } else { 0 });
        let stack = &mut self.stacks[usage as usize][zero as usize][order as usize];
        frame.link(1).store(stack.top.0, Relaxed);
        *stack = Stack { top: pfn, len: stack.len + 1 };
        self.frames += 1 << order;
        stack.len
    }

    /// Have blocks of this order, cut off the smallest larger one at hand, off the reserve, or off the largest block of the
    /// buddy allocator's that there is room for.
    #[cold]
    fn refill<P: Platform>(&mut self, frames: &Frames<'_, P>, order: u8, rather_zero: bool, usage: Use) {
        for from in order + 1..=HUGE_ORDER {
            if let Some((pfn, zero)) = self.pop(frames, from, rather_zero, usage) {
                return self.cut(frames, pfn, from, order, zero, usage);
            }
        }
        if usage == Use::Folio {
            if self.reserve.left == 0 {
                self.reserve.fill(frames, self.node, rather_zero);
            }
            if let Some((pfn, zero)) = self.reserve.take() {
                return self.cut(frames, pfn, HUGE_ORDER, order, zero, usage);
            }
        }
        for from in (order..=HUGE_ORDER).rev() {
            if from > order && self.frames + (1 << from) > self.limit / 2 {
                continue;
            }
            let found = frames.nodes[self.node].buddy.lock_irq(frames.platform()).alloc(frames, from, rather_zero);
            if let Some((pfn, zero)) = found {
                return self.cut(frames, pfn, from, order, zero, usage);
            }
        }
    }

    /// Cut a block up so that a few are of this order. Of the pieces the lowest is always the next to be handed out.
    fn cut<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, have: u8, order: u8, zero: bool, usage: Use) {
        let few = have.min(order + REFILL_ORDER);
        for upper in (few..have).rev() {
            self.push(frames, pfn.add(1 << upper), upper, zero, usage);
        }
        let stack = &mut self.stacks[usage as usize][zero as usize][order as usize];
        let row = frames.stretch(pfn, 1 << few);
        let mut next = stack.top;
        for i in (0..row.len()).step_by(1 << order).rev() {
            row[i].become_kind(FrameKind::Cached, order, if zero { flag::ZERO } else { 0 });
            row[i].link(1).store(next.0, Relaxed);
            next = pfn.add(i as u32);
        }
        *stack = Stack { top: pfn, len: stack.len + (1 << (few - order)) };
        self.frames += 1 << few;
    }

    /// Give a block back.
    #[inline]
    pub(super) fn free<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool, usage: Use) {
        if self.push(frames, pfn, order, zero, usage) > LOOSE {
            self.empty(frames, usage);
        }
        if self.frames > self.limit {
            self.shrink(frames, self.limit / 2);
        }
    }

    /// Give all blocks of a use to the buddy allocator, what is left of former times too.
    #[cold]
    fn empty<P: Platform>(&mut self, frames: &Frames<'_, P>, usage: Use) {
        let mut buddy = frames.nodes[self.node].buddy.lock_irq(frames.platform());
        for order in 0..ORDERS as u8 {
            while let Some((pfn, zero)) = self.pop(frames, order, false, usage) {
                buddy.free(frames, pfn, order, zero);
            }
        }
    }

    /// Give all to the buddy allocator.
    #[cold]
    pub(super) fn drain<P: Platform>(&mut self, frames: &Frames<'_, P>) {
        self.shrink(frames, 0);
        while let Some((pfn, zero)) = self.reserve.take() {
            frames.nodes[self.node].buddy.lock_irq(frames.platform()).free(frames, pfn, HUGE_ORDER, zero);
        }
    }

    /// Give blocks to the buddy allocator until no more than `keep` frames are left on the stacks, the largest first.
    #[cold]
    fn shrink<P: Platform>(&mut self, frames: &Frames<'_, P>, keep: u32) {
        let mut buddy = frames.nodes[self.node].buddy.lock_irq(frames.platform());
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
