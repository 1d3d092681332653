//! Emptying a range of page tables, by the run. `unmap`, `advise(DontNeed)` and exit are this.

use crate::arch::{Arch, Kind, Marker, UserRange};
use crate::frame::flag;
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::stats::{Counter, SpaceCounter};
use crate::table::{Found, LockedTable, MAX_RUNS_PER_HOLD};
use crate::tlb::{Gather, Removed};

use super::{Ptes, Zap};

/// What a zap leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::space) enum Keep {
    /// Nothing: the addresses themselves go.
    Nothing,
    /// Guard markers, which outlive the contents they guard (Linux: `MADV_DONTNEED`).
    Guards,
    /// Those, and private copies of an object's pages: what the object has lost goes, and nothing
    /// else.
    Copies,
}

/// What zapping came to.
#[derive(Default)]
struct Tally {
    runs: u64,
    frames: u64,
    /// Frames that the space no longer has resident, and has not counted yet.
    resident: i64,
}

impl<'m, P: Platform, A: Arch> Zap<'_, 'm, P, A> {
    /// Empty `range`, at whose ends no huge mapping reaches across, and free everything that was
    /// there.
    pub(in crate::space) fn all(self, range: UserRange) {
        self.all_but(range, Keep::Nothing);
    }

    /// The same, with the exception of what `keep` says.
    pub(in crate::space) fn all_but(self, range: UserRange, keep: Keep) {
        self.space.peak.note(&self.tables().slots);
        let mut gather = self.space.gather(range);
        let mut at = range.start;
        while at < range.end {
            // Nothing can map here any more, so no huge mapping reaches across an end again.
            at = self.piece(range.tail(at), keep, &mut gather).unwrap_or(range.end);
        }
    }

    /// Empty `range` as far as fits between two preemption points, and say how far that was. What
    /// was found goes to the gather, which the caller flushes; it is flushed here when it is full.
    ///
    /// # Errors
    /// A huge mapping reaches across an end of the range and there is no memory to split it;
    /// everything before it is done.
    pub(in crate::space) fn piece(
        self,
        range: UserRange,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<u64, Refused> {
        let mut tally = Tally::default();
        let zapped = self.zap_tables(range, keep, gather, &mut tally);
        if tally.runs != 0 {
            self.machine().count(Counter::RunsCleared, tally.runs);
            self.machine().count(Counter::PagesCleared, tally.frames);
        }
        zapped
    }

    #[inline]
    fn zap_tables(
        self,
        range: UserRange,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
        tally: &mut Tally,
    ) -> Result<u64, Refused> {
        /// Tables, or parts of such, between two looks at the VMAs.
        const TABLES: usize = 32;
        let mut at = range.start;
        for _ in 0..TABLES {
            let table = match self.tables().find(range.tail(at)) {
                Found::Hole(end) => {
                    at = end;
                    if at >= range.end {
                        break;
                    }
                    continue;
                }
                Found::Table(table) => table,
            };
            let next = self.zap_table(&table, range.tail(at), keep, gather, tally);
            table.unlock(gather);
            gather.release_slots();
            if tally.resident != 0 {
                self.tables().slot().add(SpaceCounter::Anon, -core::mem::take(&mut tally.resident));
            }
            self.platform().resched();
            if gather.is_full() {
                gather.flush();
            } else if next == at && at < range.end {
                // Either a huge mapping of which the range has only a part, or a table that was
                // hooked in meanwhile.
                self.tables().split_edges(range.tail(at))?;
            }
            at = next;
            if at >= range.end {
                break;
            }
        }
        Ok(at)
    }

    /// Empty what this table has of `range`, as far as possible, and say how far that was.
    #[inline]
    fn zap_table(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        range: UserRange,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
        tally: &mut Tally,
    ) -> u64 {
        let arch = self.arch();
        let end = table.hold_end(range);
        let mut at = range.start;
        let mut runs = 0;
        while at < end && runs < MAX_RUNS_PER_HOLD && !gather.is_full() {
            runs += 1;
            if table.kind(at) != Kind::Leaf {
                let Some(next) = self.zap_unmapped(table, at, end, keep, gather) else { break };
                at = next;
                continue;
            }
            let mut until = end;
            if keep == Keep::Copies {
                // Entries of both kinds may make one run. Copies are never mapped huge.
                let page = arch.leaf_pfn(table.get(at), table.level);
                until = end.min(at + (1 << table.shift()));
                if !self.machine().frames().head(page).1.has(flag::OBJECT) {
                    at = until;
                    continue;
                }
            }
            // A huge mapping that the range has only a part of ends it here.
            let Some(removed) = table.take(at, until) else { break };
            at = removed.range.end;
            self.tally(tally, &removed);
            gather.push(removed);
        }
        at
    }

    /// Empties a run that maps nothing, and returns where it ends; `None` where none begins that
    /// ends before `end`.
    #[inline(never)]
    fn zap_unmapped(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        at: u64,
        end: u64,
        keep: Keep,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Option<u64> {
        let arch = self.arch();
        let run = table.run(at, end)?;
        match run.kind {
            Kind::Marker if keep != Keep::Nothing && arch.marker_of(run.raw) == Some(Marker::Guard) => {}
            Kind::Swap if keep == Keep::Copies => {}
            // A huge one that the range has only a part of.
            Kind::Swap if run.va < at || run.range(arch).end > end => return None,
            Kind::Swap => {
                table.erase(&run);
                Ptes::of(self.space).defer_swap_release(&run, gather);
            }
            Kind::Marker => table.erase(&run),
            Kind::None | Kind::Leaf | Kind::Table | Kind::Busy => {}
        }
        Some(run.range(arch).end)
    }

    #[inline]
    fn tally(self, tally: &mut Tally, removed: &Removed) {
        tally.runs += 1;
        tally.frames += removed.frames as u64;
        if !self.machine().zero_folio().contains(removed.pfn) {
            tally.resident += removed.frames as i64;
        }
    }
}
