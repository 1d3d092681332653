//! Waiting until an access to memory that failed is worth another try ([`BlockedOn`]): then the
//! fault is taken, or the system call made, again.

use crate::mem::thread::BlockedOn;
use crate::mem::{UserSpace, heap, machine};
use crate::task::{Thread, executor, oom};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use vellum::memcg::Refused;
use vellum::space::{Access, FaultError, Happening, Watched};
use vellum_kernel::fs::watch::Fault;

impl BlockedOn {
    /// Waits until the access is worth another try. Returns false if it won't be. `in_kernel`: the
    /// kernel made the access, for the thread.
    pub async fn passes(self, thread: &Arc<Thread>, in_kernel: bool) -> bool {
        match self {
            Self::Signal => true,
            Self::Shortage(why) => oom::relieve(thread, why).await,
            Self::Overdraft(why) => {
                repay(thread, why).await;
                false
            }
            Self::Watched(memory, watched) => wait_for_uffd(thread, &memory, watched, in_kernel).await,
        }
    }
}

/// Waits while the kernel's memory for a thread is beyond its memcg's limit, or beyond the memory
/// that the machine has to spare, or until the thread's process is to end.
async fn repay(thread: &Arc<Thread>, why: Refused) {
    let (groups, frames) = (machine().memcgs(), machine().frames());
    let is_beyond = || match why {
        Refused::OverLimit(group) => {
            groups.drain(frames, group).is_ok() && groups.counters(group).is_ok_and(|of| of.charged > of.limit)
        }
        Refused::OutOfMemory => heap::is_short(),
    };
    while is_beyond() && !thread.process.life.lock().is_over() {
        if !oom::relieve(thread, why).await {
            return;
        }
    }
}

/// Waits until the program behind the userfaultfd has resolved a fault, or the access is worth
/// another try for another reason. Returns false if it won't be.
async fn wait_for_uffd(thread: &Arc<Thread>, memory: &Arc<UserSpace>, watched: Watched, in_kernel: bool) -> bool {
    let watch = memory.watchers.lock().find(watched.by);
    let Some(watch) = watch else {
        // It is being closed.
        executor::give_way().await;
        return true;
    };
    if in_kernel && watch.user_only {
        return false;
    }
    let told = |bit, is| if is { u64::from(bit) } else { 0 };
    let flags = told(abi::UFFD_PAGEFAULT_FLAG_WRITE, watched.access == Access::Write)
        | told(abi::UFFD_PAGEFAULT_FLAG_WP, watched.what == Happening::Write);
    let tells_thread = watch.features.load(Relaxed) & u64::from(abi::UFFD_FEATURE_THREAD_ID) != 0;
    let fault = Fault { address: watched.page, flags, thread: if tells_thread { thread.tid } else { 0 } };
    let faults = watch.faults.clone();
    drop(watch);
    let Ok(number) = faults.add(fault) else {
        executor::give_way().await;
        return true;
    };
    let again = memory.engine.fault(watched.page, watched.access);
    if again == Err(FaultError::Watched(watched)) {
        // A signal is dealt with first; then the access is made again, and told again.
        let _ = thread.interruptible(faults.dealt_with(number), None).await;
    }
    faults.remove(number);
    true
}
