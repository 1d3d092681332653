//! A huge mapping becomes a table of smaller ones.

use super::{Found, LockedTable, PageTables, Run};
use crate::addr::PhysAddr;
use crate::arch::{Arch, Kind};
use crate::frame::OutOfMemory;
use crate::platform::Platform;
use crate::stats::Counter;

impl<'m, P: Platform, A: Arch> PageTables<'m, P, A> {
    /// If a huge mapping spans `va` and does not begin there, replace it by a table of mappings of the next smaller size;
    /// repeat until none does. The folio stays whole; only how it is mapped changes.
    ///
    /// # Errors
    /// If there is no memory for the table, nothing was changed (but larger mappings may have been split already).
    pub(crate) fn split_at(&self, va: u64) -> Result<(), OutOfMemory> {
        let mut spare = Spare { tree: self, table: None };
        loop {
            let Found::Table(table) = self.find(va, va + 1) else { return Ok(()) };
            let inside = va & ((1 << table.shift()) - 1) != 0;
            if !inside || !matches!(self.arch.kind(table.get(va), table.level), Kind::Leaf | Kind::Swap) {
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
                        Spare { tree: self, table: Some((self.alloc_table(level)?, level)) },
                    ));
                }
            }
        }
    }

    /// Whether a huge mapping spans `va` and does not begin there. A look without locks.
    pub(crate) fn is_inside_huge(&self, va: u64) -> bool {
        let _walk = self.enter();
        // SAFETY: in a walk.
        let at = unsafe { self.descend(va, 1) };
        let inside = va & ((1 << self.arch.level_shift(at.level)) - 1) != 0;
        // Busy: somebody splits it just now.
        inside && at.level > 1 && matches!(self.arch.kind(at.raw, at.level), Kind::Leaf | Kind::Swap | Kind::Busy)
    }

    /// Under the table's lock. Nobody finds the entry empty at any time (INV-4), and none of the accessed and dirty bits
    /// that hardware sets until the flush is lost (INV-6).
    fn split(&self, table: &LockedTable<'_, 'm, P, A>, va: u64, child: crate::addr::Pfn) {
        if self.arch.kind(table.get(va), table.level) == Kind::Swap {
            return self.split_swapped(table, va, child);
        }
        let (old, taken) = table.take_busy(va);
        let span = taken.unsplit();
        let start = span.start;
        // Two sizes of translation for one address must not be cached together (Intel SDM vol. 3A §5.10.2; Arm ARM
        // D8.16.1 break-before-make): the large one goes before the small ones come.
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
        table.fill(va, self.arch.table(below.pfn.addr()));
        self.hooked(1);
        self.machine.count(Counter::TablesBorn, 1);
    }
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
