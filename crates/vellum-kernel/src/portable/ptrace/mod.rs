//! Tracing (`ptrace`): what a tracer asks for, and what it is told of a stop.

use crate::errno::Errno;
use linux_raw_sys::general::{SIGSTOP, SIGTRAP};
use linux_raw_sys::ptrace as abi;

/// All options that a tracer may set.
const OPTIONS: u32 = abi::PTRACE_O_TRACESYSGOOD
    | abi::PTRACE_O_TRACEFORK
    | abi::PTRACE_O_TRACEVFORK
    | abi::PTRACE_O_TRACECLONE
    | abi::PTRACE_O_TRACEEXEC
    | abi::PTRACE_O_TRACEVFORKDONE
    | abi::PTRACE_O_TRACEEXIT
    | abi::PTRACE_O_TRACESECCOMP
    | abi::PTRACE_O_EXITKILL;
/// The message of a stop at the beginning of a system call (`PTRACE_EVENTMSG_SYSCALL_ENTRY`).
const ENTRY: u64 = 1;
/// The message of a stop at its end.
const EXIT: u64 = 2;
/// The size in bytes of `struct ptrace_syscall_info`.
pub const INFO_SIZE: usize = 88;

/// Checks the options that a tracer wants.
///
/// # Errors
/// `EINVAL`: one is unknown.
pub fn options(wanted: u64) -> Result<u32, Errno> {
    match u32::try_from(wanted) {
        Ok(options) if options & !OPTIONS == 0 => Ok(options),
        _ => Err(Errno::EINVAL),
    }
}

/// The way in which a traced thread goes on after a stop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Resume {
    /// It runs until the next event.
    #[default]
    Run,
    /// It also stops where a system call begins or ends.
    Calls,
    /// It stops after an instruction.
    Step,
}

/// The reason for which a traced thread has stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It is about to take a signal.
    Signal(u32),
    /// A system call begins.
    CallBegins,
    /// A system call ends.
    CallEnds,
    /// An event that the tracer wants to know about (`PTRACE_EVENT_`).
    Event(u32),
    /// A signal has stopped the process, or with `SIGTRAP`, its tracer has interrupted the thread
    /// (`PTRACE_EVENT_STOP`).
    Stop(u32),
}

/// A stop, as the tracer sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The reason.
    pub cause: Cause,
    /// The status, as `waitid` reports it: a signal, and above its 8 bits an event.
    pub status: u32,
    /// The event's message (`PTRACE_GETEVENTMSG`).
    pub message: u64,
}

impl Stop {
    /// Describes a stop of a thread with these options; `is_seized` as [`abi::PTRACE_SEIZE`] makes
    /// it.
    pub fn new(cause: Cause, options: u32, is_seized: bool, message: u64) -> Self {
        let good = if options & abi::PTRACE_O_TRACESYSGOOD != 0 { 0x80 } else { 0 };
        let (status, message) = match cause {
            Cause::Signal(signal) => (signal, message),
            Cause::CallBegins => (SIGTRAP | good, ENTRY),
            Cause::CallEnds => (SIGTRAP | good, EXIT),
            Cause::Event(event) => (SIGTRAP | event << 8, message),
            Cause::Stop(signal) if is_seized => (signal | abi::PTRACE_EVENT_STOP << 8, message),
            Cause::Stop(SIGTRAP) => (SIGSTOP, message),
            Cause::Stop(signal) => (signal, message),
        };
        Self { cause, status, message }
    }

    /// Returns the status in `wait4`'s encoding.
    pub fn wait_status(&self) -> u32 {
        self.status << 8 | 0x7f
    }

    /// Returns whether the stop has a signal's information: all have, but for a signal that stopped
    /// the process of a thread that was not seized.
    pub fn has_info(&self) -> bool {
        !matches!(self.cause, Cause::Stop(_)) || self.status >> 8 != 0
    }

    /// Returns whether a signal that the tracer passes on reaches the thread as one of its own.
    pub fn takes_signal(&self) -> bool {
        matches!(self.cause, Cause::CallBegins | Cause::CallEnds)
    }

    /// Returns `struct ptrace_syscall_info`, and how many of its bytes are meant. `call` is the
    /// number of the system call, `arguments` are its arguments, and `answer` its result.
    pub fn call_info(
        &self,
        arch: u32,
        [pc, sp]: [u64; 2],
        call: u64,
        arguments: [u64; 6],
        answer: u64,
    ) -> ([u8; INFO_SIZE], usize) {
        const MOST_ERRORS: u64 = 4095;
        let mut bytes = [0; INFO_SIZE];
        let mut put = |at: usize, value: u64| bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        put(8, pc);
        put(16, sp);
        let is_good = self.status & 0x80 != 0;
        let seccomp = self.cause == Cause::Event(abi::PTRACE_EVENT_SECCOMP);
        let (kind, size) = match self.cause {
            Cause::CallEnds if is_good => {
                put(24, answer);
                put(32, u64::from(answer >= MOST_ERRORS.wrapping_neg()));
                (abi::PTRACE_SYSCALL_INFO_EXIT, 33)
            }
            cause if seccomp || is_good && cause == Cause::CallBegins => {
                for (index, word) in core::iter::once(call).chain(arguments).enumerate() {
                    put(24 + 8 * index, word);
                }
                if seccomp {
                    put(80, self.message);
                    (abi::PTRACE_SYSCALL_INFO_SECCOMP, 84)
                } else {
                    (abi::PTRACE_SYSCALL_INFO_ENTRY, 80)
                }
            }
            _ => (abi::PTRACE_SYSCALL_INFO_NONE, 24),
        };
        bytes[0] = kind as u8;
        bytes[4..8].copy_from_slice(&arch.to_le_bytes());
        (bytes, size)
    }
}

