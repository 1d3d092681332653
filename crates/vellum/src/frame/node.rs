//! NUMA nodes: the order in which an allocation tries them, and the shortage of memory that makes
//! the host reclaim.
//!
//! Each node has a buddy allocator and watermarks of its own.
//!
//! A *shard* is an index, the same for the whole machine: each shard has one frame cache, and one
//! per-CPU lruvec in each memcg ([`crate::memcg`]). Each CPU has a shard of its own, for memory of
//! the CPU's own node only. On a machine with several nodes, each node has one further shard, which
//! the CPUs of all other nodes use for memory of that node. So a shard has memory of one node only,
//! and a folio's lruvec implies the folio's node (INV-9).
//!
//! A CPU tries its own node first and then the others, nearest first (Linux: zonelist). As long as
//! some node has more than its low watermark free, no node allocates below its low watermark, so a
//! CPU tries the next node before the host reclaims. When no node has more than its low watermark
//! free, memory is *short*: all nodes allocate down to the min watermark, and the host reclaims on
//! each node until all have reached the high watermark ([`Frames::shortage`]).
//!
//! No range of free frames lies on two nodes. So no block, no folio, and no range that one call
//! frees lies on two nodes, and no pageblock of the buddy allocator has free frames of two
//! nodes. Where a region of one node ends within a pageblock, frames of other nodes behind it in
//! the same pageblock are never allocated; where it ends with a pageblock, the first frame of the
//! next pageblock is not, if it is another node's. (Firmware aligns the nodes' memory to much more
//! than 2 MiB.)

use core::sync::atomic::Ordering::Relaxed;

use super::buddy::FreeBlock;
use super::{Buddy, Frames, HUGE_ORDER, MAX_ORDER, SECTION_SHIFT, Use, Watermarks};
use crate::addr::Pfn;
use crate::platform::{MAX_NODES, Platform};
use crate::sync::SpinLock;

/// The memory of one node (Linux: `pg_data_t`), on cache lines of its own.
#[repr(align(128))]
pub(super) struct Node {
    /// The node's free blocks.
    pub(super) buddy: SpinLock<Buddy>,
    /// The number of the node's frames that the allocator manages.
    pub(super) total: u64,
    /// The node's watermarks.
    pub(super) marks: Watermarks,
    /// The numbers of all nodes by distance from this one: this node itself, the nearest other
    /// node, and so on.
    by_distance: [u8; MAX_NODES],
}

/// A block that [`Frames::find_anywhere`] took from a node.
pub(super) struct LocatedBlock {
    /// The block.
    pub(super) block: FreeBlock,
    /// The per-CPU lruvec of the block's node, in which it is to be charged and listed.
    pub(super) shard: usize,
}

impl Node {
    /// Returns the node `number` of `nodes`, without free memory. The host's distances order the
    /// other nodes.
    pub(super) fn new<P: Platform>(platform: &P, number: usize, nodes: usize, total: u64, marks: Watermarks) -> Self {
        let mut by_distance = core::array::from_fn(|other| other as u8);
        by_distance[..nodes].sort_unstable_by_key(|other| {
            (usize::from(*other) != number, platform.distance(number, usize::from(*other)), *other)
        });
        Node { buddy: SpinLock::new(Buddy::new(marks)), total, marks, by_distance }
    }
}

impl<'p, P: Platform> Frames<'p, P> {
    /// Returns the number of nodes.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the node of a frame.
    #[inline]
    pub fn node_of(&self, pfn: Pfn) -> usize {
        if self.nodes.len() == 1 { 0 } else { self.find_node(pfn) }
    }

    /// Returns the node of the memory region in which the frame lies. Out of line, so that a
    /// machine with one node pays only for a compare.
    #[inline(never)]
    fn find_node(&self, pfn: Pfn) -> usize {
        let regions = self.platform.regions();
        let behind = regions.partition_point(|region| region.base <= pfn.addr());
        regions[..behind].last().map_or(0, |region| region.node)
    }

