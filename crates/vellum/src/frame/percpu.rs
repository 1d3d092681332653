//! Caches free blocks of up to 2 MiB for each CPU, in front of a node's buddy allocator (Linux:
//! per-CPU page lists, `pcp`).
//!
//! Each cache has a lock of its own, which other CPUs take only when memory runs out and every
//! cache is drained. A refill takes one large block and splits it. So consecutive requests of a CPU
//! get contiguous frames, and page-table pages lie next to page-table pages. If page-table pages
//! were scattered, a few of them would keep all large blocks from merging. A cache that grows past
//! its limit returns half of its frames under one hold of the buddy allocator's lock.
//!
//! For user memory a CPU also has a *huge range*: up to 256 MiB of contiguous free frames from
//! which the CPU takes 2 MiB blocks. Huge ranges keep the frames of different CPUs apart. Where two
//! CPUs' frames alternate in memory, so do their descriptors, and the prefetcher of a CPU that
//! works through its own descriptors fetches the other CPU's cache lines. (When the frames of two
//! CPUs alternated every 2 MiB, unmapping on both CPUs at the same time was slower than on one
//! after the other.)

use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use super::buddy::FreeBlock;
use super::{FrameKind, Frames, HUGE_ORDER, Use, flag};
use crate::addr::Pfn;
use crate::platform::Platform;

const ORDERS: usize = HUGE_ORDER as usize + 1;
/// log2 of the number of blocks of the requested order that one refill provides.
const REFILL_SHIFT: u8 = 5;
/// The number of blocks to which a stack may grow when blocks are freed to it one by one. If the
/// stack becomes longer, the cache moves all its blocks of the same [`Use`] to the buddy allocator,
/// which merges them (Linux: `pcp->high`).
///
/// If freed blocks stayed in the cache, it would allocate them again in an ever more random order.
/// But contiguous frames are faster: page tables whose page-table pages are contiguous are unmapped
/// in half the time, and contiguous single pages form one run ([`crate::table::Run`]). A few
/// scattered blocks that were never moved would also keep large blocks from merging.
const MAX_LOOSE: u32 = 2 << REFILL_SHIFT;
/// The largest order of a huge range: 256 MiB.
const MAX_RANGE_ORDER: u8 = 16;

/// A cache of free frames of one node ([`super::node`]). Each CPU has one for its own node. On a
/// machine with several nodes, each node has a further one, which all CPUs of the other nodes
/// share.
#[derive(Debug)]
pub(super) struct FrameCache {
    /// Stacks of free blocks, indexed by [`Use`], then by whether their blocks are all zero (0 or
    /// 1), then by order.
    stacks: [[[Stack; ORDERS]; 2]; 2],
    /// The number of frames on the stacks.
    frames: u32,
    /// The number of frames on the stacks above which half of them go to the buddy allocator.
    limit: u32,
    /// The node whose memory the cache holds.
    node: usize,
    /// Free 2 MiB blocks that are contiguous, from which only this cache allocates.
    huge_range: HugeRange,
}

/// A stack of free blocks of the same order and [`Use`], either all known to be zero or none,
/// singly linked through their descriptors.
#[derive(Clone, Copy, Debug)]
struct Stack {
    /// The block that was pushed last, or [`Pfn::NONE`].
    top: Pfn,
    /// The number of blocks.
    len: u32,
}

/// A contiguous range of free 2 MiB blocks, up to 256 MiB. A cache takes it from the buddy
/// allocator as one block, and allocates one 2 MiB block after another from it.
#[derive(Debug)]
struct HugeRange {
    /// log2 of the number of frames of a full range. At most [`HUGE_ORDER`] means that this cache
    /// has no huge range.
    order: u8,
    /// The first frame of the next block.
    next: Pfn,
    /// The number of frames that are left.
    left: u32,
    /// True if all of it is zero.
    zero: bool,
}

impl HugeRange {
    /// Takes the lowest 2 MiB block, or returns `None` if the range is used up.
    #[inline]
    fn take(&mut self) -> Option<FreeBlock> {
        self.left = self.left.checked_sub(1 << HUGE_ORDER)?;
        let pfn = self.next;
        self.next = pfn.add(1 << HUGE_ORDER);
        Some(FreeBlock { pfn, is_zero: self.zero })
    }

