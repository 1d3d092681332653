//! Nodes: memory that some CPUs reach sooner than others do, and who gives when one has none left.
//!
//! Each node has a buddy allocator and watermarks of its own. What there is once a CPU (its cache of frames, its part of each memcg) is a
//! *shard*, and has memory of the CPU's own node only. Where there are several nodes, each has a shard besides, for all CPUs of other
//! nodes that use its memory. So all of a shard is on one node, the caches and the lists of a node are those of some shards, and whoever
//! knows a folio's shard knows its node. With one node there are the CPUs' shards and nothing else.
//!
//! A CPU asks its own node first and then the others, nearest first. As long as one of them has more than its low watermark, the others
//! keep theirs: so the next node comes before reclaim. When none has, memory is *short*: all give down to the lowest watermark then, and the
//! host reclaims on each until all have reached the high one ([`Frames::shortage`]).
//!
//! No stretch of free frames, and so no block, no folio and no row of what is freed together, lies on two nodes: where regions of different
//! nodes touch, a frame between them is never given out.

use core::sync::atomic::Ordering::Relaxed;

use super::{Buddy, Frames, HUGE_ORDER, MAX_ORDER, Use, Watermarks};
use crate::addr::Pfn;
use crate::platform::{MAX_NODES, Platform};
use crate::sync::SpinLock;

/// One node's memory, on cache lines of its own.
#[repr(align(128))]
pub(super) struct Node {
    pub(super) buddy: SpinLock<Buddy>,
    pub(super) total: u64,
    pub(super) marks: Watermarks,
    /// All nodes: itself, then the nearest of the others, and so on.
    near: [u8; MAX_NODES],
}

impl Node {
    /// The node of this number, of so many.
    pub(super) fn new<P: Platform>(platform: &P, number: usize, nodes: usize, total: u64, marks: Watermarks) -> Self {
        let mut near = core::array::from_fn(|other| other as u8);
        near[..nodes].sort_unstable_by_key(|other| {
            (usize::from(*other) != number, platform.distance(number, usize::from(*other)), *other)
        });
        Node { buddy: SpinLock::new(Buddy::new(marks)), total, marks, near }
    }
}

impl<'p, P: Platform> Frames<'p, P> {
    /// How many nodes there are.
    pub fn nodes(&self) -> usize {
        self.nodes.len()
    }

    /// The node that a frame is on.
    #[inline]
    pub fn node_of(&self, pfn: Pfn) -> usize {
        if self.nodes.len() == 1 { 0 } else { self.find_node(pfn) }
    }

    #[inline(never)]
    fn find_node(&self, pfn: Pfn) -> usize {
        let regions = self.platform.regions();
        let behind = regions.partition_point(|region| region.base <= pfn.addr());
        regions[..behind].last().map_or(0, |region| region.node)
    }

    /// How many shards there are.
    pub(crate) fn lruvecs(&self) -> usize {
        self.caches.len()
    }

    /// Those that have memory of a node, or of any.
    pub(crate) fn lruvecs_on(&self, node: Option<usize>) -> impl Iterator<Item = usize> {
        let (platform, cpus) = (self.platform, self.platform.count());
        let own = move |shard: usize| if shard < cpus { platform.node(shard) } else { shard - cpus };
        (0..self.lruvecs()).filter(move |shard| node.is_none_or(|node| own(*shard) == node))
    }

    /// The shard in which this CPU has memory of a node.
    #[inline]
    pub(super) fn lruvec_on(&self, node: usize) -> usize {
        let cpu = self.platform.current();
        if self.nodes.len() == 1 || self.platform.node(cpu) == node { cpu } else { self.platform.count() + node }
    }

    /// Frames of a node that the engine gives out.
    pub fn total_on(&self, node: usize) -> u64 {
        self.nodes.get(node).map_or(0, |node| node.total)
    }

    /// Frames of a node that are free now: exact when nothing runs.
    pub fn free_on(&self, node: usize) -> u64 {
        let Some(own) = self.nodes.get(node) else { return 0 };
        let cached = |shard: usize| u64::from(self.caches[shard].0.lock_irq(self.platform).frames());
        let cached: u64 = self.lruvecs_on(Some(node)).map(cached).sum();
        cached + own.buddy.lock_irq(self.platform).frames()
    }

