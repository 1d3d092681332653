//! Memory whose contents may go when it is wanted elsewhere (`MADV_FREE`).
//!
//! It is remembered by the folio, and the entries forget that they were written. Who evicts it
//! ([`super::evict`]) drops what was not written since, without a swap device, and huge mappings in
//! one piece. That is decided under the lock of the table, and nothing is held for it: an entry
//! that goes without saying that it was written to can't be written through any more.

use crate::addr::FRAME_SHIFT;
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{Counts, flag};
use crate::memcg::LruList;
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::{Counter, SpaceCounter};
use crate::table::{LockedTable, MAX_RUNS_PER_HOLD, Run};
use crate::tlb::Gather;

use super::{IsolationBatch, Pageout};
use crate::space::ground::{More, Pieces, Ptes, Rest};

impl<'m, P: Platform, A: Arch> Pageout<'_, 'm, P, A> {
    /// Whatever a range has may go, as long as nobody writes to it: folios that this space has
    /// alone and that lie in the range entirely, and what is swapped out, at once. Side by side
    /// with faults.
    pub(in crate::space) fn mark_lazyfree(self, rest: &mut Rest, more: More<'_>) {
        Pieces::of(self.space).each_whole_run(rest, more, |table, run, gather| match run.kind {
            Kind::Leaf => self.mark_run(table, run, gather),
            Kind::Swap => {
                table.erase(run);
                Ptes::of(self.space).defer_swap_release(run, gather);
                1
            }
            _ => 0,
        });
    }

    /// The folios at the beginning of a run may go; or else not, as far as it goes then. How many
    /// folios those are.
    fn mark_run(self, table: &LockedTable<'_, 'm, P, A>, run: &mut Run, gather: &mut Gather<'_, 'm, P>) -> usize {
        let arch = self.arch();
        let machine = self.machine();
        let (pfn, shift) = (run.pfn(arch), arch.level_shift(run.level) - FRAME_SHIFT);
        let exclusive = run.attrs(arch).contains(Attrs::EXCLUSIVE) && !machine.zero_folio().contains(pfn);
        let (mut marked, mut folios) = (0, 0);
        for (_, frame, pages) in machine.frames().folios(pfn, run.frames(arch)).take(MAX_RUNS_PER_HOLD) {
            let all = pages == 1 << frame.order() && frame.counts() == Counts { refs: pages, maps: pages };
            if !exclusive || !all || frame.has(flag::OBJECT) {
                if marked == 0 {
                    run.len = (pages >> shift) as usize;
                    return 1;
                }
                break;
            }
            marked += pages;
            folios += 1;
        }
        run.len = (marked >> shift) as usize;
        // First the entries, then the folios: who finds one marked finds written what was written
        // since.
        if run.attrs(arch).intersects(Attrs::HARDWARE) {
            table.clear_accessed_dirty(run, Attrs::HARDWARE, |_, _| ());
            gather.note(run.range(arch), table.shift());
        }
        for (head, frame, pages) in machine.frames().folios(pfn, marked) {
            if !frame.set_flag(flag::LAZYFREE) {
                machine.memcgs().relist(machine.frames(), head, Some(LruList::Anon), LruList::Lazyfree);
                machine.count(Counter::LazyFree, pages as u64);
            }
        }
        folios
    }

    /// Drop the folios at the beginning of a run that may go, but for those that were written to,
    /// which may not go any more. The run becomes what was decided about. How many pages (of 4 KiB)
    /// went.
    pub(super) fn discard_run(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        run: &mut Run,
        isolated: Option<IsolationBatch>,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let arch = self.arch();
        let machine = self.machine();
        let frames = machine.frames();
        let (first, shift) = (run.pfn(arch), arch.level_shift(run.level) - FRAME_SHIFT);
        let alone = run.attrs(arch).contains(Attrs::EXCLUSIVE);
        let (mut pages, mut sole) = (0, None);
        for (_, frame, its) in frames.folios(first, run.frames(arch)) {
            let sole_if = |isolated: &IsolationBatch| {
                isolated.is_sole(frame, its) && allows(self.platform(), FailPoint::Unpinned)
            };
            let its_sole = isolated.filter(sole_if);
            if !frame.has(flag::LAZYFREE)
                || its_sole.is_none() && !self.is_reclaimable((frame, its), alone, isolated, || 0)
            {
                if pages == 0 {
                    run.len = (its >> shift) as usize;
                    return 0;
                }
                break;
            }
            if *sole.get_or_insert(its_sole.is_some()) != its_sole.is_some() {
                break;
            }
            if let Some(isolated) = its_sole {
                isolated.set_unmapped(frame, true);
            }
            pages += its;
        }
        let sole = isolated.filter(|_| sole == Some(true));
        let (mut gone, mut at) = (0, 0);
        while at < pages && (sole.is_some() || !gather.is_full()) {
            let rest = run.part(arch, (at >> shift) as usize, ((pages - at) >> shift) as usize);
            let removed = table.take_clean(&rest);
            at += removed.frames;
            gone += removed.frames;
            match sole {
                _ if removed.frames == 0 => {}
                Some(_) => gather.note(removed.isolated(), table.shift()),
                None => gather.push(removed),
            }
            if at < pages {
                // That it was written to is known by the folio.
                let (head, written) = frames.head(first.add(at));
                written.clear_flag(flag::LAZYFREE);
                if let Some(isolated) = sole {
                    isolated.set_unmapped(written, false);
                }
                at = pages.min(head.0 + (1 << written.order()) - first.0);
            }
        }
        run.len = (at >> shift) as usize;
        self.tables().slot().add(SpaceCounter::Anon, -i64::from(gone));
        machine.count(Counter::LazyFreed, gone as u64);
        gone as u64
    }
}
