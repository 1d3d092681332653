//! Implements the `ioctl` requests for network interfaces, which sockets take.

use super::Answer;
use crate::mem::uaccess;
use crate::task::Thread;
use alloc::sync::Arc;
use vellum_kernel::net::interface::{self, REQUEST_SIZE};

/// Implements the requests about one interface (`SIOCGIFADDR` and the like).
pub fn describe(thread: &Arc<Thread>, request: u32, at: u64) -> Answer {
    let mut bytes = [0; REQUEST_SIZE];
    uaccess::read(&thread.memory(), at, &mut bytes)?;
    interface::answer(request, &mut bytes)?;
    uaccess::write(&thread.memory(), at, &bytes).map(|()| 0)
}

/// Implements `SIOCGIFCONF`: lists the interfaces with their addresses, as many as the program has
/// room for, or without a buffer returns the room that all of them take.
pub fn list(thread: &Arc<Thread>, at: u64) -> Answer {
    let memory = thread.memory();
    let mut bytes = [0; 16];
    uaccess::read(&memory, at, &mut bytes)?;
    let room = i32::from_le_bytes(core::array::from_fn(|i| bytes[i]));
    let buffer = u64::from_le_bytes(core::array::from_fn(|i| bytes[8 + i]));
    let entries = interface::list();
    let entries = entries.as_flattened();
    let whole = usize::try_from(room).unwrap_or(0) / REQUEST_SIZE * REQUEST_SIZE;
    let len = if buffer == 0 { entries.len() } else { entries.len().min(whole) };
    if buffer != 0 {
        uaccess::write(&memory, buffer, &entries[..len])?;
    }
    uaccess::write(&memory, at, &(len as i32).to_le_bytes()).map(|()| 0)
}
