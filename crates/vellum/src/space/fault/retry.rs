//! Bounded retries of operations that other faults and changes of VMAs disturb.

use crate::arch::UserRange;
use crate::platform::Platform;
use crate::sync::Retries;

use crate::space::AddressSpace;
use crate::space::ground::Change;

/// The state of a fault, pin or userfaultfd fill that has to try again, because another CPU has
/// changed the VMAs or the PTEs. It bounds the number of tries (INV-21).
pub(in crate::space) struct Retry<'s, 'm, P: Platform> {
    /// The operation's claim of its addresses, which keeps changes of VMAs away from them. `None`
    /// before the operation first has to wait for a change.
    pub(in crate::space) claim: Option<Change<'s, 'm, P>>,
    /// The number of tries that failed, and whether the operation has closed the gate, at which new
    /// operations wait ([`crate::sync::Retries`]).
    pub(in crate::space) retries: Retries<'s>,
}

impl<'s, 'm, P: Platform> Retry<'s, 'm, P> {
    /// Returns the state of an operation that is about to try for the second time.
    pub(in crate::space) fn new(space: &'s AddressSpace<'m, P>) -> Self {
        Retry { claim: None, retries: Retries::new(&space.tables.gate) }
    }

    /// Waits until no change of VMAs is at work on `range`, and claims `range`. Opens the gate
    /// before that.
    pub(in crate::space) fn wait(&mut self, space: &'s AddressSpace<'m, P>, range: UserRange) {
        // The claim waits for earlier changes, and one of these may be waiting at the gate.
        self.retries.open();
        drop(self.claim.take());
        self.claim = Some(Change::claim_unlocked(space, range));
    }

    /// Counts a try that failed. When the tries are used up, claims `range`, so that no change of
    /// the VMAs is at work there, and closes the gate, so that no other fault, reclaim or `madvise`
    /// of the space begins.
    pub(in crate::space) fn again(&mut self, space: &'s AddressSpace<'m, P>, range: UserRange) {
        if self.retries.count_retry() && !self.retries.has_closed() {
            if self.claim.is_none() {
                self.claim = Some(Change::claim_unlocked(space, range));
            }
            self.retries.close();
        }
    }
}

impl<P: Platform> Drop for Retry<'_, '_, P> {
    /// Opens the gate before the claim ends: ending the claim locks the VMAs for writing, which
    /// waits at a closed gate.
    fn drop(&mut self) {
        self.retries.open();
    }
}
