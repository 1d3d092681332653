//! The values that filters return: an action in the upper half, data in the lower.

/// The thread's mode without filters (`SECCOMP_MODE_DISABLED`).
pub const MODE_DISABLED: u32 = 0;
/// The mode of a thread that may only read, write, exit and return from a handler.
pub const MODE_STRICT: u32 = 1;
/// The mode of a thread with filters.
pub const MODE_FILTER: u32 = 2;

/// The bits of a value that are its action.
pub const ACTION: u32 = 0xffff_0000;

/// Ends the process.
pub const KILL_PROCESS: u32 = 0x8000_0000;
/// Ends the thread.
pub const KILL_THREAD: u32 = 0;
/// Sends `SIGSYS` to the thread.
pub const TRAP: u32 = 0x0003_0000;
/// Fails the call with the error that the data is.
pub const ERRNO: u32 = 0x0005_0000;
/// Asks another process.
pub const USER_NOTIF: u32 = 0x7fc0_0000;
/// Asks the tracer.
pub const TRACE: u32 = 0x7ff0_0000;
/// Permits the call, and logs it.
pub const LOG: u32 = 0x7ffc_0000;
/// Permits the call.
pub const ALLOW: u32 = 0x7fff_0000;

/// The actions by name, the strictest first.
pub const NAMES: [(u32, &str); 8] = [
    (KILL_PROCESS, "kill_process"),
    (KILL_THREAD, "kill_thread"),
    (TRAP, "trap"),
    (ERRNO, "errno"),
    (USER_NOTIF, "user_notif"),
    (TRACE, "trace"),
    (LOG, "log"),
    (ALLOW, "allow"),
];

/// Returns true if the action of one value is stricter than that of another: as signed numbers, the
/// smaller is.
pub fn is_stricter(one: u32, other: u32) -> bool {
    ((one & ACTION) as i32) < (other & ACTION) as i32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn actions_are_ordered_as_they_are_named() {
        for pair in NAMES.windows(2) {
            assert!(is_stricter(pair[0].0 | 0xffff, pair[1].0), "{} before {}", pair[0].1, pair[1].1);
            assert!(!is_stricter(pair[1].0, pair[0].0) && !is_stricter(pair[0].0, pair[0].0 | 1));
        }
    }
}
