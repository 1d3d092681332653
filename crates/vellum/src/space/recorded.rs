//! What hardware has recorded of pages, accessed and dirty, told and forgotten (Linux: the idle page tracking of reclaim, and
//! `/proc/PID/clear_refs`).
//!
//! Hardware may record what happens to any page of a block in any of its entries: so it is the block that was accessed or
//! written, and is told as a whole. Who wants to know exactly which pages were written asks [`super::track`].

use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::flag;
use crate::platform::Platform;
use crate::table::{Found, LockedTable, RUNS_A_HOLD, Run};

use super::AddressSpace;

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Forget what hardware has recorded in `range` of `what`, some of [`Attrs::HARDWARE`], and hear what that was: by
    /// pieces in ascending order, in which all pages were recorded alike. Huge mappings that don't lie in the range entirely are
    /// left out. When this returns, whatever happens anew is recorded anew; what happens while it runs is told now, or stays for the
    /// next to ask.
    ///
    /// A table is locked while its pieces are told: `told` must be quick, and must not call back into the space.
    pub fn forget_recorded(&self, range: VirtRange, what: Attrs, mut told: impl FnMut(VirtRange, Attrs)) {
        let range = UserRange::all(&self.tables.arch).intersect(&range);
        let what = what & Attrs::HARDWARE;
        let mut change = self.change(range);
        change.let_go();
        let mut last: Option<(VirtRange, Attrs)> = None;
        self.each_run(range, |table, run| {
            if run.kind != Kind::Leaf || !run.attrs(&self.tables.arch).intersects(what) {
                return false;
            }
            table.forget_recorded(run, what, |range, attrs| {
                if attrs.contains(Attrs::DIRTY) {
                    self.keep(run, range);
                }
                match &mut last {
                    _ if attrs.is_empty() => {}
                    Some(last) if last.0.end == range.start && last.1 == attrs => last.0.end = range.end,
                    _ => {
                        if let Some((range, attrs)) = last.replace((range, attrs)) {
                            told(range, attrs);
                        }
                    }
                }
            });
            true
        });
        if let Some((range, attrs)) = last {
            told(range, attrs);
        }
    }

    /// What a part of a run maps was written to, and its entries don't say so any more: it may not go.
    fn keep(&self, run: &Run, part: VirtRange) {
        let frames = self.tables.machine.frames();
        let first = run.pfn(&self.tables.arch).add(((part.start - run.va) >> FRAME_SHIFT) as u32);
        for (_, frame, _) in frames.folios(first, (part.len() >> FRAME_SHIFT) as u32) {
            if frame.has(flag::LAZYFREE) {
                frame.clear_flag(flag::LAZYFREE);
            }
        }
    }

    /// Show each run of leaves, of what is swapped out, or of markers, that lies in `range` entirely to who may change it, in its
    /// locked table. What it answers is whether translations have changed: then they are flushed, at the end.
    pub(super) fn each_run(&self, range: UserRange, mut f: impl FnMut(&LockedTable<'_, 'm, P, A>, &Run) -> bool) {
        let arch = &self.tables.arch;
        let mut gather = self.gather(range);
        let mut at = range.start;
        while at < range.end {
            let table = match self.tables.find(range.tail(at)) {
                Found::Hole(end) => {
                    at = end;
                    continue;
                }
                Found::Table(table) => table,
            };
            let end = table.hold_end(range.tail(at));
            let mut runs = 0;
            while at < end
                && runs < RUNS_A_HOLD
                && let Some(mut run) = table.run(at, end)
            {
                runs += 1;
                let shown = matches!(run.kind, Kind::Leaf | Kind::Swap | Kind::Marker);
                if shown && run.va < at {
                    at = run.va + (1 << table.shift());
                    continue;
                }
                at = run.range(arch).end;
                run.len -= usize::from(shown && at > range.end);
                if shown && run.len > 0 && f(&table, &run) {
                    gather.note(run.range(arch), table.shift());
                }
            }
            table.unlock(&mut gather);
            self.tables.platform().resched();
        }
    }
}
