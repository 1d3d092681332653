//! What a host supplies. The host supplies, the engine decides.
//!
//! Five small traits, all with `&self`, so that several machines live side by side in one process; [`Platform`] is their
//! sum and is implemented by itself. The engine holds no global state and calls nothing else of its host.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::addr::{Pfn, PhysAddr, VirtRange};

/// The most CPUs that one machine may have.
pub const MAX_CPUS: usize = 256;
/// The most nodes that one machine may have.
pub const MAX_NODES: usize = 64;

/// A stretch of usable memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// First byte.
    pub base: PhysAddr,
    /// Length in bytes. Parts of a frame at either end are not used.
    pub len: u64,
    /// Whether the host vouches that every byte is zero.
    pub zeroed: bool,
    /// The node that it belongs to, below [`MAX_NODES`]: memory that some CPUs reach sooner than others do (NUMA). Where all is alike
    /// there is one, 0.
    pub node: usize,
}

/// Physical memory.
///
/// # Safety
/// The engine trusts the answers with its life: every byte of each [`Region`] must be readable and writable through the
/// direct map for as long as the machine lives, and belong to nobody else.
pub unsafe trait Memory {
    /// The memory that the engine manages, in ascending order and without overlap. Holes between regions are fine.
    fn regions(&self) -> &[Region];

    /// How far the memory of one node is from the CPUs of another (ACPI's SLIT: 10 is at hand). Who finds none at hand asks
    /// the nearest node next; of equally near ones that with the lowest number.
    fn distance(&self, from: usize, to: usize) -> u8 {
        if from == to { 10 } else { 20 }
    }

    /// Where physical address 0 appears in the engine's own address space: physical address `p` is at `direct_map() + p`.
    fn direct_map(&self) -> *mut u8;

    /// Overwrites frames with zeros, as the stores of a program would. A host whose processor does so better than by stores
    /// says how.
    ///
    /// # Safety
    /// `at` is in the direct map, at the start of a frame, and `bytes` are those of whole frames, which are the caller's alone.
    #[inline]
    unsafe fn zero(&self, at: *mut u8, bytes: usize) {
        // SAFETY: by contract.
        unsafe { at.write_bytes(0, bytes) }
    }

    /// Copies frames that others may be writing to meanwhile. A host whose processor does so better than word by word says how.
    ///
    /// # Safety
    /// Both are in the direct map, each at the start of a frame, and `bytes` are those of whole frames. Those at `from` stay, and
    /// all who may be writing to them treat them as atomics; those at `to` are others, and the caller's alone.
    #[inline]
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) {
        for at in 0..bytes / 8 {
            // SAFETY: by contract, and aligned.
            let word = unsafe { &*from.cast::<AtomicU64>().add(at) }.load(Relaxed);
            // SAFETY: by contract, and aligned.
            unsafe { to.cast::<u64>().add(at).write(word) };
        }
    }

    /// Frames, from `at` in the direct map on, are about to become executable. Their contents may have been written, by anybody on
    /// any CPU, since any CPU fetched instructions from there last. Where CPUs don't notice that by themselves, has all of them
    /// fetch what was written.
    #[inline]
    fn publish_code(&self, at: *const u8, bytes: usize) {
        let _ = (at, bytes);
    }
}

/// CPUs, and what a lock needs of them.
///
/// # Safety
/// [`Cpus::current`] must be below [`Cpus::count`], which never changes. Between [`Cpus::irq_disable`] and the matching
/// [`Cpus::irq_restore`] no interrupt handler that calls the engine may run on this CPU; between
/// [`Cpus::preempt_disable`] and [`Cpus::preempt_enable`] no other task may.
pub unsafe trait Cpus {
    /// Number of CPUs, 1 to [`MAX_CPUS`].
    fn count(&self) -> usize;

    /// The CPU that is running this. The task may move at any moment when preemption is enabled, so the answer is only a
    /// hint about locality; everything per CPU in the engine has a lock or is atomic.
    fn current(&self) -> usize;

    /// The node that a CPU belongs to, below [`MAX_NODES`]. Never changes.
    fn node(&self, cpu: usize) -> usize {
        let _ = cpu;
        0
    }

    /// Called while spinning. A machine without preemption may execute a pause; a simulated one may run another CPU.
    fn relax(&self) {
        core::hint::spin_loop();
    }

    /// Called while waiting for another task that may not be running: no spin lock is held and preemption is enabled, so a
    /// host with a scheduler should let others run.
    fn wait(&self) {
        self.relax();
    }

    /// A point where the engine would give way to other work (Linux: `cond_resched`): no spin lock
    /// is held, preemption is enabled, and no walk is under way. The task may be inside the lock of
    /// a space's VMAs, and have claimed a range: those who want them wait by [`Cpus::wait`], so a
    /// host runs other tasks on stacks of their own here, and none on this one.
    fn resched(&self) {}

    /// Keep this task on this CPU and let nobody else in. Nests.
    fn preempt_disable(&self) {}

    /// Undo one [`Cpus::preempt_disable`].
    fn preempt_enable(&self) {}

    /// Mask interrupts; the answer says what to restore.
    fn irq_disable(&self) -> bool {
        false
    }

    /// Restore what [`Cpus::irq_disable`] answered.
    fn irq_restore(&self, _was_enabled: bool) {}
}

/// A set of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    words: [u64; MAX_CPUS / 64],
}

impl CpuSet {
    /// The set whose members are the bits of `words`, 64 CPUs a word.
    pub const fn from_words(words: [u64; MAX_CPUS / 64]) -> Self {
        CpuSet { words }
    }

    /// The set of one CPU.
    pub const fn one(cpu: usize) -> Self {
        let mut words = [0; MAX_CPUS / 64];
        words[cpu / 64] = 1 << (cpu % 64);
        CpuSet { words }
    }

