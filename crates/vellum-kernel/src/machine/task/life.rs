//! How far a process's life has come.

/// What has become of a process, as `wait` reports it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs.
    Running,
    /// A signal stopped it; whether its parent has heard.
    Stopped(u32, bool),
    /// It was stopped and goes on; its parent has not heard.
    Continued,
    /// It ended: by itself, with this status.
    Exited(u8),
    /// It ended: by this signal.
    Killed(u32),
}

impl Life {
    /// Whether it is over.
    pub fn is_over(self) -> bool {
        matches!(self, Life::Exited(_) | Life::Killed(_))
    }

    /// As `wait4` says it.
    pub fn status(self) -> u32 {
        match self {
            Life::Running => 0,
            Life::Exited(status) => u32::from(status) << 8,
            Life::Killed(signal) => signal,
            Life::Stopped(signal, _) => signal << 8 | 0x7f,
            Life::Continued => 0xffff,
        }
    }

    /// As a shell says it.
    pub fn shell_status(self) -> u32 {
        match self {
            Life::Exited(status) => status.into(),
            Life::Killed(signal) | Life::Stopped(signal, _) => 128 + signal,
            Life::Running | Life::Continued => 0,
        }
    }
}
