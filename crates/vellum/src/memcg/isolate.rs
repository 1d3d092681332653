//! Isolates folios that a page table maps, one after the other.
//!
//! Most of them are neighbours on their LRU list, as they were added to it in the order of their
//! addresses. So the lock of their lruvec is held from one to the next, and neighbours are unlinked
//! together.

use super::lruvec::{Lruvec, LruvecId};
use super::{LruList, Memcgs};
use crate::addr::Pfn;
use crate::frame::{Cut, Frame, Frames};
use crate::platform::Platform;
use crate::sync::SpinGuard;

/// A word that names no list, and that no descriptor has.
const NONE: u32 = !0;

/// Isolates folios. Holds the lock of the last folio's lruvec until it is dropped.
pub(crate) struct Isolator<'a, 'p, P: Platform> {
    frames: &'a Frames<'p, P>,
    memcgs: &'a Memcgs<'p>,
    /// The word in the descriptors of the folios of `cut`, as it was before, or [`NONE`].
    packed: u32,
    lists: Option<SpinGuard<'a, Lruvec, P>>,
    /// Isolated folios that are still linked in their list, neighbours there.
    cut: Cut,
    /// The number of frames of these folios.
    pages: u32,
}

impl<'a, 'p, P: Platform> Isolator<'a, 'p, P> {
    /// Makes a value that holds no lock yet.
    pub(crate) fn new(frames: &'a Frames<'p, P>, memcgs: &'a Memcgs<'p>) -> Self {
        Isolator { frames, memcgs, packed: NONE, lists: None, cut: Cut::default(), pages: 0 }
    }

    /// Isolates a folio of `pages` frames, if it is on `list` of its lruvec: removes it from the
    /// list and takes a reference for the caller. The caller keeps the folio's other references
    /// from being dropped meanwhile, and may hold page-table locks. Returns whether the folio was
    /// on the list.
    #[inline]
    pub(crate) fn isolate(&mut self, (pfn, frame, pages): (Pfn, &Frame, u32), list: LruList) -> bool {
        let packed = frame.lruvec();
        if LruList::unpack(packed) != Some(list) {
            return false;
        }
        if (packed != self.packed || !self.cut.extend(pfn, frame)) && !self.start_cut(pfn, frame, packed) {
            return false;
        }
        frame.set_lruvec(packed & LruvecId::MASK);
        self.frames.get_counts(pfn, frame, 1, 0);
        self.pages += pages;
        true
    }

    /// Begins a cut with a folio that does not extend the last one. Returns false if the folio is
    /// not on the list any more that `packed` names: the word was read without the lock.
    #[inline(always)]
    fn start_cut(&mut self, pfn: Pfn, frame: &Frame, packed: u32) -> bool {
        self.commit();
        if self.lists.is_none() || (packed ^ self.packed) & LruvecId::MASK != 0 {
            self.lock(packed);
        }
        self.packed = packed;
        let is_listed = frame.lruvec() == packed;
        if is_listed {
            self.cut = Cut::one(pfn, frame);
        }
        is_listed
    }

    /// Locks the lruvec that `packed` names, and no other.
    #[cold]
    fn lock(&mut self, packed: u32) {
        self.lists = None;
        self.lists = Some(self.memcgs.lruvec(LruvecId::unpack(packed)).lock(self.frames.platform()));
    }

    /// Removes the folios of the cut from their list.
    #[inline(always)]
    fn commit(&mut self) {
        if let Some((lists, list)) = self.lists.as_mut().zip(LruList::unpack(self.packed)) {
            lists.remove_all(self.frames, &self.cut, list, self.pages);
        }
        (self.cut, self.pages) = (Cut::default(), 0);
    }
}

impl<P: Platform> Drop for Isolator<'_, '_, P> {
    fn drop(&mut self) {
        self.commit();
    }
}
