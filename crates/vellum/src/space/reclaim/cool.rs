//! Memory that is not needed soon, or will be: hints about what is in memory.

use crate::addr::FRAME_SHIFT;
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::flag;
use crate::memcg::LruList;
use crate::platform::Platform;
use crate::table::{LockedTable, MAX_RUNS_PER_HOLD, Run};

use super::Pageout;
use crate::space::ground::{More, Pieces, Rest};

impl<'s, P: Platform, A: Arch> Pageout<'s, '_, P, A> {
    /// What a range has that is this space's alone was not used, and is the first to be looked at
    /// when memory is short (`MADV_COLD`). Side by side with faults.
    pub(in crate::space) fn cool(self, rest: &mut Rest, more: More<'_>) {
        Pieces::of(self.space).each_whole_run(rest, more, |table, run, gather| {
            if run.kind != Kind::Leaf || self.machine().zero_folio().contains(run.pfn(self.arch())) {
                return 0;
            }
            let folios = self.cut_to_folios(run, MAX_RUNS_PER_HOLD);
            if self.cool_run(table, run) {
                gather.note(run.range(self.arch()), table.shift());
            }
            folios
        });
    }

    /// Of a run, keeps what maps its first folios, so many at most; how many those are.
    fn cut_to_folios(self, run: &mut Run, most: usize) -> usize {
        let arch = self.arch();
        let (mut folios, mut pages) = (0, 0);
        for (.., its) in self.machine().frames().folios(run.pfn(arch), run.frames(arch)).take(most) {
            folios += 1;
            pages += its;
        }
        run.len = (pages >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        folios
    }

    /// Whether translations have changed.
    fn cool_run(self, table: &LockedTable<'_, '_, P, A>, run: &Run) -> bool {
        let arch = self.arch();
        let machine = self.machine();
        let attrs = run.attrs(arch);
        let folios = || machine.frames().folios(run.pfn(arch), run.frames(arch));
        // What others have too may be needed there.
        if !attrs.contains(Attrs::EXCLUSIVE) && folios().any(|(_, frame, pages)| frame.counts().maps != pages) {
            return false;
        }
        for (head, frame, pages) in folios() {
            // Of a folio that goes on beyond this, the rest may be needed.
            if pages == 1 << frame.order() && !frame.has(flag::OBJECT) {
                machine.memcgs().make_oldest(machine.frames(), head, LruList::Anon);
            }
        }
        let used = attrs.contains(Attrs::ACCESSED);
        if used {
            table.clear_accessed_dirty(run, Attrs::ACCESSED, |_, _| ());
        }
        used
    }
}
