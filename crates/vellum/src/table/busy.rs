//! Busy entries: markers that take the place of PTEs while an operation flushes or copies without
//! the page table's lock (INV-4, INV-11).
//!
//! An operation that takes long replaces PTEs by busy entries, releases the lock, does its work,
//! and fills the entries. A run ends before a busy entry ([`LockedTable::run`]), and
//! [`PageTables::find`](super::PageTables::find) waits while the entry that it looks for is busy.
//! So a CPU that needs such a PTE waits until the entry is filled, and then finds the new PTE. The
//! operation holds the VMA lock as a reader, so that no other operation unmaps, moves or forks
//! these addresses (INV-13). Busy entries count as live: their page table stays hooked (INV-3).

use core::sync::atomic::Ordering::Relaxed;

use super::entries::Sequence;
use super::{LockedTable, Run};
use crate::addr::VirtRange;
use crate::arch::{Arch, Kind, UserRange};
use crate::platform::{Event, Platform, trace};
use crate::tlb::{Gather, Removed};

/// Busy entries of a page table that is not locked. A CPU that needs one of these PTEs waits until
/// [`BusyEntries::fill`] is called.
#[must_use = "CPUs wait at busy entries until they are filled"]
pub(crate) struct BusyEntries<'t, 'm, P: Platform>(LockedTable<'t, 'm, P>);

impl<'t, 'm, P: Platform> LockedTable<'t, 'm, P> {
    /// Returns true if the entry at the start of `range` is busy.
    #[inline]
    pub(super) fn is_busy(&self, range: UserRange) -> bool {
        !range.is_empty() && self.entry(self.index(range.start)).load(Relaxed) == self.tables.arch.busy_pte()
    }

    /// Makes all entries of `block` busy, passes each run of leaf PTEs that it replaced to `taken`,
    /// and releases the lock. `block` lies in this page table and holds leaf PTEs and empty entries
    /// only. Accessed and dirty bits are dropped, as by [`LockedTable::take`].
    pub(crate) fn make_busy(self, block: VirtRange, mut taken: impl FnMut(Removed)) -> BusyEntries<'t, 'm, P> {
        let arch = &self.tables.arch;
        let busy = arch.busy_pte();
        let mut at = block.start;
        self.cont().unfold_at(self.index(at));
        self.cont().unfold_at(self.index(at) + ((block.len() >> self.shift()) as usize));
        while at < block.end
            && let Some(run) = self.run(at, block.end)
        {
            let index = self.index(at);
            for (i, entry) in self.entries()[index..index + run.len].iter().enumerate() {
                self.exchange_at(index + i, entry, busy);
            }
            match run.kind {
                Kind::Leaf => {
                    let (pfn, frames, range) = (run.pfn(arch), run.frames(arch), run.range(arch));
                    taken(Removed { pfn, frames, range, shift: self.shift() });
                }
                _ => self.live().add(run.len),
            }
            at = run.range(arch).end;
        }
        debug_assert_eq!(at, block.end, "the block has an entry that is neither a leaf PTE nor empty");
        BusyEntries::new(self)
    }
}

impl<'t, 'm, P: Platform> BusyEntries<'t, 'm, P> {
    /// Releases the lock of a page table in which the caller has made entries busy.
    pub(super) fn new(table: LockedTable<'t, 'm, P>) -> Self {
        trace(table.tables.platform(), || Event::Unlocking(table.pfn));
        table.desc.table_lock().unlock(table.tables.platform());
        BusyEntries(table)
    }

    /// Takes the page table's lock again, empties all of the busy entries, whose addresses are
    /// `block`, and releases the lock. The gather frees page tables that became empty. The entries'
    /// old PTEs were flushed.
    pub(crate) fn clear(self, block: VirtRange, gather: &mut Gather<'_, 'm, P>) {
        let table = self.0;
        trace(table.tables.platform(), || Event::Locking(table.pfn));
        table.desc.table_lock().lock(table.tables.platform());
        trace(table.tables.platform(), || Event::Locked(table.pfn));
        let len = (block.len() >> table.shift()) as usize;
        let busy = Sequence::of_equal(table.tables.arch.busy_pte());
        table.write(table.index(block.start), len, busy, Sequence::of_equal(0));
        table.live().subtract(len);
        table.unlock(gather);
    }

    /// Takes the page table's lock again, writes `run` over all of the busy entries, and releases
    /// the lock.
    pub(crate) fn fill(self, run: &Run) {
        let table = self.0;
        trace(table.tables.platform(), || Event::Locking(table.pfn));
        table.desc.table_lock().lock(table.tables.platform());
        trace(table.tables.platform(), || Event::Locked(table.pfn));
        table.set_over(run, table.tables.arch.busy_pte());
        table.live().mark_private();
        table.release();
    }
}
