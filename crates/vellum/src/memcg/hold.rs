//! Holds the lock of a lruvec over a stretch of folios, so that their counts can be changed by
//! stores.
//!
//! A CPU that has no reference to an anonymous folio finds it by a PTE, under the page table's
//! lock; by its LRU list or the deferred-split queue, under the lruvec's lock; or by the swap
//! cache. So as long as a CPU holds the first two locks, and the PTEs of that page table have all
//! references to a folio that is not in the swap cache, no other CPU changes the folio's counts.

use super::Memcgs;
use super::lruvec::{Lruvec, LruvecId};
use crate::frame::{Counts, Frame, Frames};
use crate::platform::Platform;
use crate::sync::SpinGuard;

/// A word that names no list, and that no descriptor has.
const NONE: u32 = !0;

/// Holds the lock of the lruvec of the last folio, if it is on the same list as the folio before.
/// Single folios of many lruvecs are not worth a lock each.
pub(crate) struct ListHold<'a, 'p, P: Platform> {
    frames: &'a Frames<'p, P>,
    memcgs: &'a Memcgs<'p>,
    /// The word in the descriptors of the folios of which the lruvec is locked
    /// ([`LruvecId::pack`]), or [`NONE`].
    held: u32,
    /// The word in the last folio's descriptor, if it names a list, or [`NONE`].
    last: u32,
    lock: Option<SpinGuard<'a, Lruvec, P>>,
}

impl<'a, 'p, P: Platform> ListHold<'a, 'p, P> {
    /// Makes a value that holds no lock yet.
    pub(crate) fn new(frames: &'a Frames<'p, P>, memcgs: &'a Memcgs<'p>) -> Self {
        ListHold { frames, memcgs, held: NONE, last: NONE, lock: None }
    }

    /// Returns whether `pages` PTEs have all references to the folio that they map, and no other
    /// CPU can take one until this value is dropped or asked about another folio. The caller has
    /// locked the PTEs' page table, and the PTEs are exclusive: so the folio is not in the swap
    /// cache (INV-15).
    #[inline(always)]
    pub(crate) fn has_all(&mut self, frame: &Frame, pages: u32) -> bool {
        (frame.lruvec() == self.held || self.hold(frame)) && frame.counts() == Counts { refs: pages, maps: pages }
    }

    /// Locks the lruvec of the folio, if it is on the list of the folio before. Returns whether it
    /// did.
    #[cold]
    fn hold(&mut self, frame: &Frame) -> bool {
        let packed = frame.lruvec();
        self.lock = None;
        self.held = NONE;
        if packed != self.last {
            self.last = if LruvecId::is_listed(packed) { packed } else { NONE };
            return false;
        }
        self.lock = Some(self.memcgs.lruvec(LruvecId::unpack(packed)).lock(self.frames.platform()));
        self.held = packed;
        // Another CPU may have isolated the folio before the lock was taken.
        frame.lruvec() == packed
    }
}