    /// Returns the number of per-CPU lruvecs: one for each CPU, and with several nodes one more for
    /// each node.
    pub(crate) fn lruvecs(&self) -> usize {
        self.caches.len()
    }

    /// Returns the per-CPU lruvecs that have memory of `node`, or all of them.
    pub(crate) fn lruvecs_on(&self, node: Option<usize>) -> impl Iterator<Item = usize> {
        let (platform, cpus) = (self.platform, self.platform.count());
        let node_of_shard = move |shard: usize| if shard < cpus { platform.node(shard) } else { shard - cpus };
        (0..self.lruvecs()).filter(move |shard| node.is_none_or(|node| node_of_shard(*shard) == node))
    }

    /// Returns the per-CPU lruvec in which the current CPU keeps memory of a node.
    #[inline]
    pub(super) fn lruvec_on(&self, node: usize) -> usize {
        let cpu = self.platform.current();
        if self.nodes.len() == 1 || self.platform.node(cpu) == node { cpu } else { self.platform.count() + node }
    }

    /// Returns the number of frames of a node that the allocator manages; 0 if there is no such
    /// node.
    pub fn total_on(&self, node: usize) -> u64 {
        self.nodes.get(node).map_or(0, |node| node.total)
    }

    /// Returns the number of free frames of a node, those in per-CPU caches included. The number is
    /// exact only while no CPU allocates or frees. Takes the lock of each of the node's caches and
    /// of its buddy allocator.
    pub fn free_on(&self, node: usize) -> u64 {
        let Some(found) = self.nodes.get(node) else { return 0 };
        let cached = |shard: usize| u64::from(self.caches[shard].0.lock_irq(self.platform).frames());
        let cached: u64 = self.lruvecs_on(Some(node)).map(cached).sum();
        cached + found.buddy.lock_irq(self.platform).frames()
    }

    /// Returns the watermarks of a node; zeros if there is no such node.
    pub fn watermarks_on(&self, node: usize) -> Watermarks {
        self.nodes.get(node).map(|node| node.marks).unwrap_or_default()
    }

    /// Returns how many frames background reclaim should free, on all nodes together: the sum of
    /// [`Frames::shortage_on`].
    ///
    /// A host has a kswapd-like task for this ([`reclaim`](crate::reclaim::reclaim), of
    /// [`MemcgId::ROOT`](crate::memcg::MemcgId::ROOT)), and checks after each page fault, for
    /// instance, whether to wake it. A call costs one load while memory is not short, and otherwise
    /// takes the locks of all per-CPU caches and all buddy allocators.
    #[inline]
    pub fn shortage(&self) -> u64 {
        if self.short.load(Relaxed) { self.missing_to_high() } else { 0 }
    }

    /// Returns the sum of [`Frames::shortage_on`] over all nodes. If it is 0, memory is no longer
    /// short, and the flag for that is cleared.
    #[cold]
    fn missing_to_high(&self) -> u64 {
        let missing_to_high = (0..self.nodes()).map(|node| self.shortage_on(node)).sum();
        if missing_to_high == 0 {
            self.short.store(false, Relaxed);
        }
        missing_to_high
    }

    /// Returns how many frames background reclaim should free on a node: while memory is short, the
    /// number of frames that the node lacks to its high watermark, and otherwise 0.
    ///
    /// Memory becomes short when no node has more than its low watermark free; frames in per-CPU
    /// caches don't count as free for this. Memory stays short until every node has reached its
    /// high watermark; frames in per-CPU caches count as free for this.
    pub fn shortage_on(&self, node: usize) -> u64 {
        let short = self.short.load(Relaxed);
        if short { self.watermarks_on(node).high.saturating_sub(self.free_on(node)) } else { 0 }
    }