    /// Refills the range with the node's largest free block, up to the range's full size. Leaves it
    /// empty if the node has no free block above 2 MiB.
    fn fill<P: Platform>(&mut self, frames: &Frames<'_, P>, node: usize, rather_zero: bool) {
        for order in (HUGE_ORDER + 1..=self.order).rev() {
            if let Some(FreeBlock { pfn, is_zero: zero }) =
                frames.nodes[node].buddy.lock_irq(frames.platform()).alloc(frames, order, rather_zero, Use::Folio)
            {
                (self.next, self.left, self.zero) = (pfn, 1 << order, zero);
                for start in (0..1 << order).step_by(1 << HUGE_ORDER) {
                    frames.frame(pfn.add(start)).set_kind(FrameKind::Cached, HUGE_ORDER, 0);
                }
                return;
            }
        }
    }
}

impl FrameCache {
    /// Returns an empty cache for the memory of `node`. The cache keeps at most `limit` frames on
    /// its stacks of free blocks. Its huge range, from which it cuts 2 MiB blocks, has at most
    /// `huge_range` frames.
    pub(super) fn new(node: usize, limit: u32, huge_range: u64) -> Self {
        let order = (huge_range.max(1).ilog2() as u8).min(MAX_RANGE_ORDER);
        let huge_range = HugeRange { order, next: Pfn::NONE, left: 0, zero: false };
        let none = Stack { top: Pfn::NONE, len: 0 };
        FrameCache { stacks: [[[none; ORDERS]; 2]; 2], frames: 0, limit, node, huge_range }
    }

    /// Returns the number of free frames in the cache, its huge range included.
    pub(super) fn frames(&self) -> u32 {
        self.frames + self.huge_range.left
    }

    /// Takes a block of this order, refilling the cache if it has none. Prefers zero blocks if
    /// `rather_zero` is set, other blocks if not. Returns `None` if the node's buddy allocator has
    /// no block above its watermark either.
    #[inline]
    pub(super) fn alloc<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<FreeBlock> {
        if let Some(block) = self.pop(frames, order, rather_zero, usage) {
            return Some(block);
        }
        self.refill(frames, order, rather_zero, usage);
        self.pop(frames, order, rather_zero, usage)
    }

    /// Takes the most recently freed block of exactly this order.
    #[inline]
    fn pop<P: Platform>(
        &mut self,
        frames: &Frames<'_, P>,
        order: u8,
        rather_zero: bool,
        usage: Use,
    ) -> Option<FreeBlock> {
        for zero in [rather_zero, !rather_zero] {
            let stack = &mut self.stacks[usage as usize][zero as usize][order as usize];
            if let Some(pfn) = stack.top.some() {
                let frame = frames.frame(pfn);
                *stack = Stack { top: Pfn(frame.link(1).load(Relaxed)), len: stack.len - 1 };
                frame.set_kind(FrameKind::Private, order, 0);
                self.frames -= 1 << order;
                return Some(FreeBlock { pfn, is_zero: zero });
            }
        }
        None
    }

