//! Control groups: the engine's groups, and the processes in them.

use crate::mem::machine;
use crate::task::Process;
use alloc::vec::Vec;
use vellum::group::{GroupId, LruList};
use vellum_kernel::errno::Errno;

/// Pages on the lists of all groups.
pub struct Listed {
    /// Anonymous ones.
    pub anonymous: u64,
    /// Those that may not be reclaimed.
    pub unevictable: u64,
}

/// Pages on the lists of all groups.
pub fn listed() -> Listed {
    let usage = machine().groups().usage(machine().frames(), GroupId::ROOT).unwrap_or_default();
    Listed { anonymous: usage.lru[LruList::Anon as usize], unevictable: usage.lru[LruList::Unevictable as usize] }
}

/// `/proc/PID/cgroup`.
pub fn line(_process: &Process) -> Result<Vec<u8>, Errno> {
    Ok(b"0::/\n".to_vec())
}
