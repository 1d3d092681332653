//! Event and memory counters, one copy per CPU, summed when read.
//!
//! A counter update touches only a cache line of the current CPU, so CPUs never contend for one.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::addr::FRAME_SIZE;
use crate::platform::MAX_CPUS;

/// The counters of a machine (Linux: `/proc/vmstat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Page faults handled, resolved or not (`pgfault`).
    Faults,
    /// Faults on a PTE that already allowed the access.
    SpuriousFaults,
    /// Large folios allocated by faults: the sum of [`SizeCounter::Faults`].
    LargeFolios,
    /// Faults that fell back from a large folio to a smaller one: the sum of
    /// [`SizeCounter::Fallbacks`].
    LargeFallbacks,
    /// Runs of PTEs cleared by unmapping.
    RunsCleared,
    /// Pages in the runs of [`Counter::RunsCleared`].
    PagesCleared,
    /// Folios freed by unmapping.
    FoliosFreed,
    /// Calls of [`Tlb::invalidate`](crate::platform::Tlb::invalidate).
    Flushes,
    /// Page tables allocated.
    TablesAllocated,
    /// Page tables freed because they became empty.
    TablesFreed,
    /// Huge PTEs split into page tables (`thp_split_pmd`).
    HugeSplits,
    /// Cont blocks (contpte on AArch64, NAPOT on RISC-V) that were folded: leaf PTEs in use were
    /// changed into PTEs of one block, which a TLB may hold as one translation.
    ContFolds,
    /// Cont blocks unfolded into separate leaf PTEs.
    ContUnfolds,
    /// Folios queued for splitting because they are partially unmapped: the sum of
    /// [`SizeCounter::SplitDeferred`].
    SplitDeferred,
    /// Write faults that copied a shared page.
    CowCopies,
    /// Write faults that found the page no longer shared and made it exclusive again.
    CowReuses,
    /// Pages of 4 KiB swapped out (`pswpout`).
    SwapOut,
    /// Pages of 4 KiB swapped in (`pswpin`).
    SwapIn,
    /// Pages of 4 KiB marked lazyfree by `MADV_FREE` (`pglazyfree`).
    LazyFree,
    /// Lazyfree pages of 4 KiB discarded by reclaim (`pglazyfreed`).
    LazyFreed,
    /// Page faults that asked the host to compact memory (`compact_stall`).
    CompactStalls,
    /// Pageblocks that compaction emptied (`compact_success`).
    CompactSuccesses,
    /// Pageblocks that compaction could not empty (`compact_fail`).
    CompactFailures,
    /// Pages of 4 KiB that compaction moved (`pgmigrate_success`).
    PagesMigrated,
    /// Pages of 4 KiB that page-cache objects have at present (`Shmem`). This counter also
    /// decreases.
    ShmemPages,
    /// Pages of 4 KiB that page-cache objects with a store have at present, those that are being
    /// read included. This counter also decreases.
    FilePages,
    /// Pages of 4 KiB of the folios of 2 MiB among [`Counter::ShmemPages`]; a folio of which pages
    /// were removed counts whole (`ShmemHugePages`). This counter also decreases.
    ShmemHugePages,
    /// Pages of 4 KiB of the folios of 2 MiB among [`Counter::FilePages`], counted in the same way
    /// (`FileHugePages`). This counter also decreases.
    FileHugePages,
    /// Pages of 4 KiB of files that were read again soon after reclaim had dropped them, so that
    /// they were active at once (`workingset_activate_file`).
    FileRefaults,
    /// Pages of 4 KiB of the huge pages that page-cache objects have from the pool at present
    /// ([`HugePool`](crate::machine::HugePool)). This counter also decreases.
    HugetlbPages,
}

/// The counters of a machine per large-folio size (Linux: `hugepages-<size>kB/stats`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SizeCounter {
    /// Folios allocated by faults (`anon_fault_alloc`).
    Faults,
    /// Folios that a fault tried to allocate and could not, because no memory was free or a memcg
    /// was at its limit (`anon_fault_fallback`).
    Fallbacks,
    /// Those of [`SizeCounter::Fallbacks`] that were due to a memcg's limit
    /// (`anon_fault_fallback_charge`).
    ChargeFallbacks,
    /// Folios queued for splitting because they are partially unmapped (`split_deferred`).
    SplitDeferred,
    /// Folios swapped in whole (`swpin`).
    SwapIn,
    /// Folios allocated to replace smaller ones (`collapse_alloc`).
    Collapsed,
    /// Folios that a collapse could not allocate (`collapse_alloc_failed`).
    CollapseFailed,
    /// Partially unmapped folios that were split (`split`).
    Split,
    /// Partially unmapped folios that could not be split (`split_failed`).
    SplitFailed,
}

/// The number of folio orders, from 0 (a single page) on.
pub(crate) const SIZES: usize = 14;
/// The number of [`SizeCounter`]s.
const SIZE_COUNTERS: usize = SizeCounter::SplitFailed as usize + 1;

/// The number of [`Counter`]s.
pub const COUNTERS: usize = Counter::HugetlbPages as usize + 1;

/// One CPU's counters of a machine. Zeroed memory is a valid value.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct CounterSlot {
    all: [AtomicU64; COUNTERS],
    sizes: [[AtomicU64; SIZES]; SIZE_COUNTERS],
}

