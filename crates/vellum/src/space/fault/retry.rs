//! Bounded retries of operations that run beside changes and other faults.

use crate::arch::{Arch, UserRange};
use crate::platform::Platform;
use crate::sync::Retries;

use crate::space::AddressSpace;
use crate::space::ground::Change;

/// The state of an operation that runs beside changes and has to try again: what it has done so
/// that it ends after a bounded number of tries (INV-21).
pub(in crate::space) struct Retry<'s, 'm, P: Platform, A: Arch> {
    /// Its claim of the addresses, once it had to wait for a change.
    pub(in crate::space) turn: Option<Change<'s, 'm, P, A>>,
    /// The tries that are left, and whether it has closed the gate.
    pub(in crate::space) patience: Retries<'s>,
}

impl<'s, 'm, P: Platform, A: Arch> Retry<'s, 'm, P, A> {
    /// Returns the state of an operation that is about to try for the second time.
    pub(in crate::space) fn new(space: &'s AddressSpace<'m, P, A>) -> Self {
        Retry { turn: None, patience: Retries::new(&space.tables.gate) }
    }

    /// Waits until no change is at work on `range`, and claims it.
    pub(in crate::space) fn wait(&mut self, space: &'s AddressSpace<'m, P, A>, range: UserRange) {
        // A change that arrived before may wait at the gate.
        self.patience.open();
        drop(self.turn.take());
        self.turn = Some(Change::wait_turn(space, range));
    }

    /// Counts a try that failed. When the tries are used up, claims `range`, so that no change of
    /// the VMAs is at work there, and closes the gate, so that no fault, reclaim or advice begins.
    pub(in crate::space) fn again(&mut self, space: &'s AddressSpace<'m, P, A>, range: UserRange) {
        if self.patience.count_retry() && !self.patience.has_closed() {
            if self.turn.is_none() {
                self.turn = Some(Change::wait_turn(space, range));
            }
            self.patience.close();
        }
    }
}

impl<P: Platform, A: Arch> Drop for Retry<'_, '_, P, A> {
    /// The end of a turn is a write to the VMAs, which passes the gate.
    fn drop(&mut self) {
        self.patience.open();
    }
}
