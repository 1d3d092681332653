//! How long processors may work for a process (`RLIMIT_CPU`).
//!
//! Nobody looks each time that a turn ends. A process with a limit has a task that sleeps for as long as the process can't have
//! reached it, whatever it does, and then looks again.

use crate::mem::{machine, now_ns};
use crate::task::signal::{self, Info};
use crate::task::{Process, executor, time};
use alloc::sync::{Arc, Weak};
use core::sync::atomic::Ordering::Relaxed;
use linux_raw_sys::general as abi;
use vellum::platform::Cpus;

const SECOND: u64 = 1_000_000_000;
const CPU: usize = abi::RLIMIT_CPU as usize;

/// Has a process be watched from now on, if it has a limit and is not watched already.
pub fn watch(process: &Arc<Process>) {
    let limited = process.limits.lock()[CPU] != [u64::MAX; 2];
    if limited && !process.watched.swap(true, Relaxed) {
        executor::spawn(run(Arc::downgrade(process)));
    }
}

async fn run(process: Weak<Process>) {
    while let Some(left) = process.upgrade().and_then(|process| look(&process)) {
        // All processors at once may work for it.
        let soonest = (left / machine().platform().count() as u64).max(time::TURN);
        time::until(now_ns() + soonest).await;
    }
}

/// Tells the process if it has reached a limit; how much longer it may be worked for until the next, if it is to be watched on.
fn look(process: &Arc<Process>) -> Option<u64> {
    if process.life.lock().is_over() {
        return None;
    }
    let used = process.processor_time();
    let mut limits = process.limits.lock();
    let [soft, hard] = &mut limits[CPU];
    if [*soft, *hard] == [u64::MAX; 2] {
        process.watched.store(false, Relaxed);
        return None;
    }
    let reached = |limit: u64| limit.checked_mul(SECOND).is_some_and(|limit| used >= limit);
    let signal = match (reached(*hard), reached(*soft)) {
        (true, _) => abi::SIGKILL,
        (false, true) => {
            // And again each second.
            *soft += 1;
            abi::SIGXCPU
        }
        (false, false) => 0,
    };
    let next = soft.min(hard).saturating_mul(SECOND);
    drop(limits);
    if signal != 0 {
        signal::send(process, Info { signal, code: abi::SI_KERNEL as i32, fields: [0; 4] });
    }
    (signal != abi::SIGKILL).then(|| next.saturating_sub(used))
}
