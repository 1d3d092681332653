//! What a thread has used: what `getrusage` tells of it, of its process, and of the children that this has waited for.

use crate::mem::machine;
use core::ops::Add;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::stats::Counter;

/// All faults that had to wait for swap.
static MAJOR: AtomicU64 = AtomicU64::new(0);

/// How much was used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// How long processors have worked, in nanoseconds.
    pub time: u64,
    /// Faults, but for those that are counted next.
    pub minor: u64,
    /// Faults that had to wait for swap.
    pub major: u64,
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage { time: self.time + other.time, minor: self.minor + other.minor, major: self.major + other.major }
    }
}

/// A thread's faults, the minor and the major ones.
#[derive(Debug, Default)]
pub struct Faults {
    minor: AtomicU64,
    major: AtomicU64,
}

impl Faults {
    /// Counts one, and deals with it.
    #[inline]
    pub fn count<T>(&self, deal: impl FnOnce() -> T) -> T {
        // Nothing else runs on this processor meanwhile.
        let brought = || machine().counter_here(Counter::SwapIn);
        let before = brought();
        let result = deal();
        if brought() == before {
            self.minor.fetch_add(1, Relaxed);
        } else {
            self.major.fetch_add(1, Relaxed);
            MAJOR.fetch_add(1, Relaxed);
        }
        result
    }

    /// How many there were.
    pub fn usage(&self) -> Usage {
        Usage { time: 0, minor: self.minor.load(Relaxed), major: self.major.load(Relaxed) }
    }
}

/// All faults of user mode that had to wait for swap (`pgmajfault`).
pub fn major_faults() -> u64 {
    MAJOR.load(Relaxed)
}
