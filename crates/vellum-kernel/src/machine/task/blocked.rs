//! Waiting until a failed memory access is worth a retry ([`BlockedOn`]). The thread then takes the
//! fault again or restarts the system call.

use crate::mem::storage::{self, Outcome};
use crate::mem::thread::BlockedOn;
use crate::mem::uffd::Notices;
use crate::mem::{UserSpace, heap, machine};
use crate::task::{Thread, deliver, executor, oom};
use alloc::sync::Arc;
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
    if in_kernel && uffd.flags & abi::UFFD_USER_MODE_ONLY != 0 || uffd.has(abi::UFFD_FEATURE_SIGBUS) {
        return false;
    }
    let flag = |bit, is| if is { u64::from(bit) } else { 0 };
    let flags = flag(abi::UFFD_PAGEFAULT_FLAG_WRITE, watched.access == Access::Write)
        | flag(abi::UFFD_PAGEFAULT_FLAG_WP, watched.mode == UffdMode::Write)
        | flag(abi::UFFD_PAGEFAULT_FLAG_MINOR, watched.mode == UffdMode::Minor);
    let fault = Fault {
        address: if uffd.has(abi::UFFD_FEATURE_EXACT_ADDRESS) { watched.addr } else { watched.page },
        flags,
        thread: if uffd.has(abi::UFFD_FEATURE_THREAD_ID) { thread.tid } else { 0 },
    };
    let messages = uffd.messages.clone();
    drop(uffd);
    let Ok(number) = messages.add(fault) else {
        executor::yield_now().await;
        return true;
    };
    let again = memory.engine.fault(watched.addr, watched.access);
    if again == Err(FaultError::Uffd(watched)) {
        // If a signal ends the wait, the signal is delivered first. The access is then retried, and
        // its fault reported to the program again.
        let _ = thread.interruptible(messages.wait_until_gone(number), None).await;
    }
    messages.remove(number);
    true
}

/// Notifies userfaultfds of changes of an address space, one after the other: waits until the
/// program has read each event, or closes the userfaultfd, or the thread is to end.
pub async fn notify(thread: &Thread, notices: Notices) {
    for notice in notices.0 {
        let number = loop {
            match notice.messages.add_event(notice.event.clone()) {
                Ok(number) => break number,
                Err(_) if deliver::is_dying(thread) => return,
                Err(_) => executor::yield_now().await,
            }
        };
        let _ = thread.killable(notice.messages.wait_until_gone(number)).await;
        notice.messages.remove(number);
    }
}
