//! Splits huge PTEs: replaces each by a page table of leaf PTEs of the next smaller size (Linux:
//! `split_huge_pmd`). The folio stays whole.

use super::{Found, LockedTable, PageTables, Run};
use crate::addr::PhysAddr;
use crate::arch::{Arch, Kind, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::stats::Counter;

impl<'m, P: Platform> PageTables<'m, P> {
    /// Splits each huge PTE that crosses the start or the end of `range`, until no huge PTE does.
    /// Huge swap entries are split too. Does nothing for an empty range. The caller holds no spin
    /// lock.
    ///
    /// # Errors
    /// [`Refused`] if a page table could not be allocated. The huge PTE that needed it is
    /// unchanged; others may have been split.
    pub(crate) fn split_edges(&self, range: UserRange) -> Result<(), Refused> {
        self.split_start(range)?;
        self.split_end(range)
    }

    /// Splits the huge PTEs that cross the start of `range`: see [`PageTables::split_edges`].
    ///
    /// # Errors
    /// As for [`PageTables::split_edges`].
    pub(crate) fn split_start(&self, range: UserRange) -> Result<(), Refused> {
        self.split_at(range, range.start)
    }

    /// Splits the huge PTEs that cross the end of `range`: see [`PageTables::split_edges`]. Looks
    /// for them at the last address of `range`, because the next address may belong to the host
    /// (INV-17).
    ///
    /// # Errors
    /// As for [`PageTables::split_edges`].
    pub(crate) fn split_end(&self, range: UserRange) -> Result<(), Refused> {
        self.split_at(last(range), range.end)
    }

    /// Splits the huge PTE that translates the first address of `at`, unless it begins or ends at
    /// `edge`. Repeats this as long as a smaller huge PTE translates this address after the split.
    ///
    /// # Errors
    /// As for [`PageTables::split_edges`].
    fn split_at(&self, at: UserRange, edge: u64) -> Result<(), Refused> {
        let va = at.start;
        let mut spare = Spare { tree: self, table: None };
        loop {
            let Found::Table(table) = self.find(at) else { return Ok(()) };
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
                        Spare { tree: self, table: Some((self.alloc_table(level, false)?.0, level)) },
                    ));
                }
            }
        }
    }

    /// Returns true if a huge PTE crosses the start or the end of `range`. Takes no locks: only a
    /// hint if other CPUs change PTEs there.
    pub(crate) fn needs_edge_split(&self, range: UserRange) -> bool {
        self.crosses_huge_pte(range, range.start) || self.crosses_huge_pte(last(range), range.end)
    }

    /// Returns true if `edge` lies inside the huge PTE that translates the first address of
    /// `there`. Takes no locks.
    fn crosses_huge_pte(&self, there: UserRange, edge: u64) -> bool {
        // No huge PTE is above level 2 (a PMD leaf), because no folio is large enough to fill one.
        // So none crosses an edge that is aligned to the size of a PMD leaf.
        if edge & ((1 << self.arch.level_shift(2)) - 1) == 0 {
            return false;
        }
        let _walk = self.begin_walk();
        // SAFETY: this CPU is in a walk as long as `_walk` lives.
        let at = unsafe { self.descend(there, 1) };
        let inside = edge & ((1 << self.arch.level_shift(at.level)) - 1) != 0;
        // A busy entry above level 1 may be a huge PTE that another CPU is splitting.
        inside && at.level > 1 && matches!(self.arch.kind(at.raw, at.level), Kind::Leaf | Kind::Swap | Kind::Busy)
    }

    /// Replaces the huge PTE for `va` in the locked page table `table` by the page table `child`.
    /// Until `child` is in place the entry is busy (a marker at which walks wait), and never empty
    /// (INV-4). Accessed and dirty bits that hardware sets until the flush are kept (INV-6).
    fn split(&self, table: &LockedTable<'_, 'm, P>, va: u64, child: crate::addr::Pfn) {
        if table.kind(va) == Kind::Swap {
            return self.split_swapped(table, va, child);
        }
        let (old, taken) = table.take_busy(va);
        let span = taken.unsplit();
        let start = span.start;
        // A TLB must not hold two sizes of translation for one address (Intel SDM vol. 3A §5.10.2;
        // Arm ARM D8.17.1, break-before-make), so the flush comes before the smaller PTEs.
        let _flushed = self.tlb.invalidate(&[span], table.shift(), false);
        let level = table.level - 1;
        let below = LockedTable::new(self, child, self.machine.frames().frame(child), level, start);
        let first =
            self.arch.leaf(PhysAddr(self.arch.leaf_addr(old, table.level).0), self.arch.attrs(old, table.level), level);
        below.set(&Run::new(start, level, Kind::Leaf, first, 1 << self.arch.index_bits()));
        self.hook(table, va, &below);
        self.machine.count(Counter::HugeSplits, 1);
    }

    /// Replaces a huge swap entry by a page table of swap entries. Needs no flush, because no TLB
    /// holds a swap entry.
    fn split_swapped(&self, table: &LockedTable<'_, 'm, P>, va: u64, child: crate::addr::Pfn) {
        let start = va >> table.shift() << table.shift();
        let below = LockedTable::new(self, child, self.machine.frames().frame(child), table.level - 1, start);
        below.set(&Run::new(start, below.level, Kind::Swap, table.get(va), 1 << self.arch.index_bits()));
        self.hook(table, va, &below);
    }

    /// Writes the pointer to `below` over the entry for `va`, which is a swap entry or the busy
    /// marker of [`LockedTable::take_busy`].
    fn hook(&self, table: &LockedTable<'_, 'm, P>, va: u64, below: &LockedTable<'_, 'm, P>) {
        super::lock::set_parent(below.desc, table.pfn);
        table.fill(va, self.arch.table_pte(below.pfn.addr()));
        self.count_hooked(1);
        self.machine.count(Counter::TablesAllocated, 1);
    }
}

/// Returns the part of `range` that begins at its last address. If `range` is empty, so is the
/// result.
fn last(range: UserRange) -> UserRange {
    range.tail(range.end.saturating_sub(1).max(range.start))
}

/// A spare page table with its level, freed on drop if it was not used. Its entries have any value,
/// as a split writes all of them.
struct Spare<'t, 'm, P: Platform> {
    tree: &'t PageTables<'m, P>,
    table: Option<(crate::addr::Pfn, u8)>,
}

impl<P: Platform> Drop for Spare<'_, '_, P> {
    fn drop(&mut self) {
        if let Some((table, _)) = self.table {
            self.tree.free_private(table, false);
        }
    }
}
