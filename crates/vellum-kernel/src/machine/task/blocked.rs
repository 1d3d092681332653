//! Waiting until a failed memory access is worth a retry ([`BlockedOn`]). The thread then takes the
//! fault again or restarts the system call.

use crate::mem::storage::{self, Outcome};
use crate::mem::thread::BlockedOn;
use crate::mem::{UserSpace, heap, machine};
use crate::task::{Thread, executor, oom};
use alloc::sync::Arc;
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use vellum::memcg::Refused;
use vellum::space::{Access, FaultError, UffdEvent, UffdMode};
use vellum_kernel::fs::uffd::Fault;

/// Has a thread wait that made more pages of files dirty than the storage takes, until it is the
/// thread's turn. Called where the thread holds nothing that writing pages needs.
pub async fn throttle(thread: &Thread) {
    if let Some(turn) = thread.mem.dirtied.take_turn() {
        // The wait ends early if the thread is to end.
        let _ = thread.killable(turn).await;
    }
}

impl BlockedOn {
    /// Waits until the access is worth a retry. Returns false if it never will be. `in_kernel`: the
    /// kernel made the access on the thread's behalf.
    pub async fn wait(self, thread: &Arc<Thread>, in_kernel: bool) -> bool {
        match self {
            Self::Signal => true,
            Self::Shortage(why) => oom::relieve(thread, why).await,
            Self::Overdraft(why) => {
                repay(thread, why).await;
                false
            }
            Self::Pending(page) => match thread.killable(storage::wait(page)).await {
                Ok(outcome) => outcome == Outcome::Again,
                // The thread ends before it tries again.
                Err(_) => true,
            },
            Self::Uffd(memory, watched) => wait_for_uffd(thread, &memory, watched, in_kernel).await,
        }
    }
}

/// Reclaims while the kernel memory charged for a thread exceeds its memcg's limit or is taken from
/// the kernel's reserve. Returns early if the process is ending, or if nothing is left to reclaim.
async fn repay(thread: &Arc<Thread>, why: Refused) {
    let (memcgs, frames) = (machine().memcgs(), machine().frames());
    let is_beyond = || match why {
        Refused::OverLimit(memcg) => {
            memcgs.drain(frames, memcg).is_ok() && memcgs.counters(memcg).is_ok_and(|of| of.charged > of.limit)
        }
        Refused::OutOfMemory => heap::is_short(),
    };
    while is_beyond() && !thread.process.life.lock().is_over() {
        if !oom::relieve(thread, why).await {
            return;
        }
    }
}

/// Waits until the program behind the userfaultfd has resolved a fault, or until a retry is due for
/// another reason. Returns false if a retry can't succeed.
async fn wait_for_uffd(thread: &Arc<Thread>, memory: &Arc<UserSpace>, watched: UffdEvent, in_kernel: bool) -> bool {
    let uffd = memory.uffds.lock().find(watched.uffd);
    let Some(uffd) = uffd else {
        // The userfaultfd is being closed.
        executor::yield_now().await;
        return true;
    };
    if in_kernel && uffd.user_only {
        return false;
    }
    let flag = |bit, is| if is { u64::from(bit) } else { 0 };
    let flags = flag(abi::UFFD_PAGEFAULT_FLAG_WRITE, watched.access == Access::Write)
        | flag(abi::UFFD_PAGEFAULT_FLAG_WP, watched.mode == UffdMode::Write);
    let reports_thread = uffd.features.load(Relaxed) & u64::from(abi::UFFD_FEATURE_THREAD_ID) != 0;
    let fault = Fault { address: watched.page, flags, thread: if reports_thread { thread.tid } else { 0 } };
    let faults = uffd.faults.clone();
    drop(uffd);
    let Ok(number) = faults.add(fault) else {
        executor::yield_now().await;
        return true;
    };
    let again = memory.engine.fault(watched.page, watched.access);
    if again == Err(FaultError::Uffd(watched)) {
        // If a signal ends the wait, the signal is delivered first. The access is then retried, and
        // its fault reported to the program again.
        let _ = thread.interruptible(faults.wait_until_resolved(number), None).await;
    }
    faults.remove(number);
    true
}
