//! Pages out folios of page-cache objects that only this space maps.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::{Kind, UserRange};
use crate::frame::{Frame, flag};
use crate::memcg::LruList;
use crate::page_cache::Object;
use crate::platform::Platform;
use crate::table::{Found, MAX_RUNS_PER_HOLD};

use super::{ISOLATION_BATCH, IsolationBatch, Pageout, Rmap};

impl<'m, P: Platform> Pageout<'_, 'm, P> {
    /// Pages out the folios of page-cache objects that PTEs in `range` map and no other PTEs do.
    /// Stops when there is no room in swap. The caller holds no lock.
    pub(super) fn pageout_objects(self, range: UserRange) {
        let machine = self.machine();
        let mut at = range.start;
        while at < range.end {
            let (start, isolated) = (at, IsolationBatch::new(machine));
            let mut folios = ArrayVec::<(Pfn, &Frame), ISOLATION_BATCH>::new();
            while at < range.end && !folios.is_full() {
                at = self.isolate_objects(range.tail(at), isolated, &mut folios);
                machine.platform().resched();
            }
            if !folios.is_empty() {
                Rmap::of(self.space).unmap_isolated(&[*range.tail(start).head(at)], isolated);
            }
            let mut rest = folios.iter().filter(|(_, frame)| !isolated.is_locked(frame)).copied().peekable();
            let mut has_room = true;
            while let Some((_, frame)) = rest.peek()
                && has_room
            {
                let Some(object) = Object::from_folio(machine, frame) else {
                    // Another CPU has removed it from its object.
                    rest.next();
                    continue;
                };
                let count = rest.clone().take_while(|(_, frame)| object.owns(frame)).count().max(1);
                has_room = object.evict(rest.clone().take(count), true).is_ok();
                rest.by_ref().take(count).for_each(drop);
            }
            isolated.putback(machine, folios.iter().map(|(head, frame)| (*head, 1 << frame.order())));
            if !has_room {
                return;
            }
            self.platform().resched();
        }
    }

    /// Isolates the folios of objects that PTEs of one page table, the first in `range`, map and no
    /// other PTEs do. Adds these folios to the batch `isolated` and to `folios`, and stops when
    /// `folios` is full. Returns the end of the part of `range` that was searched.
    fn isolate_objects(
        self,
        range: UserRange,
        isolated: IsolationBatch,
        folios: &mut ArrayVec<(Pfn, &'m Frame), ISOLATION_BATCH>,
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
        let end = table.hold_end(part);
        let (mut at, mut runs) = (part.start, 0);
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
            let mut folio_start = run.va;
            for (head, frame, pages) in machine.frames().folios(run.pfn(arch), run.frames(arch)) {
                if folios.is_full() {
                    at = folio_start;
                    break;
                }
                folio_start += u64::from(pages) << FRAME_SHIFT;
                let is_alone = pages == 1 << frame.order() && frame.counts().maps == pages;
                if frame.has(flag::OBJECT) && is_alone && machine.lru().isolate_one(head, LruList::evictable(frame)) {
                    isolated.add(frame);
                    folios.push((head, frame));
                }
            }
        }
        table.release();
        at.max(part.start)
    }
}
