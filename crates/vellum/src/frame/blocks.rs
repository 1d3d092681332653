//! Finds the block that contains a frame: a free block, a folio, a page table or other memory in
//! use. Audits and `/proc` files look at every frame by this.
//!
//! Free blocks smaller than 2 MiB are bits of their pageblock ([`super::pageblock`]), and other
//! blocks have a kind and an order in the descriptor of their first frame.

use super::{Frame, FrameKind, FrameState, Frames, HUGE_ORDER, MAX_ORDER, Pageblock};
use crate::addr::Pfn;
use crate::platform::Platform;

impl<'p, P: Platform> Frames<'p, P> {
    /// Returns the free block, folio or page table that contains `pfn`: its first frame, that
    /// frame's descriptor, and its state; `None` where there is no memory. No lock is held, so the
    /// state may be outdated on return.
    ///
    /// Accepts any frame, as an audit does. The descriptor of a frame inside a block, or in a free
    /// block smaller than 2 MiB, may be left over from an earlier use, so only those of first
    /// frames are trusted. The scan goes from the largest order down. The frame aligned to the
    /// largest order is a first frame in any case. If its block ends before `pfn`, the frame
    /// aligned to the next lower order is a first frame, and so on.
    pub fn block(&self, pfn: Pfn) -> Option<(Pfn, &'p Frame, FrameState)> {
        let contains = |order| {
            let first = pfn.align_down(order);
            let (frame, state) = self.block_at(first)?;
            (state.kind() != FrameKind::Tail && state.order() >= order).then_some((first, frame, state))
        };
        let piece = Pageblock::find_of(self, pfn)?.piece(index_in_pageblock(pfn));
        let order = piece.map_or(MAX_ORDER, |(piece, _)| piece.order);
        (0..=order).rev().find_map(contains)
    }

    /// Returns the descriptor and the state of the free block, folio or page table whose first
    /// frame is `pfn`; `None` where there is no memory. As for [`Frames::block`], the state may be
    /// outdated.
    pub(crate) fn block_at(&self, pfn: Pfn) -> Option<(&'p Frame, FrameState)> {
        let (frame, at) = (self.get(pfn)?, index_in_pageblock(pfn));
        let state = match Pageblock::find_of(self, pfn)?.piece(at) {
            Some((piece, zero)) if piece.at == at => FrameState::free(piece.order, zero),
            _ => frame.state(),
        };
        Some((frame, state))
    }

    /// Returns the kind of a frame that came from this allocator: [`FrameKind::Free`] if it is in a
    /// free block smaller than 2 MiB, and else what its descriptor says. As for [`Frames::block`],
    /// it may be outdated.
    pub(crate) fn kind_at(&self, pfn: Pfn) -> FrameKind {
        if Pageblock::of(self, pfn).is_free(index_in_pageblock(pfn)) { FrameKind::Free } else { self.frame(pfn).kind() }
    }
}

/// Returns the index of a frame in its pageblock.
#[inline]
fn index_in_pageblock(pfn: Pfn) -> u32 {
    pfn.0 & ((1 << HUGE_ORDER) - 1)
}
