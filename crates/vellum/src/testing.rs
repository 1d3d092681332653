//! The least of a host, for unit tests: memory, a CPU number that a test sets, and a TLB that counts.
//!
//! What needs a real MMU, or anybody looking over the engine's shoulder, is tested on the simulated machine instead.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::vec::Vec;

use crate::addr::{FRAME_SIZE, PhysAddr};
use crate::platform::{Clock, CpuSet, Cpus, Event, Invalidation, Memory, Region, Tlb, Trace};

pub(crate) struct Host {
    arena: *mut u8,
    layout: Layout,
    base: u64,
    regions: Vec<Region>,
    /// The node of each CPU.
    cpus: Vec<usize>,
    current: AtomicUsize,
    pub(crate) flushes: AtomicUsize,
    /// Bytes that became executable.
    pub(crate) published: AtomicUsize,
    /// Spin locks that were taken, and other stretches without preemption.
    pub(crate) locked: AtomicUsize,
}

// SAFETY: the arena is reached through the engine only, and the rest is atomic or never changes.
unsafe impl Sync for Host {}

impl Host {
    /// With these regions: first frame and count, ascending. Memory that isn't zero is full of 0xa5.
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

    /// One region of so many frames, all zero.
    pub(crate) fn with_frames(count: u64, cpus: usize) -> Host {
        Host::new(&[(16, count, true)], cpus)
    }

    /// The same with these nodes, of regions and of CPUs. What is so many apart is so far away.
    pub(crate) fn with_nodes(mut self, regions: &[usize], cpus: &[usize]) -> Host {
        assert_eq!((regions.len(), cpus.len()), (self.regions.len(), self.cpus.len()));
        self.regions.iter_mut().zip(regions).for_each(|(region, node)| region.node = *node);
        self.cpus = cpus.to_vec();
        self
    }

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

// SAFETY: the regions are the arena's, which lives as long as the host.
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

    fn publish_code(&self, _at: *const u8, bytes: usize) {
        self.published.fetch_add(bytes, Relaxed);
    }
}

// SAFETY: tests of one thread, with no interrupts.
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
        panic!("waiting, in a test of one thread");
    }

    fn preempt_disable(&self) {
        self.locked.fetch_add(1, Relaxed);
    }
}

// SAFETY: nothing here translates addresses.
unsafe impl Tlb for Host {
    fn invalidate(&self, _what: &Invalidation<'_>, _cpus: &CpuSet) {
        self.flushes.fetch_add(1, Relaxed);
    }
}

impl Clock for Host {
    fn now_ns(&self) -> u64 {
        0
    }
}

impl Trace for Host {
    const ENABLED: bool = false;

    fn event(&self, _event: Event) {}
}

/// A small generator of numbers that look random: SplitMix64.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}
