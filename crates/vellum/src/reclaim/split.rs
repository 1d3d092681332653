//! Splits partially mapped folios, and frees their unmapped pages (Linux: the deferred-split
//! shrinker). This needs no I/O, and no program misses the pages.
//!
//! If one page table has all PTEs that map a folio, only descriptors change
//! ([`Memcgs::split`](crate::memcg::Memcgs::split)). If several page tables map it, of one space or
//! of several, a split in place would have to hold all their locks, and a CPU never holds the locks
//! of two page tables of one level. So the mapped pages migrate to new folios instead, one page
//! table after the other: reclaim write-protects PTEs, copies their pages with no lock held, and
//! makes the PTEs map the copies. Migration allocates memory before it frees any.

use core::cell::Cell;
use core::iter;

use arrayvec::ArrayVec;

use crate::addr::Pfn;
use crate::frame::{Frame, HUGE_ORDER};
use crate::machine::Machine;
use crate::memcg::LruvecId;
use crate::platform::Platform;
use crate::space::{AddressSpace, IsolationBatch, MigratedPages, Spaces, Thp};
use crate::stats::SizeCounter;
use crate::tlb::free_unmapped;

use super::{Reclaim, ReclaimScope, RmapSearch, Victim};

/// The maximum number of folios that are taken from a deferred-split queue together. If none of
/// them can be split, they go to the young end of the queue, and reclaim leaves the rest of the
/// queue to its next call.
const BATCH: usize = 32;

impl<'m, P: Platform, S: Spaces<'m, P> + ?Sized> Reclaim<'_, 'm, P, S> {
    /// Splits folios from the deferred-split queues in `scope` until enough pages are free. A folio
    /// that is pinned (it has references besides those of its mappings) is queued again, and stays
    /// as it is.
    pub(super) fn split_partial(&mut self, scope: ReclaimScope) {
        let machine = self.machine;
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        memcgs.lru(frames).lruvecs_on(scope.memcg, scope.node).for_each(|lruvec| {
            let mut left = memcgs.lru(frames).deferred(lruvec) as usize;
            while left > 0 && self.done.freed < self.wanted {
                let mut taken = ArrayVec::<_, BATCH>::new();
                memcgs.lru(frames).take_deferred(lruvec, left.min(BATCH), |head, frame| taken.push((head, frame)));
                left -= taken.len();
                let freed = taken.iter().map(|(head, frame)| self.split_folio(*head, frame)).sum::<u64>();
                if freed == 0 {
                    break;
                }
                self.done.scanned += freed;
                self.done.freed += freed;
                machine.platform().resched();
            }
        });
    }

    /// Splits a folio, or else migrates its mapped pages, and drops the caller's reference to it. A
    /// folio that stays partially mapped is queued again. Returns the number of pages freed.
    fn split_folio(&self, head: Pfn, frame: &'m Frame) -> u64 {
        let machine = self.machine;
        let order = frame.order();
        let victim = Victim::new(head, frame, 1 << order);
        let mapped = Cell::new(None);
        let visit = |space: &AddressSpace<'m, P>, search: RmapSearch, _: &mut [Victim<'m>]| {
            let split = || search.find(&victim).and_then(|range| Thp::of(space).split_folio(range, head));
            mapped.set(mapped.get().or_else(split));
        };
        self.rmap_walk(victim.family(), &mut [victim], visit, |_| mapped.get().is_some());
        let mapped = mapped.into_inner();
        if let Some(mapped) = mapped {
            machine.count_size(SizeCounter::Split, order);
            let unmapped = mapped.pieces().filter(|piece| !piece.mapped);
            return put_all(machine, unmapped.map(|piece| (head.add(piece.offset), 1 << piece.order)));
        }
        let maps = frame.counts().maps;
        if maps == 0 || !self.should_migrate(frame, maps) || !machine.lru().isolate_folio(head) {
            if maps != 0 {
                machine.count_size(SizeCounter::SplitFailed, order);
            }
            machine.lru().defer_if_partial(head);
            // If no PTE maps the folio any more, and it is not pinned, this reference is the last
            // one, and dropping it frees the folio.
            return put_all(machine, [(head, 1 << order)].into_iter());
        }
        let freed = self.migrate_mapped(victim);
        machine.count_size(if freed > 0 { SizeCounter::Split } else { SizeCounter::SplitFailed }, order);
        freed
    }

    /// Returns whether to migrate the mapped pages of a folio that has `maps` mappings. Returns
    /// true if the folio has no references except those of its mappings and the caller's, at least
    /// half of its pages are unmapped, and the memcg's limit and the free memory allow the copies.
    fn should_migrate(&self, frame: &Frame, maps: u32) -> bool {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        let room = memcgs.room(LruvecId::unpack(frame.lruvec()).memcg).min(frames.free_frames());
        frame.order() <= HUGE_ORDER
            && frame.counts().refs == maps + 1
            && 2 * maps <= 1 << frame.order()
            && u64::from(maps) <= room
    }

    /// Migrates the mapped pages of a folio, which the caller has isolated, to new folios, so that
    /// the old one can be freed. Ends the isolation, and with it the caller's reference. Returns
    /// the number of pages freed, less the pages of the new folios.
    fn migrate_mapped(&self, victim: Victim<'m>) -> u64 {
        let machine = self.machine;
        let (isolated, mut copies) = (IsolationBatch::new(machine), MigratedPages::of_folio(victim.head));
        isolated.add(victim.frame);
        self.reclaim_family(&mut [victim], isolated, false, Some(&mut copies));
        // The isolation's reference keeps the folio from being freed, so the folio is queued before
        // the isolation ends.
        machine.lru().defer_if_partial(victim.head);
        let freed = isolated.putback(machine, iter::once(machine.frames().folios(victim.head, victim.frames)));
        freed.saturating_sub(copies.finish(machine))
    }
}

/// Drops a reference to each folio of these ranges of frames, and frees those that have no other.
/// Returns the number of pages freed.
fn put_all<P: Platform>(machine: &Machine<'_, P>, ranges: impl Iterator<Item = (Pfn, u32)>) -> u64 {
    let ranges = ranges.map(|(first, count)| machine.frames().folios(first, count));
    free_unmapped(machine, ranges, |head, frame| machine.frames().put(head, frame, 1, 0).refs == 0, |_, _| ())
}
