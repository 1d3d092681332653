//! Isolation of pageblocks, so that compaction can empty one: frames that are freed there stay
//! there until the whole pageblock is free.

use core::mem::ManuallyDrop;

use super::pageblock::Pageblock;
use super::{FrameKind, Frames, HUGE_ORDER, SECTION_SHIFT, Use};
use crate::addr::Pfn;
use crate::platform::{FailPoint, Platform, allows};

/// A pageblock (2 MiB of memory, aligned) from which no allocation takes a frame (Linux:
/// `MIGRATE_ISOLATE`). Its free frames still count as free. The isolation ends when the value is
/// dropped.
pub(crate) struct IsolatedPageblock<'f, 'p, P: Platform> {
    frames: &'f Frames<'p, P>,
    /// The first frame.
    pub(crate) first: Pfn,
    /// The node of the free frames.
    node: usize,
}

impl<'f, 'p, P: Platform> IsolatedPageblock<'f, 'p, P> {
    /// Isolates the pageblock that begins at `first`. Returns `None` if it has no free frame, is
    /// wholly free, or is isolated already.
    pub(crate) fn new(frames: &'f Frames<'p, P>, first: Pfn) -> Option<Self> {
        let node = frames.node_of(first.add(Pageblock::find_of(frames, first)?.find(0, false)?.at));
        let isolated = frames.nodes[node].buddy.lock_irq(frames.platform).isolate(frames, first);
        isolated.then_some(IsolatedPageblock { frames, first, node })
    }

    /// Returns the use of a frame of the pageblock.
    pub(crate) fn frame_use(&self, pfn: Pfn) -> FrameUse {
        let at = pfn.0 - self.first.0;
        match self.frames.get(pfn).map(|frame| frame.kind()) {
            _ if Pageblock::of(self.frames, self.first).is_free(at) => FrameUse::Free,
            Some(FrameKind::Cached) => FrameUse::Cached,
            Some(FrameKind::Folio) => FrameUse::Folio,
            _ => FrameUse::Other,
        }
    }

    /// Ends the isolation. Returns whether the pageblock is wholly free, and so a free block. If
    /// not, compaction skips it until [`unskip_pageblock`].
    pub(crate) fn release(self) -> bool {
        ManuallyDrop::new(self).end()
    }

    fn end(&self) -> bool {
        self.frames.nodes[self.node].buddy.lock_irq(self.frames.platform).release(self.frames, self.first)
    }
}

impl<P: Platform> Drop for IsolatedPageblock<'_, '_, P> {
    fn drop(&mut self) {
        self.end();
    }
}

/// The use of a frame, which may be outdated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum FrameUse {
    /// It is free, and in no per-CPU cache.
    Free,
    /// It is the first frame of a free block in a per-CPU cache.
    Cached,
    /// It is the head of a folio.
    Folio,
    /// It is something else, such as a page table.
    Other,
}

/// Allocates a block for a copy of frames that begin at `original`, on their node, and out of a
/// pageblock that is not wholly free: one with small free blocks, if there is one. Returns its
/// first frame, and the number of the per-CPU lruvec in which it is to be charged. Returns `None`
/// if there is no such block. Its contents are unspecified.
pub(crate) fn alloc_in_pieces<P: Platform>(frames: &Frames<'_, P>, original: Pfn, order: u8) -> Option<(Pfn, usize)> {
    if !allows(frames.platform, FailPoint::Frames) {
        return None;
    }
    let node = frames.node_of(original);
    let block = frames.nodes[node].buddy.lock_irq(frames.platform).alloc_in_pieces(frames, order, false, Use::Folio)?;
    Some((frames.prepare_allocated(block.pfn, order, false), frames.lruvec_on(node)))
}

/// Returns the number of pageblocks of the machine, holes in physical memory included. The first
/// frame of pageblock `n` is `n << HUGE_ORDER`.
pub(crate) fn pageblocks<P: Platform>(frames: &Frames<'_, P>) -> u32 {
    (frames.sections.len() as u32) << (SECTION_SHIFT - u32::from(HUGE_ORDER))
}

/// Has compaction look again at a pageblock that it could not empty (Linux:
/// `reset_isolation_suitable`).
pub(crate) fn unskip_pageblock<P: Platform>(frames: &Frames<'_, P>, first: Pfn) {
    let Some(pageblock) = Pageblock::find_of(frames, first).filter(|pageblock| pageblock.is_skipped()) else { return };
    let node = frames.node_of(first.add(pageblock.find(0, false).map_or(0, |piece| piece.at)));
    let _buddy = frames.nodes[node].buddy.lock_irq(frames.platform);
    pageblock.set_skipped(false);
}

/// Returns the number of free frames of a pageblock and their node. Returns `None` if no frame is
/// free, or all are, or compaction skips the pageblock. The result may be outdated.
pub(crate) fn free_in_pageblock<P: Platform>(frames: &Frames<'_, P>, first: Pfn) -> Option<(u32, usize)> {
    let pageblock =
        Pageblock::find_of(frames, first).filter(|pageblock| pageblock.class().is_some() && !pageblock.is_skipped())?;
    let node = frames.node_of(first.add(pageblock.find(0, false)?.at));
    Some((pageblock.free_frames(), node))
}
