//! Splits a partially mapped folio into several: the mapped pages keep their memory, and the others
//! can be freed.
//!
//! No PTE changes, because PTEs name frames, and a frame's folio is found from its descriptor. So
//! the splitting CPU must hold everything by which another CPU could find the descriptors. All PTEs
//! that map the folio are in one page table, which it has locked; the folio has no reference except
//! its mappings' and this CPU's; and the lruvec's lock keeps reclaim from isolating the folio.
//! References stay at least as many as mappings throughout (INV-2).

use super::Memcgs;
use super::lruvec::{LruList, LruvecId};
use crate::addr::Pfn;
use crate::frame::{Counts, FrameKind, Frames, HUGE_ORDER, RmapKey, flag};
use crate::platform::{Event, Platform, trace};

const WORDS: usize = (1 << HUGE_ORDER) / u64::BITS as usize;

/// The set of mapped pages of a folio that is no larger than a huge page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MappedPages {
    order: u8,
    bits: [u64; WORDS],
}

/// A part of a folio that becomes a folio of its own: naturally aligned, and mapped in full or not
/// at all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    /// The offset of the piece's first frame from the folio's head.
    pub(crate) offset: u32,
    /// log2 of the number of the piece's frames.
    pub(crate) order: u8,
    /// True if all frames of the piece are mapped, false if none is.
    pub(crate) mapped: bool,
}

impl MappedPages {
    /// Makes an empty set for a folio of this order.
    pub(crate) fn none(order: u8) -> Self {
        MappedPages { order, bits: [0; WORDS] }
    }

    /// Adds the frame at this offset from the folio's head. Returns whether it was not in the set
    /// before.
    pub(crate) fn add(&mut self, frame: u32) -> bool {
        let (word, bit) = (frame / u64::BITS, 1 << (frame % u64::BITS));
        let new = self.bits[word as usize] & bit == 0;
        self.bits[word as usize] |= bit;
        new
    }

    /// Returns the number of mapped pages.
    pub(crate) fn len(&self) -> u32 {
        self.bits.iter().map(|word| word.count_ones()).sum()
    }

    /// Returns the counts of a folio whose mappings are exactly those of this set, and which has
    /// one reference besides those of its mappings (Linux: `folio_expected_ref_count`).
    pub(crate) fn expected_counts(&self) -> Counts {
        let maps = self.len();
        Counts { refs: maps + 1, maps }
    }

    /// Returns whether the frame at this offset is in the set.
    fn has(&self, frame: u32) -> bool {
        self.bits[(frame / u64::BITS) as usize] & 1 << (frame % u64::BITS) != 0
    }

    /// Returns the folio's pieces, in ascending order: the largest naturally aligned parts of which
    /// all frames or none are mapped.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = Piece> {
        let (all, mut at) = (1u32 << self.order, 0);
        core::iter::from_fn(move || {
            if at == all {
                return None;
            }
            let mapped = self.has(at);
            let alike = (at..all).take_while(|frame| self.has(*frame) == mapped).count() as u32;
            let order = alike.ilog2().min(at.trailing_zeros()).min(self.order as u32) as u8;
            let piece = Piece { offset: at, order, mapped };
            at += 1 << order;
            Some(piece)
        })
    }
}

impl<'p> Memcgs<'p> {
    /// Splits a folio whose mappings are exactly `mapped` (Linux: `split_folio`). Those PTEs are in
    /// one page table, which the caller has locked. The caller has one reference besides those of
    /// the mappings, and has removed the folio from the swap cache. Takes the lruvec's lock.
    ///
    /// Returns whether the folio was split. It is not if there are other references or mappings, or
    /// if it is isolated; then nothing changes. After a split the mapped pieces are on the folio's
    /// LRU list, and the caller's reference is replaced by one to each piece that is not mapped.
    pub(crate) fn split<P: Platform>(&self, frames: &Frames<'p, P>, head: Pfn, mapped: &MappedPages) -> bool {
        let frame = frames.frame(head);
        let owner = RmapKey::unpack(frame.data());
        let lruvec = LruvecId::unpack(frame.lruvec());
        let mut lists = self.lruvec(lruvec).lock(frames.platform());
        let before = mapped.expected_counts();
        // A CPU that isolates the folio takes a reference under this lock. So while the folio is on
        // its list, and has only the expected references and mappings, no other CPU can find its
        // descriptors.
        let Some(list) = LruList::of(frame).filter(|_| frame.counts() == before) else { return false };
        if frame.clear_flag(flag::PARTIALLY_MAPPED) {
            lists.deferred.remove(frames, head.add(1));
        }
        let lazyfree = if frame.has(flag::LAZYFREE) { flag::LAZYFREE } else { 0 };
        lists.remove(frames, (head, frame), frame.lruvec());
        for Piece { offset, order, mapped } in mapped.pieces() {
            let pfn = head.add(offset);
            for tail in 1..1 << order {
                frames.frame(pfn.add(tail)).set_kind(FrameKind::Tail, order, 0);
            }
            let piece = frames.frame(pfn);
            piece.set_kind(FrameKind::Folio, order, if mapped { lazyfree } else { 0 });
            piece.set_data(RmapKey { rmap_index: owner.rmap_index + u64::from(offset), ..owner }.pack());
            let counts =
                if mapped { Counts { refs: 1 << order, maps: 1 << order } } else { Counts { refs: 1, maps: 0 } };
            let was = if offset == 0 { (before.refs, before.maps) } else { (0, 0) };
            trace(frames.platform(), || Event::Counts(pfn, was, (counts.refs, counts.maps)));
            piece.set_counts(counts);
            piece.set_lruvec(lruvec.pack(Some(list).filter(|_| mapped)));
            if mapped {
                lists.add(frames, (pfn, piece), order, list);
            }
        }
        true
    }
}
