//! The machine as the engine sees it: the implementation of `vellum::platform`.
//!
//! Kernel code is not preempted, and no interrupt handler calls the engine. So this host ignores
//! the engine's requests to disable preemption or interrupts, except that the feature `holds`
//! measures them.

use crate::arch::clock::Clock;
use crate::arch::layout::DIRECT_MAP;
use crate::arch::paging::Format;
use crate::arch::percpu::{self, MAX_CPUS};
use crate::arch::{caches, cpu, secondary};
#[cfg(feature = "holds")]
use crate::mem::holds::{self, Kind};
use crate::mem::{reclaim, shootdown, storage, thread};
use vellum::addr::PhysAddr;
use vellum::memcg::MemcgId;
use vellum::platform::{
    self, CpuSet, Cpus, Event, Invalidation, Memory, ReadRequest, Region, Tlb, Trace, WriteRequest,
};
use vellum_kernel::boot::{MAX_REGIONS, MemoryMap};
use vellum_kernel::nodes::Nodes;

/// The machine: its memory regions, clock, CPUs and NUMA nodes.
pub struct Host {
    regions: [Region; MAX_REGIONS],
    len: usize,
    clock: Clock,
    cpus: usize,
    nodes: Nodes,
    /// The NUMA node of each CPU.
    node: [usize; MAX_CPUS],
}

impl Host {
    /// Describes a machine with this memory and `cpus` CPUs. The caller has started all of them, so
    /// that the firmware's name of each is known ([`secondary::name`]: the APIC ID, on AArch64 the
    /// affinity), by which `nodes` finds the CPU's node.
    pub fn new(map: &MemoryMap, nodes: &Nodes, clock: Clock, cpus: usize) -> Self {
        let nothing = Region { base: PhysAddr(0), len: 0, zeroed: false, node: 0 };
        let (mut regions, mut len) = ([nothing; MAX_REGIONS], 0);
        let pieces = map.usable().flat_map(|usable| nodes.split(usable.base..usable.end()));
        for (region, (piece, node)) in regions.iter_mut().zip(pieces) {
            *region = Region {
                base: PhysAddr(piece.start),
                len: piece.end - piece.start,
                // The firmware has run in this memory and left data there.
                zeroed: false,
                node,
            };
            len += 1;
        }
        let node = core::array::from_fn(|cpu| if cpu < cpus { nodes.node_of_cpu(secondary::name(cpu)) } else { 0 });
        Self { regions, len, clock, cpus, nodes: nodes.clone(), node }
    }

    /// Returns the counter's value at the start of the clock, and the nanoseconds in 2³² ticks.
    pub fn counter(&self) -> [u64; 2] {
        self.clock.counter()
    }
}

// SAFETY: the memory map lists a region as usable only if it is RAM, lies inside the direct map,
// and holds nothing of the image, the loader or the firmware. The direct map is writable and
// permanent. The kernel takes all its memory through the engine.
unsafe impl Memory for Host {
    fn regions(&self) -> &[Region] {
        &self.regions[..self.len]
    }

    fn distance(&self, from: usize, to: usize) -> u8 {
        self.nodes.distance(from, to)
    }

    fn direct_map(&self) -> *mut u8 {
        DIRECT_MAP as *mut u8
    }

    unsafe fn zero(&self, at: *mut u8, bytes: usize) {
        // SAFETY: the engine owns the range of whole frames (the contract of [`Memory`]), which
        // lies in the memory map's regions and so is normal memory.
        unsafe { caches::zero(at, bytes) }
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: both ranges are whole frames of the memory map, and the engine owns `to` (the
        // contract of [`Memory`]).
        unsafe { caches::copy(from, to, bytes) }
    }

    fn sync_icache(&self, at: *const u8, bytes: usize) {
        caches::sync_icache(at, bytes);
    }

    fn compact(&self, _order: u8) {
        reclaim::compact(1);
    }
}

// SAFETY: a CPU's index is below the count, which is fixed before the engine boots. Interrupt
// handlers never call the engine; the page-fault handler does, and the engine touches no user
// memory. Kernel code is not preempted.
unsafe impl Cpus for Host {
    fn count(&self) -> usize {
        self.cpus
    }

    #[inline]
    fn current(&self) -> usize {
        percpu::current().index
    }

    #[inline]
    fn node(&self, cpu: usize) -> usize {
        self.node[cpu]
    }

    fn relax(&self) {
        cpu::relax();
    }

    #[cfg(feature = "holds")]
    fn resched(&self) {
        holds::may_switch();
    }

    #[cfg(feature = "holds")]
    fn preempt_disable(&self) {
        holds::begin(Kind::Lock);
    }

    #[cfg(feature = "holds")]
    fn preempt_enable(&self) {
        holds::end(Kind::Lock);
    }

    #[cfg(feature = "holds")]
    fn irq_disable(&self) -> bool {
        holds::begin(Kind::Masked);
        true
    }

    #[cfg(feature = "holds")]
    fn irq_restore(&self, _was_enabled: bool) {
        holds::end(Kind::Masked);
    }
}

// SAFETY: `shootdown::invalidate` returns only when every CPU of the set that has the space loaded
// has invalidated. A CPU whose TLB keeps translations of a space that is not loaded, under a tag,
// drops them before it uses the tag again (`vellum_kernel::tags`); without tags, loading another
// root drops them all.
unsafe impl Tlb for Host {
    type Arch = Format;

    fn invalidate(&self, what: &Invalidation<'_>, cpus: &CpuSet) {
        shootdown::invalidate(what, cpus);
    }

    fn invalidate_local(&self, what: &Invalidation<'_>) {
        shootdown::invalidate_local(what);
    }
}

impl platform::Clock for Host {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}

impl platform::Storage for Host {
    fn read(&self, request: ReadRequest) {
        storage::read(request);
    }

    fn write(&self, request: WriteRequest) {
        storage::write(request);
    }

    fn dirtied(&self, memcg: MemcgId, pages: u64) {
        // The flusher finds the pages that a task of the kernel made dirty.
        thread::current(|thread| thread.dirtied.add(memcg, pages));
    }

    fn forget(&self, tag: u64) {
        storage::forget(tag);
    }
}

impl Trace for Host {
    const ENABLED: bool = false;

    fn event(&self, _event: Event) {}
}
