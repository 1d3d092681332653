//! Implements the scheduling calls: class, priority, affinity. The executor ignores all of them;
//! the values that a program sets are validated and stored only.

use super::Answer;
use crate::mem::{machine, uaccess};
use crate::task::{Thread, process, time};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::general as abi;
use vellum::platform::Cpus;
use vellum_kernel::credentials::id_index;
use vellum_kernel::errno::Errno;

/// The range of nice values.
const NICE: core::ops::RangeInclusive<i32> = -20..=19;

/// Returns the thread with this TID; 0 is the calling thread.
fn thread_of(thread: &Arc<Thread>, tid: u64) -> Result<Arc<Thread>, Errno> {
    match tid as i32 {
        0 => Ok(thread.clone()),
        ..0 => Err(Errno::EINVAL),
        tid => process::find_thread(tid as u32).ok_or(Errno::ESRCH),
    }
}

/// Returns what [`thread_of`] does, and `ESRCH` for a negative TID.
fn any_thread_of(thread: &Arc<Thread>, tid: u64) -> Result<Arc<Thread>, Errno> {
    if (tid as i32) < 0 { Err(Errno::ESRCH) } else { thread_of(thread, tid) }
}

/// Implements `sched_getaffinity`: every CPU is in the set.
pub fn getaffinity(thread: &Arc<Thread>, pid: u64, size: u64, to: u64) -> Answer {
    if size < 8 || !size.is_multiple_of(8) {
        return Err(Errno::EINVAL);
    }
    any_thread_of(thread, pid)?;
    let cpus = machine().platform().count();
    let set = if cpus >= 64 { u64::MAX } else { (1 << cpus) - 1 };
    uaccess::write(&thread.memory(), to, &u64::to_le_bytes(set))?;
    Ok(8)
}

/// Implements `sched_setaffinity`: accepts every set that has a CPU, without effect.
pub fn setaffinity(thread: &Arc<Thread>, pid: u64, size: u64, from: u64) -> Answer {
    let mut bytes = [0; 8];
    uaccess::read(&thread.memory(), from, &mut bytes[..size.min(8) as usize])?;
    let target = any_thread_of(thread, pid)?;
    let (own, other) = (thread.credentials(), target.credentials());
    if ![other.uids[id_index::EFFECTIVE], other.uids[id_index::REAL]].contains(&own.uids[id_index::EFFECTIVE]) {
        own.needs(abi::CAP_SYS_NICE)?;
    }
    let cpus = machine().platform().count();
    if u64::from_le_bytes(bytes) & ((1 << cpus.min(63)) - 1) == 0 {
        return Err(Errno::EINVAL);
    }
    Ok(0)
}

/// Returns the threads that `getpriority` and `setpriority` select.
fn those(thread: &Arc<Thread>, kind: u64, who: u64) -> Result<Vec<Arc<Thread>>, Errno> {
    const PROCESS: u32 = 0;
    const GROUP: u32 = 1;
    const USER: u32 = 2;
    let who = who as u32;
    let mut found = Vec::new();
    let mut add = |thread: Arc<Thread>| found.try_reserve(1).map(|()| found.push(thread));
    let mut add_all =
        |is: &dyn Fn(&Thread) -> bool| process::threads().filter(|thread| is(thread)).try_for_each(&mut add);
    match kind as u32 {
        PROCESS if who == 0 => add(thread.clone())?,
        PROCESS => process::find_thread(who).into_iter().try_for_each(add)?,
        GROUP => {
            let own = thread.process.group.load(Ordering::Relaxed);
            let group = if who == 0 { own } else { who };
            add_all(&|thread| thread.process.group.load(Ordering::Relaxed) == group)?;
        }
        USER => {
            let user = if who == 0 { thread.credentials().uids[id_index::REAL] } else { who };
            add_all(&|thread| thread.credentials().uids[id_index::REAL] == user)?;
        }
        _ => return Err(Errno::EINVAL),
    }
    if found.is_empty() { Err(Errno::ESRCH) } else { Ok(found) }
}

/// Implements `getpriority`: returns 20 minus the lowest nice value among the threads.
pub fn getpriority(thread: &Arc<Thread>, kind: u64, who: u64) -> Answer {
    let nice = those(thread, kind, who)?.iter().map(|thread| thread.traits.lock().nice).min();
    Ok((20 - nice.unwrap_or(0)) as u64)
}

