//! The CPU time limit of a process (`RLIMIT_CPU`).
//!
//! No time slice is checked against the limit. Instead a process with a limit has a task that
//! sleeps for as long as the process can't have reached the limit even on all CPUs, and then
//! checks. The process owns the task, which ends with it.

use crate::mem::{machine, now_ns};
use crate::task::signal::{self, Info};
use crate::task::{Process, executor, time};
use alloc::sync::{Arc, Weak};
use linux_raw_sys::general as abi;
use vellum::platform::Cpus;

const SECOND: u64 = 1_000_000_000;
const CPU: usize = abi::RLIMIT_CPU as usize;

/// Starts the task that enforces the process's CPU time limit, unless there is no limit or the task
/// runs already.
pub fn watch(process: &Arc<Process>) {
    let limited = process.limits.lock()[CPU] != [u64::MAX; 2];
    let mut task = process.allowance.lock();
    if limited && task.is_none() {
        *task = Some(executor::spawn_owned(run(Arc::downgrade(process))));
    }
}

/// Sleeps and checks until the process ends or has no limit any more.
async fn run(process: Weak<Process>) {
    while let Some(left) = process.upgrade().and_then(|process| check_limits(&process)) {
        // All CPUs may run the process at once.
        let soonest = (left / machine().platform().count() as u64).max(time::TIME_SLICE);
        time::until(now_ns() + soonest).await;
    }
}

/// Sends `SIGXCPU` or `SIGKILL` if the process has reached a limit. Returns the CPU time in
/// nanoseconds until the next limit, or `None` if the task is to end.
fn check_limits(process: &Arc<Process>) -> Option<u64> {
    if process.life.lock().is_over() {
        return None;
    }
    let used = process.cpu_time();
    let mut limits = process.limits.lock();
    let [soft, hard] = &mut limits[CPU];
    if [*soft, *hard] == [u64::MAX; 2] {
        *process.allowance.lock() = None;
        return None;
    }
    let reached = |limit: u64| limit.checked_mul(SECOND).is_some_and(|limit| used >= limit);
    let signal = match (reached(*hard), reached(*soft)) {
        (true, _) => abi::SIGKILL,
        (false, true) => {
            // `SIGXCPU` is repeated for each further second.
            *soft += 1;
            abi::SIGXCPU
        }
        (false, false) => 0,
    };
    let next = soft.min(hard).saturating_mul(SECOND);
    drop(limits);
    if signal != 0 {
        signal::send(process, Info { signal, errno: 0, code: abi::SI_KERNEL as i32, fields: [0; 4] });
    }
    (signal != abi::SIGKILL).then(|| next.saturating_sub(used))
}
