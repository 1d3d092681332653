//! A folio becomes several: those of its pages that are mapped keep their memory, and the others can be freed.
//!
//! Nothing that maps it changes, because entries name frames, and a frame's folio is found from its descriptor. So all that anybody
//! could find a descriptor by has to be in the hands of who splits: as many entries as the folio has mappings stand in the one table that he
//! has locked, and the only other reference is his.

use super::shard::LruvecId;
use super::{MemcgId, Memcgs};
use crate::addr::Pfn;
use crate::frame::{Counts, Frame, FrameKind, Frames, HUGE_ORDER, Owner, flag};
use crate::platform::{Event, Platform, trace};

const WORDS: usize = (1 << HUGE_ORDER) / u64::BITS as usize;

/// Which frames of a folio, that is no larger than a huge page, are mapped.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mapped {
    order: u8,
    bits: [u64; WORDS],
}

impl Mapped {
    /// None of a folio of this order.
    pub(crate) fn none(order: u8) -> Self {
        Mapped { order, bits: [0; WORDS] }
    }

    /// Another one is. Whether it was not said before.
    pub(crate) fn add(&mut self, frame: u32) -> bool {
        let (word, bit) = (frame / u64::BITS, 1 << (frame % u64::BITS));
        let new = self.bits[word as usize] & bit == 0;
        self.bits[word as usize] |= bit;
        new
    }

    /// How many are.
    pub(crate) fn len(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// What a folio counts if these are all that map it, and somebody has one reference besides.
    pub(crate) fn alone(&self) -> Counts {
        let maps = self.len();
        Counts { refs: maps + 1, maps }
    }

    fn has(&self, frame: u32) -> bool {
        self.bits[(frame / u64::BITS) as usize] & 1 << (frame % u64::BITS) != 0
    }

    /// The largest naturally aligned pieces of which all frames or none are mapped: the first frame, the order, and which of the two.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (u32, u8, bool)> {
        let (all, mut at) = (1u32 << self.order, 0);
        core::iter::from_fn(move || {
            if at == all {
                return None;
            }
            let mapped = self.has(at);
            let alike = (at..all).take_while(|frame| self.has(*frame) == mapped).count() as u32;
            let order = alike.ilog2().min(at.trailing_zeros()).min(self.order as u32) as u8;
            let piece = (at, order, mapped);
            at += 1 << order;
            Some(piece)
        })
    }
}

impl<'p> Memcgs<'p> {
    /// Split a folio, to which the caller has a reference that is no mapping's, if nobody else has one, and the mappings are these. They
    /// stand in one table, which the caller has locked, and nobody finds it by slots any more. What is mapped takes the folio's place on
    /// its list; the reference of the caller's is gone, and instead he has one to each piece that is not. Whether it was split.
    pub(crate) fn split<P: Platform>(&self, frames: &Frames<'p, P>, head: Pfn, mapped: &Mapped) -> bool {
        let frame = frames.frame(head);
        let owner = Owner::unpack(frame.data());
        let lruvec = LruvecId::unpack(frame.lruvec());
        let mut lists = self.shard(lruvec.memcg, lruvec.shard).0.lock(frames.platform());
        // Who takes a folio off its list has a reference from then on, and the lists are locked.
        let (lruvec, before) = (LruvecId::unpack(frame.lruvec()), mapped.alone());
        let Some(list) = lruvec.list.filter(|_| frame.counts() == before) else { return false };
        if frame.clear_flag(flag::PARTIAL) {
            lists.deferred.remove(frames, head.add(1));
        }
        let lazy = if frame.has(flag::LAZY) { flag::LAZY } else { 0 };
        lists.unlist(frames, head, lruvec);
        for (at, order, mapped) in mapped.pieces() {
            let pfn = head.add(at);
            for tail in 1..1 << order {
                frames.frame(pfn.add(tail)).become_kind(FrameKind::Tail, order, 0);
            }
            let piece = frames.frame(pfn);
            piece.become_kind(FrameKind::Folio, order, if mapped { lazy } else { 0 });
            piece.set_data(Owner { page: owner.page + u64::from(at), ..owner }.pack());
            let counts =
                if mapped { Counts { refs: 1 << order, maps: 1 << order } } else { Counts { refs: 1, maps: 0 } };
            let was = if at == 0 { (before.refs, before.maps) } else { (0, 0) };
            trace(frames.platform(), || Event::Counts(pfn, was, (counts.refs, counts.maps)));
            piece.set_counts(counts);
            piece.set_lruvec(LruvecId { list: Some(list).filter(|_| mapped), ..lruvec }.pack());
            if mapped {
                lists.add(frames, (pfn, piece), order, list);
            }
        }
        true
    }

    /// Take folios off the old end of the queue of those that are to be split, no more than this many; each with a reference, and shown to
    /// `take`.
    pub(crate) fn take_deferred<P: Platform>(
        &self,
        frames: &Frames<'p, P>,
        (id, shard): (MemcgId, usize),
        folios: usize,
        mut take: impl FnMut(Pfn, &'p Frame),
    ) {
        self.look(frames, (id, shard), |shard| {
            let mut lists = shard.0.lock(frames.platform());
            let mut left = folios;
            for (tail, _) in lists.deferred.backward(frames) {
                if left == 0 {
                    break;
                }
                let head = Pfn(tail.0 - 1);
                let frame = frames.frame(head);
                // One to which nobody refers is about to leave the queue by itself; and who has
                // isolated one may be the last to have it, and relies on that nobody else finds it.
                if LruvecId::is_listed(frame.lruvec()) && frames.try_get(head, frame, 1, 0) {
                    lists.deferred.remove(frames, tail);
                    frame.clear_flag(flag::PARTIAL);
                    take(head, frame);
                    left -= 1;
                }
            }
        });
    }

    /// Take a folio off its list, as [`Memcgs::isolate`] does; the caller's reference is the one that goes with that. Whether it was on one.
    pub(crate) fn isolate_folio<P: Platform>(&self, frames: &Frames<'p, P>, head: Pfn) -> bool {
        let frame = frames.frame(head);
        let LruvecId { memcg, shard, .. } = LruvecId::unpack(frame.lruvec());
        let mut lists = self.shard(memcg, shard).0.lock(frames.platform());
        let lruvec = LruvecId::unpack(frame.lruvec());
        lists.unlist(frames, head, lruvec);
        lruvec.list.is_some()
    }

    /// Queue a folio of which something was mapped, or that could not be split, if it is mapped in part only. The caller has a reference.
    /// Whether it was not queued before.
    pub(crate) fn defer_if_partial<P: Platform>(&self, frames: &Frames<'p, P>, head: Pfn) -> bool {
        let frame = frames.frame(head);
        let LruvecId { memcg, shard, .. } = LruvecId::unpack(frame.lruvec());
        let mut lists = self.shard(memcg, shard).0.lock(frames.platform());
        let maps = frame.counts().maps;
        let new = maps != 0 && maps < 1 << frame.order() && !frame.set_flag(flag::PARTIAL);
        if new {
            lists.deferred.push(frames, head.add(1), frames.frame(head.add(1)));
        }
        new
    }

    /// How many folios a shard's queue of a memcg has.
    pub(crate) fn deferred<P: Platform>(&self, frames: &Frames<'p, P>, (id, shard): (MemcgId, usize)) -> u32 {
        self.look(frames, (id, shard), |shard| shard.0.lock(frames.platform()).deferred.len()).unwrap_or(0)
    }
}
