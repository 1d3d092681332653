//! Locks whose word names their owner: futexes with priority inheritance. Nobody has a priority here that another could inherit,
//! so what is left is the protocol of the word.
//!
//! The word of a free lock is 0. Who finds it so takes it in user mode; all others come here. An owner that others wait for
//! finds the bit for that in its word, and comes here to give the lock up: it leaves the word without an owner, but with the
//! bit, so that nobody takes it in user mode, and wakes one, who takes it here if nobody else was faster.

use super::{Answer, clock};
use crate::mem::{UserSpace, uaccess};
use crate::task::futex::{self, Watched};
use crate::task::{Thread, process};
use alloc::sync::Arc;
use linux_raw_sys::general::{FUTEX_OWNER_DIED, FUTEX_TID_MASK, FUTEX_WAITERS};
use vellum_kernel::errno::Errno;

/// What an attempt to take a lock comes to.
enum Attempt {
    Taken,
    /// Its word is this, with the bit that says that somebody waits.
    Owned(u32),
}

/// Takes a lock, unless it has an owner; `waits`: who then is to hear that somebody waits.
///
/// # Errors
///
/// `EDEADLK`: the thread has it. `ESRCH`: its owner is no more. `EFAULT`.
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

/// `FUTEX_LOCK_PI`, `FUTEX_LOCK_PI2`.
pub async fn lock(thread: &Arc<Thread>, address: u64, timeout: u64, real_time: bool) -> Answer {
    let memory = thread.memory();
    futex::key(&memory, address)?;
    let deadline = if timeout == 0 { None } else { Some(clock::deadline(thread, timeout, real_time)?) };
    loop {
        let Attempt::Owned(expected) = attempt(thread, &memory, address, true)? else { return Ok(0) };
        let waited = futex::wait(thread, &[Watched { address, expected, bits: u32::MAX }], deadline).await;
        match waited {
            Ok(_) | Err(Errno::EAGAIN) => {}
            Err(Errno::EINTR) => {
                // A lock is not left half taken: whatever a handler wants, the call goes on after it.
                // SAFETY: the thread's own future.
                unsafe { thread.context() }.insists = true;
                return Err(Errno::EINTR);
            }
            Err(error) => return Err(error),
        }
    }
}

/// `FUTEX_TRYLOCK_PI`.
pub fn try_lock(thread: &Thread, address: u64) -> Answer {
    let memory = thread.memory();
    futex::key(&memory, address)?;
    match attempt(thread, &memory, address, false)? {
        Attempt::Taken => Ok(0),
        Attempt::Owned(_) => Err(Errno::EAGAIN),
    }
}

/// `FUTEX_UNLOCK_PI`.
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
        // Nobody waits any more, and nobody begins to at a word without an owner.
        uaccess::exchange(&memory, address, FUTEX_WAITERS, 0)?;
    }
    Ok(0)
}
