//! What a family has together goes from each space that has it, and is written once.
//!
//! Where a part of an isolated folio was written is remembered, with a reference to the slots, until all that was isolated with it is
//! settled. The entries of the next space turn to the same slots. What is there is still what the folio holds: only a part that a
//! space did not have exclusively is remembered, so nobody wrote in place then; and nobody can have become able to since, because who
//! has isolated the folio has a reference without a mapping, so that whoever writes gets a copy.

use arrayvec::ArrayVec;

use crate::addr::Pfn;
use crate::frame::Frame;
use crate::machine::Machine;
use crate::platform::Platform;
use crate::swap::{Slots, SwapRun};

/// Folios that may be isolated together.
pub(crate) const BATCH: usize = 128;
/// Pieces that are remembered; what is more scattered may be written again.
const PIECES: usize = 128;

/// What a folio says besides of which it is known that it is locked. (Numbers don't get there.)
const LOCKED: u64 = 1 << 63;

/// What is known of folios that were taken off their lists together: which they are, and what was written of them.
pub(crate) struct Isolated {
    /// What each of them says of who has isolated it.
    by: u64,
    written: ArrayVec<Piece, PIECES>,
    /// Where the last one was found: the next space has them in about the same order.
    last: usize,
}

/// Frames in a row, in slots in a row.
#[derive(Clone, Copy)]
struct Piece {
    first: Pfn,
    slots: SwapRun,
}

impl Isolated {
    /// None yet.
    pub(crate) fn new<P: Platform>(machine: &Machine<'_, P>) -> Self {
        Isolated { by: machine.next_number(), written: ArrayVec::new(), last: 0 }
    }

    /// One more, which the caller has isolated just now.
    #[inline]
    pub(crate) fn add(&self, frame: &Frame) {
        frame.set_isolated_by(self.by);
    }

    /// Whether a folio that somebody has isolated is one of these, and not known to be locked.
    #[inline]
    pub(super) fn may_go(&self, frame: &Frame) -> bool {
        frame.isolated_by() == self.by
    }

    /// A folio that somebody has isolated is mapped by an area that is locked.
    pub(super) fn lock(&self, frame: &Frame) {
        if self.may_go(frame) {
            frame.set_isolated_by(self.by | LOCKED);
        }
    }

    /// Whether an area was found that maps one of these, and is locked.
    pub(crate) fn is_locked(&self, frame: &Frame) -> bool {
        frame.isolated_by() == self.by | LOCKED
    }

    /// These frames are in these slots, as long as the caller has them.
    pub(super) fn remember<P: Platform>(&mut self, machine: &Machine<'_, P>, first: Pfn, slots: SwapRun) {
        // SAFETY: the caller has a reference to each.
        if !self.written.is_full() && unsafe { machine.swaps().duplicate(machine.platform(), slots) }.is_ok() {
            self.written.push(Piece { first, slots });
        }
    }

    /// The slots where frames are from this one on, up to so many of them, in blocks of this order. The caller has a reference to
    /// each slot.
    pub(super) fn written<P: Platform>(
        &mut self,
        machine: &Machine<'_, P>,
        from: Pfn,
        most: u32,
        order: u8,
    ) -> Option<SwapRun> {
        let (before, after) = self.written.split_at(self.last);
        let found = after.iter().chain(before).position(|piece| piece.skips(from).is_some())?;
        self.last = (self.last + found) % self.written.len();
        let Piece { slots, .. } = self.written[self.last];
        let skip = self.written[self.last].skips(from)?;
        let count = most.min(slots.slots.count - skip) >> order << order;
        let slots = SwapRun { slots: Slots { first: slots.slots.first + skip, count }, ..slots };
        if count == 0 || !slots.slots.first.is_multiple_of(1 << order) {
            return None;
        }
        // SAFETY: this has a reference to each.
        unsafe { machine.swaps().duplicate(machine.platform(), slots) }.is_ok().then_some(slots)
    }

    /// All is settled.
    pub(crate) fn forget<P: Platform>(self, machine: &Machine<'_, P>) {
        for piece in &self.written {
            // SAFETY: the references of `remember`.
            unsafe { machine.swaps().release(machine.frames(), piece.slots) };
        }
    }
}

impl Piece {
    /// How far into it a frame is.
    #[inline]
    fn skips(&self, frame: Pfn) -> Option<u32> {
        frame.0.checked_sub(self.first.0).filter(|skip| *skip < self.slots.slots.count)
    }
}
