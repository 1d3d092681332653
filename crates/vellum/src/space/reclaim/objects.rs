//! Pages out folios of page-cache objects that only this space maps.

use core::cell::Cell;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::{Arch, Kind, UserRange};
use crate::frame::{Frame, flag};
use crate::memcg::LruList;
use crate::page_cache::{Object, drop_unused};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, MAX_RUNS_PER_HOLD};
use crate::tlb::Gather;
use crate::vma::{State, VmaFlags};

use super::{ISOLATION_BATCH, IsolationBatch, Pageout, Rmap};

impl<'m, P: Platform> Pageout<'_, 'm, P> {
    /// Pages out the folios of page-cache objects that PTEs in `range` map and no other PTEs do.
    /// Stops when there is no room in swap. The caller holds no lock.
    pub(super) fn pageout_objects(self, range: UserRange) {
        let machine = self.machine();
        self.space.peak.note(&self.tables().slots);
        let mut at = range.start;
        while at < range.end {
            let (start, isolated) = (at, IsolationBatch::new(machine));
            let mut folios = ArrayVec::<(Pfn, &Frame), ISOLATION_BATCH>::new();
            let mut mapped = false;
            {
                let _pending = self.tables().tlb.set_reclaim_flush_pending();
                let mut gather = self.space.gather(range.tail(at));
                while at < range.end && !folios.is_full() {
                    at = self.isolate_objects(range.tail(at), isolated, &mut folios, (&mut gather, &mut mapped));
                    machine.platform().resched();
                }
            }
            if mapped {
                Rmap::of(self.space).unmap_isolated(&[*range.tail(start).head(at)], isolated);
            }
            let has_room = self.evict(isolated, &folios);
            isolated.putback(machine, folios.iter().map(|&(head, frame)| Some((head, frame, 1 << frame.order()))));
            if !has_room {
                return;
            }
            self.platform().resched();
        }
    }

    /// Takes folios that are isolated, and not mapped any more, out of their objects. Returns false
    /// if there is no room in swap; then some folios were not tried. No lock is held.
    fn evict(self, isolated: IsolationBatch, folios: &[(Pfn, &Frame)]) -> bool {
        let machine = self.machine();
        let mut rest = folios;
        let mut has_room = true;
        while let [(head, frame), after @ ..] = rest {
            if isolated.is_locked(frame) {
                rest = after;
                continue;
            }
            let Some(object) = Object::from_folio(machine, frame) else {
                // Another CPU has removed it from its object.
                if isolated.cleared(frame) > 0 {
                    isolated.end_cleared(machine, *head, frame);
                }
                rest = after;
                continue;
            };
            let is_next = |(_, frame): &&(_, &Frame)| object.owns(frame);
            let (of_object, others) = rest.split_at(rest.iter().take_while(is_next).count().max(1));
            let cleared = of_object.iter().filter_map(|&(head, frame)| match isolated.cleared(frame) {
                0 => None,
                cleared => Some((head, frame, cleared)),
            });
            let dropped = Cell::new(0);
            drop_unused(&object, cleared.clone(), (true, None), |frame| {
                isolated.set_unmapped(frame, true);
                dropped.set(dropped.get() + 1);
            });
            if dropped.get() < of_object.len() {
                cleared.for_each(|(head, frame, _)| isolated.end_cleared(machine, head, frame));
                let is_left = |frame| !isolated.is_dropped(frame) && !isolated.is_locked(frame);
                let left = of_object.iter().copied().filter(|(_, frame)| is_left(frame));
                has_room = has_room && object.evict(left, true).is_ok();
            }
            rest = others;
        }
        has_room
    }

    /// Isolates the folios of objects that PTEs of one page table, the first in `range`, map and no
    /// other PTEs do. Adds these folios to the batch `isolated` and to `folios`, and stops when
    /// `folios` is full. Returns the end of the part of `range` that was searched.
    ///
    /// The PTEs of folios of an object with a store are cleared here, and noted for the flush in
    /// `gather`: the folios' counts still include them ([`IsolationBatch::add_cleared`]). Sets
    /// `mapped` if there are other folios.
    fn isolate_objects(
        self,
        range: UserRange,
        isolated: IsolationBatch,
        folios: &mut ArrayVec<(Pfn, &'m Frame), ISOLATION_BATCH>,
        (gather, mapped): (&mut Gather<'_, 'm, P>, &mut bool),
    ) -> u64 {
        let (arch, machine) = (self.arch(), self.machine());
        let vmas = self.space.read();
        let Some(vma) = vmas.overlapping(self.platform(), range).find(|vma| !vma.backing.is_anonymous()) else {
            return range.end;
        };
        let part = vma.range.intersect(&range);
        let table = match self.tables().find(part) {
            Found::Hole(end) => return end,
            Found::Table(table) => table,
        };
        let may_clear = vma.state == State::Live && !vma.flags.contains(VmaFlags::LOCKED);
        let end = table.hold_end(part);
        let (mut at, mut runs, mut cleared) = (part.start, 0, 0);
        let mut isolator = machine.lru().isolator();
        while at < end
            && runs < MAX_RUNS_PER_HOLD
            && folios.remaining_capacity() > 0
            && let Some(run) = table.run_ignoring_accessed_dirty(at, end)
        {
            runs += 1;
            at = run.range(arch).end;
            if run.kind != Kind::Leaf || machine.zero_folio().contains(run.pfn(arch)) {
                continue;
            }
            let may_clear = may_clear && Rmap::of(self.space).is_redundant(vma, &run);
            let shift = arch.level_shift(run.level) - FRAME_SHIFT;
            // The frames of the run that were searched, and the first of them whose PTE is not
            // cleared although it may be.
            let (mut searched, mut first) = (0, 0);
            let mut clear = |frames: core::ops::Range<u32>| {
                if !frames.is_empty() {
                    let part =
                        run.part(arch, (frames.start >> shift) as usize, (frames.len() as u32 >> shift) as usize);
                    gather.note(table.take_run(&part).isolated(), table.shift());
                    cleared += i64::from(frames.end - frames.start);
                }
            };
            for (head, frame, pages) in machine.frames().folios(run.pfn(arch), run.frames(arch)) {
                if folios.is_full() {
                    at = run.va + (u64::from(searched) << FRAME_SHIFT);
                    break;
                }
                let is_alone = pages == 1 << frame.order() && frame.counts().maps == pages;
                let is_isolated = frame.has(flag::OBJECT)
                    && is_alone
                    && isolator.isolate((head, frame, pages), LruList::evictable(frame));
                if is_isolated {
                    folios.push((head, frame));
                }
                if is_isolated && may_clear && frame.has(flag::FILE) {
                    isolated.add_cleared(frame);
                } else {
                    clear(first..searched);
                    first = searched + pages;
                    if is_isolated {
                        isolated.add(frame);
                        *mapped = true;
                    }
                }
                searched += pages;
            }
            clear(first..searched);
        }
        drop(isolator);
        self.tables().slot().add(SpaceCounter::File, -cleared);
        table.unlock(gather);
        at.max(part.start)
    }
}
