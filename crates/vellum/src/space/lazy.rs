//! Memory whose contents may go when it is wanted elsewhere (`MADV_FREE`).
//!
//! It is remembered by the folio, and the entries forget that they were written. Who evicts it ([`super::evict`]) drops what was not
//! written since, without a swap device, and huge mappings in one piece.

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{Counts, flag};
use crate::group::LruList;
use crate::platform::Platform;
use crate::stats::Counter;
use crate::table::{LockedTable, Run};
use crate::tlb::Gather;

use super::{AddressSpace, AdviseError};

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Whatever a range has may go, as long as nobody writes to it: folios that this space has alone and that lie in the range entirely,
    /// and what is swapped out, at once. Side by side with faults.
    pub(super) fn free_lazily(&self, range: VirtRange) -> Result<(), AdviseError> {
        self.all(range, true, true)?;
        self.each_whole_run(range, |table, run, gather| match run.kind {
            Kind::Leaf => self.mark_lazy(table, run, gather),
            Kind::Swap => {
                table.erase(run);
                self.forget_swapped(run);
            }
            _ => {}
        })
    }

    /// The folios at the beginning of a run may go; or else not, as far as it goes then.
    fn mark_lazy(&self, table: &LockedTable<'_, 'm, P, A>, run: &mut Run, gather: &mut Gather<'_, 'm, P>) {
        let arch = &self.tables.arch;
        let machine = self.tables.machine;
        let (pfn, shift) = (run.pfn(arch), arch.level_shift(run.level) - crate::addr::FRAME_SHIFT);
        let exclusive = run.attrs(arch).contains(Attrs::EXCLUSIVE) && !machine.zeros_folio().contains(pfn);
        let mut marked = 0;
        for (_, frame, pages) in machine.frames().folios(pfn, run.frames(arch)) {
            let all = pages == 1 << frame.order() && frame.counts() == Counts { refs: pages, maps: pages };
            if !exclusive || !all || frame.has(flag::OBJECT) {
                if marked == 0 {
                    run.len = (pages >> shift) as usize;
                    return;
                }
                break;
            }
            marked += pages;
        }
        run.len = (marked >> shift) as usize;
        // First the entries, then the folios: who finds one marked finds written what was written since.
        if run.attrs(arch).intersects(Attrs::HARDWARE) {
            table.forget_recorded(run, Attrs::HARDWARE, |_, _| ());
            gather.note(run.range(arch), table.shift());
        }
        for (head, frame, pages) in machine.frames().folios(pfn, marked) {
            if !frame.set_flag(flag::LAZY) {
                machine.groups().relist(machine.frames(), head, Some(LruList::Anon), LruList::Lazy);
                machine.count(Counter::LazyFree, pages as u64);
            }
        }
    }
}
