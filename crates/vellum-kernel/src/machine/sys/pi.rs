//! Implements priority-inheritance futexes, whose word holds the owner's TID. No thread has a
//! priority that another could inherit, so only the protocol of the word is implemented.
//!
//! A free lock's word is 0, and a thread that finds 0 takes the lock in user mode. Every other
//! thread enters the kernel. An owner that finds `FUTEX_WAITERS` in its word enters the kernel to
//! unlock: the kernel clears the owner's TID and keeps `FUTEX_WAITERS`, so that no thread takes the
//! lock in user mode, and wakes one waiter. The waiter takes the lock in the kernel, unless another
//! thread there was faster.

use super::{Answer, clock};
use crate::mem::{UserSpace, uaccess};
use crate::task::futex::{self, FutexWait};
use crate::task::{Thread, process};
use alloc::sync::Arc;
use linux_raw_sys::general::{FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS};
use vellum_kernel::errno::Errno;

/// The result of an attempt to take a lock.
enum Attempt {
    Taken,
    /// Another thread owns the lock. Holds the word as it is now, with `FUTEX_WAITERS` if
    /// requested.
    Owned(u32),
}

/// Takes the lock unless it has an owner. With `waits`, sets `FUTEX_WAITERS` for the owner.
///
/// # Errors
///
/// `EDEADLK`: the calling thread owns the lock. `ESRCH`: the owner no longer exists. `EFAULT`.
fn attempt(thread: &Thread, memory: &Arc<UserSpace>, address: u64, waits: bool) -> Result<Attempt, Errno> {
    loop {
        let word = futex::word(memory, address)?;
        let owner = word & FUTEX_TID_MASK;
        let wanted = match owner {
            0 => word & (FUTEX_WAITERS | FUTEX_OWNER_DIED) | thread.tid,
            _ if owner == thread.tid => return Err(Errno::EDEADLK),
            _ if process::find_thread(owner).is_none() => return Err(Errno::ESRCH),
            _ if waits => word | FUTEX_WAITERS,
            _ => word,
        };
        if word == wanted || uaccess::exchange(memory, address, word, wanted)? == word {
            return Ok(if owner == 0 { Attempt::Taken } else { Attempt::Owned(wanted) });
        }
    }
}

/// Implements `FUTEX_LOCK_PI` and `FUTEX_LOCK_PI2`.
pub async fn lock(thread: &Arc<Thread>, address: u64, timeout: u64, real_time: bool) -> Answer {
    let memory = thread.memory();
    futex::key(&memory, address)?;
    let deadline = if timeout == 0 { None } else { Some(clock::deadline(thread, timeout, real_time)?) };
    loop {
        let Attempt::Owned(expected) = attempt(thread, &memory, address, true)? else { return Ok(0) };
        let waited = futex::wait(thread, &[FutexWait { address, expected, bits: u32::MAX }], deadline).await;
        match waited {
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(Errno::EINTR) => {
                // The lock call restarts after every handler, with or without `SA_RESTART`.
                // SAFETY: a system call runs in the thread's own future.
                unsafe { thread.context() }.always_restarts = true;
                return Err(Errno::EINTR);
            }
            Err(error) => return Err(error),
        }
    }
}

/// Implements `FUTEX_TRYLOCK_PI`.
pub fn try_lock(thread: &Thread, address: u64) -> Answer {
    let memory = thread.memory();
    futex::key(&memory, address)?;
    match attempt(thread, &memory, address, false)? {
        Attempt::Taken => Ok(0),
        Attempt::Owned(_) => Err(Errno::EAGAIN),
    }
}

/// Implements `FUTEX_UNLOCK_PI`.
pub fn unlock(thread: &Thread, address: u64) -> Answer {
    let memory = thread.memory();
    let key = futex::key(&memory, address)?;
    loop {
        let word = futex::word(&memory, address)?;
        if word & FUTEX_TID_MASK != thread.tid {
            return Err(Errno::EPERM);
        }
        if uaccess::exchange(&memory, address, word, word & FUTEX_WAITERS)? == word {
            break;
        }
    }
    if futex::wake(key, 1, u32::MAX) == 0 {
        // There is no waiter left, and no thread starts to wait on a word without an owner.
        uaccess::exchange(&memory, address, FUTEX_WAITERS, 0)?;
    }
    Ok(0)
}