/// Returns the event by which a tracer is told of a new thread, if its options ask for it, and
/// whether it traces the new thread. `flags` are those of `clone`.
pub fn event_of_clone(options: u32, flags: u64, exit_signal: u32) -> Option<u32> {
    use linux_raw_sys::general::{CLONE_UNTRACED, CLONE_VFORK, SIGCHLD};
    let event = match exit_signal {
        _ if flags & u64::from(CLONE_UNTRACED) != 0 => return None,
        _ if flags & u64::from(CLONE_VFORK) != 0 => abi::PTRACE_EVENT_VFORK,
        SIGCHLD => abi::PTRACE_EVENT_FORK,
        _ => abi::PTRACE_EVENT_CLONE,
    };
    (options >> event & 1 != 0).then_some(event)
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::{CLONE_UNTRACED, CLONE_VFORK, SIGCHLD, SIGUSR1};

    fn stop(cause: Cause, options: u32, is_seized: bool) -> Stop {
        Stop::new(cause, options, is_seized, 7)
    }

    #[test]
    fn unknown_options_are_refused() {
        assert_eq!(options(0x1000ff), Ok(0x1000ff));
        assert_eq!([0x100, 1 << 20 | 1 << 8, 1 << 32].map(options), [Err(Errno::EINVAL); 3]);
    }

    #[test]
    fn a_status_has_the_signal_and_the_event() {
        let good = abi::PTRACE_O_TRACESYSGOOD;
        assert_eq!(stop(Cause::Signal(SIGUSR1), good, true).wait_status(), SIGUSR1 << 8 | 0x7f);
        assert_eq!(stop(Cause::CallBegins, 0, true).status, SIGTRAP);
        assert_eq!(stop(Cause::CallEnds, good, true).status, SIGTRAP | 0x80);
        assert_eq!(stop(Cause::Event(4), good, false).status, SIGTRAP | 4 << 8);
        assert_eq!(stop(Cause::Stop(SIGSTOP), 0, true).status, SIGSTOP | 128 << 8);
        assert_eq!(stop(Cause::Stop(SIGSTOP), 0, false).status, SIGSTOP);
        assert!(!stop(Cause::Stop(SIGSTOP), 0, false).has_info() && stop(Cause::Stop(SIGSTOP), 0, true).has_info());
    }

    #[test]
    fn the_information_of_a_call_depends_on_the_stop() {
        let good = abi::PTRACE_O_TRACESYSGOOD;
        let info = |stop: Stop, answer| stop.call_info(0xc000_003e, [0x1000, 0x2000], 59, [1, 2, 3, 4, 5, 6], answer);
        let word = |bytes: &[u8; INFO_SIZE], at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let (bytes, size) = info(stop(Cause::CallBegins, good, true), 0);
        assert_eq!((bytes[0], size, word(&bytes, 8), word(&bytes, 16)), (1, 80, 0x1000, 0x2000));
        assert_eq!((word(&bytes, 24), word(&bytes, 32), word(&bytes, 72)), (59, 1, 6));
        assert_eq!(bytes[4..8], 0xc000_003eu32.to_le_bytes());
        let (bytes, size) = info(stop(Cause::CallEnds, good, true), -2i64 as u64);
        assert_eq!((bytes[0], size, word(&bytes, 24), bytes[32]), (2, 33, -2i64 as u64, 1));
        let (bytes, _) = info(stop(Cause::CallEnds, good, true), -4096i64 as u64);
        assert_eq!(bytes[32], 0);
        let (bytes, size) = info(stop(Cause::Event(abi::PTRACE_EVENT_SECCOMP), good, true), 0);
        assert_eq!((bytes[0], size, word(&bytes, 24), word(&bytes, 80)), (3, 84, 59, 7));
        // Without the option a stop at a call can't be told from a signal.
        for cause in [Cause::CallBegins, Cause::Signal(SIGTRAP)] {
            let (bytes, size) = info(stop(cause, 0, true), 0);
            assert_eq!((bytes[0], size, word(&bytes, 24)), (0, 24, 0));
        }
    }

    #[test]
    fn a_new_thread_is_an_event_if_the_tracer_wants_it() {
        let all = abi::PTRACE_O_TRACEFORK | abi::PTRACE_O_TRACEVFORK | abi::PTRACE_O_TRACECLONE;
        assert_eq!(event_of_clone(all, 0, SIGCHLD), Some(abi::PTRACE_EVENT_FORK));
        assert_eq!(event_of_clone(all, CLONE_VFORK.into(), SIGCHLD), Some(abi::PTRACE_EVENT_VFORK));
        assert_eq!(event_of_clone(all, 0, 0), Some(abi::PTRACE_EVENT_CLONE));
        assert_eq!(event_of_clone(all, CLONE_UNTRACED.into(), SIGCHLD), None);
        assert_eq!(event_of_clone(abi::PTRACE_O_TRACECLONE, 0, SIGCHLD), None);
    }
}
