//! Entries come to stand at other addresses. An entry that has all of its addresses moved goes as it is, with whatever hangs below
//! it: where the old and the new place are aligned alike, a table of pages is one entry, and so is a table of tables.
//!
//! Nobody else may change anything at either place meanwhile, nor fault there; who only looks may find an entry at neither.

use super::grow::Spares;
use super::{Found, LockedTable, PageTables};
use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::tlb::Gather;

/// Entries that are moved at once.
const BATCH: usize = 128;

/// Where from and where to. `to` is no shorter than `from`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) from: UserRange,
    pub(crate) to: UserRange,
}

impl Route {
    /// Where an address goes.
    fn of(&self, at: u64) -> u64 {
        self.to.start + (at - self.from.start)
    }
}

impl<'m, P: Platform, A: Arch> PageTables<'m, P, A> {
    /// The highest level of which an entry from `at` on can go as it is.
    fn level_of_entries(&self, route: &Route, at: u64) -> u8 {
        let whole = |level: &u8| {
            let span = 1u64 << self.arch.level_shift(*level);
            (at | route.of(at)) & (span - 1) == 0 && span <= route.from.end - at
        };
        (2..=self.arch.levels()).rev().find(whole).unwrap_or(1)
    }

    /// How many entries of a table from `at` on go to one table.
    fn together(&self, table: &LockedTable<'_, 'm, P, A>, route: &Route, at: u64) -> usize {
        let span = 1u64 << (table.shift() + self.arch.index_bits());
        let there = span - (route.of(at) & (span - 1));
        ((table.end() - at).min(there).min(route.from.end - at) >> table.shift()) as usize
    }

    /// Get ready: have all tables that moving may take among the spare ones, and no huge mapping that can't go as it is.
    ///
    /// # Errors
    /// No memory; huge mappings may have been split.
    pub(crate) fn prepare_to_move(&self, route: &Route, spares: &mut Spares<'_, 'm, P, A>) -> Result<(), Refused> {
        // The tables of each level that were counted last, by what they translate.
        let mut counted = [None; u8::BITS as usize];
        let mut at = route.from.start;
        while at < route.from.end {
            let level = self.level_of_entries(route, at);
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
            let there = route.of(at);
            at += (self.together(&table, route, at) as u64) << table.shift();
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

    /// Move all entries, with the spare tables that were got for it. The gather flushes the old addresses.
    pub(crate) fn relocate(&self, route: &Route, spares: &mut Spares<'_, 'm, P, A>, gather: &mut Gather<'_, 'm, P>) {
        let mut buffer = [0; BATCH];
        let mut at = route.from.start;
        while at < route.from.end {
            let level = self.level_of_entries(route, at);
            let table = match self.find_at(route.from.tail(at), level) {
                Found::Hole(end) => {
                    at = end;
                    continue;
                }
                Found::Table(table) => table,
            };
            let lifted = &mut buffer[..self.together(&table, route, at).min(BATCH)];
            let any = table.lift(at, lifted);
            let end = at + ((lifted.len() as u64) << table.shift());
            if any && level > 1 {
                gather.note_tables(VirtRange { start: at, end });
            } else if any {
                gather.note(VirtRange { start: at, end }, table.shift());
            }
            table.unlock(gather);
            if any {
                let there = route.to.tail(route.of(at));
                let laid = self.put(there, level, lifted.len(), spares, |table| table.lay(there.start, lifted));
                let Ok(()) = laid else { unreachable!("nothing is mapped there, and tables were provided: {laid:?}") };
            }
            at = end;
            self.platform().resched();
        }
    }
}