/// Implements `setpriority`.
pub fn setpriority(thread: &Arc<Thread>, kind: u64, who: u64, nice: u64) -> Answer {
    let nice = (nice as i32).clamp(*NICE.start(), *NICE.end());
    let own = thread.credentials();
    let mut answer = Ok(0);
    for other in those(thread, kind, who)? {
        let limit = other.process.limits.lock()[abi::RLIMIT_NICE as usize][0];
        let mut traits = other.traits.lock();
        if !own.may_schedule(&traits.credentials) {
            answer = Err(Errno::EPERM);
        } else if nice < traits.nice && (20 - nice) as u64 > limit && !own.has(abi::CAP_SYS_NICE) {
            answer = Err(Errno::EACCES);
        } else {
            traits.nice = nice;
        }
    }
    answer
}

/// Implements `sched_get_priority_max` and `sched_get_priority_min`.
pub fn priority_range(class: u64, max: bool) -> Answer {
    match class as u32 {
        abi::SCHED_FIFO | abi::SCHED_RR => Ok(if max { 99 } else { 1 }),
        abi::SCHED_NORMAL | abi::SCHED_BATCH | abi::SCHED_IDLE | abi::SCHED_DEADLINE => Ok(0),
        _ => Err(Errno::EINVAL),
    }
}

/// Sets a thread's class and priority, if the caller has the privilege. `class` may contain
/// `SCHED_RESET_ON_FORK`.
fn set(thread: &Arc<Thread>, tid: u64, class: u32, priority: u32) -> Answer {
    let target = thread_of(thread, tid)?;
    let class = class & !abi::SCHED_RESET_ON_FORK;
    let real_time = matches!(class, abi::SCHED_FIFO | abi::SCHED_RR);
    let right = match class {
        abi::SCHED_FIFO | abi::SCHED_RR => (1..=99).contains(&priority),
        abi::SCHED_NORMAL | abi::SCHED_BATCH | abi::SCHED_IDLE => priority == 0,
        _ => false,
    };
    if !right {
        return Err(Errno::EINVAL);
    }
    let own = thread.credentials();
    let limit = target.process.limits.lock()[abi::RLIMIT_RTPRIO as usize][0];
    let mut traits = target.traits.lock();
    let rises = real_time && u64::from(priority) > limit.max(traits.schedule.1.into());
    if !own.may_schedule(&traits.credentials) || (rises && !own.has(abi::CAP_SYS_NICE)) {
        return Err(Errno::EPERM);
    }
    traits.schedule = (class, priority);
    Ok(0)
}

/// Reads the priority from a program's `struct sched_param`.
fn read_priority(thread: &Arc<Thread>, from: u64) -> Result<u32, Errno> {
    let mut bytes = [0; 4];
    if from == 0 {
        return Err(Errno::EINVAL);
    }
    uaccess::read(&thread.memory(), from, &mut bytes)?;
    Ok(u32::from_le_bytes(bytes))
}

/// Implements `sched_setscheduler`.
pub fn setscheduler(thread: &Arc<Thread>, tid: u64, class: u64, from: u64) -> Answer {
    if (class as i32) < 0 {
        return Err(Errno::EINVAL);
    }
    set(thread, tid, class as u32, read_priority(thread, from)?)
}

/// Implements `sched_getscheduler`.
pub fn getscheduler(thread: &Arc<Thread>, tid: u64) -> Answer {
    Ok(thread_of(thread, tid)?.traits.lock().schedule.0.into())
}

/// Implements `sched_setparam`.
pub fn setparam(thread: &Arc<Thread>, tid: u64, from: u64) -> Answer {
    let priority = read_priority(thread, from)?;
    let class = thread_of(thread, tid)?.traits.lock().schedule.0;
    set(thread, tid, class, priority)
}

/// Implements `sched_getparam`.
pub fn getparam(thread: &Arc<Thread>, tid: u64, to: u64) -> Answer {
    if to == 0 {
        return Err(Errno::EINVAL);
    }
    let priority = thread_of(thread, tid)?.traits.lock().schedule.1;
    uaccess::write(&thread.memory(), to, &priority.to_le_bytes()).map(|()| 0)
}

/// Implements `sched_rr_get_interval`: stores the length of a time slice.
pub fn interval(thread: &Arc<Thread>, tid: u64, to: u64) -> Answer {
    thread_of(thread, tid)?;
    let slice = u128::from(time::TIME_SLICE) << 64;
    uaccess::write(&thread.memory(), to, &slice.to_le_bytes()).map(|()| 0)
}
