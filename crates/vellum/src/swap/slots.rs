//! The slot allocator of one device: free blocks and reference counts.
//!
//! The slots of a folio are consecutive and naturally aligned, like its frames. So one swap PTE, or
//! one run of swap PTEs, names them all, whatever the folio's size. Slots are grouped in *clusters*
//! of the size of a huge folio. Each CPU has a current cluster, from which it allocates. The other
//! clusters are listed by their largest free block ([`super::cluster_lists`]). A CPU whose current
//! cluster lacks a free block of the wanted size takes a listed cluster whose largest free block is
//! the smallest that suffices. If none is listed, it tries the other CPUs' current clusters. So an
//! allocation fails only when no such block is free, or while another CPU allocates or releases
//! slots next to it.
//!
//! A slot's reference count counts the swap PTEs and page-cache objects that name it, its
//! swap-cache page, and the CPUs that are reading it ([`super::cluster`]). An allocated slot has
//! one reference, the caller's. A slot without references becomes free only after the device has
//! forgotten its contents.
//!
//! The swap-cache page of each slot is recorded too: see [`super::cache`].
//!
//! Lock order: the lock of a CPU's current-cluster index, a cluster's lock, the lock of the lists.
//! No lock is held while the device forgets contents.

use core::ops::Range;
use core::sync::atomic::{
    AtomicBool, AtomicI64, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};

use super::cache::ClusterCache;
use super::cluster::{Cluster, LockedCluster, SLOTS, SlotSet, SwapMap};
use super::cluster_lists::{ClusterLists, NONE};
use super::paged::Paged;
use super::{Saturated, Slots};
use crate::frame::{Frames, HUGE_ORDER, OutOfMemory, Zeroable};
use crate::platform::{Event, FailPoint, Platform, allows, trace};
use crate::sync::SpinLock;

/// The index of a CPU's current cluster, or [`NONE`], behind a lock and on a cache line of its own
/// (Linux: `percpu_swap_cluster`).
#[derive(Debug)]
#[repr(align(128))]
struct PerCpuCluster(SpinLock<u32>);

// SAFETY: zero is valid for an unlocked lock and for the integer that it protects.
unsafe impl Zeroable for PerCpuCluster {}

/// The allocator of the slots of one device. It must be freed by [`SlotAllocator::free`]; dropping
/// it leaks its memory.
#[must_use]
pub struct SlotAllocator {
    /// The clusters.
    pub(super) clusters: Paged<Cluster>,
    /// The reference counts, by cluster.
    swap_map: Paged<SwapMap>,
    /// The swap-cache pages, by cluster.
    pub(super) cached_frames: Paged<ClusterCache>,
    /// The number of slots that have a swap-cache page.
    pub(super) cached: AtomicU32,
    /// The CPUs' current clusters.
    percpu: Paged<PerCpuCluster>,
    /// The clusters with free slots that are no CPU's current one.
    lists: SpinLock<ClusterLists>,
    /// The number of slots.
    len: u32,
    /// The number of free slots. It is decremented after an allocation and incremented after a
    /// release. So it may be negative for a moment: a CPU may allocate slots that another CPU has
    /// released but not yet counted.
    free: AtomicI64,
    /// True if no slot may be allocated.
    closed: AtomicBool,
}

impl SlotAllocator {
    /// Creates the allocator of a device of `len` slots, all free. All its memory is allocated
    /// here, 8.25 bytes per slot, so no reference is ever refused for want of memory.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory, and none stays allocated.
    pub fn new<P: Platform>(frames: &Frames<'_, P>, len: u32) -> Result<Self, OutOfMemory> {
        let platform = frames.platform();
        let clusters = Paged::<Cluster>::new(frames, len.div_ceil(SLOTS))?;
        let swap_map = Paged::<SwapMap>::new(frames, clusters.len());
        let cached_frames = Paged::<ClusterCache>::new(frames, clusters.len());
        let percpu = Paged::<PerCpuCluster>::new(frames, platform.count() as u32);
        let (swap_map, cached_frames, percpu) = match (swap_map, cached_frames, percpu) {
            (Ok(swap_map), Ok(cached_frames), Ok(percpu)) => (swap_map, cached_frames, percpu),
            (swap_map, cached_frames, percpu) => {
                clusters.free(frames);
                swap_map.into_iter().for_each(|swap_map| swap_map.free(frames));
                cached_frames.into_iter().for_each(|cached_frames| cached_frames.free(frames));
                percpu.into_iter().for_each(|percpu| percpu.free(frames));
                return Err(OutOfMemory);
            }
        };
        (0..percpu.len()).for_each(|cpu| *percpu.get(cpu).0.lock(platform) = NONE);
        let mut lists = ClusterLists::new();
        // Clusters are inserted in reverse order, so that the lowest are at the heads of the lists.
        for index in (0..clusters.len()).rev() {
            let usable = (len - index * SLOTS).min(SLOTS);
            let mut cluster = LockedCluster::new(clusters.get(index), swap_map.get(index), platform);
            cluster.mark_free(&SlotSet::range(0..usable));
            lists.requeue(&clusters, index, cluster.room());
        }
        let free = AtomicI64::new(len.into());
        let (lists, cached, closed) = (SpinLock::new(lists), AtomicU32::new(0), AtomicBool::new(false));
        Ok(SlotAllocator { clusters, swap_map, cached_frames, cached, percpu, lists, len, free, closed })
    }