    /// Whether `cpu` is in it.
    pub fn contains(&self, cpu: usize) -> bool {
        self.words.get(cpu / 64).is_some_and(|w| w >> (cpu % 64) & 1 == 1)
    }

    /// Whether nobody is.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }

    /// The members, in ascending order.
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

/// Which address space, as far as the TLB is concerned: the engine's own number of the space, never reused while the
/// machine lives. The host maps it to PCIDs or ASIDs as it likes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SpaceId(pub u64);

/// What to invalidate.
#[derive(Clone, Copy, Debug)]
pub struct Invalidation<'a> {
    /// The space.
    pub space: SpaceId,
    /// The root table of the space, as loaded into the CPU's register.
    pub root: Pfn,
    /// Ranges whose translations changed, disjoint and ascending; all of the space when empty.
    pub ranges: &'a [VirtRange],
    /// log2 of the smallest page among the changed entries, the stride for an invalidation page by page.
    pub stride_shift: u32,
    /// Whether tables were unhooked in the ranges, so that paging-structure caches must forget them too.
    pub tables: bool,
}

/// Translation caches.
///
/// # Safety
/// When [`Tlb::invalidate`] returns, no CPU in the set may use, or later load, a translation of the ranges that it had
/// read before the call (nor, if `tables`, walk through a table that it had found there). That is the proof on which
/// frames are freed.
pub unsafe trait Tlb {
    /// Invalidate on each CPU of the set, and wait. Called with no lock held that the other CPUs might need with their
    /// interrupts masked, except a page table's.
    fn invalidate(&self, what: &Invalidation<'_>, cpus: &CpuSet);

    /// Invalidates on the CPU that calls this, so that an access which faulted there sees what
    /// entries allow now. Nothing is freed on the strength of it, and a host that runs other spaces
    /// on that CPU meanwhile, or has no translations of this one there, may do nothing. With
    /// [`Invalidation::tables`] what the CPU has cached of the tables on the way goes too. Called
    /// in formats that need it ([`crate::arch::stale`]), with a page table's lock or none.
    ///
    /// AArch64: `TLBI VAE1` for each page, `DSB NSH`, `ISB`. RISC-V: `SFENCE.VMA` with each page's
    /// address, or without one if `tables`, as with an address it reaches leaf entries only.
    fn invalidate_local(&self, what: &Invalidation<'_>)
    where
        Self: Cpus,
    {
        self.invalidate(what, &CpuSet::one(self.current()));
    }
}

/// Time.
pub trait Clock {
    /// Nanoseconds since some moment.
    fn now_ns(&self) -> u64;
}

/// What the engine tells about itself, for a checker or a tracer. With `ENABLED == false` none of the calls exists in the
/// compiled engine.
pub trait Trace {
    /// Whether anybody listens.
    const ENABLED: bool;

    /// Something is about to happen (for writes: has not happened yet). May run other simulated CPUs meanwhile.
    fn event(&self, event: Event);

    /// Asked wherever the engine may be refused something; `false` has it refused. Only asked when `ENABLED`.
    fn allow(&self, wanted: Wanted) -> bool {
        let _ = wanted;
        true
    }
}

/// What the engine may be refused: see [`Trace::allow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A block of frames.
    Frames,
    /// A block of swap slots.
    Slots,
    /// One more swap entry, or swap-cache page, for each of some slots in use. Refused, they pass
    /// for saturated, or for such as have no swap-cache page.
    References,
    /// A folio that nobody has pinned, to be swapped out. Refused, it passes for pinned.
    Unpinned,
}

/// Whether the engine may have what it wants.
#[inline(always)]
pub(crate) fn allows<P: Platform>(platform: &P, wanted: Wanted) -> bool {
    !P::ENABLED || platform.allow(wanted)
}

/// See [`Trace`]. Frames are first frame and count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Frames leave the allocator.
    Allocated(Pfn, u32),
    /// Frames go back to the allocator.
    Freed(Pfn, u32),
    /// The lock of a table is about to be taken.
    Locking(Pfn),
    /// The lock of a table was taken.
    Locked(Pfn),
    /// The lock of a table is about to be given back.
    Unlocking(Pfn),
    /// A frame becomes a table of this level (1 is the last) of a space; nobody else can see it yet.
    TableBorn(Pfn, u8, SpaceId),
    /// A table that was unhooked is about to be freed.
    TableDead(Pfn),
    /// An entry of a table is about to be written by a plain store: table, index, the value expected there, the new value.
    Store(Pfn, u16, u64, u64),
    /// An entry is about to be set to zero by a plain store, its accessed and dirty bits deliberately dropped (anonymous
    /// memory, whose contents go with it): table, index, the value expected there.
    Discard(Pfn, u16, u64),
    /// An entry is about to be exchanged atomically, whatever it holds: table, index, new value.
    Exchange(Pfn, u16, u64),
    /// The counts of a folio change: head frame, references and mappings before and after.
    Counts(Pfn, (u32, u32), (u32, u32)),
    /// A lockless walker enters.
    WalkBegin,
    /// A lockless walker leaves.
    WalkEnd,
    /// An entry was read without its lock, on the way down.
    Descend(Pfn, u16),
    /// A swap device is about to be written or read, which may take long: no spin lock is held and
    /// preemption is enabled.
    DeviceIo,
    /// Any other point where a schedule may switch.
    Step,
}

/// All that the engine needs of a host.
pub trait Platform: Memory + Cpus + Tlb + Clock + Trace + Sync {}

impl<T: Memory + Cpus + Tlb + Clock + Trace + Sync> Platform for T {}

/// Tell the host's tracer; compiled away when there is none.
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
    fn the_members_of_a_set_are_told_in_order() {
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
