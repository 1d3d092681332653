//! What is held ([`super::evict`]) goes to folios of its own, with its contents: then nobody has
//! the one any more that it was a part of.
//!
//! What spaces had together they have together afterwards: where the first had it copied to is
//! remembered ([`Copies`]), and the entries of the others turn to the same place. What is there is
//! still what the folio holds: who has isolated that has a reference without a mapping, and so have
//! the copies until all is done; so whoever writes to either meanwhile gets a copy of his own.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::Arch;
use crate::frame::{Frames, HUGE_ORDER, RmapKey, Use};
use crate::machine::Machine;
use crate::memcg::{LruList, LruvecId};
use crate::platform::Platform;
use crate::tlb::Gather;

use super::Pageout;
use super::pageout::{Fate, OutOfRoom, Sent, WriteProtected};
use crate::space::anon::{Anon, NewFrames};

/// Where the pages of a folio are that was isolated, no larger than a huge page, of which what is
/// mapped is to go to others.
pub(crate) struct MigratedPages {
    of: Pfn,
    /// Of each frame; each has a reference to its copy.
    to: [Pfn; 1 << HUGE_ORDER],
    /// How many frames were copied.
    frames: u64,
}

impl MigratedPages {
    /// None yet.
    pub(crate) fn new(of: Pfn) -> Self {
        MigratedPages { of, to: [Pfn::NONE; 1 << HUGE_ORDER], frames: 0 }
    }

    /// A part of the folio was copied to this one, which the caller has.
    fn record<P: Platform>(&mut self, frames: &Frames<'_, P>, first: Pfn, copy: Pfn) {
        let (at, frame) = ((first.0 - self.of.0) as usize, frames.frame(copy));
        let count = 1 << frame.order();
        self.frames += u64::from(count);
        for (i, to) in (0..count).zip(&mut self.to[at..]).filter(|(_, to)| to.some().is_none()) {
            frames.get_counts(copy, frame, 1, 0);
            *to = copy.add(i);
        }
    }

    /// Where frames were copied to from this one on, to one folio, and how many of them, in blocks
    /// of this order. The caller has a reference and a mapping to each then.
    fn find<P: Platform>(&self, frames: &Frames<'_, P>, from: Pfn, most: u32, order: u8) -> Option<(Pfn, u32)> {
        let rest = &self.to[(from.0 - self.of.0) as usize..];
        let first = rest[0].some().filter(|first| first.is_aligned(order))?;
        let (head, frame) = frames.head(first);
        let row = rest.iter().zip(first.0..head.0 + (1 << frame.order())).take(most as usize);
        let count = row.take_while(|(to, pfn)| to.0 == *pfn).count() as u32 >> order << order;
        (count > 0).then(|| {
            frames.get_counts(head, frame, count, count);
            (first, count)
        })
    }

    /// All is settled. How many frames were copied.
    pub(crate) fn finish<P: Platform>(self, machine: &Machine<'_, P>) -> u64 {
        for copy in self.to.iter().filter_map(|to| to.some()) {
            let (head, frame) = machine.frames().head(copy);
            machine.put_refs(head, frame, 1);
        }
        self.frames
    }
}

impl<'s, 'm, P: Platform, A: Arch> Pageout<'s, 'm, P, A> {
    /// Copy what is held, in naturally aligned blocks as large as there is memory for, and have its
    /// entries map the copies; what was copied already is not copied again. How many pages went,
    /// and whether there is memory for more: if not, what was not copied stays.
    pub(super) fn migrate(
        self,
        held: &WriteProtected,
        copies: &mut MigratedPages,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Sent {
        let run = &held.run;
        let arch = self.arch();
        let machine = self.machine();
        let smallest = (arch.level_shift(run.level) - FRAME_SHIFT) as u8;
        let range = run.range(arch);
        let (mut went, mut largest, mut at) = (0, HUGE_ORDER, range.start);
        while at < range.end {
            let (pfn, frames) = (self.frame_at(run, at), ((range.end - at) >> FRAME_SHIFT) as u32);
            let block_of = |frames: u32| VirtRange { start: at, end: at + (u64::from(frames) << FRAME_SHIFT) };
            if let Some((copy, frames)) = copies.find(machine.frames(), pfn, frames, smallest) {
                went += self.finish(held, block_of(frames), Fate::Copy(copy), gather);
                at = block_of(frames).end;
                continue;
            }
            let aligned = (at >> FRAME_SHIFT).trailing_zeros() as u8;
            let order = largest.min(aligned).min(frames.ilog2() as u8).max(smallest);
            let Some(copy) = self.alloc_copy(pfn, order) else {
                if order > smallest {
                    largest = order - 1;
                    continue;
                }
                return Sent {
                    pages: went + self.finish(held, block_of(frames), Fate::Stay, gather),
                    room: Err(OutOfRoom),
                };
            };
            // SAFETY: the frames are held: whoever might have written to them has lost the right
            // before a flush, and won't have it back before they are settled. The copy is nobody
            // else's before it is mapped.
            unsafe { machine.frames().copy(pfn, copy, 1 << order) };
            machine.frames().sync_icache(copy, 1 << order, run.attrs(arch));
            copies.record(machine.frames(), pfn, copy);
            went += self.finish(held, block_of(1 << order), Fate::Copy(copy), gather);
            at = block_of(1 << order).end;
            self.platform().resched();
        }
        Sent { pages: went, room: Ok(()) }
    }

    /// A folio for a copy of a part of one that is held: in the same place, and charged to the same
    /// memcg.
    fn alloc_copy(self, of: Pfn, order: u8) -> Option<Pfn> {
        let frames = self.machine().frames();
        let (head, frame) = frames.head(of);
        let owner = RmapKey::unpack(frame.data());
        let owner = RmapKey { rmap_index: owner.rmap_index + u64::from(of.0 - head.0), ..owner };
        let (copy, lruvec) = frames.alloc_at_lruvec(order, false, Use::Folio).ok()?;
        let memcg = LruvecId::unpack(frame.lruvec()).memcg;
        let new = NewFrames { pfn: copy, order, zeroed: false, lruvec };
        Anon::of(self.space).init(new, owner, memcg, LruList::Anon).ok().map(|()| copy)
    }

    /// A part of a copy was not mapped, because entries say something else by now.
    pub(super) fn drop_copy(self, copy: Pfn, pages: u32) {
        let machine = self.machine();
        let (head, frame) = machine.frames().head(copy);
        machine.frames().put(head, frame, pages - 1, pages);
        machine.memcgs().defer_if_partial(machine.frames(), head);
        machine.put_refs(head, frame, 1);
    }
}
