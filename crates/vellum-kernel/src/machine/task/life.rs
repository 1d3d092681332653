//! The states of a process, as `wait` reports them.

use linux_raw_sys::general as abi;

/// The bit of a signal that killed a process and had its core written to a file.
pub const CORE: u32 = 0x80;

/// The state of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Running,
    /// A signal stopped it. The flag is set once `wait` has reported that.
    Stopped(u32, bool),
    /// It was stopped and continues; `wait` has not reported that yet.
    Continued,
    /// It exited with this status.
    Exited(u8),
    /// This signal killed it; with [`CORE`], after its core was written.
    Killed(u32),
}

impl Life {
    /// Returns whether the process is ending or has ended.
    pub fn is_over(self) -> bool {
        matches!(self, Life::Exited(_) | Life::Killed(_))
    }

    /// Returns the status in `wait4`'s encoding.
    pub fn status(self) -> u32 {
        match self {
            Life::Running => 0,
            Life::Exited(status) => u32::from(status) << 8,
            Life::Killed(signal) => signal,
            Life::Stopped(signal, _) => signal << 8 | 0x7f,
            Life::Continued => 0xffff,
        }
    }

    /// Returns the code and the status in the information of a `SIGCHLD`.
    pub fn child_status(self) -> (u32, u32) {
        match self {
            Life::Exited(status) => (abi::CLD_EXITED, status.into()),
            Life::Killed(signal) if signal & CORE != 0 => (abi::CLD_DUMPED, signal & !CORE),
            Life::Killed(signal) => (abi::CLD_KILLED, signal),
            Life::Stopped(signal, _) => (abi::CLD_STOPPED, signal),
            Life::Continued | Life::Running => (abi::CLD_CONTINUED, abi::SIGCONT),
        }
    }

    /// Returns the status in a shell's encoding.
    pub fn shell_status(self) -> u32 {
        match self {
            Life::Exited(status) => status.into(),
            Life::Killed(signal) => 128 + (signal & !CORE),
            Life::Stopped(signal, _) => 128 + signal,
            Life::Running | Life::Continued => 0,
        }
    }
}
