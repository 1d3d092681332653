//! Visits of the runs of PTEs in a range, each with the lock of its page table.
//!
//! A visit unlocks a page table after [`MAX_RUNS_PER_HOLD`] runs (INV-11).

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::{Arch, Kind, UserRange};
use crate::frame::Frame;
use crate::platform::Platform;
use crate::table::{Found, LockedTable, MAX_RUNS_PER_HOLD, Run};

use super::Ptes;

impl<'m, P: Platform> Ptes<'_, 'm, P> {
    /// Calls `f` for each run of leaf, swap or marker PTEs that lies entirely in `range`, with the
    /// lock of its page table held. `f` may change the run, and returns whether TLBs may cache the
    /// old PTEs: then the run is flushed before this returns.
    pub(in crate::space) fn each_run(self, range: UserRange, mut f: impl FnMut(&LockedTable<'_, 'm, P>, &Run) -> bool) {
        let arch = self.arch();
        let mut gather = self.space.gather(range);
        let mut at = range.start;
        while at < range.end {
            let table = match self.tables().find(range.tail(at)) {
                Found::Hole(end) => {
                    at = end;
                    continue;
                }
                Found::Table(table) => table,
            };
            let end = table.hold_end(range.tail(at));
            let mut runs = 0;
            while at < end
                && runs < MAX_RUNS_PER_HOLD
                && let Some(mut run) = table.run(at, end)
            {
                runs += 1;
                let visited = matches!(run.kind, Kind::Leaf | Kind::Swap | Kind::Marker);
                if visited && run.va < at {
                    at = run.va + (1 << table.shift());
                    continue;
                }
                at = run.range(arch).end;
                run.len -= usize::from(visited && at > range.end);
                if visited && run.len > 0 && f(&table, &run) {
                    gather.note(run.range(arch), table.shift());
                }
            }
            table.unlock(&mut gather);
            self.platform().resched();
        }
    }

    /// Returns the address of the first run in `range` for which `wanted` returns true. Skips empty
    /// PTEs.
    pub(in crate::space) fn next_run(self, range: UserRange, wanted: impl Fn(&Run) -> bool) -> Option<u64> {
        let arch = self.arch();
        let mut at = range.start;
        while at < range.end {
            let table = match self.tables().find(range.tail(at)) {
                Found::Hole(end) => {
                    at = end;
                    continue;
                }
                Found::Table(table) => table,
            };
            let end = table.hold_end(range.tail(at));
            let (mut found, mut runs) = (false, 0);
            while at < end
                && !found
                && runs < MAX_RUNS_PER_HOLD
                && let Some(run) = table.run(at, end)
            {
                runs += 1;
                found = run.kind != Kind::None && wanted(&run);
                at = if found { at } else { run.range(arch).end };
            }
            table.release();
            if found {
                return Some(at);
            }
            self.platform().resched();
        }
        None
    }

    /// Calls `visit` for each run in `range` in ascending order, with its locked page table. A hole
    /// that has no page table is passed as a run of [`Kind::None`] at level 1, with `None` as the
    /// page table.
    pub(in crate::space) fn each_run_or_hole(
        self,
        range: UserRange,
        mut visit: impl FnMut(Option<&LockedTable<'_, 'm, P>>, &Run),
    ) {
        let arch = self.arch();
        let mut at = range.start;
        while at < range.end {
            match self.tables().find(range.tail(at)) {
                Found::Hole(end) => {
                    let len = (end - at).div_ceil(1 << arch.page_shift()) as usize;
                    visit(None, &Run::new(at, 1, Kind::None, 0, len));
                    at = end;
                }
                Found::Table(table) => {
                    let end = table.hold_end(range.tail(at));
                    let mut runs = 0;
                    while at < end
                        && runs < MAX_RUNS_PER_HOLD
                        && let Some(run) = table.run(at, end)
                    {
                        runs += 1;
                        visit(Some(&table), &run);
                        at = run.range(arch).end;
                    }
                    table.release();
                }
            }
            self.platform().resched();
        }
    }

    /// Shortens a run to its first folio and the folios directly after it for which `property`
    /// returns the same value. Returns that value.
    pub(in crate::space) fn shorten_to_equal(self, run: &mut Run, property: impl Fn(&Frame) -> bool) -> bool {
        let arch = self.arch();
        let frames = self.machine().frames();
        let first = run.pfn(arch);
        let value = property(frames.head(first).1);
        let equal = frames.folios(first, run.frames(arch)).take_while(|(_, frame, _)| property(frame) == value);
        run.len = (equal.map(|(.., pages)| pages).sum::<u32>() >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        value
    }

    /// Returns the part of a run that maps its first folio.
    pub(in crate::space) fn first_folio(self, table: &LockedTable<'_, 'm, P>, run: &Run) -> Run {
        let arch = self.arch();
        let first = self.machine().frames().folios(run.pfn(arch), run.frames(arch)).next();
        let end = first.map_or(run.va, |(.., pages)| run.va + (u64::from(pages) << FRAME_SHIFT));
        table.run(run.va, end).unwrap_or(*run)
    }

    /// Returns the folios that a run maps, except the zero folio.
    pub(in crate::space) fn folios_of(self, run: &Run) -> impl Iterator<Item = (Pfn, &'m Frame)> {
        let (arch, machine) = (self.arch(), self.machine());
        let maps = run.kind == Kind::Leaf && !machine.zero_folio().contains(run.pfn(arch));
        let folios = maps.then(|| machine.frames().folios(run.pfn(arch), run.frames(arch)));
        folios.into_iter().flatten().map(|(head, frame, _)| (head, frame))
    }
}
