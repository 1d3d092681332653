//! `MADV_COLD`: deactivates memory that its program does not need soon.

use crate::addr::FRAME_SHIFT;
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{ListEnd, flag};
use crate::memcg::{ListMove, LruList};
use crate::platform::Platform;
use crate::table::{LockedTable, MAX_RUNS_PER_HOLD, Run};

use super::Pageout;
use crate::space::ground::{More, Pieces, Rest};

impl<'s, P: Platform> Pageout<'s, '_, P> {
    /// Deactivates the folios in `rest` that only this space maps (`MADV_COLD`): clears their
    /// accessed bits, and moves anonymous folios to the old end of their LRU list, so that reclaim
    /// scans them first. Faults may run at the same time.
    pub(in crate::space) fn deactivate(self, rest: &mut Rest, more: More<'_>) {
        let oldest = ListMove::new(LruList::Anon, LruList::Anon, ListEnd::Back);
        Pieces::of(self.space).each_whole_run(rest, more, oldest, |table, run, oldest, gather| {
            if run.kind != Kind::Leaf || self.machine().zero_folio().contains(run.pfn(self.arch())) {
                return 0;
            }
            let folios = self.cut_to_folios(run, MAX_RUNS_PER_HOLD);
            if self.deactivate_run(table, run, oldest) {
                gather.note(run.range(self.arch()), table.shift());
            }
            folios
        });
    }

    /// Shortens a run to the PTEs that map its first folios, at most `most` of them. Returns the
    /// number of these folios.
    fn cut_to_folios(self, run: &mut Run, most: usize) -> usize {
        let arch = self.arch();
        let (mut folios, mut frames) = (0, 0);
        for (.., mapped) in self.machine().frames().folios(run.pfn(arch), run.frames(arch)).take(most) {
            folios += 1;
            frames += mapped;
        }
        run.len = (frames >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        folios
    }

    /// Deactivates the folios of a run, unless another space may map one of them, and adds them to
    /// `oldest`. Returns whether accessed bits were cleared, so that the caller flushes. `table` is
    /// locked.
    fn deactivate_run(self, table: &LockedTable<'_, '_, P>, run: &Run, oldest: &mut ListMove) -> bool {
        let arch = self.arch();
        let machine = self.machine();
        let attrs = run.attrs(arch);
        let folios = || machine.frames().folios(run.pfn(arch), run.frames(arch));
        // If another space maps a folio too, that space may still need the folio.
        if !attrs.contains(Attrs::EXCLUSIVE) && folios().any(|(_, frame, pages)| frame.counts().maps != pages) {
            return false;
        }
        for (head, frame, pages) in folios() {
            // If the run maps only a part of a folio, the program may still need the other pages.
            if pages == 1 << frame.order() && !frame.has(flag::OBJECT) {
                oldest.add(machine.memcgs(), machine.frames(), head, pages);
            }
        }
        let accessed = attrs.contains(Attrs::ACCESSED);
        if accessed {
            table.clear_accessed_dirty(run, Attrs::ACCESSED, |_, _| ());
        }
        accessed
    }
}