    /// How many frames of a node should be free.
    pub fn watermarks_on(&self, node: usize) -> Watermarks {
        self.nodes.get(node).map(|node| node.marks).unwrap_or_default()
    }

    /// How many frames should be reclaimed in the background, of all nodes: [`Frames::shortage_on`].
    ///
    /// A host has a task for this ([`reclaim`](crate::reclaim::reclaim), of [`MemcgId::ROOT`](crate::group::GroupId::ROOT)), and asks
    /// after each fault, say, whether to wake it. The answer 0 is one load; another takes the locks of all caches.
    #[inline]
    pub fn shortage(&self) -> u64 {
        if self.short.load(Relaxed) { self.missing() } else { 0 }
    }

    #[cold]
    fn missing(&self) -> u64 {
        let missing = (0..self.nodes()).map(|node| self.shortage_on(node)).sum();
        if missing == 0 {
            self.short.store(false, Relaxed);
        }
        missing
    }

    /// How many frames of a node should be reclaimed in the background: as many as are missing to its high watermark, from when no node
    /// has more than its low one left (but for what CPUs have at hand) until all have reached the high one (with that). 0 at all other
    /// times.
    pub fn shortage_on(&self, node: usize) -> u64 {
        let short = self.short.load(Relaxed);
        if short { self.watermarks_on(node).high.saturating_sub(self.free_on(node)) } else { 0 }
    }

    /// Free blocks of each order in a node's buddy allocator (`/proc/buddyinfo`); what CPUs have cached is not among them.
    pub fn free_blocks_on(&self, node: usize) -> [u64; MAX_ORDER as usize + 1] {
        self.nodes.get(node).map_or([0; _], |node| node.buddy.lock_irq(self.platform).blocks())
    }

    /// A block, whether it is zero, and its shard, where nothing is at hand: of whichever node has one to spare; or, if memory is short, has
    /// one; or has one once no CPU keeps anything at hand.
    #[cold]
    pub(super) fn find_anywhere(&self, order: u8, rather_zero: bool, usage: Use) -> Option<(Pfn, bool, usize)> {
        if order > MAX_ORDER {
            return None;
        }
        let cached = |shard: usize| self.caches[shard].0.lock_irq(self.platform).alloc(self, order, rather_zero, usage);
        let of_node = |node: &Node| node.buddy.lock_irq(self.platform).alloc(self, order, rather_zero);
        let found = |but| match order {
            0..=HUGE_ORDER => self.nearest(but, |_, shard| cached(shard)),
            _ => self.nearest(0, |node, _| of_node(node)),
        };
        let has_none = |node: &Node| node.buddy.lock_irq(self.platform).is_low(order);
        // This CPU's own has been asked.
        found(1).or_else(|| {
            let is_new = self.nodes.iter().all(has_none) && !self.short.swap(true, Relaxed);
            is_new.then(|| found(0)).flatten().or_else(|| {
                self.drain();
                self.nearest(0, |node, _| of_node(node))
            })
        })
    }

    /// What the nearest node gives that gives anything, but for the first so many; and the shard it is at home in.
    fn nearest(&self, but: usize, give: impl Fn(&Node, usize) -> Option<(Pfn, bool)>) -> Option<(Pfn, bool, usize)> {
        let own = &self.nodes[self.platform.node(self.platform.current())];
        own.near[but..self.nodes()].iter().find_map(|node| {
            let shard = self.lruvec_on(usize::from(*node));
            give(&self.nodes[usize::from(*node)], shard).map(|(pfn, zero)| (pfn, zero, shard))
        })
    }

    /// One of what is kept.
    pub(super) fn find_kept(&self, order: u8) -> Option<Pfn> {
        let found = self.nearest(0, |node, _| node.buddy.lock_irq(self.platform).alloc_kept(self, order, false));
        found.map(|(pfn, ..)| pfn)
    }

    /// Give every cache back to the buddy allocators.
    #[cold]
    pub fn drain(&self) {
        for cache in self.caches {
            cache.0.lock_irq(self.platform).drain(self);
        }
    }
}
