//! Which CPUs may hold translations of a space, and making them drop some.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use crate::addr::{Pfn, VirtRange};
use crate::machine::Machine;
use crate::platform::{CpuSet, Invalidation, MAX_CPUS, Platform, SpaceId};
use crate::stats::{Counter, SpaceCounter, SpaceSlots};

/// Proof that translations were invalidated after they had been removed from the tables.
#[derive(Debug)]
pub(crate) struct Flushed(());

/// The TLB's view of one address space.
pub(crate) struct Shootdown<'m, P: Platform> {
    pub(crate) machine: &'m Machine<'m, P>,
    pub(crate) space: SpaceId,
    pub(crate) root: Pfn,
    users: [AtomicU64; MAX_CPUS / 64],
    slots: SpaceSlots<'m>,
    /// Gathers that may have emptied entries and not flushed.
    gathers: AtomicU32,
    /// Evictions of which the same is true.
    evictions: AtomicU32,
}

/// As long as there is one, somebody may have emptied entries, and not flushed yet, without anybody having asked for new contents.
pub(crate) struct Evicting<'a>(&'a AtomicU32);

impl Drop for Evicting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl<'m, P: Platform> Shootdown<'m, P> {
    pub(crate) fn new(machine: &'m Machine<'m, P>, space: SpaceId, root: Pfn, slots: SpaceSlots<'m>) -> Self {
        Shootdown {
            machine,
            space,
            root,
            users: Default::default(),
            slots,
            gathers: AtomicU32::new(0),
            evictions: AtomicU32::new(0),
        }
    }

    /// A CPU is about to load the root. The host does so only after this returns, so that whoever clears an entry and does
    /// not see this CPU yet has cleared it before this CPU's first walk.
    pub(crate) fn enter(&self, cpu: usize) {
        self.users[cpu / 64].fetch_or(1 << (cpu % 64), Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }

    /// A CPU holds no translation of the space any more.
    pub(crate) fn leave(&self, cpu: usize) {
        self.users[cpu / 64].fetch_and(!(1 << (cpu % 64)), Ordering::SeqCst);
    }

    /// Of what was taken out of page tables and counted as anonymous memory, so many frames were an object's.
    #[cold]
    pub(super) fn were_objects(&self, frames: u64) {
        let slot = self.slots.of(self.machine.platform().current());
        slot.add(SpaceCounter::Anon, frames as i64);
        slot.add(SpaceCounter::Shmem, -(frames as i64));
    }

    /// A gather begins: before the first entry that it will empty.
    pub(super) fn open_gather(&self) {
        self.gathers.fetch_add(1, Ordering::Relaxed);
    }

    /// A gather has flushed.
    pub(super) fn close_gather(&self) {
        self.gathers.fetch_sub(1, Ordering::Release);
    }

    /// Asked by an open gather: whether there are others. Whoever emptied an entry that the caller found empty, under the
    /// lock of its table, is either counted here or has flushed.
    pub(super) fn others_are_open(&self) -> bool {
        self.gathers.load(Ordering::Acquire) > 1
    }

    /// An eviction begins: before the first entry that it will empty. It flushes before it drops the answer.
    pub(crate) fn evicting(&self) -> Evicting<'_> {
        self.evictions.fetch_add(1, Ordering::Relaxed);
        Evicting(&self.evictions)
    }

    /// Entries that were found empty are about to be filled, under the lock of their table. The program goes on with what was there
    /// before or, if somebody forgot it, has asked for that itself: unless an eviction has emptied them, behind everybody's back,
    /// and not flushed yet. No CPU may read the old contents any more when another one has written the new. `shift`: of the smallest
    /// pages that may have been there.
    #[inline]
    pub(crate) fn before_filling(&self, range: VirtRange, shift: u32) {
        // Whoever emptied them under the same lock is either counted here or has flushed.
        if self.evictions.load(Ordering::Acquire) != 0 {
            self.invalidate(&[range], shift, false);
        }
    }

    pub(crate) fn users(&self) -> CpuSet {
        CpuSet::from_words(core::array::from_fn(|i| self.users[i].load(Ordering::SeqCst)))
    }

    /// Make every CPU that uses the space drop what it holds of these ranges (all, if none is given), and of the tables in
    /// between if `tables`. What was removed from the tables before the call can't be reached through a TLB afterwards.
    pub(crate) fn invalidate(&self, ranges: &[VirtRange], stride_shift: u32, tables: bool) -> Flushed {
        fence(Ordering::SeqCst);
        let cpus = self.users();
        if !cpus.is_empty() {
            self.machine.count(Counter::Flushes, 1);
            let what = Invalidation { space: self.space, root: self.root, ranges, stride_shift, tables };
            self.machine.platform().invalidate(&what, &cpus);
        }
        Flushed(())
    }

    /// Has this CPU drop what it holds of a range, so that it sees what entries there allow now. No
    /// proof for freeing anything.
    #[cold]
    pub(crate) fn invalidate_local(&self, range: VirtRange, stride_shift: u32, tables: bool) {
        let what = Invalidation { space: self.space, root: self.root, ranges: &[range], stride_shift, tables };
        self.machine.platform().invalidate_local(&what);
    }
}
