//! What the threads of a program share.

use core::sync::atomic::AtomicU32;

/// A process.
pub struct Process {
    /// Its number.
    pub pid: u32,
    /// How it ended, as a shell says it: an exit status, or 128 and a signal.
    pub status: AtomicU32,
}
