//! What a thread has used: what `getrusage` tells of it, of its process, and of the children that this has waited for.

use core::ops::Add;

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
