//! What keeps a thread from its memory for a while, until something else has happened: then the access, or the system call, is made again.

use crate::files::watch;
use crate::mem::{UserSpace, oom, payer};
use crate::task::Thread;
use alloc::sync::Arc;
use vellum::memcg::Refused;
use vellum::space::{FaultError, Watched};
use vellum_kernel::errno::Errno;

/// Why an access failed that may succeed later.
pub enum Hindrance {
    /// Memory is short.
    Shortage(Refused),
    /// The kernel's own memory for the thread went beyond its group's limit, or the machine's
    /// memory to spare. The system call was not hindered; the thread is, after it.
    Overdraft(Refused),
    /// Somebody watches this memory.
    Watched(Arc<UserSpace>, Watched),
    /// A signal came while the system call waited for something of the above: it is dealt with
    /// before the call is made again.
    Signal,
}

impl Hindrance {
    /// Whether a fault failed for such a reason.
    pub fn of(error: FaultError, memory: &Arc<UserSpace>) -> Option<Self> {
        match error {
            FaultError::NoMemory(why) => Some(Self::Shortage(why)),
            FaultError::Watched(watched) => Some(Self::Watched(memory.clone(), watched)),
            _ => None,
        }
    }

    /// Waits until it is worth another try; `false`: it won't be. `in_kernel`: the kernel made the access, for the thread.
    pub async fn passes(self, thread: &Arc<Thread>, in_kernel: bool) -> bool {
        match self {
            Self::Signal => true,
            Self::Shortage(why) => oom::relieve(thread, why).await,
            Self::Overdraft(why) => {
                payer::settle(thread, why).await;
                false
            }
            Self::Watched(memory, watched) => watch::wait(thread, &memory, watched, in_kernel).await,
        }
    }
}

/// Returns the number of an error of the engine's for the current thread's system call. If memory
/// was refused, the call is made again once some was reclaimed: of the machine, or of the one group
/// whose limit it was.
pub fn failed(refused: Option<Refused>, errno: vellum::errno::Errno) -> Errno {
    if let Some(why) = refused
        && let Some(thread) = Thread::current()
    {
        thread.starves(why);
    }
    errno.into()
}
