//! The traits that a host implements: memory, CPUs, TLB flushes, a clock, storage and tracing.
//!
//! The methods of all six traits take `&self`, so that several machines can exist in one process.
//! [`Platform`] combines the six traits, with a blanket implementation. The engine has no global
//! state and calls no other code of its host. The engine decides on policy; the host supplies
//! mechanisms.

pub mod bytes;
mod storage;

pub(crate) use storage::{MAX_REQUEST_FOLIOS, Part};
pub use storage::{MemcgId, PendingPage, ReadRequest, Storage, WriteRequest};

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::addr::{Pfn, PhysAddr, VirtRange};
use crate::arch::Arch;

/// The maximum number of CPUs of one machine.
pub const MAX_CPUS: usize = 256;
/// The maximum number of NUMA nodes of one machine.
pub const MAX_NODES: usize = 64;

/// A contiguous range of usable physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The address of the first byte.
    pub base: PhysAddr,
    /// Length in bytes. A partial frame at either end is not used.
    pub len: u64,
    /// True if the host guarantees that every byte is zero (INV-10).
    pub zeroed: bool,
    /// The NUMA node of this memory, below [`MAX_NODES`]. Uniform memory is node 0.
    pub node: usize,
}

/// Physical memory and its direct map.
///
/// # Safety
/// The engine relies on these methods for memory safety: every byte of each [`Region`] must be
/// readable and writable through the direct map for as long as the machine exists, and must be used
/// by the engine alone.
pub unsafe trait Memory {
    /// Returns the memory that the engine manages, in ascending order and without overlap. Holes
    /// between regions are allowed.
    fn regions(&self) -> &[Region];

    /// Returns the distance of node `to`'s memory from node `from`'s CPUs, in the units of ACPI's
    /// SLIT (10 is local). When a node has no free memory the allocator falls back to the nearest
    /// other node, and among equally near ones to the one with the lowest number.
    fn distance(&self, from: usize, to: usize) -> u8 {
        if from == to { 10 } else { 20 }
    }

    /// Returns the virtual address at which physical address 0 is mapped: physical address `p` is
    /// at `direct_map() + p`.
    fn direct_map(&self) -> *mut u8;

    /// Overwrites frames with zeros, by ordinary stores. A host with a faster instruction overrides
    /// this method (AArch64: `DC ZVA`).
    ///
    /// # Safety
    /// `at` is in the direct map, at the start of a frame. `bytes` is a multiple of
    /// [`FRAME_SIZE`](crate::addr::FRAME_SIZE), and the caller has exclusive access to those
    /// frames.
    #[inline]
    unsafe fn zero(&self, at: *mut u8, bytes: usize) {
        // SAFETY: the caller has exclusive access to these frames, which are in the direct map.
        unsafe { at.write_bytes(0, bytes) }
    }

    /// Copies frames to which other CPUs may be writing. A host that can copy faster than word by
    /// word overrides this method.
    ///
    /// # Safety
    /// `from` and `to` are in the direct map, each at the start of a frame; `bytes` is a multiple
    /// of [`FRAME_SIZE`](crate::addr::FRAME_SIZE), and the two ranges do not overlap. The source
    /// frames are not freed during the call, and every concurrent write to them is atomic. The
    /// caller has exclusive access to the destination frames.
    #[inline]
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        for at in 0..bytes / 8 {
            // SAFETY: the source frames are not freed during the call, and every write to them is
            // atomic. A frame is aligned, and so is each of its words.
            let word = unsafe { &*from.cast::<AtomicU64>().add(at) }.load(Relaxed);
            // SAFETY: the caller has exclusive access to the destination frames. A frame is
            // aligned, and so is each of its words.
            unsafe { to.cast::<u64>().add(at).write(word) };
        }
    }

    /// Compacts memory for a page fault that found no free block of `order`, a folio larger than a
    /// page: calls [`reclaim::compact`](crate::reclaim::compact), for one block, with all address
    /// spaces of the machine. The engine holds no lock, and tries the fault once more afterwards,
    /// with smaller folios where there is still no block. A host that does nothing here has faults
    /// fall back at once.
    fn compact(&self, order: u8) {
        let _ = order;
    }

    /// Makes instruction fetches coherent with memory, on all CPUs, for `bytes` bytes from `at` in
    /// the direct map (Linux: `flush_icache_range`, `sync_icache_aliases`). The engine calls this
    /// before it maps frames executable. Any CPU may have written to these frames since any CPU
    /// last fetched instructions from them. Of an object's folio the engine calls it once, and
    /// again after [`ObjectPage::written`](crate::page_cache::ObjectPage::written). The default
    /// does nothing, which is correct where instruction caches are coherent in hardware, as on
    /// x86-64.
    #[inline]
    fn sync_icache(&self, at: *const u8, bytes: usize) {
        let _ = (at, bytes);
    }
}

