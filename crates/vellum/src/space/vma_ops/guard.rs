//! Guards: pages that nobody may touch though their VMA says so, without a VMA of their own
//! (`MADV_GUARD_INSTALL`). A guard is a marker in the page table: a run of equal entries, that
//! outlives what is forgotten around it.

use crate::arch::{Arch, Kind, Marker, UserRange};
use crate::platform::Platform;
use crate::table::{Found, LockedTable, Run};
use crate::vma::State;

use super::{AdviseError, Madvise};
use crate::space::ground::{Change, Keep, More, Pieces, Rest, Zap};

impl<'s, P: Platform, A: Arch> Madvise<'s, '_, P, A> {
    /// Forgets what is in a range and guards what is mapped of it, one table after the other.
    ///
    /// If memory for tables runs out, what lies before the failing table is guarded, what lies
    /// behind it stays, and of the table's part the contents are gone and some is guarded. Guards
    /// that were there stay in any case.
    pub(super) fn install_guards(self, rest: &mut Rest, more: More<'_>) -> Result<(), AdviseError> {
        let shift = self.arch().level_shift(2);
        while !rest.left.is_empty() {
            // A hole of any size is one step.
            let Some(mapped) = self.first_mapped(rest.left) else {
                rest.holes = true;
                rest.end();
                break;
            };
            let part = rest.left.around(mapped.start, shift);
            rest.holes |= part.start > rest.left.start;
            rest.holes |= !self.guard_part(part)?;
            rest.left = rest.left.tail(part.end);
            self.platform().resched();
            if !more() {
                break;
            }
        }
        Ok(())
    }

    /// Forgets what is in a range that one table maps and guards what is mapped of it; returns
    /// whether that is all. Faults wait meanwhile, so that none fills a page again.
    fn guard_part(self, range: UserRange) -> Result<bool, AdviseError> {
        // All of the space: VMAs are held in full, also where the range ends inside of one.
        let mut change = Change::begin(self.space, UserRange::all(self.arch()));
        change.unlock();
        let covered = self.check_vmas(range, true, false)?;
        change.vmas().each(self.machine(), range, |v| v.state = State::Locked);
        change.unlock();
        let guarded = self.tables().split_edges(range).map_err(AdviseError::from).and_then(|()| {
            Zap::of(self.space).all_but(range, Keep::Guards);
            self.put_guards(range)
        });
        change.vmas().each(self.machine(), range, |v| v.state = State::Live);
        guarded.map(|()| covered)
    }

    /// Guards what is mapped of a range that holds nothing but guards: its VMAs are held, and no
    /// other change is at work there.
    fn put_guards(self, range: UserRange) -> Result<(), AdviseError> {
        let arch = self.arch();
        let mut left = range;
        while !left.is_empty()
            && let Some(mapped) = self.first_mapped(left)
        {
            let (part, guarded) = self.first_alike(mapped);
            if !guarded {
                let len = (part.len() >> arch.page_shift()) as usize;
                let guards = Run::new(part.start, 1, Kind::Marker, arch.marker_pte(Marker::Guard), len);
                self.tables().map_run(part, &guards).map_err(|error| error.shortage())?;
            }
            left = left.tail(part.end);
        }
        Ok(())
    }

    /// Returns the first part of a range that is all guards, or holds nothing; and whether it is
    /// guards.
    fn first_alike(self, range: UserRange) -> (UserRange, bool) {
        let arch = self.arch();
        match self.tables().find(range) {
            Found::Hole(end) => (range.head(end), false),
            Found::Table(table) => {
                let run = table.run(range.start, range.end);
                table.release();
                match run {
                    Some(run) => (range.intersect(&run.range(arch)), run.kind == Kind::Marker),
                    // Busy; the caller looks again.
                    None => (range.head(range.start), true),
                }
            }
        }
    }

    /// Returns the first part of a range that a VMA has.
    fn first_mapped(self, range: UserRange) -> Option<UserRange> {
        let vmas = self.space.read();
        let first = vmas.overlapping(self.platform(), range).next();
        first.map(|vma| vma.range.intersect(&range))
    }

    /// Remove the guards of a range, side by side with faults.
    pub(super) fn remove_guards(self, rest: &mut Rest, more: More<'_>) -> Result<(), AdviseError> {
        let mut gather = self.space.gather(rest.left);
        Pieces::of(self.space).each_vma(rest, more, |_, part| {
            let end = match self.tables().find(part) {
                Found::Hole(end) => end,
                Found::Table(table) => {
                    let end = self.erase_guards(&table, part.head(table.hold_end(part)));
                    table.unlock(&mut gather);
                    end
                }
            };
            self.platform().resched();
            Ok(end)
        })
    }

    /// Erase the guards that a table has in a range, as far as nothing there is busy; how far that
    /// was.
    fn erase_guards(self, table: &LockedTable<'_, '_, P, A>, range: UserRange) -> u64 {
        let arch = self.arch();
        let mut at = range.start;
        while at < range.end
            && let Some(run) = table.run(at, range.end)
        {
            if run.kind == Kind::Marker && arch.marker_of(run.raw) == Some(Marker::Guard) {
                table.erase(&run);
            }
            at = run.range(arch).end;
        }
        at
    }
}
