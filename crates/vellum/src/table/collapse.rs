//! A table of pages becomes a huge mapping.

use super::occupy::Occupied;
use super::{LockedTable, RUNS_A_HOLD, Run};
use crate::addr::VirtRange;
use crate::arch::{Arch, Kind};
use crate::frame::flag;
use crate::platform::{Event, Platform, trace};
use crate::stats::Counter;
use crate::tlb::{DeadTable, Gather, Removed};
use core::sync::atomic::Ordering::Relaxed;

/// A table that was taken from its place, with what it maps still in it. Nobody finds it any more, and no translation is left.
#[must_use = "what a table maps leaks unless it is emptied"]
pub(crate) struct Supplanted<'t, 'm, P: Platform, A: Arch>(LockedTable<'t, 'm, P, A>);

impl<'t, 'm, P: Platform, A: Arch> LockedTable<'t, 'm, P, A> {
    /// All that this table translates.
    pub(crate) fn range(&self) -> VirtRange {
        VirtRange { start: self.base, end: self.end() }
    }

    /// Takes this table from its place, which is busy until it is filled; gives the lock back and
    /// flushes. From then on nothing reads or writes, by way of this table, what it maps: its
    /// entries are as hardware has left them, for good.
    pub(crate) fn supplant(self) -> (Supplanted<'t, 'm, P, A>, Occupied<'t, 'm, P, A>) {
        let above = self.lock_parent();
        let index = above.index(self.base);
        let table = above.entry(index).load(Relaxed);
        debug_assert_eq!(self.tables.arch.kind(table, above.level), Kind::Table);
        above.store(index, table, self.tables.arch.busy_pte());
        let place = Occupied::new(above);
        // A walk that came here before finds it dead, and begins again.
        self.desc.set_flag(flag::UNHOOKED);
        trace(self.tables.platform(), || Event::Unlocking(self.pfn));
        self.desc.table_lock().unlock(self.tables.platform());
        let _flushed = self.tables.tlb.invalidate(&[self.range()], self.shift(), true);
        (Supplanted(self), place)
    }
}

impl<'t, 'm, P: Platform, A: Arch> Supplanted<'t, 'm, P, A> {
    /// The table, to be read: nothing else does.
    pub(crate) fn table(&self) -> &LockedTable<'t, 'm, P, A> {
        &self.0
    }

    /// Returns the leaves in it, by the run: where each stands and what it maps.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = Run> {
        let VirtRange { start: mut at, end } = self.0.range();
        let next = move || {
            let run = if at < end { self.0.run(at, end)? } else { return None };
            at = run.range(&self.0.tables.arch).end;
            Some(run)
        };
        core::iter::from_fn(next).filter(|run| run.kind == Kind::Leaf)
    }

    /// Puts it back in its place.
    pub(crate) fn restore(self, place: Occupied<'t, 'm, P, A>) {
        let LockedTable { tables, pfn, desc, level, base } = self.0;
        let pointer = tables.arch.table_pte(pfn.addr());
        place.fill(&Run::new(base, level + 1, Kind::Table, pointer, 1));
        // Not before: what has it locked may empty it, and unhooks it then.
        desc.clear_flag(flag::UNHOOKED);
    }

    /// Empty it and give it to the gather, as `each` does what it maps.
    pub(crate) fn empty(self, gather: &mut Gather<'_, 'm, P>, mut each: impl FnMut(Removed, &mut Gather<'_, 'm, P>)) {
        let table = self.0;
        table.tables.hooked(-1);
        table.tables.machine.count(Counter::TablesFreed, 1);
        let VirtRange { start: mut at, end } = table.range();
        let mut runs = 0;
        while table.live() != 0
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
                if runs % RUNS_A_HOLD == 0 {
                    table.tables.platform().resched();
                }
            }
        }
        gather.push_table(DeadTable { pfn: table.pfn, range: table.range() });
    }
}