/// CPUs, preemption and interrupts, as the engine's locks need them.
///
/// # Safety
/// [`Cpus::current`] must be below [`Cpus::count`], which never changes. Between
/// [`Cpus::irq_disable`] and the matching [`Cpus::irq_restore`] no interrupt handler that calls the
/// engine may run on this CPU. Between [`Cpus::preempt_disable`] and [`Cpus::preempt_enable`] no
/// other task may run on it.
pub unsafe trait Cpus {
    /// Returns the number of CPUs, 1 to [`MAX_CPUS`].
    fn count(&self) -> usize;

    /// Returns the CPU on which the caller runs. With preemption enabled the task may migrate at
    /// any moment, so the result is only a locality hint: all per-CPU data of the engine has a lock
    /// or is atomic.
    fn current(&self) -> usize;

    /// Returns the NUMA node of a CPU, below [`MAX_NODES`]. The result never changes.
    fn node(&self, cpu: usize) -> usize {
        let _ = cpu;
        0
    }

    /// Called in each iteration of a spin loop (Linux: `cpu_relax`). A simulated machine may run
    /// another CPU here.
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Called in each iteration of a loop that waits for another task, which may not be running. No
    /// spin lock is held and preemption is enabled, so a host with a scheduler should run other
    /// tasks here.
    fn wait(&self) {
        self.relax();
    }

    /// Called where the engine can be rescheduled (Linux: `cond_resched`; INV-11). No spin lock is
    /// held, preemption is enabled, and no lockless page-table walk is under way. The task may hold
    /// a space's VMA lock, and a claim (the range lock of an operation that changes VMAs). Other
    /// tasks that need the VMA lock or the range wait by [`Cpus::wait`]. So a host may run other
    /// tasks here on their own stacks. It must not run one on this task's stack, because that task
    /// could wait for a lock that this one holds.
    fn resched(&self) {}

    /// Disables preemption and migration of the current task. Calls nest.
    fn preempt_disable(&self) {}

    /// Reverts one [`Cpus::preempt_disable`].
    fn preempt_enable(&self) {}

    /// Masks interrupts on this CPU. Returns the previous state, for [`Cpus::irq_restore`].
    fn irq_disable(&self) -> bool {
        false
    }

    /// Restores the interrupt state that [`Cpus::irq_disable`] returned.
    fn irq_restore(&self, _was_enabled: bool) {}
}

/// A set of CPUs (Linux: `cpumask`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    words: [u64; MAX_CPUS / 64],
}

impl CpuSet {
    /// Makes a set from a bitmap: 64 CPUs per word, CPU 0 in bit 0 of the first word.
    pub const fn from_words(words: [u64; MAX_CPUS / 64]) -> Self {
        CpuSet { words }
    }

    /// Makes the set that contains only `cpu`.
    pub const fn one(cpu: usize) -> Self {
        let mut words = [0; MAX_CPUS / 64];
        words[cpu / 64] = 1 << (cpu % 64);
        CpuSet { words }
    }

