//! Folios that were taken off their lists together, to see whether they can go.

use crate::addr::Pfn;
use crate::frame::{Counts, Frame, flag};
use crate::group::LruList;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::tlb::free_unmapped;

/// Folios that may be isolated together.
pub(crate) const BATCH: usize = 128;

/// What a folio says besides of which it is known that it is locked. (Numbers don't get there.)
const LOCKED: u64 = 1 << 63;

/// Who has isolated them: what each of them says of that.
#[derive(Clone, Copy)]
pub(crate) struct Isolated(u64);

impl Isolated {
    /// None yet.
    pub(crate) fn new<P: Platform>(machine: &Machine<'_, P>) -> Self {
        Isolated(machine.next_number())
    }

    /// One more, which the caller has isolated just now.
    #[inline]
    pub(crate) fn add(self, frame: &Frame) {
        frame.set_isolated_by(self.0);
    }

    /// Whether a folio that somebody has isolated is one of these, and not known to be locked.
    #[inline]
    pub(super) fn may_go(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0
    }

    /// A folio that somebody has isolated is mapped by an area that is locked.
    pub(super) fn lock(self, frame: &Frame) {
        if self.may_go(frame) {
            frame.set_isolated_by(self.0 | LOCKED);
        }
    }

    /// These are no longer isolated: what nobody has any more is freed, and the others go back to their lists. How many pages (of 4 KiB)
    /// were freed.
    pub(crate) fn settle<'p, P: Platform, T: Copy>(
        self,
        machine: &Machine<'p, P>,
        these: &mut [T],
        folio: impl Fn(&T) -> (Pfn, &'p Frame) + Copy,
    ) -> u64 {
        // Those that nobody has come to the front, and leave their group together, for whose lock the others must not have to wait.
        let mut gone = these.iter().take_while(|one| self.is_gone(machine, folio(one))).count();
        for n in gone + 1..these.len() {
            if self.is_gone(machine, folio(&these[n])) {
                these[gone] = these[n];
                gone += 1;
            }
        }
        let dropped = these[..gone].iter().map(folio);
        free_unmapped(machine, dropped.inspect(|(head, frame)| machine.frames().put_last(*head, frame)))
    }

    /// Whether nobody has a folio any more. If somebody does, it goes back to its list.
    #[inline]
    fn is_gone<P: Platform>(self, machine: &Machine<'_, P>, (head, frame): (Pfn, &Frame)) -> bool {
        let unmapped = || frame.counts() == Counts { refs: 1, maps: 0 };
        // Then nobody can find it any more to have it anew.
        let uncached = || machine.uncache(head, frame, unmapped) && unmapped();
        let gone = unmapped() && (!frame.has(flag::SWAP_CACHED) || uncached());
        if !gone {
            let list = if self.is_locked(frame) { LruList::Unevictable } else { LruList::evictable(frame) };
            frame.clear_flag(flag::ISOLATED);
            machine.groups().relist(machine.frames(), head, None, list);
            machine.put_refs(head, frame, 1);
        }
        gone
    }

    /// Whether an area was found that maps one of these, and is locked.
    pub(crate) fn is_locked(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 | LOCKED
    }
}