    /// Locks a cluster.
    #[inline]
    pub(super) fn lock<'a, P: Platform>(&'a self, platform: &'a P, index: u32) -> LockedCluster<'a, P> {
        LockedCluster::new(self.clusters.get(index), self.swap_map.get(index), platform)
    }

    /// Returns the number of slots.
    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns true if there are no slots.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the number of free slots; exact when no CPU allocates or releases. If it returns the
    /// number of all slots, no CPU is releasing slots any more.
    pub fn free_slots(&self) -> u32 {
        self.free.load(Acquire).max(0) as u32
    }

    /// Allocates a naturally aligned block of `1 << order` slots, each with one reference. Returns
    /// `None` if there is no such block: because all slots are in use, the free ones are scattered,
    /// the device is closed, or `order` exceeds a cluster (2 MiB). A smaller block may still be
    /// available. The allocation may also fail while another CPU allocates or releases slots in
    /// such a block.
    #[inline]
    pub fn allocate<P: Platform>(&self, platform: &P, order: u8) -> Option<Slots> {
        let count = 1u32.checked_shl(order.into()).filter(|_| order <= HUGE_ORDER)?;
        if self.free.load(Relaxed) < count.into() || !allows(platform, FailPoint::Slots) {
            return None;
        }
        let here = platform.current();
        let first = self
            .allocate_on_cpu(platform, here, order, true)
            .or_else(|| (0..platform.count()).find_map(|cpu| self.allocate_on_cpu(platform, cpu, order, false)))?;
        self.free.fetch_sub(count.into(), Relaxed);
        Some(Slots { first, count })
    }

