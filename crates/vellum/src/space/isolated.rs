//! Folios that were taken off their lists together, to see whether they can go.

use crate::frame::Frame;
use crate::machine::Machine;
use crate::platform::Platform;

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

    /// Whether an area was found that maps one of these, and is locked.
    pub(crate) fn is_locked(self, frame: &Frame) -> bool {
        frame.isolated_by() == self.0 | LOCKED
    }
}
