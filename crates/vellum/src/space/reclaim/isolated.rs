//! Folios that were taken off their lists together, to see whether they can go.

use crate::addr::Pfn;
use crate::frame::{Counts, Frame, flag};
use crate::machine::Machine;
use crate::memcg::{LruList, LruvecId};
use crate::platform::Platform;
use crate::tlb::free_unmapped;

/// Folios, or rows of them, that may be isolated together.
pub(crate) const ISOLATION_BATCH: usize = 128;

/// What a folio says besides of which it is known that it is locked. (Numbers don't get there.)
const LOCKED: u64 = 1 << 63;
/// And of which it is known that nobody has it any more, whatever it counts.
const UNMAPPED: u64 = 1 << 62;

/// Who has isolated them: what each of them says of that.
#[derive(Clone, Copy)]
pub(crate) struct IsolationBatch(u64);

impl IsolationBatch {
    /// None yet.
    pub(crate) fn new<P: Platform>(machine: &Machine<'_, P>) -> Self {
        IsolationBatch(machine.next_serial())
    }

    /// One more, which the caller has isolated just now.
    #[inline]
    pub(crate) fn add(self, frame: &Frame) {
        frame.set_isolated_by(self.0);
    }

    /// Whether a folio is one of these, and not known to be locked.
    #[inline]
    pub(super) fn may_go(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 && !LruvecId::is_listed(frame.lruvec())
    }

    /// Whether a folio may go all of which is mapped by these pages, and that nobody has otherwise:
    /// without them nobody finds it any more.
    #[inline]
    pub(super) fn is_sole(self, frame: &Frame, pages: u32) -> bool {
        let state = frame.state();
        frame.counts() == Counts { refs: pages + 1, maps: pages }
            && pages == 1 << state.order()
            && !state.has(flag::OBJECT | flag::SWAP_CACHED)
            && self.may_go(frame)
    }

    /// Such a folio is unmapped and flushed when it is settled; or it isn't.
    #[inline]
    pub(super) fn set_unmapped(self, frame: &Frame, unmapped: bool) {
        frame.set_isolated_by(self.0 | if unmapped { UNMAPPED } else { 0 });
    }

    /// Whether no space has a folio any more.
    pub(crate) fn is_unmapped(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 | UNMAPPED || frame.counts().maps == 0
    }

    /// A folio is mapped by a VMA that is locked.
    pub(super) fn lock(self, frame: &Frame) {
        if self.may_go(frame) {
            frame.set_isolated_by(self.0 | LOCKED);
        }
    }

    /// The folios in these rows of frames are no longer isolated: what nobody has any more is
    /// freed, and the others go back to their lists. How many pages (of 4 KiB) were freed.
    #[inline(never)]
    pub(crate) fn putback<P: Platform>(self, machine: &Machine<'_, P>, these: impl Iterator<Item = (Pfn, u32)>) -> u64 {
        let is_gone = |head, frame: &_| {
            let gone = self.is_gone(machine, head, frame);
            if gone {
                machine.frames().put_all(head, frame);
            }
            gone
        };
        let stays = |head, frame: &_| {
            let list = if self.is_locked(frame) { LruList::Unevictable } else { LruList::evictable(frame) };
            machine.memcgs().relist(machine.frames(), head, None, list);
            machine.put_refs(head, frame, 1);
        };
        free_unmapped(machine, these, is_gone, stays)
    }

    /// Whether nobody has a folio any more.
    #[inline]
    fn is_gone<P: Platform>(self, machine: &Machine<'_, P>, head: Pfn, frame: &Frame) -> bool {
        if frame.isolated_by() == self.0 | UNMAPPED {
            return true;
        }
        let unmapped = || frame.counts() == Counts { refs: 1, maps: 0 };
        // Then nobody can find it any more to have it anew.
        let uncached = || machine.uncache_in_parts(head, frame, unmapped) && unmapped();
        unmapped() && (!frame.has(flag::SWAP_CACHED) || uncached())
    }

    /// Whether a VMA was found that maps one of these, and is locked.
    pub(crate) fn is_locked(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 | LOCKED
    }
}
