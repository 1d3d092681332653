//! A workload of two threads: one does an operation over and over, and each is timed; the other
//! has the memory of their process reclaimed meanwhile.

use clap::ValueEnum;

/// Bytes of the process, which the reclaiming thread pages out and reads again.
pub const RESIDENT: u64 = 16 << 20;
/// Bytes that one `munmap` of [`TimedOp::Munmap`] unmaps.
pub const PIECE: u64 = 64 << 10;

/// The operation that is timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TimedOp {
    /// A page fault: the first write to a page of private memory.
    Fault,
    /// A `munmap` of [`PIECE`] bytes of touched memory.
    Munmap,
    /// A fork of the process.
    Fork,
    /// A fork of the process that leaves out the memory that is reclaimed (`MADV_DONTFORK`).
    BareFork,
}

impl TimedOp {
    /// All operations, in order.
    pub const ALL: [TimedOp; 4] = [TimedOp::Fault, TimedOp::Munmap, TimedOp::Fork, TimedOp::BareFork];

    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            TimedOp::Fault => "fault",
            TimedOp::Munmap => "munmap",
            TimedOp::Fork => "fork",
            TimedOp::BareFork => "bare-fork",
        }
    }
}