    /// Puts a block on its stack, and returns the stack's new length.
    #[inline]
    fn push<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool, usage: Use) -> u32 {
        let frame = frames.frame(pfn);
        frame.set_kind(FrameKind::Cached, order, if zero { flag::ZERO } else { 0 });
        let stack = &mut self.stacks[usage as usize][zero as usize][order as usize];
        frame.link(1).store(stack.top.0, Relaxed);
        *stack = Stack { top: pfn, len: stack.len + 1 };
        self.frames += 1 << order;
        stack.len
    }

    /// Puts blocks of this order on their stack. Splits the smallest larger block in the cache. If
    /// the cache has none, splits a block of the huge range (for [`Use::Folio`] only), or else
    /// blocks of the buddy allocator.
    #[cold]
    fn refill<P: Platform>(&mut self, frames: &Frames<'_, P>, order: u8, rather_zero: bool, usage: Use) {
        for from in order + 1..=HUGE_ORDER {
            if let Some(FreeBlock { pfn, is_zero: zero }) = self.pop(frames, from, rather_zero, usage) {
                return self.split(frames, pfn, from, order, zero, usage);
            }
        }
        if usage == Use::Folio {
            if self.huge_range.left == 0 {
                self.huge_range.fill(frames, self.node, rather_zero);
            }
            if let Some(FreeBlock { pfn, is_zero: zero }) = self.huge_range.take() {
                return self.split(frames, pfn, HUGE_ORDER, order, zero, usage);
            }
        }
        self.refill_from_buddy(frames, order, rather_zero, usage);
    }

    /// Takes the largest block that fits the cache's limit from the buddy allocator, and splits it
    /// into blocks of this order. If it has less than 32 frames, takes other blocks too, down to
    /// this order, until there are 32 frames. The frames are allocated in the order in which they
    /// were taken.
    fn refill_from_buddy<P: Platform>(&mut self, frames: &Frames<'_, P>, order: u8, rather_zero: bool, usage: Use) {
        const WANTED: u32 = 1 << REFILL_SHIFT;
        let mut taken = ArrayVec::<(FreeBlock, u8), { WANTED as usize }>::new();
        let (mut got, mut limit) = (0, HUGE_ORDER);
        let mut buddy = frames.nodes[self.node].buddy.lock_irq(frames.platform());
        while got < WANTED
            && let Some(from) = buddy.largest(limit, usage).filter(|from| *from >= order)
        {
            let room = (self.limit / 2).saturating_sub(self.frames + got) >> from;
            let fits = room > 0 || (from == order && got == 0);
            let Some(block) = fits.then(|| buddy.alloc(frames, from, rather_zero, usage)).flatten() else {
                let Some(smaller) = from.checked_sub(1) else { break };
                limit = smaller;
                continue;
            };
            taken.push((block, from));
            got += 1 << from;
            let more = room.saturating_sub(1).min(WANTED.saturating_sub(got) >> from);
            let (first, mut starts) = buddy.alloc_beside(frames, block, from, more);
            while starts != 0 {
                taken.push((FreeBlock { pfn: first.add(starts.trailing_zeros()), ..block }, from));
                got += 1 << from;
                starts &= starts - 1;
            }
        }
        drop(buddy);
        for (FreeBlock { pfn, is_zero }, from) in taken.into_iter().rev() {
            self.split(frames, pfn, from, order, is_zero, usage);
        }
    }

    /// Splits a block of order `have` and puts the parts on their stacks: up to 32 blocks of order
    /// `order`, and larger blocks for the rest. The lowest part is the next to be allocated.
    fn split<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, have: u8, order: u8, zero: bool, usage: Use) {
        let part = have.min(order + REFILL_SHIFT);
        for upper in (part..have).rev() {
            self.push(frames, pfn.add(1 << upper), upper, zero, usage);
        }
        let stack = &mut self.stacks[usage as usize][zero as usize][order as usize];
        let descriptors = frames.descriptors(pfn, 1 << part);
        let mut next = stack.top;
        for i in (0..descriptors.len()).step_by(1 << order).rev() {
            descriptors[i].set_kind(FrameKind::Cached, order, if zero { flag::ZERO } else { 0 });
            descriptors[i].link(1).store(next.0, Relaxed);
            next = pfn.add(i as u32);
        }
        *stack = Stack { top: pfn, len: stack.len + (1 << (part - order)) };
        self.frames += 1 << part;
    }

    /// Frees a block to the cache. If the block's stack becomes longer than [`MAX_LOOSE`], moves
    /// all blocks of the same [`Use`] to the buddy allocator. If the cache exceeds its limit, moves
    /// half of it.
    #[inline]
    pub(super) fn free<P: Platform>(&mut self, frames: &Frames<'_, P>, pfn: Pfn, order: u8, zero: bool, usage: Use) {
        if self.push(frames, pfn, order, zero, usage) > MAX_LOOSE {
            self.flush(frames, usage);
        }
        if self.frames > self.limit {
            self.shrink(frames, self.limit / 2);
        }
    }

    /// Moves all blocks of one [`Use`] to the buddy allocator, blocks from refills too.
    #[cold]
    fn flush<P: Platform>(&mut self, frames: &Frames<'_, P>, usage: Use) {
        let mut buddy = frames.nodes[self.node].buddy.lock_irq(frames.platform());
        for order in 0..ORDERS as u8 {
            while let Some(FreeBlock { pfn, is_zero: zero }) = self.pop(frames, order, false, usage) {
                buddy.free(frames, pfn, order, zero);
            }
        }
    }

    /// Moves all blocks and the rest of the huge range to the buddy allocator.
    #[cold]
    pub(super) fn drain<P: Platform>(&mut self, frames: &Frames<'_, P>) {
        self.shrink(frames, 0);
        while let Some(FreeBlock { pfn, is_zero: zero }) = self.huge_range.take() {
            frames.nodes[self.node].buddy.lock_irq(frames.platform()).free(frames, pfn, HUGE_ORDER, zero);
        }
    }

    /// Moves blocks to the buddy allocator, the largest first, until at most `keep` frames are left
    /// on the stacks.
    #[cold]
    fn shrink<P: Platform>(&mut self, frames: &Frames<'_, P>, keep: u32) {
        let mut buddy = frames.nodes[self.node].buddy.lock_irq(frames.platform());
        for order in (0..ORDERS as u8).rev() {
            for usage in [Use::Folio, Use::Kernel] {
                while self.frames > keep
                    && let Some(FreeBlock { pfn, is_zero: zero }) = self.pop(frames, order, false, usage)
                {
                    buddy.free(frames, pfn, order, zero);
                }
            }
        }
    }
}
