//! TLB shootdown: keeps the set of CPUs that may hold translations of a space, and invalidates
//! translations on these CPUs.
//!
//! A CPU is in the set from before it loads the root until it holds no translation any more. A CPU
//! that clears a PTE reads the set afterwards, with a full fence between the two; a CPU that enters
//! the set has a full fence between that and its first walk. So either the first CPU finds the
//! second in the set and invalidates there, or the second CPU's first walk finds the PTE cleared
//! (INV-1).

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::addr::{Pfn, VirtRange};
use crate::machine::Machine;
use crate::platform::{CpuSet, Invalidation, MAX_CPUS, Platform, SpaceId};
use crate::stats::{Counter, SpaceCounter, SpaceSlots};

/// Proof that translations were invalidated after they had been removed from the page tables
/// (INV-1).
#[derive(Debug)]
pub(crate) struct Flushed(());

/// The state that the TLB invalidation of one address space needs (Linux: `mm_cpumask` and
/// `tlb_flush_pending`).
pub(crate) struct Shootdown<'m, P: Platform> {
    pub(crate) machine: &'m Machine<'m, P>,
    pub(crate) space: SpaceId,
    /// The root page table.
    pub(crate) root: Pfn,
    /// The set of CPUs that may hold translations of the space.
    cpus: [AtomicU64; MAX_CPUS / 64],
    /// The per-CPU statistics of the space.
    slots: SpaceSlots<'m>,
    /// The number of open gathers: those that may have cleared PTEs and not flushed yet.
    gathers: AtomicU32,
    /// The number of reclaimers that may have cleared PTEs and not flushed yet.
    reclaimers: AtomicU32,
}

/// A guard that a reclaimer holds. While one exists, reclaim may have cleared PTEs whose TLB flush
/// is still pending (Linux: `flush_tlb_batched_pending`). A CPU that fills such PTEs flushes first
/// ([`Shootdown::flush_pending_reclaim`]).
pub(crate) struct PendingReclaimFlush<'a>(&'a AtomicU32);

impl Drop for PendingReclaimFlush<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<'m, P: Platform> Shootdown<'m, P> {
    /// Returns the state of a space that no CPU uses yet.
    pub(crate) fn new(machine: &'m Machine<'m, P>, space: SpaceId, root: Pfn, slots: SpaceSlots<'m>) -> Self {
        Shootdown {
            machine,
            space,
            root,
            cpus: Default::default(),
            slots,
            gathers: AtomicU32::new(0),
            reclaimers: AtomicU32::new(0),
        }
    }

    /// Adds a CPU to the set before it loads the root. The host loads the root only after this
    /// returns, so a CPU that clears a PTE and does not see `cpu` in the set has cleared the PTE
    /// before the first walk of `cpu`.
    pub(crate) fn enter(&self, cpu: usize) {
        self.cpus[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// Removes a CPU from the set. The CPU holds no translation of the space any more.
    pub(crate) fn leave(&self, cpu: usize) {
        self.cpus[cpu / 64].fetch_and(!(1 << (cpu % 64)), Ordering::SeqCst);
    }

    /// Corrects the space's statistics: `frames` unmapped frames that were counted as anonymous
    /// memory belong to `counter`.
    #[cold]
    pub(super) fn recount(&self, counter: SpaceCounter, frames: u64) {
        let slot = self.slots.of(self.machine.platform().current());
        slot.add(SpaceCounter::Anon, frames as i64);
        slot.add(counter, -(frames as i64));
    }

    /// Counts a gather as open. The caller does this before the gather clears its first PTE.
    pub(super) fn open_gather(&self) {
        self.gathers.fetch_add(1, Ordering::Relaxed);
    }

    /// Stops counting a gather that has flushed.
    pub(super) fn close_gather(&self) {
        self.gathers.fetch_sub(1, Ordering::Release);
    }

    /// Returns true if a gather other than the caller's is open. If another operation cleared a PTE
    /// which the caller found empty under the lock of its page table, that operation either is
    /// counted here or has flushed.
    pub(super) fn has_other_gathers(&self) -> bool {
        self.gathers.load(Ordering::Acquire) > 1
    }

    /// Announces a reclaimer, before it clears its first PTE (Linux: `set_tlb_ubc_flush_pending`).
    /// The reclaimer flushes before it drops the guard.
    pub(crate) fn set_reclaim_flush_pending(&self) -> PendingReclaimFlush<'_> {
        self.reclaimers.fetch_add(1, Ordering::Relaxed);
        PendingReclaimFlush(&self.reclaimers)
    }

    /// Invalidates `range` if reclaim may have cleared PTEs there and not flushed yet (Linux:
    /// `flush_tlb_batched_pending`). For a CPU that is about to fill empty PTEs, under the lock of
    /// their page table. `shift`: log2 of the smallest page that may have been mapped there.
    ///
    /// Without the flush another CPU could still read the old frames through its TLB after the
    /// program has written to the new ones. Only reclaim can cause this: operations that the
    /// program requested (`munmap`, say) are not complete before their own flush.
    #[inline]
    pub(crate) fn flush_pending_reclaim(&self, range: VirtRange, shift: u32) {
        // A reclaimer that cleared these PTEs did so under the same lock, and either is counted
        // here or has flushed.
        if self.reclaimers.load(Ordering::Acquire) != 0 {
            self.invalidate(&[range], shift, false);
        }
    }

    /// Returns the set of CPUs that may hold translations of the space.
    fn cpus(&self) -> CpuSet {
        CpuSet::from_words(core::array::from_fn(|i| self.cpus[i].load(Ordering::SeqCst)))
    }

    /// Invalidates the translations of `ranges` (all translations, if there are none) on every CPU
    /// that uses the space, and waits for those CPUs. With `tables`, also invalidates the CPUs'
    /// paging-structure caches. `stride_shift`: log2 of the smallest page there. Memory that was
    /// removed from the page tables before the call can't be reached through a TLB afterwards. May
    /// be called under a page table's lock.
    pub(crate) fn invalidate(&self, ranges: &[VirtRange], stride_shift: u32, tables: bool) -> Flushed {
        fence(Ordering::SeqCst);
        let cpus = self.cpus();
        if !cpus.is_empty() {
            self.machine.count(Counter::Flushes, 1);
            let what = Invalidation { space: self.space, root: self.root, ranges, stride_shift, tables };
            self.machine.platform().invalidate(&what, &cpus);
        }
        Flushed(())
    }

    /// Invalidates the translations of a range on this CPU only, so that its next access sees the
    /// present permissions of the PTEs (INV-20). Returns no [`Flushed`], because other CPUs may
    /// still hold the translations.
    #[cold]
    pub(crate) fn invalidate_local(&self, range: VirtRange, stride_shift: u32, tables: bool) {
        let what = Invalidation { space: self.space, root: self.root, ranges: &[range], stride_shift, tables };
        self.machine.platform().invalidate_local(&what);
    }
}
