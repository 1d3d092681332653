//! A gate that an operation closes which has begun again too often.
//!
//! Some operations look first and lock then, and begin again if something has changed meanwhile.
//! That is cheap, and nothing promises that it ends: whatever changes things may do so each time.
//! So such an operation counts its tries ([`Patience`]). When it has used them up it closes a gate,
//! which all that might disturb it pass before they begin. What is under way ends, nothing new
//! begins, and the operation is alone at last. Its tries after that are bounded by what it does
//! itself (INV-21).
//!
//! **Nothing waits at a gate for ever.** What comes waits for as many openings as the gate was
//! closed times when it came, and goes on then, whether the gate has been closed again or not: so
//! each CPU gets past an operation once at most, and no stream of them keeps it out.
//!
//! What waits at a gate may be waited for by others, but never by what has closed it. So an
//! operation closes a gate only where it waits for nothing but what is past the gate already.

use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// Tries after which an operation has the others wait.
const TRIES: u32 = 8;

/// See the module's text. Zero is open.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// How many operations have it closed now.
    closed: AtomicU32,
    /// How often it was opened.
    openings: AtomicU32,
}

impl Gate {
    /// Returns whether it is closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) != 0
    }

    /// Waits while it is closed; see the module's text. The caller holds no spin lock, and nothing
    /// that an operation waits for that has closed the gate. An open gate costs one load.
    #[inline]
    pub(crate) fn pass<C: Cpus>(&self, cpus: &C) {
        if self.is_closed() {
            self.wait(cpus);
        }
    }

    #[cold]
    fn wait<C: Cpus>(&self, cpus: &C) {
        let seen = self.openings.load(Ordering::Acquire);
        let ahead = self.closed.load(Ordering::Acquire);
        while self.is_closed() && self.openings.load(Ordering::Acquire).wrapping_sub(seen) < ahead {
            cpus.wait();
        }
    }
}

/// An operation's tries, and the gate that it closes when they are used up, until this is dropped.
#[derive(Debug)]
pub(crate) struct Patience<'g> {
    gate: &'g Gate,
    tries: u32,
    closed: bool,
}

impl<'g> Patience<'g> {
    /// Nothing was tried yet.
    #[inline]
    pub(crate) fn new(gate: &'g Gate) -> Self {
        Patience { gate, tries: 0, closed: false }
    }

    /// Counts a try that was in vain; returns whether the tries are used up.
    pub(crate) fn again(&mut self) -> bool {
        self.tries += 1;
        self.tries >= TRIES
    }

    /// Counts a try that was in vain, and closes the gate when they are used up.
    pub(crate) fn try_again(&mut self) {
        if self.again() {
            self.close();
        }
    }

    /// Closes the gate, if it is not closed by this operation already.
    pub(crate) fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            self.gate.closed.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns whether this operation has the gate closed.
    #[inline]
    pub(crate) fn has_closed(&self) -> bool {
        self.closed
    }

    /// Opens the gate again, if this operation has closed it; its tries are used up as before.
    #[inline]
    pub(crate) fn open(&mut self) {
        if self.closed {
            self.closed = false;
            self.gate.openings.fetch_add(1, Ordering::Release);
            self.gate.closed.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Patience<'_> {
    #[inline]
    fn drop(&mut self) {
        self.open();
    }
}
