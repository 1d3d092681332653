//! The rmap inside a space (reverse map; Linux: `rmap_walk`): finds the VMAs that map a folio,
//! checks the accessed bits of its PTEs, and unmaps folios of page-cache objects.
//!
//! PTEs that map an object's folio are cleared: a later fault finds the page in the object again.
//! PTEs of locked VMAs (`VM_LOCKED`) stay. So do PTEs with state that the object does not have:
//! those in VMAs that are registered with a userfaultfd, and soft-dirty ones.

use core::ops::Range;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Frame, flag};
use crate::page_cache::Object;
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, LockedTable, MAX_RUNS_PER_HOLD, Run};
use crate::tlb::Gather;
use crate::vma::{State, Vma, VmaFlags};

use super::{IsolationBatch, Rmap};
use crate::space::ground::Ptes;

/// The result of [`Rmap::clear_young`].
pub(crate) struct Referenced {
    /// True if an accessed bit was set: a CPU accessed the folio since the bits were last cleared.
    pub(crate) young: bool,
    /// The number of frames of the folio that the PTEs map.
    pub(crate) frames: u32,
}

impl<'s, 'm, P: Platform> Rmap<'s, 'm, P> {
    /// Returns the first VMA from `addr` on that maps some of `pages` of an object.
    pub(crate) fn next_mapping(self, object: &Object<'m, P>, pages: &Range<u64>, addr: u64) -> Option<Vma> {
        let vmas = self.space.read();
        vmas.tree.iter_from(addr).find(|vma| self.mapped_part(vma, object, pages).is_some()).copied()
    }

    /// Returns the addresses of a VMA that map `pages` of an object. `None`: the VMA maps none of
    /// them.
    pub(crate) fn mapped_part(self, vma: &Vma, object: &Object<'m, P>, pages: &Range<u64>) -> Option<UserRange> {
        crate::space::ground::mapped_part(vma, object, pages, object.page_shift())
    }

    /// Clears the PTEs in `ranges` (ascending) that map object folios of the batch `isolated`,
    /// except soft-dirty PTEs and those in VMAs that are registered with a userfaultfd. In locked
    /// VMAs (`VM_LOCKED`), marks the folios instead ([`Rmap::note_locked`]). Takes the VMA lock for
    /// reading, for one page table at a time.
    pub(crate) fn unmap_isolated(self, ranges: &[VirtRange], isolated: IsolationBatch) {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return };
        self.space.peak.note(&self.tables().slots);
        let _pending = self.tables().tlb.set_reclaim_flush_pending();
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

    /// Does the work of [`Rmap::unmap_isolated`] in the first page table of `range`. Returns the
    /// end of the part of `range` that was handled.
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
        let end = table.hold_end(part);
        let (mut at, mut runs) = (part.start, 0);
        while at < end && runs < MAX_RUNS_PER_HOLD && !gather.is_full() {
            runs += 1;
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

    /// Returns whether the PTEs of a run can be cleared without loss: the VMA is not registered
    /// with a userfaultfd, and, if soft-dirty tracking covers it, the PTEs are not soft-dirty.
    pub(super) fn is_redundant(self, vma: &Vma, run: &Run) -> bool {
        // Only the VMA is looked at, mostly.
        let records =
            vma.flags.contains(VmaFlags::SOFT_DIRTY_CLEARED) && run.attrs(self.arch()).contains(Attrs::SOFT_DIRTY);
        !records && !vma.flags.intersects(VmaFlags::UFFD_FLAGS)
    }

    /// Clears the PTEs at the start of a run that map object folios of the batch `isolated`, and
    /// shortens the run to them. If the first folio of the run is not an object folio of the batch,
    /// clears nothing, and shortens the run to the PTEs before the first folio that is.
    fn clear_isolated(
        self,
        table: &LockedTable<'_, 'm, P>,
        run: &mut Run,
        isolated: IsolationBatch,
        gather: &mut Gather<'_, 'm, P>,
    ) {
        let arch = self.arch();
        let shift = arch.level_shift(run.level) - FRAME_SHIFT;
        let is_unmappable = |frame: &Frame| frame.has(flag::OBJECT) && isolated.is_evictable(frame);
        let mut folios = self.machine().frames().folios(run.pfn(arch), run.frames(arch));
        let Some((_, frame, mut pages)) = folios.next() else { return };
        let clears = is_unmappable(frame);
        pages +=
            folios.take_while(|(_, frame, _)| is_unmappable(frame) == clears).map(|(.., pages)| pages).sum::<u32>();
        run.len = (pages >> shift) as usize;
        if clears {
            self.tables().slot().add(SpaceCounter::Anon, -i64::from(pages));
            gather.push(table.take_run(run));
        }
    }

    /// Returns the first displaced VMA (its addresses are not its pages' rmap indices,
    /// [`Vma::is_displaced`]) from `addr` on that has some of the rmap indices that `indices`
    /// returns. Does not call `indices` if the space has no displaced VMA from `addr` on.
    pub(crate) fn next_displaced(self, addr: u64, mut indices: impl FnMut() -> VirtRange) -> Option<Vma> {
        let vmas = self.space.read();
        vmas.displaced(self.platform(), addr).find(|vma| vma.rmap_part(indices()).is_some()).copied()
    }

    /// Clears the accessed bits of the PTEs in `range` that map the folio `head` (Linux:
    /// `folio_referenced`), and counts the frames that these PTEs map. PTEs outside live VMAs, and
    /// those of VMAs with a pattern of reads, keep their accessed bits, but their frames are
    /// counted. Does not flush.
    pub(crate) fn clear_young(self, range: VirtRange, head: Pfn) -> Referenced {
        let arch = self.arch();
        let range = self.user_part(range);
        let (mut young, mut frames) = (false, 0);
        let mut at = range.start;
        while at < range.end {
            let vmas = self.space.read();
            let counts = |vma: &Vma| vma.state == State::Live && !vma.flags.intersects(VmaFlags::READ_MASK);
            let counts = vmas.find(at).is_some_and(counts);
            match self.tables().find(range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let Some(run) = table.run(at, range.end) else {
                        table.release();
                        continue;
                    };
                    at = run.range(arch).end;
                    let maps_folio = run.kind == Kind::Leaf && self.machine().frames().head(run.pfn(arch)).0 == head;
                    if maps_folio {
                        frames += run.frames(arch);
                    }
                    if maps_folio && counts && run.attrs(arch).contains(Attrs::ACCESSED) {
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

    /// Marks the folios of the batch `isolated` that a run of a locked VMA maps, so that
    /// [`IsolationBatch::putback`] puts them on the unevictable list.
    pub(super) fn note_locked(self, run: &Run, isolated: Option<IsolationBatch>) {
        let Some(isolated) = isolated else { return };
        Ptes::of(self.space).folios_of(run).for_each(|(_, frame)| isolated.set_locked(frame));
    }
}
