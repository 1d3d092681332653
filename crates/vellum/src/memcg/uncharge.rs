//! Uncharging: takes folios that are to be freed off their LRU lists and returns their charge, in
//! batches.
//!
//! Folios that are freed together were mostly faulted in together, so they belong to the same
//! per-CPU lruvec and are often neighbours on its list. The [`Uncharger`] holds that lruvec's lock
//! from one folio to the next, removes a stretch of neighbours from the list with writes at its two
//! ends only, adds their pages to the lruvec's stock at once, and touches the memcg's counters at
//! most once for each lruvec (INV-9).

use super::Memcgs;
use super::lruvec::{LruList, Lruvec, LruvecId};
use crate::addr::Pfn;
use crate::frame::{Cut, Frame, Frames, flag};
use crate::platform::Platform;
use crate::sync::SpinGuard;

/// Takes folios off their LRU lists and returns their charge. From call to call it holds the lock
/// of the last folio's lruvec. So the caller drops the uncharger or calls [`Uncharger::unlock`]
/// before it waits, or takes the lock of a lruvec itself.
pub(crate) struct Uncharger<'a, 'p, P: Platform> {
    frames: &'a Frames<'p, P>,
    memcgs: &'a Memcgs<'p>,
    /// The word in the last folio's descriptor ([`LruvecId::pack`]): its lruvec, which is locked,
    /// and its list. [`NO_LRUVEC`] while no lruvec is locked.
    packed: u32,
    lists: Option<SpinGuard<'a, Lruvec, P>>,
    /// Folios that were passed to [`Uncharger::uncharge`] and are neighbours on the list that
    /// `packed` names. [`Uncharger::commit`] removes them from the list together.
    cut: Cut,
    /// The number of pages that [`Uncharger::commit`] adds to the lruvec's stock.
    pages: u32,
}

/// A value of [`Uncharger::packed`] that names no lruvec.
const NO_LRUVEC: u32 = !0;

impl<'a, 'p, P: Platform> Uncharger<'a, 'p, P> {
    /// Makes an uncharger that holds no lock yet.
    pub(crate) fn new(frames: &'a Frames<'p, P>, memcgs: &'a Memcgs<'p>) -> Self {
        Uncharger { frames, memcgs, packed: NO_LRUVEC, lists: None, cut: Cut::default(), pages: 0 }
    }

    /// Returns the lists of the lruvec that `packed` names. Locks that lruvec; if another one is
    /// locked, unlocks that one first.
    #[cold]
    fn lists(&mut self, packed: u32) -> &mut Lruvec {
        let lruvec = packed & LruvecId::MASK;
        if self.packed == NO_LRUVEC || self.packed & LruvecId::MASK != lruvec {
            self.unlock();
            self.packed = lruvec;
        }
        let lruvec = self.memcgs.lruvec(LruvecId::unpack(lruvec));
        self.lists.get_or_insert_with(|| lruvec.lock(self.frames.platform()))
    }

    /// Returns whether a folio is on the list of the last folio, whose lruvec is locked: until
    /// [`Uncharger::unlock`], no CPU finds the folio there, or puts a folio there.
    #[inline(always)]
    pub(crate) fn holds(&self, frame: &Frame) -> bool {
        let packed = frame.lruvec();
        packed == self.packed && LruvecId::is_listed(packed)
    }

    /// Uncharges `pages` frames that [`Memcgs::charge_frames`] charged together and that have no
    /// references left. Their descriptor names no list any more: a descriptor does only as long as
    /// its folio is on that list, by which [`Lru::isolate_at`](super::Lru::isolate_at) finds out
    /// under the lruvec's lock. The caller frees the frames, and may do so before
    /// [`Uncharger::unlock`], while the folio is still linked in its list: the lruvec stays locked
    /// until the folio is removed from the list, and removal does not read the folio's links.
    #[inline]
    pub(crate) fn uncharge(&mut self, pfn: Pfn, frame: &Frame, pages: u32) {
        let packed = frame.lruvec();
        if packed != self.packed || LruvecId::is_listed(packed) && !self.cut.extend(pfn, frame) {
            self.start_cut(pfn, frame, packed);
        }
        frame.set_lruvec(0);
        self.pages += pages;
        if frame.state().has(flag::PARTIALLY_MAPPED) {
            let frames = self.frames;
            self.lists(packed).deferred.remove(frames, pfn.add(1));
        }
    }

    /// Does the same as [`Uncharger::uncharge`] for a folio that is not partially mapped, and for
    /// which [`Uncharger::holds`] returned true.
    #[inline(always)]
    pub(crate) fn uncharge_held(&mut self, pfn: Pfn, frame: &Frame, pages: u32) {
        if !self.cut.extend(pfn, frame) {
            self.start_cut(pfn, frame, self.packed);
        }
        frame.set_lruvec(0);
        self.pages += pages;
    }

    /// Removes the folios of `cut` (neighbours on an LRU list, which are unlinked together) from
    /// their list, and starts a new cut with a folio that does not extend the old one: it is on
    /// another list, or not next to the old cut on the same list.
    #[inline(never)]
    fn start_cut(&mut self, pfn: Pfn, frame: &Frame, packed: u32) {
        self.commit();
        self.lists(packed);
        self.packed = packed;
        self.cut = if LruvecId::is_listed(packed) { Cut::one(pfn, frame) } else { Cut::default() };
    }

    /// Removes the folios of `cut` from their list, and adds `pages` to the lruvec's stock.
    #[inline]
    fn commit(&mut self) {
        if let Some(lists) = &mut self.lists {
            lists.uncharge(self.frames, &self.cut, LruList::unpack(self.packed), self.pages);
            self.cut = Cut::default();
            self.pages = 0;
        }
    }

    /// Queues a large folio, of which part is not mapped any more, to be split when memory is short
    /// (Linux: `deferred_split_folio`). The caller has a reference. Returns whether the folio was
    /// not queued before.
    #[cold]
    pub(crate) fn defer_split(&mut self, pfn: Pfn, frame: &Frame) -> bool {
        let frames = self.frames;
        let lists = self.lists(frame.lruvec());
        let new = !frame.set_flag(flag::PARTIALLY_MAPPED);
        if new {
            lists.deferred.push(frames, pfn.add(1), frames.frame(pfn.add(1)));
        }
        new
    }

    /// Removes the folios of `cut` from their list, adds their pages to the lruvec's stock, and
    /// releases the lruvec's lock. Then uncharges the pages of the stock above what the lruvec may
    /// keep ([`Memcgs::take_surplus`]).
    pub(crate) fn unlock(&mut self) {
        self.commit();
        let packed = core::mem::replace(&mut self.packed, NO_LRUVEC);
        let Some(mut lists) = self.lists.take() else { return };
        if lists.stock > lists.stock_limit {
            let lruvec = LruvecId::unpack(packed);
            let surplus = self.memcgs.take_surplus(lruvec, &mut lists);
            drop(lists);
            if surplus != 0 {
                self.memcgs.uncharge_all(lruvec.memcg, surplus);
            }
        }
    }
}

impl<P: Platform> Drop for Uncharger<'_, '_, P> {
    fn drop(&mut self) {
        self.unlock();
    }
}
