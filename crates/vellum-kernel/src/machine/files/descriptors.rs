//! Adds open files to a thread's table of descriptors.

use crate::task::Thread;
use alloc::sync::Arc;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Open;
use vellum_kernel::fs::table::Slot;

/// Returns the thread's `RLIMIT_NOFILE`: one more than the highest descriptor allowed.
pub fn limit(thread: &Thread) -> u64 {
    thread.process.limits.lock()[abi::RLIMIT_NOFILE as usize][0]
}

/// Adds a descriptor for an open file and returns its number. `O_CLOEXEC` in `flags` counts.
///
/// # Errors
///
/// `EMFILE`: the limit is reached. `ENOMEM`.
pub fn add(thread: &Thread, open: Arc<Open>, flags: u32) -> Result<u64, Errno> {
    let slot = Slot { open, close_on_exec: flags & abi::O_CLOEXEC != 0 };
    let limit = limit(thread);
    let added = thread.files().table.lock().add(slot, 0, limit);
    added.map(u64::from)
}
