//! A gate that a starved operation closes, so that others stop disturbing it (INV-21).
//!
//! Some operations check without a lock, then lock, and retry if something changed in between. That
//! is cheap but unbounded: other CPUs may cause a change each time. So such an operation counts its
//! retries ([`Retries`]). At the limit it closes a gate that every operation that could disturb it
//! passes before it begins. Operations that are past the gate finish, and new ones wait. From
//! then on only an operation that was past the gate, or that has waited as long as the bound below
//! says, can make the starved one retry.
//!
//! **No wait at a gate is unbounded.** Several operations may hold a gate closed; it is open when
//! none does. Each of them, when it ends, counts as one opening. A CPU that arrives at a closed
//! gate waits for at most as many openings as there were operations holding the gate closed on its
//! arrival. Then it proceeds, even if others have closed the gate since. So a stream of starved
//! operations cannot keep a CPU out.
//!
//! Deadlock: an operation that has closed a gate must not wait for a task that waits at that gate.
//! So it closes the gate only where every task for which it still waits has passed the gate
//! already.

use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// The number of attempts after which an operation closes the gate.
const TRIES: u32 = 8;

/// A gate: see the module's text. A gate of zeros is open.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    /// The number of operations that hold the gate closed at present.
    closed: AtomicU32,
    /// The number of times an operation has reopened the gate. Wraps around.
    openings: AtomicU32,
}

impl Gate {
    /// Returns true if at least one operation holds the gate closed.
    #[inline]
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed) != 0
    }

    /// Waits while the gate is closed, within the bound in the module's text. The caller holds no
    /// spin lock, and nothing for which an operation that has closed the gate may wait. An open
    /// gate costs one load.
    #[inline]
    pub(crate) fn pass<C: Cpus>(&self, cpus: &C) {
        if self.is_closed() {
            self.wait(cpus);
        }
    }

    /// Waits until the gate is open, or has been reopened as often as there were operations holding
    /// it closed on entry.
    #[cold]
    fn wait<C: Cpus>(&self, cpus: &C) {
        let seen = self.openings.load(Ordering::Acquire);
        let ahead = self.closed.load(Ordering::Acquire);
        while self.is_closed() && self.openings.load(Ordering::Acquire).wrapping_sub(seen) < ahead {
            cpus.wait();
        }
    }
}

/// The retry counter of one operation. Through it the operation closes the gate; dropping the
/// counter reopens the gate.
#[derive(Debug)]
pub(crate) struct Retries<'g> {
    gate: &'g Gate,
    /// The number of failed attempts so far.
    tries: u32,
    /// True while this operation holds the gate closed.
    closed: bool,
}

impl<'g> Retries<'g> {
    /// Returns a counter with no failed attempt, for an operation that can be disturbed by
    /// operations that pass `gate`.
    #[inline]
    pub(crate) fn new(gate: &'g Gate) -> Self {
        Retries { gate, tries: 0, closed: false }
    }

    /// Counts a failed attempt. Returns true if the limit is reached and the caller has to close
    /// the gate.
    pub(crate) fn count_retry(&mut self) -> bool {
        self.tries += 1;
        self.tries >= TRIES
    }

    /// Counts a failed attempt, and closes the gate if the limit is reached.
    pub(crate) fn retry(&mut self) {
        if self.count_retry() {
            self.close();
        }
    }

    /// Closes the gate, unless this operation holds it closed already.
    pub(crate) fn close(&mut self) {
        if !self.closed {
            self.closed = true;
            self.gate.closed.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Returns true if this operation holds the gate closed.
    #[inline]
    pub(crate) fn has_closed(&self) -> bool {
        self.closed
    }

    /// Reopens the gate if this operation holds it closed. The count of failed attempts stays, so
    /// the next failed attempt closes the gate again.
    #[inline]
    pub(crate) fn open(&mut self) {
        if self.closed {
            self.closed = false;
            self.gate.openings.fetch_add(1, Ordering::Release);
            self.gate.closed.fetch_sub(1, Ordering::Release);
        }
    }
}

impl Drop for Retries<'_> {
    #[inline]
    fn drop(&mut self) {
        self.open();
    }
}
