//! A minimal host for unit tests: memory, a CPU number that the test sets, and a TLB that counts
//! invalidations.
//!
//! Tests that need an MMU or a checker of the engine's events use the simulated machine
//! (`vellum-sim`) instead.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::vec::Vec;

use crate::addr::{FRAME_SIZE, PhysAddr};
use crate::platform::{Clock, CpuSet, Cpus, Event, Invalidation, Memory, Region, Storage, Tlb, Trace};

/// A host with one thread, no MMU and no interrupts.
pub(crate) struct Host {
    /// The memory that stands for physical memory from `base` on.
    arena: *mut u8,
    layout: Layout,
    /// The physical address of the arena's first byte.
    base: u64,
    regions: Vec<Region>,
    /// The NUMA node of each CPU.
    cpus: Vec<usize>,
    /// The CPU that [`Cpus::current`] returns.
    current: AtomicUsize,
    /// The number of calls of [`Tlb::invalidate`].
    pub(crate) flushes: AtomicUsize,
    /// The number of bytes for which [`Memory::sync_icache`] was called.
    pub(crate) published: AtomicUsize,
    /// The number of calls of [`Cpus::preempt_disable`]: each spin lock taken is one, and so is
    /// each other section without preemption.
    pub(crate) locked: AtomicUsize,
}

// SAFETY: only the engine accesses the arena; the other fields are atomic or never change.
unsafe impl Sync for Host {}

impl Host {
    /// Makes a host with these regions, ascending: first frame, number of frames, whether the
    /// memory is zero. Memory that is not zero is filled with 0xa5.
    pub(crate) fn new(regions: &[(u64, u64, bool)], cpus: usize) -> Host {
        let base = regions[0].0 * FRAME_SIZE;
        let end = regions.iter().map(|(first, count, _)| (first + count) * FRAME_SIZE).max().unwrap();
        let layout = Layout::from_size_align((end - base) as usize, FRAME_SIZE as usize).unwrap();
        // SAFETY: the layout's size is not zero.
        let arena = unsafe { alloc_zeroed(layout) };
        assert!(!arena.is_null());
        let regions: Vec<Region> = regions
            .iter()
            .map(|(first, count, zeroed)| Region {
                base: PhysAddr(first * FRAME_SIZE),
                len: count * FRAME_SIZE,
                zeroed: *zeroed,
                node: 0,
            })
            .collect();
        for region in regions.iter().filter(|r| !r.zeroed) {
            // SAFETY: inside the arena just allocated.
            unsafe { arena.add((region.base.0 - base) as usize).write_bytes(0xa5, region.len as usize) };
        }
        let zero = || AtomicUsize::new(0);
        Host {
            arena,
            layout,
            base,
            regions,
            cpus: std::vec![0; cpus],
            current: zero(),
            flushes: zero(),
            published: zero(),
            locked: zero(),
        }
    }

    /// Makes a host with one region of `count` zeroed frames.
    pub(crate) fn with_frames(count: u64, cpus: usize) -> Host {
        Host::new(&[(16, count, true)], cpus)
    }

    /// Assigns these NUMA nodes to the regions and CPUs. The distance of two nodes is 10 plus the
    /// difference of their numbers.
    pub(crate) fn with_nodes(mut self, regions: &[usize], cpus: &[usize]) -> Host {
        assert_eq!((regions.len(), cpus.len()), (self.regions.len(), self.cpus.len()));
        self.regions.iter_mut().zip(regions).for_each(|(region, node)| region.node = *node);
        self.cpus = cpus.to_vec();
        self
    }

    /// Sets the CPU on which the engine runs from now on.
    pub(crate) fn on_cpu(&self, cpu: usize) {
        self.current.store(cpu, Relaxed);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout.
        unsafe { dealloc(self.arena, self.layout) }
    }
}

// SAFETY: the regions are parts of the arena, which lives as long as the host.
unsafe impl Memory for Host {
    fn regions(&self) -> &[Region] {
        &self.regions
    }

    fn distance(&self, from: usize, to: usize) -> u8 {
        10 + from.abs_diff(to) as u8
    }

    fn direct_map(&self) -> *mut u8 {
        self.arena.wrapping_sub(self.base as usize)
    }

    fn sync_icache(&self, _at: *const u8, bytes: usize) {
        self.published.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: tests have one thread and no interrupts.
unsafe impl Cpus for Host {
    fn count(&self) -> usize {
        self.cpus.len()
    }

    fn node(&self, cpu: usize) -> usize {
        self.cpus[cpu]
    }

    fn current(&self) -> usize {
        self.current.load(Relaxed)
    }

    fn relax(&self) {
        panic!("a test with one thread waits for a lock that is never released");
    }

    fn preempt_disable(&self) {
        self.locked.fetch_add(1, Relaxed);
    }
}

// SAFETY: this host translates no addresses, so no CPU can hold a stale translation.
unsafe impl Tlb for Host {
    type Arch = crate::arch::X86_64;

    fn invalidate(&self, _what: &Invalidation<'_>, _cpus: &CpuSet) {
        self.flushes.fetch_add(1, Relaxed);
    }
}

impl Clock for Host {
    fn now_ns(&self) -> u64 {
        0
    }
}

impl Storage for Host {}

impl Trace for Host {
    const ENABLED: bool = false;

    fn event(&self, _event: Event) {}
}

/// A small pseudo-random number generator: SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    /// Returns a number below `below`.
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}
