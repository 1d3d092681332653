//! What is mapped in part only is split, and what of it is not mapped is freed: nobody needs that, and it costs nobody anything.
//!
//! Where one table has all that maps a folio, only descriptors change. What more than one table maps, of one space or several, goes to
//! folios of its own, in the way that memory is evicted: nobody holds the locks of two tables for that. So it takes memory first.

use core::cell::Cell;

use arrayvec::ArrayVec;

use crate::addr::Pfn;
use crate::arch::Arch;
use crate::frame::{Frame, HUGE_ORDER};
use crate::machine::Machine;
use crate::memcg::LruvecId;
use crate::platform::Platform;
use crate::space::{AddressSpace, Copies, Isolated, Spaces, Thp};
use crate::stats::SizeCounter;
use crate::tlb::free_unmapped;

use super::{Part, Reclaim, SearchIn, Victim};

/// Folios that are taken from a queue together. If none of them can be split, the others have to wait: those go to the end of the queue.
const BATCH: usize = 32;

impl<'m, P: Platform, A: Arch, S: Spaces<'m, P, A> + ?Sized> Reclaim<'_, 'm, P, A, S> {
    /// Free what is wanted of folios that are mapped in part. What is referred to otherwise than by page tables stays as it is, and is
    /// queued again.
    pub(super) fn split_partial(&mut self, part: Part) {
        let machine = self.machine;
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        memcgs.shards_on(frames, part.memcg, part.node).for_each(|shard| {
            let mut left = memcgs.deferred(frames, shard) as usize;
            while left > 0 && self.done.freed < self.wanted {
                let mut taken = ArrayVec::<_, BATCH>::new();
                memcgs.take_deferred(frames, shard, left.min(BATCH), |head, frame| taken.push((head, frame)));
                left -= taken.len();
                let now = taken.iter().map(|(head, frame)| self.split(*head, frame)).sum::<u64>();
                if now == 0 {
                    break;
                }
                self.done.looked += now;
                self.done.freed += now;
                machine.platform().resched();
            }
        });
    }

    /// Split a folio to which the caller has a reference, which he gives up. How many pages came free.
    fn split(&self, head: Pfn, frame: &'m Frame) -> u64 {
        let machine = self.machine;
        let order = frame.order();
        let victim = Victim::new(head, frame, 1 << order);
        let mapped = Cell::new(None);
        let visit = |space: &AddressSpace<'m, P, A>, vma: SearchIn, _: &mut [Victim<'m>]| {
            mapped.set(
                mapped.get().or_else(|| vma.find(&victim).and_then(|range| Thp::of(space).split_folio(range, head))),
            );
        };
        self.each_vma(victim.family(), &mut [victim], visit, |_| mapped.get().is_some());
        let mapped = mapped.into_inner();
        if let Some(mapped) = mapped {
            machine.count_size(SizeCounter::Split, order);
            let unmapped = mapped.pieces().filter(|(.., mapped)| !mapped);
            return put_all(machine, unmapped.map(|(at, order, _)| (head.add(at), 1 << order)));
        }
        let maps = frame.counts().maps;
        if maps == 0 || !self.may_copy(frame, maps) || !machine.memcgs().isolate_folio(machine.frames(), head) {
            if maps != 0 {
                machine.count_size(SizeCounter::SplitFailed, order);
            }
            machine.memcgs().defer_if_partial(machine.frames(), head);
            // What is not mapped any more goes with this reference.
            return put_all(machine, [(head, 1 << order)].into_iter());
        }
        let freed = self.transfer(victim);
        machine.count_size(if freed > 0 { SizeCounter::Split } else { SizeCounter::SplitFailed }, order);
        freed
    }

    /// Whether a folio that has so many mappings, and one reference besides, may be copied: it makes more memory free than it takes, and
    /// there is that much.
    fn may_copy(&self, frame: &Frame, maps: u32) -> bool {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        let room = memcgs.room(LruvecId::unpack(frame.lruvec()).memcg).min(frames.free_frames());
        frame.order() <= HUGE_ORDER
            && frame.counts().refs == maps + 1
            && 2 * maps <= 1 << frame.order()
            && u64::from(maps) <= room
    }

    /// Have what is mapped of a folio, which the caller has isolated, in others. How many pages came free by that.
    fn transfer(&self, victim: Victim<'m>) -> u64 {
        let machine = self.machine;
        let (isolated, mut copies) = (Isolated::new(machine), Copies::new(victim.head));
        isolated.add(victim.frame);
        self.family(&mut [victim], isolated, false, Some(&mut copies));
        // While it can't be freed.
        machine.memcgs().defer_if_partial(machine.frames(), victim.head);
        let freed = isolated.settle(machine, [(victim.head, victim.frames)].into_iter());
        freed.saturating_sub(copies.forget(machine))
    }
}

/// Drop a reference to each; those that had no other are freed. How many pages they were.
fn put_all<P: Platform>(machine: &Machine<'_, P>, folios: impl Iterator<Item = (Pfn, u32)>) -> u64 {
    free_unmapped(machine, folios, |head, frame| machine.frames().put(head, frame, 1, 0).refs == 0, |_, _| ())
}