    /// Returns the number of free blocks of each order in a node's buddy allocator
    /// (`/proc/buddyinfo`). Blocks in per-CPU caches are not counted. The numbers are exact only
    /// while no CPU allocates or frees. Reads the bitmaps of all free frames of the node, and calls
    /// `resched` for each 32 MiB of memory: the caller holds no spin lock.
    pub fn free_blocks_on(&self, node: usize) -> [u64; MAX_ORDER as usize + 1] {
        let mut counts = [0; _];
        let Some(found) = self.nodes.get(node) else { return counts };
        let (small, large) = counts.split_at_mut(usize::from(HUGE_ORDER));
        large.copy_from_slice(&found.buddy.lock_irq(self.platform).large_blocks());
        for (section, first) in self.sections.iter().zip((0..).step_by(1 << SECTION_SHIFT)) {
            let Some(section) = section else { continue };
            for (pageblock, first) in section.pageblocks.iter().zip((first..).step_by(1 << HUGE_ORDER)) {
                let piece = pageblock.class().and_then(|_| pageblock.find(0, false));
                if piece.is_some_and(|piece| self.node_of(Pfn(first + piece.at)) == node) {
                    pageblock.count_pieces(small);
                }
            }
            self.platform.resched();
        }
        counts
    }

    /// Allocates a block that the current CPU's cache did not have; this is the slow path of
    /// [`Frames::alloc`]. The caller has tried the
    /// current CPU's own node. Tries three ways, each from the nearest node to the farthest:
    /// 1. While memory is not short, nodes that stay above their low watermark. While it is short
    ///    (the module's text), nodes that stay above their min watermark.
    /// 2. If no node would stay above its low watermark and memory was not short before: marks
    ///    memory as short, and tries nodes that stay above their min watermark.
    /// 3. After draining every CPU's cache, the buddy allocators alone.
    #[cold]
    pub(super) fn find_anywhere(&self, order: u8, rather_zero: bool, usage: Use) -> Option<LocatedBlock> {
        if order > MAX_ORDER {
            return None;
        }
        let cached = |shard: usize| self.caches[shard].0.lock_irq(self.platform).alloc(self, order, rather_zero, usage);
        let from_buddy = |node: &Node| node.buddy.lock_irq(self.platform).alloc(self, order, rather_zero, usage);
        let allocate = |skip| match order {
            0..=HUGE_ORDER => self.nearest(skip, |_, shard| cached(shard)),
            _ => self.nearest(0, |node, _| from_buddy(node)),
        };
        let has_none = |node: &Node| node.buddy.lock_irq(self.platform).would_cross_low(order);
        allocate(1).or_else(|| {
            let is_newly_short = self.nodes.iter().all(has_none) && !self.short.swap(true, Relaxed);
            is_newly_short.then(|| allocate(0)).flatten().or_else(|| {
                self.drain();
                self.nearest(0, |node, _| from_buddy(node))
            })
        })
    }

    /// Calls `allocate` for the nodes by distance from the current CPU, without the first `skip` of
    /// them, until it returns a block. Returns that block with the per-CPU lruvec of its node, or
    /// `None` if no node has a block.
    fn nearest(&self, skip: usize, allocate: impl Fn(&Node, usize) -> Option<FreeBlock>) -> Option<LocatedBlock> {
        let current = &self.nodes[self.platform.node(self.platform.current())];
        current.by_distance[skip..self.nodes()].iter().find_map(|node| {
            let shard = self.lruvec_on(usize::from(*node));
            allocate(&self.nodes[usize::from(*node)], shard).map(|block| LocatedBlock { block, shard })
        })
    }

    /// Allocates a block from the nearest node's reserve, whatever the watermarks. Returns `None`
    /// if no node has a free block of this order in its buddy allocator.
    pub(super) fn find_in_reserve(&self, order: u8, usage: Use) -> Option<Pfn> {
        let allocated =
            self.nearest(0, |node, _| node.buddy.lock_irq(self.platform).alloc_below_floor(self, order, false, usage));
        allocated.map(|LocatedBlock { block, .. }| block.pfn)
    }

    /// Returns the free blocks of every per-CPU cache to the buddy allocators (Linux:
    /// `drain_all_pages`).
    #[cold]
    pub fn drain(&self) {
        for cache in self.caches {
            cache.0.lock_irq(self.platform).drain(self);
        }
    }
}
