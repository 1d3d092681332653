//! `MADV_FREE` and `MAP_DROPPABLE`: lazyfree memory, whose contents reclaim may discard.
//!
//! `MADV_FREE` sets a flag in the folio's descriptor, and clears the dirty bits of the PTEs that
//! map the folio. Pageout ([`super::pageout`]) discards lazyfree folios that are still clean. It
//! needs no swap device for that, and does not split a huge folio first. Pageout tests the dirty
//! bits under the page table's lock, and does not write-protect the PTEs first: a CPU must set the
//! dirty bit in a PTE before its first write, so no CPU can write through a PTE that was cleared
//! while its dirty bit was clear ([`LockedTable::take_clean`]).
//!
//! Folios of a droppable VMA ([`VmaFlags::DROPPABLE`]) are lazyfree from the start, and are
//! discarded whether they are dirty or not. No other space maps them, because fork copies no page
//! of such a VMA.

use crate::addr::FRAME_SHIFT;
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{Counts, ListEnd, flag};
use crate::memcg::{ListMove, LruList};
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::{Counter, SpaceCounter};
use crate::table::{LockedTable, MAX_RUNS_PER_HOLD, Run};
use crate::tlb::Gather;
use crate::vma::{Vma, VmaFlags};

use super::{IsolationBatch, Pageout};
use crate::space::ground::{More, Pieces, Ptes, Rest};

