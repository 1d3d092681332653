//! The system calls that this architecture alone has: none.

use crate::sys::Answer;
use crate::task::Thread;
use alloc::sync::Arc;

/// Whether a system call is made again even after a handler, where that wants it.
pub fn outlasts_handlers(_number: u32) -> bool {
    false
}

/// Carries out a system call, if it is one of these.
pub async fn call(_thread: &Arc<Thread>, _number: u32, _arguments: [u64; 6]) -> Option<Answer> {
    None
}
