//! A table of pages becomes a huge mapping.

use super::LockedTable;
use crate::addr::VirtRange;
use crate::arch::{Arch, Kind};
use crate::frame::flag;
use crate::platform::{Event, Platform, trace};
use crate::stats::Counter;
use crate::tlb::{DeadTable, Gather, Removed};

/// A table that was taken from its place, with what it maps still in it. Nobody finds it any more, and no translation is left.
#[must_use = "what a table maps leaks unless it is emptied"]
pub(crate) struct Supplanted<'t, 'm, P: Platform, A: Arch>(LockedTable<'t, 'm, P, A>);

impl<'t, 'm, P: Platform, A: Arch> LockedTable<'t, 'm, P, A> {
    /// All that this table translates.
    pub(crate) fn range(&self) -> VirtRange {
        VirtRange { start: self.base, end: self.end() }
    }

    /// Have the leaf that `leaf` answers in the place of this table. Nobody reads or writes, by way of this table,
    /// what it maps when `leaf` is called: its entries are as hardware has left them, for good. Nobody finds the place empty (INV-4).
    pub(crate) fn supplant(self, leaf: impl FnOnce(&Self) -> u64) -> Supplanted<'t, 'm, P, A> {
        let above = self.lock_parent();
        let index = above.index(self.base);
        let (table, busy) = (above.get(self.base), self.tables.arch.busy());
        debug_assert_eq!(self.tables.arch.kind(table, above.level), Kind::Table);
        above.store(index, table, busy);
        let _flushed = self.tables.tlb.invalidate(&[self.range()], self.shift(), true);
        above.store(index, busy, leaf(&self));
        self.desc.set_flag(flag::DEAD);
        self.tables.hooked(-1);
        self.tables.machine.count(Counter::TablesFreed, 1);
        above.abandon();
        trace(self.tables.platform(), || Event::Unlocking(self.pfn));
        Self::raw(self.desc).unlock(self.tables.platform());
        Supplanted(self)
    }
}

impl<'m, P: Platform, A: Arch> Supplanted<'_, 'm, P, A> {
    /// Empty it and give it to the gather, as `each` does what it maps.
    pub(crate) fn empty(self, gather: &mut Gather<'_, 'm, P>, mut each: impl FnMut(Removed, &mut Gather<'_, 'm, P>)) {
        let table = self.0;
        let VirtRange { start: mut at, end } = table.range();
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
            }
        }
        gather.push_table(DeadTable { pfn: table.pfn, range: table.range() });
    }
}