impl<'m, P: Platform> Pageout<'_, 'm, P> {
    /// Marks anonymous folios lazyfree that lie in `rest` entirely and that only this space maps
    /// (`MADV_FREE`). Discards swapped-out pages of `rest` at once. Faults may run at the same
    /// time.
    pub(in crate::space) fn mark_lazyfree(self, rest: &mut Rest, more: More<'_>) {
        let lists = ListMove::new(LruList::Anon, LruList::Lazyfree, ListEnd::Front);
        let lists =
            Pieces::of(self.space).each_whole_run(rest, more, lists, |table, run, lists, gather| match run.kind {
                Kind::Leaf => self.mark_run_lazyfree(table, run, lists, gather),
                Kind::Swap => {
                    table.erase(run);
                    Ptes::of(self.space).defer_swap_release(run, gather);
                    1
                }
                _ => 0,
            });
        self.machine().count(Counter::LazyFree, lists.new_lazyfree_pages());
    }

    /// Marks the folios at the start of a run lazyfree, adds them to `lists`, and clears the
    /// accessed and dirty bits of the PTEs that map them. Shortens the run to these PTEs; or, if
    /// the first folio can't be marked, to the PTEs that map that folio. Returns the number of
    /// folios in the shortened run.
    fn mark_run_lazyfree(
        self,
        table: &LockedTable<'_, 'm, P>,
        run: &mut Run,
        lists: &mut ListMove,
        gather: &mut Gather<'_, 'm, P>,
    ) -> usize {
        let arch = self.arch();
        let machine = self.machine();
        let (pfn, shift) = (run.pfn(arch), arch.level_shift(run.level) - FRAME_SHIFT);
        let exclusive = run.attrs(arch).contains(Attrs::EXCLUSIVE) && !machine.zero_folio().contains(pfn);
        let mut folios = machine.frames().folios(pfn, run.frames(arch));
        // Marks whole folios without any other mapping or reference.
        let most = if exclusive { MAX_RUNS_PER_HOLD as u32 } else { 0 };
        let count = folios.while_alike(most, |state, _, frame, pages| {
            !state.has(flag::OBJECT) && frame.counts() == Counts { refs: pages, maps: pages }
        });
        let marked = run.frames(arch) - folios.left();
        let handled = if count == 0 { folios.next().map_or(0, |(.., pages)| pages) } else { marked };
        run.len = (handled >> shift) as usize;
        if count == 0 {
            return 1;
        }
        // The dirty bits are cleared before the folios become lazyfree, so that in a lazyfree folio
        // a dirty bit always stems from a later write.
        if run.attrs(arch).intersects(Attrs::HARDWARE) {
            table.clear_accessed_dirty(run, Attrs::HARDWARE, |_, _| ());
            gather.note(run.range(arch), table.shift());
        }
        lists.add(machine.memcgs(), machine.frames(), pfn, marked);
        count as usize
    }

    /// Discards the lazyfree folios at the start of a run of `vma` that are clean, and makes the
    /// dirty ones ordinary anonymous folios again; if `vma` is droppable, discards all folios.
    /// Stops before the first folio that is not lazyfree or not reclaimable, and where `gather` is
    /// full. Shortens the run to the PTEs that were handled; or, if the first folio can't be
    /// discarded, to the PTEs that map that folio. Returns the number of 4 KiB pages discarded,
    /// which the caller counts ([`Pageout::count_discarded`]).
    ///
    /// Folios of the batch `isolated` that only this run maps do not go to `gather`, which would
    /// free them after the flush. Their PTEs are cleared and noted for the flush, and
    /// [`IsolationBatch::putback`] frees the folios. A call handles either such folios or others,
    /// not both.
    pub(super) fn discard_run(
        self,
        table: &LockedTable<'_, 'm, P>,
        vma: &Vma,
        run: &mut Run,
        isolated: Option<IsolationBatch>,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let arch = self.arch();
        let machine = self.machine();
        let frames = machine.frames();
        let (first, shift) = (run.pfn(arch), arch.level_shift(run.level) - FRAME_SHIFT);
        let exclusive = run.attrs(arch).contains(Attrs::EXCLUSIVE);
        let droppable = vma.flags.contains(VmaFlags::DROPPABLE);
        // `pages`: the number of pages to discard. `only_here`: whether only this run maps their
        // folios.
        let (mut pages, mut only_here) = (0, None);
        for (_, frame, mapped) in frames.folios(first, run.frames(arch)) {
            let is_only_here = |isolated: &IsolationBatch| {
                isolated.is_mapped_only_by(frame, mapped) && allows(self.platform(), FailPoint::Unpinned)
            };
            let batch = isolated.filter(is_only_here);
            if !(frame.has(flag::LAZYFREE) || droppable)
                || batch.is_none() && !self.is_reclaimable(frame, mapped, exclusive, isolated, || 0)
            {
                if pages == 0 {
                    run.len = (mapped >> shift) as usize;
                    return 0;
                }
                break;
            }
            if *only_here.get_or_insert(batch.is_some()) != batch.is_some() {
                break;
            }
            if let Some(batch) = batch {
                batch.set_unmapped(frame, true);
            }
            pages += mapped;
        }
        let batch = isolated.filter(|_| only_here == Some(true));
        let (mut discarded, mut at) = (0, 0);
        while at < pages && (batch.is_some() || !gather.is_full()) {
            let rest = run.part(arch, (at >> shift) as usize, ((pages - at) >> shift) as usize);
            let removed = table.take_clean(&rest, droppable);
            at += removed.frames;
            discarded += removed.frames;
            match batch {
                _ if removed.frames == 0 => {}
                Some(_) => gather.note(removed.isolated(), table.shift()),
                None => gather.push(removed),
            }
            if at < pages {
                // A PTE of this folio is dirty: the folio is not lazyfree any more.
                let (head, dirty) = frames.head(first.add(at));
                dirty.clear_flag(flag::LAZYFREE);
                if let Some(batch) = batch {
                    batch.set_unmapped(dirty, false);
                }
                at = pages.min(head.0 + (1 << dirty.order()) - first.0);
            }
        }
        run.len = (at >> shift) as usize;
        discarded as u64
    }

    /// Adds pages that [`Pageout::discard_run`] discarded to the counters of the machine and of the
    /// space: once for each hold of a page table's lock, because the runs may be single pages.
    #[inline]
    pub(super) fn count_discarded(self, pages: u64) {
        if pages != 0 {
            self.tables().slot().add(SpaceCounter::Anon, -(pages as i64));
            self.machine().count(Counter::LazyFreed, pages);
        }
    }
}
