//! What keeps a thread from its memory for a while, until something else has happened: then the access, or the system call, is made again.

use crate::files::watch;
use crate::mem::{UserSpace, oom};
use crate::task::Thread;
use alloc::sync::Arc;
use vellum::space::{FaultError, Watched};

/// Why an access failed that may succeed later.
pub enum Hindrance {
    /// Memory is short.
    Shortage(FaultError),
    /// Somebody watches this memory.
    Watched(Arc<UserSpace>, Watched),
}

impl Hindrance {
    /// Whether a fault failed for such a reason.
    pub fn of(error: FaultError, memory: &Arc<UserSpace>) -> Option<Self> {
        match error {
            FaultError::OutOfMemory | FaultError::OverLimit(_) => Some(Self::Shortage(error)),
            FaultError::Watched(watched) => Some(Self::Watched(memory.clone(), watched)),
            _ => None,
        }
    }

    /// Waits until it is worth another try; `false`: it won't be. `in_kernel`: the kernel made the access, for the thread.
    pub async fn passes(self, thread: &Arc<Thread>, in_kernel: bool) -> bool {
        match self {
            Self::Shortage(error) => oom::relieve(thread, error).await,
            Self::Watched(memory, watched) => watch::wait(thread, &memory, watched, in_kernel).await,
        }
    }
}
