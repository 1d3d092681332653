//! Collapse: detaches a page table of small leaf PTEs, so that a huge PTE can replace it (Linux:
//! `collapse_pte_mapped_thp`, khugepaged).

use super::busy::BusyEntries;
use super::{LockedTable, MAX_RUNS_PER_HOLD, Run};
use crate::addr::VirtRange;
use crate::arch::{Arch, Kind};
use crate::frame::flag;
use crate::platform::{Event, Platform, trace};
use crate::stats::Counter;
use crate::tlb::{DeadTable, Gather, Removed};
use core::sync::atomic::Ordering::Relaxed;

/// A page table that was detached from its parent, with its PTEs still in it. No walk finds it, and
/// no TLB holds a translation from it, so its PTEs no longer change.
#[must_use = "the memory that a detached page table maps leaks unless it is drained"]
pub(crate) struct DetachedTable<'t, 'm, P: Platform>(LockedTable<'t, 'm, P>);

impl<'t, 'm, P: Platform> LockedTable<'t, 'm, P> {
    /// Returns all addresses that this page table translates.
    pub(crate) fn range(&self) -> VirtRange {
        VirtRange { start: self.base, end: self.end() }
    }

    /// Detaches this page table: replaces the pointer to it in its parent by a busy entry (a marker
    /// at which walks wait), releases the lock and flushes. After that no CPU reads or writes
    /// memory through this page table, and its accessed and dirty bits are final. Returns the page
    /// table and its parent's busy entry.
    pub(crate) fn detach(self) -> (DetachedTable<'t, 'm, P>, BusyEntries<'t, 'm, P>) {
        let above = self.lock_parent();
        let index = above.index(self.base);
        let table = above.entry(index).load(Relaxed);
        debug_assert_eq!(self.tables.arch.kind(table, above.level), Kind::Table);
        above.store(index, table, self.tables.arch.busy_pte());
        let busy = BusyEntries::new(above);
        // A CPU that already waits for the lock of this page table finds this flag once it has the
        // lock, and walks again.
        self.desc.set_flag(flag::UNHOOKED);
        trace(self.tables.platform(), || Event::Unlocking(self.pfn));
        self.desc.table_lock().unlock(self.tables.platform());
        let _flushed = self.tables.tlb.invalidate(&[self.range()], self.shift(), true);
        (DetachedTable(self), busy)
    }
}

impl<'t, 'm, P: Platform> DetachedTable<'t, 'm, P> {
    /// Returns the page table, for reading its PTEs.
    pub(crate) fn table(&self) -> &LockedTable<'t, 'm, P> {
        &self.0
    }

    /// Returns the runs of leaf PTEs in the page table, in ascending order of their addresses.
    pub(crate) fn leaf_runs(&self) -> impl Iterator<Item = Run> {
        let VirtRange { start: mut at, end } = self.0.range();
        let next = move || {
            let run = if at < end { self.0.run(at, end)? } else { return None };
            at = run.range(&self.0.tables.arch).end;
            Some(run)
        };
        core::iter::from_fn(next).filter(|run| run.kind == Kind::Leaf)
    }

    /// Reverts [`LockedTable::detach`]: replaces the parent's busy entry by the pointer to this
    /// page table.
    pub(crate) fn restore(self, busy: BusyEntries<'t, 'm, P>) {
        let LockedTable { tables, pfn, desc, level, base } = self.0;
        let pointer = tables.arch.table_pte(pfn.addr());
        busy.fill(&Run::new(base, level + 1, Kind::Table, pointer, 1));
        // The flag is cleared only after the parent's entry was filled: as soon as it is clear,
        // another CPU may lock the page table, empty it, and unhook it from the parent.
        desc.clear_flag(flag::UNHOOKED);
    }

    /// Takes all leaf PTEs out, passes each run to `each`, and gives the page table to the gather,
    /// which is flushed whenever it is full. Calls `resched` after every [`MAX_RUNS_PER_HOLD`] runs
    /// (INV-11).
    pub(crate) fn drain(self, gather: &mut Gather<'_, 'm, P>, mut each: impl FnMut(Removed, &mut Gather<'_, 'm, P>)) {
        let table = self.0;
        table.tables.count_hooked(-1);
        table.tables.machine.count(Counter::TablesFreed, 1);
        let VirtRange { start: mut at, end } = table.range();
        let mut runs = 0;
        while table.live().get() != 0
            && let Some(run) = table.run(at, end)
        {
            at = run.range(&table.tables.arch).end;
            if run.kind == Kind::Leaf
                && let Some(removed) = table.take(run.va, at)
            {
                if gather.is_full() {
                    gather.flush();
                }
                each(removed, gather);
                runs += 1;
                if runs % MAX_RUNS_PER_HOLD == 0 {
                    table.tables.platform().resched();
                }
            }
        }
        gather.push_table(DeadTable { pfn: table.pfn, range: table.range() });
    }
}
