//! Leaving a group: folios that go back to the allocator, in batches.
//!
//! Folios that are freed together were mostly faulted in together, so they stand in the same shard and often next to each
//! other on its list. Its lock is held from one to the next, their pages return to its stock with one addition each and to
//! the group once a batch, and a stretch of the list is cut out by its two ends.

use super::Groups;
use super::shard::{Home, Lists};
use crate::addr::Pfn;
use crate::frame::{Cut, Frame, Frames, flag};
use crate::platform::Platform;
use crate::sync::SpinGuard;

/// Takes folios off their lists and returns their charge. Holds one shard's lock from call to call: drop it, or call
/// [`Leavers::pause`], before anything that may wait.
pub(crate) struct Leavers<'a, 'p, P: Platform> {
    frames: &'a Frames<'p, P>,
    groups: &'a Groups<'p>,
    /// The home of who left last, whose shard's lock is held; or [`NOBODY`].
    home: u32,
    lists: Option<SpinGuard<'a, Lists, P>>,
    /// Neighbours on a list of this shard that have left, and are still to be cut out of it.
    cut: Cut,
    pages: u32,
}

/// No home.
const NOBODY: u32 = !0;

impl<'a, 'p, P: Platform> Leavers<'a, 'p, P> {
    pub(crate) fn new(frames: &'a Frames<'p, P>, groups: &'a Groups<'p>) -> Self {
        Leavers { frames, groups, home: NOBODY, lists: None, cut: Cut::default(), pages: 0 }
    }

    /// The lists of the shard where a frame with this home is.
    #[cold]
    fn lists(&mut self, home: u32) -> &mut Lists {
        let shard = home & Home::SHARD;
        if self.home == NOBODY || self.home & Home::SHARD != shard {
            self.pause();
            self.home = shard;
        }
        let Home { group, shard, .. } = Home::unpack(shard);
        self.lists.get_or_insert_with(|| self.groups.shard(group, shard).0.lock(self.frames.platform()))
    }

    /// So many frames that [`Groups::admit`] admitted as one, and that nobody refers to any more, leave. The caller frees them.
    #[inline]
    pub(crate) fn leave(&mut self, pfn: Pfn, frame: &Frame, pages: u32) {
        let home = frame.home();
        if home != self.home || Home::is_listed(home) && !self.cut.extend(pfn, frame) {
            self.leave_elsewhere(pfn, frame, home);
        }
        self.pages += pages;
        if frame.state().has(flag::PARTIAL) {
            let frames = self.frames;
            self.lists(home).deferred.remove(frames, pfn.add(1));
        }
    }

    /// Whoever leaves is not a neighbour of who left before.
    #[inline(never)]
    fn leave_elsewhere(&mut self, pfn: Pfn, frame: &Frame, home: u32) {
        self.settle();
        self.lists(home);
        self.home = home;
        self.cut = if Home::is_listed(home) { Cut::one(pfn, frame) } else { Cut::default() };
    }

    /// Cut out whoever has left.
    #[inline]
    fn settle(&mut self) {
        if let Some(lists) = &mut self.lists {
            lists.leave(self.frames, &self.cut, Home::unpack(self.home).list, self.pages);
            self.cut = Cut::default();
            self.pages = 0;
        }
    }

    /// Part of a large folio is not mapped any more: queue it to be split when memory is short. Whether it was not queued
    /// before.
    #[cold]
    pub(crate) fn defer(&mut self, pfn: Pfn, frame: &Frame) -> bool {
        let frames = self.frames;
        let lists = self.lists(frame.home());
        let new = !frame.set_flag(flag::PARTIAL);
        if new {
            lists.deferred.push(frames, pfn.add(1), frames.frame(pfn.add(1)));
        }
        new
    }

    /// Let go of the lock; a stock that has grown too large goes back to the group.
    pub(crate) fn pause(&mut self) {
        self.settle();
        let home = core::mem::replace(&mut self.home, NOBODY);
        let Some(mut lists) = self.lists.take() else { return };
        if lists.stock > lists.keeps {
            let Home { group, shard, .. } = Home::unpack(home);
            let back = self.groups.surplus((group, shard), &mut lists);
            drop(lists);
            if back != 0 {
                self.groups.uncharge_all(group, back);
            }
        }
    }
}

impl<P: Platform> Drop for Leavers<'_, '_, P> {
    fn drop(&mut self) {
        self.pause();
    }
}