    /// Allocates a block from a CPU's current cluster. With `refill`, tries a listed cluster next,
    /// which becomes the CPU's current cluster if its largest free block, after this allocation, is
    /// larger than that of the CPU's current cluster so far. Returns the first slot of the block.
    fn allocate_on_cpu<P: Platform>(&self, platform: &P, cpu: usize, order: u8, refill: bool) -> Option<u32> {
        trace(platform, || Event::Step);
        let mut current = self.percpu.get(cpu as u32).0.lock(platform);
        // Checked with the lock held, which `close` takes after it has set the flag.
        if self.closed.load(Relaxed) {
            return None;
        }
        if *current != NONE
            && let Some(first) = self.lock(platform, *current).take(order)
        {
            return Some(*current * SLOTS + first);
        }
        if !refill {
            return None;
        }
        trace(platform, || Event::Step);
        let found = self.lists.lock(platform).pop(&self.clusters, order)?;
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, found);
        let first = cluster.take(order);
        debug_assert!(first.is_some(), "a listed cluster has less room than its list promises");
        let left = cluster.room();
        drop(cluster);
        // The cluster with the larger free block becomes or stays the CPU's current one; the other
        // cluster goes to the lists.
        let room = if *current == NONE { None } else { self.lock(platform, *current).room() };
        let other = if left > room { core::mem::replace(&mut *current, found) } else { found };
        if other != NONE {
            trace(platform, || Event::Step);
            let cluster = self.lock(platform, other);
            self.lists.lock(platform).put_back(&self.clusters, other, cluster.room());
        }
        Some(found * SLOTS + first?)
    }

    /// Adds a lasting reference to each of these slots, for a swap PTE (Linux: `swap_duplicate`).
    /// Each slot must keep another reference during the call.
    ///
    /// # Errors
    /// [`Saturated`]: a slot has 2^31 references. No slot has a new reference on return. (Before the
    /// return, references that this call adds and drops again may cause this error on other CPUs.)
    ///
    /// # Panics
    /// If a slot does not exist.
    #[inline]
    pub fn duplicate<P: Platform>(&self, platform: &P, slots: Slots) -> Result<(), Saturated> {
        if !allows(platform, FailPoint::References) {
            return Err(Saturated { slot: slots.first });
        }
        for ClusterRange { index, range } in by_cluster(slots) {
            trace(platform, || Event::Step);
            if let Err(full) = self.lock(platform, index).duplicate(&range) {
                self.undo_duplicate(platform, slots, index);
                return Err(Saturated { slot: index * SLOTS + full });
            }
        }
        Ok(())
    }

    /// Drops the references that [`SlotAllocator::duplicate`] has added to slots in the clusters
    /// before cluster `end`, where it failed because a slot has the maximum number of references.
    #[cold]
    fn undo_duplicate<P: Platform>(&self, platform: &P, slots: Slots, end: u32) {
        for ClusterRange { index, range } in by_cluster(slots).take_while(|part| part.index < end) {
            let dead = self.lock(platform, index).release(&range);
            debug_assert!(dead.is_empty(), "the caller kept no reference to these slots: {dead:?}");
        }
    }

    /// Adds a transient reference to each of these slots, for the time of a read. Each slot must
    /// keep another reference during the call. Never fails: there is at most one transient
    /// reference for each thread that reads.
    #[inline]
    pub(super) fn get_transient<P: Platform>(&self, platform: &P, slots: Slots) {
        for ClusterRange { index, range } in by_cluster(slots) {
            trace(platform, || Event::Step);
            self.lock(platform, index).get_transient(&range);
        }
    }

    /// Drops a reference to each of these slots (Linux: `swap_free`). Slots left without references
    /// are passed to `forget`, in maximal ranges within a cluster, and become free when it returns.
    /// No lock is held while `forget` runs.
    ///
    /// # Panics
    /// If a slot does not exist.
    #[inline]
    pub fn release<P: Platform>(&self, platform: &P, slots: Slots, mut forget: impl FnMut(Slots)) {
        for ClusterRange { index, range } in by_cluster(slots) {
            self.release_in(platform, index, |cluster| cluster.release(&range), &mut forget);
        }
    }

    /// Drops references to slots of one cluster: `drop_references` runs under the cluster's lock
    /// and returns the slots left without references. These are passed to `forget` with no lock
    /// held, and become free afterwards. Returns the number of slots that became free.
    #[inline]
    pub(super) fn release_in<P: Platform>(
        &self,
        platform: &P,
        index: u32,
        drop_references: impl FnOnce(&mut LockedCluster<'_, P>) -> SlotSet,
        mut forget: impl FnMut(Slots),
    ) -> u32 {
        trace(platform, || Event::Step);
        let dead = drop_references(&mut self.lock(platform, index));
        if dead.is_empty() {
            return 0;
        }
        let mut count = 0;
        for run in dead.runs(0..SLOTS) {
            count += run.len() as u32;
            forget(Slots { first: index * SLOTS + run.start, count: run.len() as u32 });
        }
        trace(platform, || Event::Step);
        let mut cluster = self.lock(platform, index);
        cluster.mark_free(&dead);
        if ClusterLists::needs_requeue(self.clusters.get(index), || cluster.room()) {
            trace(platform, || Event::Step);
            self.lists.lock(platform).requeue(&self.clusters, index, cluster.room());
        }
        drop(cluster);
        // This is the last access to the allocator: once all slots are free, another CPU may free
        // the allocator's memory.
        self.free.fetch_add(count.into(), Release);
        count
    }

    /// Returns the highest reference count among `slots`, or 0 if all are free.
    ///
    /// # Panics
    /// If a slot does not exist.
    pub fn max_references<P: Platform>(&self, platform: &P, slots: Slots) -> u32 {
        let highest = |ClusterRange { index, range }: ClusterRange| {
            let cluster = self.lock(platform, index);
            range.map(|slot| cluster.references(slot)).max().unwrap_or(0)
        };
        by_cluster(slots).map(highest).max().unwrap_or(0)
    }

    /// Stops allocation: when this returns, no CPU allocates slots any more. Slots in use stay in
    /// use.
    pub fn close<P: Platform>(&self, platform: &P) {
        self.closed.store(true, Relaxed);
        // An allocation holds the lock of a CPU's current-cluster index. So one that began before
        // the flag was set has finished when this CPU has taken each of these locks.
        (0..self.percpu.len()).for_each(|cpu| drop(self.percpu.get(cpu).0.lock(platform)));
    }

    /// Allows allocation again after [`SlotAllocator::close`].
    pub fn open(&self) {
        self.closed.store(false, Relaxed);
    }

    /// Returns true if allocation is stopped.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Relaxed)
    }

    /// Frees the allocator's memory. No slot may be in use.
    pub fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.clusters.free(frames);
        self.swap_map.free(frames);
        self.cached_frames.free(frames);
        self.percpu.free(frames);
    }
}

/// A range of slots of one cluster.
pub(super) struct ClusterRange {
    /// The index of the cluster.
    pub(super) index: u32,
    /// The slots, counted from the cluster's first.
    pub(super) range: Range<u32>,
}

/// Splits a range of slots at the borders of clusters.
#[inline]
pub(super) fn by_cluster(slots: Slots) -> impl Iterator<Item = ClusterRange> {
    let end = slots.first as u64 + slots.count as u64;
    let mut at = slots.first as u64;
    core::iter::from_fn(move || {
        if at == end {
            return None;
        }
        let (index, start) = (at / SLOTS as u64, (at % SLOTS as u64) as u32);
        let end_here = (end - index * SLOTS as u64).min(SLOTS.into()) as u32;
        at += u64::from(end_here - start);
        Some(ClusterRange { index: index as u32, range: start..end_here })
    })
}
