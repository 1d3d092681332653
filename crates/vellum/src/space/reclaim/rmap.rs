//! The rmap's end in a space: which VMAs map a folio, whether it was used there, and unmapping it.
//!
//! PTEs of an object's folio become empty: a fault finds the page in the object again. PTEs of
//! locked VMAs stay, and so do PTEs that record more than the object does: in VMAs that are
//! registered with a userfaultfd, and soft-dirty ones.

use core::ops::Range;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Frame, flag};
use crate::page_cache::Object;
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, LockedTable, Run};
use crate::tlb::Gather;
use crate::vma::{State, Vma, VmaFlags};

use super::{IsolationBatch, Rmap};
use crate::space::ground::Ptes;

/// The result of [`Rmap::clear_young`].
pub(crate) struct Referenced {
    /// Whether an accessed bit was set: the folio was used since the bits were last cleared.
    pub(crate) young: bool,
    /// The frames of the folio that the PTEs map.
    pub(crate) frames: u32,
}

impl<'s, 'm, P: Platform, A: Arch> Rmap<'s, 'm, P, A> {
    /// The first VMA from `addr` on that has some of these pages of an object behind it.
    pub(crate) fn next_mapping(self, object: &Object<'m, P>, pages: &Range<u64>, addr: u64) -> Option<Vma> {
        let vmas = self.space.read();
        vmas.tree.iter_from(addr).find(|vma| self.mapped_part(vma, object, pages).is_some()).copied()
    }

    /// Which addresses of a VMA have these pages of an object behind them.
    pub(crate) fn mapped_part(self, vma: &Vma, object: &Object<'m, P>, pages: &Range<u64>) -> Option<UserRange> {
        crate::space::ground::mapped_part(vma, object, pages, self.page_shift())
    }

    /// Empty what maps folios in these ranges that were isolated together and are an object's,
    /// unless they are to stay.
    pub(crate) fn unmap_isolated(self, ranges: &[VirtRange], isolated: IsolationBatch) {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return };
        self.space.peak.note(&self.tables().slots);
        let _evicting = self.tables().tlb.set_reclaim_flush_pending();
        let mut gather = self.space.gather(self.user_part(VirtRange { start: first.start, end: last.end }));
        for range in ranges {
            let range = self.user_part(*range);
            let mut at = range.start;
            while at < range.end {
                at = self.unmap_isolated_in(range.tail(at), isolated, &mut gather);
                if gather.is_full() {
                    gather.flush();
                }
                self.platform().resched();
            }
        }
    }

    /// The same for what the next table has of a range; how far that was.
    fn unmap_isolated_in(self, range: UserRange, isolated: IsolationBatch, gather: &mut Gather<'_, 'm, P>) -> u64 {
        let arch = self.arch();
        let vmas = self.space.read();
        let Some(vma) = vmas.first(range) else { return range.end };
        let part = vma.range.intersect(&range);
        if vma.state != State::Live {
            return part.end;
        }
        let table = match self.tables().find(part) {
            Found::Hole(end) => return end,
            Found::Table(table) => table,
        };
        let end = part.end.min(table.end());
        let mut at = part.start;
        while at < end && !gather.is_full() {
            let Some(mut run) = table.run_ignoring_accessed_dirty(at, end) else { break };
            if run.kind == Kind::Leaf {
                if vma.flags.contains(VmaFlags::LOCKED) {
                    self.note_locked(&run, Some(isolated));
                } else if self.is_redundant(vma, &run) {
                    self.clear_isolated(&table, &mut run, isolated, gather);
                }
            }
            at = run.range(arch).end;
        }
        table.unlock(gather);
        at.max(part.start)
    }

    /// Whether entries say nothing that an empty one does not.
    fn is_redundant(self, vma: &Vma, run: &Run) -> bool {
        let mut says = VmaFlags::UFFD_FLAGS;
        says.set(VmaFlags::SOFT_DIRTY_CLEARED, run.attrs(self.arch()).contains(Attrs::SOFT_DIRTY));
        !vma.flags.intersects(says)
    }

    /// Empty the entries at the beginning of a run that may go; or else not, as far as it goes
    /// then.
    fn clear_isolated(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        run: &mut Run,
        isolated: IsolationBatch,
        gather: &mut Gather<'_, 'm, P>,
    ) {
        let arch = self.arch();
        let shift = arch.level_shift(run.level) - FRAME_SHIFT;
        let may = |frame: &Frame| frame.has(flag::OBJECT) && isolated.may_go(frame);
        let mut folios = self.machine().frames().folios(run.pfn(arch), run.frames(arch));
        let Some((_, frame, mut pages)) = folios.next() else { return };
        let goes = may(frame);
        pages += folios.take_while(|(_, frame, _)| may(frame) == goes).map(|(.., pages)| pages).sum::<u32>();
        run.len = (pages >> shift) as usize;
        if goes {
            self.tables().slot().add(SpaceCounter::Anon, -i64::from(pages));
            gather.push(table.take_run(run));
        }
    }

    /// Returns the first displaced VMA from `addr` on that maps some of the rmap indices `places`.
    pub(crate) fn next_displaced(self, addr: u64, mut places: impl FnMut() -> VirtRange) -> Option<Vma> {
        self.space.read().displaced(addr).find(|vma| vma.rmap_part(places()).is_some()).copied()
    }

    /// Clears the accessed bits of the PTEs in `range` that map the folio `head` (Linux:
    /// `folio_referenced`).
    pub(crate) fn clear_young(self, range: VirtRange, head: Pfn) -> Referenced {
        let arch = self.arch();
        let range = self.user_part(range);
        let (mut young, mut frames) = (false, 0);
        let mut at = range.start;
        while at < range.end {
            let vmas = self.space.read();
            let held = vmas.find(at).is_none_or(|vma| vma.state != State::Live);
            match self.tables().find(range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let Some(run) = table.run(at, range.end) else {
                        table.release();
                        continue;
                    };
                    at = run.range(arch).end;
                    let its = run.kind == Kind::Leaf && self.machine().frames().head(run.pfn(arch)).0 == head;
                    if its {
                        frames += run.frames(arch);
                    }
                    if its && !held && run.attrs(arch).contains(Attrs::ACCESSED) {
                        table.clear_accessed_dirty(&run, Attrs::ACCESSED, |_, _| young = true);
                    }
                    table.release();
                }
            }
            drop(vmas);
            self.platform().resched();
        }
        Referenced { young, frames }
    }

    /// Marks the folios of a batch that a run of a locked VMA maps: they are unevictable.
    pub(super) fn note_locked(self, run: &Run, isolated: Option<IsolationBatch>) {
        let Some(isolated) = isolated else { return };
        Ptes::of(self.space).folios_of(run).for_each(|(_, frame)| isolated.lock(frame));
    }
}
