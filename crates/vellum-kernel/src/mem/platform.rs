//! The machine as the engine sees it: `vellum::platform`.
//!
//! Kernel code is not preempted, and no interrupt handler calls the engine; so what the engine says about preemption and
//! interrupts goes unheard.

use crate::arch::caches;
use crate::arch::clock::Clock;
use crate::arch::paging::DIRECT_MAP;
use crate::mem::shootdown;
use crate::percpu;
use vellum::addr::PhysAddr;
use vellum::platform::{self, CpuSet, Cpus, Event, Invalidation, Memory, Region, Tlb, Trace};
use vellum_kernel::boot::{CAPACITY, MemoryMap};

/// The machine.
pub struct Host {
    regions: [Region; CAPACITY],
    len: usize,
    clock: Clock,
    cpus: usize,
}

impl Host {
    /// A machine with this memory and so many processors.
    pub fn new(map: &MemoryMap, clock: Clock, cpus: usize) -> Self {
        let nothing = Region { base: PhysAddr(0), len: 0, zeroed: false };
        let (mut regions, mut len) = ([nothing; CAPACITY], 0);
        for (region, usable) in regions.iter_mut().zip(map.usable()) {
            *region = Region {
                base: PhysAddr(usable.base),
                len: usable.size,
                // The firmware ran in it, and left what it left.
                zeroed: false,
            };
            len += 1;
        }
        Self { regions, len, clock, cpus }
    }
}

// SAFETY: the memory map calls a region usable only if it is memory, inside the direct map, and nobody's: not the
// image's, the loader's or the firmware's. The direct map is writable and stays for ever. The kernel takes no memory
// for itself but through the engine.
unsafe impl Memory for Host {
    fn regions(&self) -> &[Region] {
        &self.regions[..self.len]
    }

    fn direct_map(&self) -> *mut u8 {
        DIRECT_MAP as *mut u8
    }

    unsafe fn zero(&self, at: *mut u8, bytes: usize) {
        // SAFETY: by contract; the memory map's regions are normal memory.
        unsafe { caches::zero(at, bytes) }
    }

    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        // SAFETY: by contract.
        unsafe { caches::copy(from, to, bytes) }
    }

    fn publish_code(&self, at: *const u8, bytes: usize) {
        caches::publish_code(at, bytes);
    }
}

// SAFETY: a processor's index is below the count, which was settled before the engine booted. Handlers of interrupts call
// nothing of the engine's; the handler of page faults does, and the engine touches no user memory. Nothing preempts kernel
// code.
unsafe impl Cpus for Host {
    fn count(&self) -> usize {
        self.cpus
    }

    #[inline]
    fn current(&self) -> usize {
        percpu::current().index
    }
}

// SAFETY: every processor of the set has invalidated before `shootdown::invalidate` returns. None has process-context
// identifiers, so that one that has another space loaded has nothing left of this one.
unsafe impl Tlb for Host {
    fn invalidate(&self, what: &Invalidation<'_>, cpus: &CpuSet) {
        shootdown::invalidate(what, cpus);
    }
}

impl platform::Clock for Host {
    fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }
}

impl Trace for Host {
    const ENABLED: bool = false;

    fn event(&self, _event: Event) {}
}