    /// Returns true if `cpu` is a member.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|w| w >> (cpu % 64) & 1 == 1)
    }

    /// Returns true if the set has no member.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// Returns the members in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().flat_map(|(i, word)| {
            let mut left = *word;
            core::iter::from_fn(move || {
                let bit = (left != 0).then(|| left.trailing_zeros() as usize)?;
                left &= left - 1;
                Some(i * 64 + bit)
            })
        })
    }
}

/// The engine's number of an address space, by which the host identifies its TLB entries. It is
/// never reused while the machine exists. The host assigns PCIDs or ASIDs to it as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(pub u64);

/// A TLB invalidation request.
#[derive(Clone, Copy, Debug)]
pub struct Invalidation<'a> {
    /// The address space.
    pub space: SpaceId,
    /// The root page table of the space, as loaded into CR3, TTBR0_EL1 or satp.
    pub root: Pfn,
    /// The ranges with changed translations, disjoint and ascending. Empty means all of the space.
    pub ranges: &'a [VirtRange],
    /// log2 of the size of the smallest page among the changed PTEs, in bytes: the stride of an
    /// invalidation page by page.
    pub stride_shift: u32,
    /// True if page tables were unhooked in the ranges (the pointers to them were cleared), so that
    /// paging-structure caches have to be invalidated too (Linux: `freed_tables`).
    pub tables: bool,
}

/// TLB invalidation.
///
/// # Safety
/// When [`Tlb::invalidate`] returns, no CPU of the set that was passed may use, or later fill its
/// TLB with, a translation of the ranges that its MMU read from the page tables before the call.
/// With [`Invalidation::tables`], no MMU of these CPUs may continue a page walk through a page
/// table to which it read a pointer before the call. The engine frees frames on this guarantee
/// (INV-1).
pub unsafe trait Tlb {
    /// The format of the page tables that the CPUs' MMUs walk. All address spaces of a machine use
    /// this type. Each space has its own value of it, and two values may differ in the number of
    /// levels.
    type Arch: Arch;