impl CounterSlot {
    /// Adds `n` to a counter.
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.all[counter as usize].fetch_add(n, Relaxed);
    }

    /// Adds one to the counter of folios of this order.
    #[inline]
    pub(crate) fn add_size(&self, counter: SizeCounter, order: u8) {
        self.sizes[counter as usize][order as usize].fetch_add(1, Relaxed);
    }

    /// Returns the share of a counter that the CPU of this slot has counted. The counters that are
    /// sums over folio sizes have no word of their own and are computed here.
    pub(crate) fn get(&self, counter: Counter) -> u64 {
        let sum = |counter| (0..SIZES as u8).map(|order| self.get_size(counter, order)).sum();
        match counter {
            Counter::LargeFolios => sum(SizeCounter::Faults),
            Counter::LargeFallbacks => sum(SizeCounter::Fallbacks),
            Counter::SplitDeferred => sum(SizeCounter::SplitDeferred),
            _ => self.all[counter as usize].load(Relaxed),
        }
    }

    /// Returns the share of a per-size counter that the CPU of this slot has counted, or 0 for an
    /// order that no folio has.
    pub(crate) fn get_size(&self, counter: SizeCounter, order: u8) -> u64 {
        self.sizes[counter as usize].get(order as usize).map_or(0, |count| count.load(Relaxed))
    }
}

/// The counters of an address space, in pages of 4 KiB (Linux: `mm->rss_stat`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SpaceCounter {
    /// Resident anonymous memory (`RssAnon`).
    Anon,
    /// Resident file memory (`RssFile`).
    File,
    /// Resident shared memory (`RssShmem`).
    Shmem,
    /// Swapped-out memory (`VmSwap`).
    Swap,
    /// Page tables of all levels, the root included (`VmPTE`).
    Tables,
    /// Huge pages of the pool, which do not count as resident (`HugetlbPages`).
    Hugetlb,
}

/// The number of [`SpaceCounter`]s.
const SPACE_COUNTERS: usize = SpaceCounter::Hugetlb as usize + 1;

/// The data that an address space keeps for one CPU: the CPU's reader count of the VMA lock, and
/// its share of each counter. It has a cache line of its own, so that faults on different CPUs
/// write no common line. Zeroed memory is a valid value.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct SpaceSlot {
    /// The number of readers that took the VMA lock on this CPU: this CPU's slot of the
    /// [`PerCpuLock`](crate::sync::PerCpuLock).
    pub(crate) readers: AtomicU32,
    /// This CPU's shares of the counters. A share is negative if more was unmapped on this CPU than
    /// mapped.
    counts: [AtomicI64; SPACE_COUNTERS],
}

impl SpaceSlot {
    /// Adds `n`, which may be negative, to this CPU's share of a counter.
    #[inline]
    pub(crate) fn add(&self, counter: SpaceCounter, n: i64) {
        self.counts[counter as usize].fetch_add(n, Relaxed);
    }
}

/// The number of [`SpaceSlot`]s in a frame.
pub(crate) const SLOTS: usize = FRAME_SIZE as usize / size_of::<SpaceSlot>();
/// The maximum number of frames of slots that a space has.
pub(crate) const SLOT_FRAMES: usize = MAX_CPUS.div_ceil(SLOTS);

/// The [`SpaceSlot`]s of all CPUs for one space. They are in single frames, so that no allocation
/// of a space needs contiguous memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceSlots<'m> {
    frames: [&'m [SpaceSlot; SLOTS]; SLOT_FRAMES],
    cpus: usize,
}

impl<'m> SpaceSlots<'m> {
    /// Makes the slots of `cpus` CPUs. `frame(i)` returns the slots in frame `i` of the frames that
    /// the space has for slots.
    pub(crate) fn new(cpus: usize, mut frame: impl FnMut(usize) -> &'m [SpaceSlot; SLOTS]) -> Self {
        let first = frame(0);
        let frames = core::array::from_fn(|i| if i > 0 && i * SLOTS < cpus { frame(i) } else { first });
        SpaceSlots { frames, cpus }
    }

    /// Returns the slot of a CPU.
    #[inline]
    pub(crate) fn of(&self, cpu: usize) -> &'m SpaceSlot {
        &self.frames[cpu / SLOTS % SLOT_FRAMES][cpu % SLOTS]
    }

    /// Returns the slots of all CPUs, in the order of CPU numbers.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'m SpaceSlot> + use<'m> {
        let slots = *self;
        (0..slots.cpus).map(move |cpu| slots.of(cpu))
    }
}

/// Returns the number of resident pages of 4 KiB: anonymous, file and shared memory.
pub(crate) fn resident(slots: &SpaceSlots<'_>) -> u64 {
    let of = |slot: &SpaceSlot, counter| slot.counts[counter as usize].load(Relaxed);
    let all = |slot| of(slot, SpaceCounter::Anon) + of(slot, SpaceCounter::File) + of(slot, SpaceCounter::Shmem);
    slots.iter().map(all).sum::<i64>().max(0) as u64
}

/// Returns the sum of a counter over all CPUs. A CPU's share may be negative, because a page may be
/// mapped on one CPU and unmapped on another. While CPUs update their shares the sum may be
/// inexact; a negative sum is returned as 0.
pub(crate) fn sum(slots: &SpaceSlots<'_>, counter: SpaceCounter) -> u64 {
    let total: i64 = slots.iter().map(|s| s.counts[counter as usize].load(Relaxed)).sum();
    total.max(0) as u64
}
