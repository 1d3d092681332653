//! What a thread has used: what `getrusage` tells of it, of its process, and of the children that this has waited for.

use core::ops::Add;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::space::Resolved;

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
    /// Counts one that came to this end.
    #[inline]
    pub fn count<E>(&self, end: &Result<Resolved, E>) {
        if let Ok(Resolved::Major) = end {
            self.major.fetch_add(1, Relaxed);
            MAJOR.fetch_add(1, Relaxed);
        } else {
            self.minor.fetch_add(1, Relaxed);
        }
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