    /// Invalidates on every CPU in `cpus` and waits until all have done so (a TLB shootdown). The
    /// caller may hold a page table's lock, for which another CPU may be waiting with interrupts
    /// masked. The caller holds no other lock for which a CPU may wait in this way.
    fn invalidate(&self, what: &Invalidation<'_>, cpus: &CpuSet);

    /// Invalidates on the calling CPU only, so that an access that faulted there is retried with
    /// the PTEs as they are now (INV-20; Linux: `flush_tlb_fix_spurious_fault`). The engine frees
    /// no frame because of this call. A host may do nothing if the CPU runs another space by now,
    /// or has no translations of this one. With [`Invalidation::tables`] the paging-structure
    /// caches are invalidated too. The engine calls this in formats that need it
    /// ([`crate::arch::stale`]), with a page table's lock held or with none.
    ///
    /// AArch64: `TLBI VAE1` for each page, `DSB NSH`, `ISB`. RISC-V: `SFENCE.VMA` with each page's
    /// address, or without an address if `tables` is set, because an `SFENCE.VMA` with an address
    /// invalidates cached leaf PTEs only.
    fn invalidate_local(&self, what: &Invalidation<'_>)
    where
        Self: Cpus,
    {
        self.invalidate(what, &CpuSet::one(self.current()));
    }
}

/// A monotonic clock.
pub trait Clock {
    /// Returns nanoseconds since an arbitrary fixed moment.
    fn now_ns(&self) -> u64;
}

/// Tracepoints and fault injection, for checkers and test harnesses. With `ENABLED == false` the
/// compiled engine contains none of the calls.
pub trait Trace {
    /// True if the engine reports events and consults [`Trace::allow`].
    const ENABLED: bool;

    /// Reports an event. The engine reports a write before it makes the write. A simulated host may
    /// run other CPUs during this call.
    fn event(&self, event: Event);

    /// Returns whether the operation at this fault-injection point may succeed (Linux:
    /// `should_fail`). The engine calls it only if `ENABLED`.
    fn allow(&self, wanted: FailPoint) -> bool {
        let _ = wanted;
        true
    }
}

/// The fault-injection points of the engine: see [`Trace::allow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailPoint {
    /// Allocation of a block of frames.
    Frames,
    /// Allocation of a block of swap slots.
    Slots,
    /// A further reference to each swap slot of a range, for a swap PTE or a swap-cache page. If
    /// refused, the engine acts as if a slot's reference count were at its maximum, or as if the
    /// slots had no swap-cache page.
    References,
    /// Pageout of a folio that is not pinned. If refused, the engine acts as if the folio were
    /// pinned.
    Unpinned,
}

/// Returns whether the operation at fault-injection point `wanted` may succeed. Always true if
/// tracing is compiled out.
#[inline(always)]
pub(crate) fn allows<P: Platform>(platform: &P, wanted: FailPoint) -> bool {
    !P::ENABLED || platform.allow(wanted)
}

/// An event that the engine reports to [`Trace::event`]. A range of frames is given as its first
/// frame and the number of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A range of frames leaves the frame allocator.
    Allocated(Pfn, u32),
    /// A range of frames returns to the frame allocator.
    Freed(Pfn, u32),
    /// The lock of a page table is about to be taken.
    Locking(Pfn),
    /// The lock of a page table has been taken.
    Locked(Pfn),
    /// The lock of a page table is about to be released.
    Unlocking(Pfn),
    /// A frame becomes a page table of this level (1 is the last level) of a space. No other page
    /// table points to it yet, so no other CPU can reach it. Its entries count as empty, and have
    /// any value until the engine writes them, which it does before it publishes the page table.
    TableAllocated(Pfn, u8, SpaceId),
    /// An unhooked page table is about to be freed.
    TableFreed(Pfn),
    /// A PTE is about to be written by a plain store: page table, index, expected old value, new
    /// value.
    Store(Pfn, u16, u64, u64),
    /// A leaf PTE of anonymous memory is about to be cleared by a plain store. Its accessed and
    /// dirty bits are dropped, because the memory is freed: page table, index, expected old value.
    ClearAnon(Pfn, u16, u64),
    /// A PTE is about to be exchanged atomically, whatever its old value: page table, index, new
    /// value.
    Exchange(Pfn, u16, u64),
    /// The counts of a folio change: head frame, then refcount and mapcount before, then refcount
    /// and mapcount after.
    Counts(Pfn, (u32, u32), (u32, u32)),
    /// A lockless page-table walk begins.
    WalkBegin,
    /// A lockless page-table walk ends.
    WalkEnd,
    /// A lockless walk has read an upper-level entry: page table and index.
    Descend(Pfn, u16),
    /// A swap device is about to be read or written, or the host's storage to get a request, which
    /// may sleep: no spin lock is held and preemption is enabled.
    DeviceIo,
    /// Another point at which a simulated host may run other CPUs.
    Step,
}

/// Everything that the engine needs of a host.
pub trait Platform: Memory + Cpus + Tlb + Clock + Storage + Trace + Sync {}

impl<T: Memory + Cpus + Tlb + Clock + Storage + Trace + Sync> Platform for T {}

/// Reports an event to the host. Compiled away if tracing is not `ENABLED`.
#[cfg(not(loom))]
#[inline(always)]
pub(crate) fn trace<P: Trace>(platform: &P, event: impl FnOnce() -> Event) {
    if P::ENABLED {
        platform.event(event());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn cpu_set_iterates_its_members_in_ascending_order() {
        let members = [0, 1, 63, 64, 130, MAX_CPUS - 1];
        let mut words = [0; MAX_CPUS / 64];
        members.iter().for_each(|cpu| words[cpu / 64] |= 1 << (cpu % 64));
        let set = CpuSet::from_words(words);
        assert_eq!(set.iter().collect::<Vec<_>>(), members);
        assert!((0..MAX_CPUS).all(|cpu| set.contains(cpu) == members.contains(&cpu)));
        assert_eq!(CpuSet::default().iter().next(), None);
        members.iter().for_each(|cpu| assert_eq!(CpuSet::one(*cpu).iter().collect::<Vec<_>>(), [*cpu]));
    }
}
