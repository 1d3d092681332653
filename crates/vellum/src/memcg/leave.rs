//! Leaving a memcg: folios that go back to the allocator, in batches.
//!
//! Folios that are freed together were mostly faulted in together, so they stand in the same shard and often next to each
//! other on its list. Its lock is held from one to the next, their pages return to its stock with one addition each and to
//! the memcg once a batch, and a stretch of the list is cut out by its two ends.

use super::Memcgs;
use super::shard::{Lists, LruvecId};
use crate::addr::Pfn;
use crate::frame::{Cut, Frame, Frames, flag};
use crate::platform::Platform;
use crate::sync::SpinGuard;

/// Takes folios off their lists and returns their charge. Holds one shard's lock from call to call: drop it, or call
/// [`Leavers::pause`], before anything that may wait.
pub(crate) struct Leavers<'a, 'p, P: Platform> {
    frames: &'a Frames<'p, P>,
    memcgs: &'a Memcgs<'p>,
    /// The home of who left last, whose shard's lock is held; or [`NOBODY`].
    lruvec: u32,
    lists: Option<SpinGuard<'a, Lists, P>>,
    /// Neighbours on a list of this shard that have left, and are still to be cut out of it.
    cut: Cut,
    pages: u32,
}

/// No home.
const NOBODY: u32 = !0;

impl<'a, 'p, P: Platform> Leavers<'a, 'p, P> {
    pub(crate) fn new(frames: &'a Frames<'p, P>, memcgs: &'a Memcgs<'p>) -> Self {
        Leavers { frames, memcgs, lruvec: NOBODY, lists: None, cut: Cut::default(), pages: 0 }
    }

    /// The lists of the shard where a frame with this home is.
    #[cold]
    fn lists(&mut self, lruvec: u32) -> &mut Lists {
        let shard = lruvec & LruvecId::SHARD;
        if self.lruvec == NOBODY || self.lruvec & LruvecId::SHARD != shard {
            self.pause();
            self.lruvec = shard;
        }
        let LruvecId { memcg, shard, .. } = LruvecId::unpack(shard);
        self.lists.get_or_insert_with(|| self.memcgs.shard(memcg, shard).0.lock(self.frames.platform()))
    }

    /// So many frames that [`Memcgs::admit`] admitted as one, and that nobody refers to any more, leave. The caller frees them.
    #[inline]
    pub(crate) fn leave(&mut self, pfn: Pfn, frame: &Frame, pages: u32) {
        let lruvec = frame.lruvec();
        if lruvec != self.lruvec || LruvecId::is_listed(lruvec) && !self.cut.extend(pfn, frame) {
            self.leave_elsewhere(pfn, frame, lruvec);
        }
        self.pages += pages;
        if frame.state().has(flag::PARTIAL) {
            let frames = self.frames;
            self.lists(lruvec).deferred.remove(frames, pfn.add(1));
        }
    }

    /// Whoever leaves is not a neighbour of who left before.
    #[inline(never)]
    fn leave_elsewhere(&mut self, pfn: Pfn, frame: &Frame, lruvec: u32) {
        self.settle();
        self.lists(lruvec);
        self.lruvec = lruvec;
        self.cut = if LruvecId::is_listed(lruvec) { Cut::one(pfn, frame) } else { Cut::default() };
    }

    /// Cut out whoever has left.
    #[inline]
    fn settle(&mut self) {
        if let Some(lists) = &mut self.lists {
            lists.leave(self.frames, &self.cut, LruvecId::unpack(self.lruvec).list, self.pages);
            self.cut = Cut::default();
            self.pages = 0;
        }
    }

    /// Part of a large folio is not mapped any more: queue it to be split when memory is short. Whether it was not queued
    /// before.
    #[cold]
    pub(crate) fn defer(&mut self, pfn: Pfn, frame: &Frame) -> bool {
        let frames = self.frames;
        let lists = self.lists(frame.lruvec());
        let new = !frame.set_flag(flag::PARTIAL);
        if new {
            lists.deferred.push(frames, pfn.add(1), frames.frame(pfn.add(1)));
        }
        new
    }

    /// Let go of the lock; a stock that has grown too large goes back to the memcg.
    pub(crate) fn pause(&mut self) {
        self.settle();
        let lruvec = core::mem::replace(&mut self.lruvec, NOBODY);
        let Some(mut lists) = self.lists.take() else { return };
        if lists.stock > lists.keeps {
            let LruvecId { memcg, shard, .. } = LruvecId::unpack(lruvec);
            let back = self.memcgs.surplus((memcg, shard), &mut lists);
            drop(lists);
            if back != 0 {
                self.memcgs.uncharge_all(memcg, back);
            }
        }
    }
}

impl<P: Platform> Drop for Leavers<'_, '_, P> {
    fn drop(&mut self) {
        self.pause();
    }
}
