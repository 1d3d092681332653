//! A huge mapping becomes a table of smaller ones.

use super::{Found, LockedTable, PageTables, Run};
use crate::addr::PhysAddr;
use crate::arch::{Arch, Kind, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::stats::Counter;

impl<'m, P: Platform, A: Arch> PageTables<'m, P, A> {
    /// Splits huge mappings that reach across an end of `range`, so that none does. The folios stay
    /// whole; only how they are mapped changes. An empty range has no ends.
    ///
    /// # Errors
    /// If there is no memory for a table, that mapping was not changed; others may have been split.
    pub(crate) fn split_edges(&self, range: UserRange) -> Result<(), Refused> {
        self.split_start(range)?;
        self.split_end(range)
    }

    /// Splits a huge mapping that reaches across the start of `range`: see
    /// [`PageTables::split_edges`].
    pub(crate) fn split_start(&self, range: UserRange) -> Result<(), Refused> {
        self.split_at(range, range.start)
    }

    /// Splits a huge mapping that reaches across the end of `range`: see
    /// [`PageTables::split_edges`]. It is found by the last address inside: the address behind that
    /// may be the host's.
    pub(crate) fn split_end(&self, range: UserRange) -> Result<(), Refused> {
        self.split_at(last(range), range.end)
    }

    /// Replaces the huge mapping of the first address of `there`, unless it begins or ends at
    /// `edge`, by a table of mappings of the next smaller size; repeats until there is none.
    fn split_at(&self, there: UserRange, edge: u64) -> Result<(), Refused> {
        let va = there.start;
        let mut spare = Spare { tree: self, table: None };
        loop {
            let Found::Table(table) = self.find(there) else { return Ok(()) };
            let inside = edge & ((1 << table.shift()) - 1) != 0;
            if !inside || !matches!(table.kind(va), Kind::Leaf | Kind::Swap) {
                table.release();
                return Ok(());
            }
            match spare.table.take_if(|(_, level)| *level + 1 == table.level) {
                Some((child, _)) => {
                    self.split(&table, va, child);
                    table.release();
                }
                None => {
                    let level = table.level - 1;
                    table.release();
                    drop(core::mem::replace(
                        &mut spare,
                        Spare { tree: self, table: Some((self.alloc_table(level)?.0, level)) },
                    ));
                }
            }
        }
    }

    /// Returns whether a huge mapping reaches across an end of `range`. A look without locks.
    pub(crate) fn has_edges(&self, range: UserRange) -> bool {
        self.is_inside_huge(range, range.start) || self.is_inside_huge(last(range), range.end)
    }

    fn is_inside_huge(&self, there: UserRange, edge: u64) -> bool {
        // No folio is as large as what an entry of level 3 maps.
        if edge & ((1 << self.arch.level_shift(2)) - 1) == 0 {
            return false;
        }
        let _walk = self.enter();
        // SAFETY: in a walk.
        let at = unsafe { self.descend(there, 1) };
        let inside = edge & ((1 << self.arch.level_shift(at.level)) - 1) != 0;
        // Busy: somebody splits it just now.
        inside && at.level > 1 && matches!(self.arch.kind(at.raw, at.level), Kind::Leaf | Kind::Swap | Kind::Busy)
    }

    /// Under the table's lock. Nobody finds the entry empty at any time (INV-4), and none of the accessed and dirty bits
    /// that hardware sets until the flush is lost (INV-6).
    fn split(&self, table: &LockedTable<'_, 'm, P, A>, va: u64, child: crate::addr::Pfn) {
        if table.kind(va) == Kind::Swap {
            return self.split_swapped(table, va, child);
        }
        let (old, taken) = table.take_busy(va);
        let span = taken.unsplit();
        let start = span.start;
        // Two sizes of translation for one address must not be cached together (Intel SDM vol. 3A §5.10.2; Arm ARM
        // D8.17.1 break-before-make): the large one goes before the small ones come.
        let _flushed = self.tlb.invalidate(&[span], table.shift(), false);
        let level = table.level - 1;
        let below = LockedTable::new(self, child, self.machine.frames().frame(child), level, start);
        let first =
            self.arch.leaf(PhysAddr(self.arch.leaf_addr(old, table.level).0), self.arch.attrs(old, table.level), level);
        below.set(&Run::new(start, level, Kind::Leaf, first, 1 << self.arch.index_bits()));
        self.hook(table, va, &below);
        self.machine.count(Counter::HugeSplits, 1);
    }

    /// The same for what is swapped out in one piece: nobody has it in a TLB.
    fn split_swapped(&self, table: &LockedTable<'_, 'm, P, A>, va: u64, child: crate::addr::Pfn) {
        let start = va >> table.shift() << table.shift();
        let below = LockedTable::new(self, child, self.machine.frames().frame(child), table.level - 1, start);
        below.set(&Run::new(start, below.level, Kind::Swap, table.get(va), 1 << self.arch.index_bits()));
        self.hook(table, va, &below);
    }

    /// Put a table in the place of the entry for `va`.
    fn hook(&self, table: &LockedTable<'_, 'm, P, A>, va: u64, below: &LockedTable<'_, 'm, P, A>) {
        LockedTable::<P, A>::set_parent(below.desc, table.pfn);
        table.fill(va, self.arch.table_pte(below.pfn.addr()));
        self.hooked(1);
        self.machine.count(Counter::TablesAllocated, 1);
    }
}

/// Returns the last address of a range; of an empty one, nothing.
fn last(range: UserRange) -> UserRange {
    range.tail(range.end.saturating_sub(1).max(range.start))
}

/// A table at hand, given back if it is not needed.
struct Spare<'t, 'm, P: Platform, A: Arch> {
    tree: &'t PageTables<'m, P, A>,
    table: Option<(crate::addr::Pfn, u8)>,
}

impl<P: Platform, A: Arch> Drop for Spare<'_, '_, P, A> {
    fn drop(&mut self) {
        if let Some((table, _)) = self.table {
            self.tree.free_private(table, true);
        }
    }
}
