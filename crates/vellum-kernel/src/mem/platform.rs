//! The machine as the engine sees it: `vellum::platform`.
//!
//! Kernel code is not preempted, and no interrupt handler calls the engine; so what the engine says about preemption and
//! interrupts goes unheard.

use crate::arch::clock::Clock;
use crate::arch::paging::{DIRECT_MAP, flush_page, flush_user};
use crate::arch::percpu;
use crate::arch::pvh::{self, MemoryMap};
use vellum::addr::PhysAddr;
use vellum::platform::{self, CpuSet, Cpus, Event, Invalidation, Memory, Region, Tlb, Trace};

/// An invalidation of more pages than this drops the whole user half: to fill the TLB again costs less than to ask
/// about every page. The number is Linux's (`tlb_single_page_flush_ceiling`).
pub const MOST_PAGES: u64 = 33;

/// The machine.
pub struct Host {
    regions: [Region; pvh::CAPACITY],
    len: usize,
    clock: Clock,
}

impl Host {
    /// A machine with this memory.
    pub fn new(map: &MemoryMap, clock: Clock) -> Self {
        let nothing = Region { base: PhysAddr(0), len: 0, zeroed: false };
        let (mut regions, mut len) = ([nothing; pvh::CAPACITY], 0);
        for (region, usable) in regions.iter_mut().zip(map.usable()) {
            *region = Region {
                base: PhysAddr(usable.base),
                len: usable.size,
                // The firmware ran in it, and left what it left.
                zeroed: false,
            };
            len += 1;
        }
        Self { regions, len, clock }
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
}

// SAFETY: a processor's index is below the count, which was settled before the engine booted. Handlers of interrupts call
// nothing of the engine's; the handler of page faults does, and the engine touches no user memory. Nothing preempts kernel
// code.
unsafe impl Cpus for Host {
    fn count(&self) -> usize {
        1
    }

    #[inline]
    fn current(&self) -> usize {
        percpu::current().index
    }
}

// SAFETY: `CpuSet` can name this processor only, which walks no table but those in CR3 and has no process-context
// identifiers, so that a space that is not loaded has left nothing behind. Loading CR3 drops every translation of user
// memory, none of which is global, and all that is cached of tables. INVLPG drops the translation of the page at its
// address, of whatever size, and all that is cached of tables, wherever it belongs (Intel SDM, volume 3A, "Operations
// that Invalidate TLBs and Paging-Structure Caches"): so after the first of them `tables` is served too, and no range
// is empty.
unsafe impl Tlb for Host {
    fn invalidate(&self, what: &Invalidation<'_>, _cpus: &CpuSet) {
        let stride = 1 << what.stride_shift;
        let pages: u64 = what.ranges.iter().map(|range| range.len().div_ceil(stride)).sum();
        if what.ranges.is_empty() || pages > MOST_PAGES {
            return flush_user();
        }
        for range in what.ranges {
            (range.start..range.end).step_by(stride as usize).for_each(flush_page);
        }
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
