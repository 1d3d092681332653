//! Counters of the simulated hardware.

use std::ops::AddAssign;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::program::Access;

/// Counters of one CPU or of a whole machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// Accesses that hit in a bank of the first tier.
    pub hits: u64,
    /// Accesses that hit in a bank of a later tier.
    pub later_hits: u64,
    /// Accesses that missed in every bank.
    pub misses: u64,
    /// Instruction fetches among [`later_hits`](Stats::later_hits).
    pub later_fetch_hits: u64,
    /// Instruction fetches among [`misses`](Stats::misses).
    pub fetch_misses: u64,
    /// Page walks: one for each miss, and one whenever accessed or dirty had to be set for a cached
    /// translation.
    pub walks: u64,
    /// Entries that walks read; a paging-structure cache saves some.
    pub walk_reads: u64,
    /// Faults delivered to a handler.
    pub faults: u64,
    /// Calls of [`vellum::platform::Tlb::invalidate`] by this CPU.
    pub invalidations: u64,
    /// Ranges in those invalidations; a whole space counts as one.
    pub ranges: u64,
    /// Pages in those ranges, at the stride of the call; a whole space counts as none.
    pub pages: u64,
    /// Other CPUs that those invalidations reached.
    pub ipis: u64,
    /// Calls of [`vellum::platform::Tlb::invalidate_local`] by this CPU.
    pub local_invalidations: u64,
}

impl Stats {
    #[inline]
    pub(crate) fn count_hit(&mut self, access: Access, tier: u8) {
        if tier == 1 {
            self.hits += 1;
        } else {
            self.later_hits += 1;
            self.later_fetch_hits += u64::from(access == Access::Execute);
        }
    }

    #[inline]
    pub(crate) fn count_miss(&mut self, access: Access) {
        self.misses += 1;
        self.fetch_misses += u64::from(access == Access::Execute);
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, more: Stats) {
        self.hits += more.hits;
        self.later_hits += more.later_hits;
        self.misses += more.misses;
        self.later_fetch_hits += more.later_fetch_hits;
        self.fetch_misses += more.fetch_misses;
        self.walks += more.walks;
        self.walk_reads += more.walk_reads;
        self.faults += more.faults;
        self.invalidations += more.invalidations;
        self.ranges += more.ranges;
        self.pages += more.pages;
        self.ipis += more.ipis;
        self.local_invalidations += more.local_invalidations;
    }
}

/// Invalidations that one CPU has requested, alone on its cache line. Only that CPU writes, so it
/// adds with plain loads and stores.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct Invalidations {
    invalidations: AtomicU64,
    ranges: AtomicU64,
    pages: AtomicU64,
    ipis: AtomicU64,
    local: AtomicU64,
}

impl Invalidations {
    pub fn count(&self, ranges: u64, pages: u64, ipis: u64) {
        let add = |counter: &AtomicU64, n: u64| counter.store(counter.load(Ordering::Relaxed) + n, Ordering::Relaxed);
        add(&self.invalidations, 1);
        add(&self.ranges, ranges);
        add(&self.pages, pages);
        add(&self.ipis, ipis);
    }

    pub fn count_local(&self) {
        self.local.store(self.local.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    pub fn stats(&self) -> Stats {
        Stats {
            invalidations: self.invalidations.load(Ordering::Relaxed),
            ranges: self.ranges.load(Ordering::Relaxed),
            pages: self.pages.load(Ordering::Relaxed),
            ipis: self.ipis.load(Ordering::Relaxed),
            local_invalidations: self.local.load(Ordering::Relaxed),
            ..Stats::default()
        }
    }

    pub fn reset(&self) {
        for counter in [&self.invalidations, &self.ranges, &self.pages, &self.ipis, &self.local] {
            counter.store(0, Ordering::Relaxed);
        }
    }
}
