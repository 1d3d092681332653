//! Relocation: moves PTEs to other addresses for `mremap` (Linux: `move_page_tables`).
//!
//! If all addresses of an entry move, the entry is moved as it is, with the page tables below it.
//! Where the old and new addresses are aligned alike, a page table is moved as a whole: only the
//! entry that points to it is moved.
//!
//! The caller keeps every other operation, page faults included, from changing PTEs in the old or
//! the new range (INV-13). An operation that only reads PTEs may find a moving entry at neither
//! address.

use super::grow::SpareTables;
use super::{Found, LockedTable, PageTables};
use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::tlb::Gather;

/// The maximum number of entries that are moved while one page table's lock is held.
const ENTRIES_PER_MOVE: usize = 128;

/// A move of PTEs. `to` is no shorter than `from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Relocation {
    pub(crate) from: UserRange,
    pub(crate) to: UserRange,
}

impl Relocation {
    /// Returns the new address of the old address `at`.
    fn dest(&self, at: u64) -> u64 {
        self.to.start + (at - self.from.start)
    }
}

impl<'m, P: Platform> PageTables<'m, P> {
    /// Returns the highest level at which an entry that begins at `at` can be moved as it is: all
    /// its addresses move, and old and new address are aligned to its size.
    fn relocation_level(&self, route: &Relocation, at: u64) -> u8 {
        let whole = |level: &u8| {
            let span = 1u64 << self.arch.level_shift(*level);
            (at | route.dest(at)) & (span - 1) == 0 && span <= route.from.end - at
        };
        (2..=self.arch.levels()).rev().find(whole).unwrap_or(1)
    }

    /// Returns the number of entries of `table` from `at` on that can move together, because their
    /// new addresses are all translated by one page table.
    fn entries_per_move(&self, table: &LockedTable<'_, 'm, P>, route: &Relocation, at: u64) -> usize {
        let span = 1u64 << (table.shift() + self.arch.index_bits());
        let there = span - (route.dest(at) & (span - 1));
        ((table.end() - at).min(there).min(route.from.end - at) >> table.shift()) as usize
    }

    /// Allocates into `spares` every page table that [`PageTables::relocate`] may need, and splits
    /// huge PTEs that can't be moved as they are.
    ///
    /// # Errors
    /// [`Refused`] if a page table could not be allocated. Huge PTEs may have been split.
    pub(crate) fn prepare_relocation(
        &self,
        route: &Relocation,
        spares: &mut SpareTables<'_, 'm, P>,
    ) -> Result<(), Refused> {
        // For each level, the last page table at the new addresses for which a spare was allocated:
        // the number of page tables of that level that fit below its first address.
        let mut counted = [None; u8::BITS as usize];
        let mut at = route.from.start;
        while at < route.from.end {
            let level = self.relocation_level(route, at);
            let table = match self.find_at(route.from.tail(at), level) {
                Found::Hole(end) => {
                    at = end;
                    continue;
                }
                Found::Table(table) => table,
            };
            if table.level > level {
                let below = self.arch.level_shift(table.level - 1);
                table.release();
                self.split_start(route.from.tail(at + (1 << below)))?;
                continue;
            }
            let there = route.dest(at);
            at += (self.entries_per_move(&table, route, at) as u64) << table.shift();
            table.release();
            for level in level..self.arch.levels() {
                let table = there >> (self.arch.level_shift(level) + self.arch.index_bits());
                if counted[level as usize].replace(table) != Some(table) {
                    spares.add(level)?;
                }
            }
            self.platform().resched();
        }
        Ok(())
    }

    /// Moves all entries. New page tables come from `spares`, where
    /// [`PageTables::prepare_relocation`] put enough of them, so this can't fail. The gather
    /// flushes the old addresses, and frees page tables that became empty. Calls `resched` after
    /// each batch of entries (INV-11).
    pub(crate) fn relocate(
        &self,
        route: &Relocation,
        spares: &mut SpareTables<'_, 'm, P>,
        gather: &mut Gather<'_, 'm, P>,
    ) {
        let mut buffer = [0; ENTRIES_PER_MOVE];
        let mut at = route.from.start;
        while at < route.from.end {
            let level = self.relocation_level(route, at);
            let table = match self.find_at(route.from.tail(at), level) {
                Found::Hole(end) => {
                    at = end;
                    continue;
                }
                Found::Table(table) => table,
            };
            let entries = &mut buffer[..self.entries_per_move(&table, route, at).min(ENTRIES_PER_MOVE)];
            let any = table.take_raw(at, entries);
            let end = at + ((entries.len() as u64) << table.shift());
            if any && level > 1 {
                gather.note_tables(VirtRange { start: at, end });
            } else if any {
                gather.note(VirtRange { start: at, end }, table.shift());
            }
            table.unlock(gather);
            if any {
                let there = route.to.tail(route.dest(at));
                let put = self.put(there, level, entries.len(), spares, |table| table.put_raw(there.start, entries));
                let Ok(()) = put else { unreachable!("PTEs were not moved: {put:?}") };
            }
            at = end;
            self.platform().resched();
        }
    }
}
