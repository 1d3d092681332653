//! Counters: per CPU, written without a line shared, folded when read.

use core::sync::atomic::{AtomicI64, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::addr::FRAME_SIZE;
use crate::platform::MAX_CPUS;

/// What the machine counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Page faults handled, whatever came of them (Linux: `pgfault`).
    Faults,
    /// Faults that found nothing to do, because another CPU had been quicker.
    SpuriousFaults,
    /// Large folios given to a fault: the sum of [`SizeCounter::Faults`].
    LargeFolios,
    /// Faults that wanted a large folio and did not get it: the sum of [`SizeCounter::Fallbacks`].
    LargeFallbacks,
    /// Runs taken out of page tables.
    RunsCleared,
    /// Pages in those runs.
    PagesCleared,
    /// Folios freed by unmapping.
    FoliosFreed,
    /// Calls of the platform's TLB invalidation.
    Flushes,
    /// Page tables that came into being.
    TablesBorn,
    /// Page tables freed because their last entry went.
    TablesFreed,
    /// Huge mappings split into a table of pages (`thp_split_pmd`).
    HugeSplits,
    /// Blocks of leaves that were live by themselves and became one translation.
    BlocksJoined,
    /// Blocks that became single leaves again.
    BlocksParted,
    /// Folios queued because part of them is not mapped any more: the sum of [`SizeCounter::SplitDeferred`].
    SplitDeferred,
    /// Write faults that copied memory which others have too.
    CowCopies,
    /// Write faults that found nobody else to have the memory any more, and made it the space's own again.
    CowReuses,
    /// Pages of 4 KiB swapped out (`pswpout`).
    SwapOut,
    /// Pages of 4 KiB swapped in (`pswpin`).
    SwapIn,
    /// Pages of 4 KiB of which it was said that their contents may go (`pglazyfree`).
    LazyFree,
    /// Of these, pages that went (`pglazyfreed`).
    LazyFreed,
    /// Pages of 4 KiB that memory objects have now (`Shmem`): goes down too.
    ShmemPages,
}

/// What the machine counts of each size of large folios: Linux's `hugepages-<size>kB/stats`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SizeCounter {
    /// Given to a fault (`anon_fault_alloc`).
    Faults,
    /// Wanted by a fault that found no memory for it, or might not have it (`anon_fault_fallback`).
    Fallbacks,
    /// Of those, what a memcg's limit was in the way of (`anon_fault_fallback_charge`).
    ChargeFallbacks,
    /// Queued because part of it is not mapped any more (`split_deferred`).
    SplitDeferred,
    /// Swapped in, in one piece (`swpin`).
    SwapIn,
    /// Put in the place of smaller pieces (`collapse_alloc`).
    Collapsed,
    /// Wanted for that, and not to be had (`collapse_alloc_failed`).
    CollapseFailed,
    /// Split into smaller ones because part of it was not mapped (`split`).
    Split,
    /// Not split, though part of it was not mapped (`split_failed`).
    SplitFailed,
}

/// How many orders folios have: single pages and larger.
pub(crate) const SIZES: usize = 14;
const SIZE_COUNTERS: usize = SizeCounter::SplitFailed as usize + 1;

/// How many [`Counter`]s there are.
pub const COUNTERS: usize = Counter::ShmemPages as usize + 1;

/// One CPU's counters of a machine. Zeroed memory is a valid one.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub(crate) struct CounterSlot {
    all: [AtomicU64; COUNTERS],
    sizes: [[AtomicU64; SIZES]; SIZE_COUNTERS],
}

impl CounterSlot {
    #[inline]
    pub(crate) fn add(&self, counter: Counter, n: u64) {
        self.all[counter as usize].fetch_add(n, Relaxed);
    }

    #[inline]
    pub(crate) fn add_size(&self, counter: SizeCounter, order: u8) {
        self.sizes[counter as usize][order as usize].fetch_add(1, Relaxed);
    }

