//! Where an object's pages are mapped in a space, for who reclaims them: whether they were used there, and to have them out of it.
//!
//! The entries become empty, because the object knows what there was: whoever touches it again finds it by the object. What is
//! locked stays mapped, and so does what is watched or tracked, whose entries know what the object does not.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Frame, flag};
use crate::memcg::LruList;
use crate::page_cache::Object;
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, LockedTable, Run};
use crate::tlb::Gather;
use crate::vma::{State, Vma, VmaFlags};

use super::AddressSpace;
use crate::space::ground::mapped_part;
use crate::space::isolated::{BATCH, Isolated};

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// The first VMA from `addr` on that has some of these pages of an object behind it.
    pub(crate) fn next_mapping(&self, object: &Object<'m, P>, pages: &Range<u64>, addr: u64) -> Option<Vma> {
        let vmas = self.read();
        vmas.tree.iter_from(addr).find(|vma| self.mapped_in(vma, object, pages).is_some()).copied()
    }

    /// Which addresses of a VMA have these pages of an object behind them.
    pub(crate) fn mapped_in(&self, vma: &Vma, object: &Object<'m, P>, pages: &Range<u64>) -> Option<UserRange> {
        mapped_part(vma, object, pages, self.page_shift())
    }

    /// Evict folios of objects that a range maps, and nobody else.
    pub(super) fn evict_objects(&self, range: UserRange) {
        let machine = self.tables.machine;
        let mut at = range.start;
        while at < range.end {
            let (start, isolated) = (at, Isolated::new(machine));
            let mut folios = ArrayVec::<(Pfn, &Frame), BATCH>::new();
            while at < range.end && !folios.is_full() {
                at = self.isolate_next(range.tail(at), isolated, &mut folios);
                machine.platform().resched();
            }
            if !folios.is_empty() {
                self.let_go(&[*range.tail(start).head(at)], isolated);
            }
            let room = folios.iter().all(|(head, frame)| {
                machine.platform().resched();
                let object = Object::of(machine, frame).filter(|_| !isolated.is_locked(frame));
                object.is_none_or(|object| object.swap_out(*head, frame).is_ok())
            });
            isolated.settle(machine, folios.iter().map(|(head, frame)| (*head, 1 << frame.order())));
            if !room {
                return;
            }
            self.tables.platform().resched();
        }
    }

    /// Isolate what the next table has of these, as far as there is room; how far that was.
    fn isolate_next(
        &self,
        range: UserRange,
        isolated: Isolated,
        folios: &mut ArrayVec<(Pfn, &'m Frame), BATCH>,
    ) -> u64 {
        let (arch, machine) = (&self.tables.arch, self.tables.machine);
        let vmas = self.read();
        let Some(vma) = vmas.overlapping(self.tables.platform(), range).find(|vma| !vma.backing.is_anonymous()) else {
            return range.end;
        };
        let part = vma.range.intersect(&range);
        let table = match self.tables.find(part) {
            Found::Hole(end) => return end,
            Found::Table(table) => table,
        };
        let end = part.end.min(table.end());
        let mut at = part.start;
        while at < end
            && folios.remaining_capacity() > 0
            && let Some(run) = table.run_whatever_recorded(at, end)
        {
            at = run.range(arch).end;
            if run.kind != Kind::Leaf || machine.zeros_folio().contains(run.pfn(arch)) {
                continue;
            }
            let mut seen = run.va;
            for (head, frame, pages) in machine.frames().folios(run.pfn(arch), run.frames(arch)) {
                if folios.is_full() {
                    at = seen;
                    break;
                }
                seen += u64::from(pages) << FRAME_SHIFT;
                let alone = pages == 1 << frame.order() && frame.counts().maps == pages;
                if frame.has(flag::OBJECT)
                    && alone
                    && machine.memcgs().isolate_one(machine.frames(), head, LruList::Shmem)
                {
                    isolated.add(frame);
                    folios.push((head, frame));
                }
            }
        }
        table.release();
        at.max(part.start)
    }

    /// Empty what maps folios in these ranges that were isolated together and are an object's, unless they are to stay.
    pub(crate) fn let_go(&self, ranges: &[VirtRange], isolated: Isolated) {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return };
        self.peak.note(&self.tables.slots);
        let _evicting = self.tables.tlb.evicting();
        let mut gather =
            self.gather(UserRange::all(&self.tables.arch).intersect(&VirtRange { start: first.start, end: last.end }));
        for range in ranges {
            let range = UserRange::all(&self.tables.arch).intersect(&*range);
            let mut at = range.start;
            while at < range.end {
                at = self.let_go_next(range.tail(at), isolated, &mut gather);
                if gather.is_full() {
                    gather.flush();
                }
                self.tables.platform().resched();
            }
        }
    }

    /// The same for what the next table has of a range; how far that was.
    fn let_go_next(&self, range: UserRange, isolated: Isolated, gather: &mut Gather<'_, 'm, P>) -> u64 {
        let arch = &self.tables.arch;
        let vmas = self.read();
        let Some(vma) = vmas.first(range) else { return range.end };
        let part = vma.range.intersect(&range);
        if vma.state != State::Live {
            return part.end;
        }
        let table = match self.tables.find(part) {
            Found::Hole(end) => return end,
            Found::Table(table) => table,
        };
        let end = part.end.min(table.end());
        let mut at = part.start;
        while at < end && !gather.is_full() {
            let Some(mut run) = table.run_whatever_recorded(at, end) else { break };
            if run.kind == Kind::Leaf {
                if vma.flags.contains(VmaFlags::LOCKED) {
                    self.tell_locked(&run, Some(isolated));
                } else if self.knows_nothing(vma, &run) {
                    self.empty_isolated(&table, &mut run, isolated, gather);
                }
            }
            at = run.range(arch).end;
        }
        table.unlock(gather);
        at.max(part.start)
    }

    /// Whether entries say nothing that an empty one does not.
    fn knows_nothing(&self, vma: &Vma, run: &Run) -> bool {
        let mut says = VmaFlags::WATCHES;
        says.set(VmaFlags::TRACKED, run.attrs(&self.tables.arch).contains(Attrs::SOFT_DIRTY));
        !vma.flags.intersects(says)
    }

    /// Empty the entries at the beginning of a run that may go; or else not, as far as it goes then.
    fn empty_isolated(
        &self,
        table: &LockedTable<'_, 'm, P, A>,
        run: &mut Run,
        isolated: Isolated,
        gather: &mut Gather<'_, 'm, P>,
    ) {
        let arch = &self.tables.arch;
        let shift = arch.level_shift(run.level) - FRAME_SHIFT;
        let may = |frame: &Frame| frame.has(flag::OBJECT) && isolated.may_go(frame);
        let mut folios = self.tables.machine.frames().folios(run.pfn(arch), run.frames(arch));
        let Some((_, frame, mut pages)) = folios.next() else { return };
        let goes = may(frame);
        pages += folios.take_while(|(_, frame, _)| may(frame) == goes).map(|(.., pages)| pages).sum::<u32>();
        run.len = (pages >> shift) as usize;
        if goes {
            self.tables.slot().add(SpaceCounter::Anon, -i64::from(pages));
            gather.push(table.take_run(run));
        }
    }
}
