//! The resources that a thread has used: `getrusage` reports them for a thread, for its process,
//! and for the children that the process has reaped.

use core::ops::Add;

/// An amount of resources.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// CPU time in nanoseconds.
    pub time: u64,
    /// The number of minor faults.
    pub minor: u64,
    /// The number of major faults: those that waited for swap.
    pub major: u64,
    /// The largest resident set of any of those whose usage this is, in bytes.
    pub peak_rss: u64,
}

impl Add for Usage {
    type Output = Usage;

    fn add(self, other: Usage) -> Usage {
        Usage {
            time: self.time + other.time,
            minor: self.minor + other.minor,
            major: self.major + other.major,
            peak_rss: self.peak_rss.max(other.peak_rss),
        }
    }
}