    pub(crate) fn get(&self, counter: Counter) -> u64 {
        let sum = |counter| (0..SIZES as u8).map(|order| self.get_size(counter, order)).sum();
        match counter {
            Counter::LargeFolios => sum(SizeCounter::Faults),
            Counter::LargeFallbacks => sum(SizeCounter::Fallbacks),
            Counter::SplitDeferred => sum(SizeCounter::SplitDeferred),
            _ => self.all[counter as usize].load(Relaxed),
        }
    }

    pub(crate) fn get_size(&self, counter: SizeCounter, order: u8) -> u64 {
        self.sizes[counter as usize].get(order as usize).map_or(0, |count| count.load(Relaxed))
    }
}

/// What an address space counts, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum SpaceCounter {
    /// Resident anonymous memory (`RssAnon`).
    Anon,
    /// Resident file memory (`RssFile`).
    File,
    /// Resident shared memory (`RssShmem`).
    Shmem,
    /// Swapped out (`VmSwap`).
    Swap,
    /// Page tables of all levels, the root included (`VmPTE`).
    Tables,
}

const SPACE_COUNTERS: usize = SpaceCounter::Tables as usize + 1;

/// One CPU's part of an address space: its door in the lock of the VMAs, and its share of each count. A line of its own,
/// so that a fault writes nothing that another CPU's fault writes. Zeroed memory is a valid one.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub(crate) struct SpaceSlot {
    pub(crate) readers: AtomicU32,
    counts: [AtomicI64; SPACE_COUNTERS],
}

impl SpaceSlot {
    #[inline]
    pub(crate) fn add(&self, counter: SpaceCounter, n: i64) {
        self.counts[counter as usize].fetch_add(n, Relaxed);
    }
}

/// Slots that stand in one frame.
pub(crate) const SLOTS: usize = FRAME_SIZE as usize / size_of::<SpaceSlot>();
/// Frames of slots that a space has at most.
pub(crate) const SLOT_FRAMES: usize = MAX_CPUS.div_ceil(SLOTS);

/// The slots of all CPUs for one space, in single frames.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SpaceSlots<'m> {
    frames: [&'m [SpaceSlot; SLOTS]; SLOT_FRAMES],
    cpus: usize,
}

impl<'m> SpaceSlots<'m> {
    /// For so many CPUs, whose slots are in these frames.
    pub(crate) fn new(cpus: usize, mut frame: impl FnMut(usize) -> &'m [SpaceSlot; SLOTS]) -> Self {
        let first = frame(0);
        let frames = core::array::from_fn(|i| if i > 0 && i * SLOTS < cpus { frame(i) } else { first });
        SpaceSlots { frames, cpus }
    }

    /// The slot of a CPU.
    #[inline]
    pub(crate) fn of(&self, cpu: usize) -> &'m SpaceSlot {
        &self.frames[cpu / SLOTS % SLOT_FRAMES][cpu % SLOTS]
    }

    /// The slots of all CPUs.
    #[inline]
    pub(crate) fn iter(&self) -> impl Iterator<Item = &'m SpaceSlot> + use<'m> {
        let slots = *self;
        (0..slots.cpus).map(move |cpu| slots.of(cpu))
    }
}

/// Pages of 4 KiB that are resident, on all CPUs' account.
pub(crate) fn resident(slots: &SpaceSlots<'_>) -> u64 {
    let of = |slot: &SpaceSlot, counter| slot.counts[counter as usize].load(Relaxed);
    let all = |slot| of(slot, SpaceCounter::Anon) + of(slot, SpaceCounter::File) + of(slot, SpaceCounter::Shmem);
    slots.iter().map(all).sum::<i64>().max(0) as u64
}

/// The sum over all CPUs. A share may be negative (mapped here, unmapped there); the sum is not, once all is quiet.
pub(crate) fn sum(slots: &SpaceSlots<'_>, counter: SpaceCounter) -> u64 {
    let total: i64 = slots.iter().map(|s| s.counts[counter as usize].load(Relaxed)).sum();
    total.max(0) as u64
}
