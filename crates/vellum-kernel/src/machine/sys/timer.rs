//! Implements interval timers and POSIX timers.

use super::Answer;
use super::clock::{self, SECOND, read_pair};
use crate::mem::uaccess;
use crate::task::Thread;
use crate::task::signal::{COUNT, Info};
use crate::task::timer::{Clock, INTERVAL, OnExpiry, SI_TIMER, Timer, is_interval, set, set_interval};
use alloc::sync::Arc;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

/// Implements `setitimer`.
pub fn setitimer(thread: &Arc<Thread>, which: u64, new: u64, old: u64) -> Answer {
    let which = interval_timer(which)?;
    let micro = |pair: [u64; 2]| {
        let [seconds, us] = pair;
        if us >= 1_000_000 || seconds > i64::MAX as u64 {
            return Err(Errno::EINVAL);
        }
        Ok(seconds.saturating_mul(SECOND).saturating_add(us * 1000))
    };
    let (interval, value) = match new {
        0 => (0, 0),
        _ => (micro(read_pair(thread, new)?)?, micro(read_pair(thread, new.wrapping_add(16))?)?),
    };
    let before = set_interval(&thread.process, which, value, interval)?;
    if old != 0 {
        write_interval(thread, old, Some(before))?;
    }
    Ok(0)
}

/// Returns the index of an interval timer in [`INTERVAL`].
fn interval_timer(which: u64) -> Result<usize, Errno> {
    usize::try_from(which).ok().filter(|which| *which < INTERVAL.len()).ok_or(Errno::EINVAL)
}

/// Implements `getitimer`.
pub fn getitimer(thread: &Arc<Thread>, which: u64, to: u64) -> Answer {
    let (number, _) = INTERVAL[interval_timer(which)?];
    let timer = thread.process.timers.lock().get(number);
    write_interval(thread, to, timer).map(|()| 0)
}

fn write_interval(thread: &Arc<Thread>, to: u64, timer: Option<Timer>) -> Result<(), Errno> {
    let (interval, left) = timer.map_or((0, 0), |timer| (timer.interval, timer.left(&thread.process)));
    clock::write_micro(thread, to, interval)?;
    clock::write_micro(thread, to.wrapping_add(16), left)
}

/// Implements `timer_create`.
pub fn create(thread: &Arc<Thread>, clock: u64, event: u64, to: u64) -> Answer {
    const SIGNAL: u32 = 0;
    const NONE: u32 = 1;
    const THREAD: u32 = 2;
    const OF_THREAD: u32 = 4;
    let clock = match clock as u32 {
        abi::CLOCK_REALTIME | abi::CLOCK_TAI => Clock::Real,
        abi::CLOCK_MONOTONIC | abi::CLOCK_BOOTTIME => Clock::Monotonic,
        _ => match clock::cpu_clock(clock)? {
            (0, false) => Clock::Process,
            (0, true) => Clock::Thread(thread.tid),
            (pid, false) if pid == thread.process.pid => Clock::Process,
            (tid, true) if thread.process.threads.lock().contains_key(&tid) => Clock::Thread(tid),
            _ => return Err(Errno::EINVAL),
        },
    };
    let process = &thread.process;
    let asked = if event == 0 {
        None
    } else {
        let mut bytes = [0; 64];
        uaccess::read(&thread.memory(), event, &mut bytes)?;
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let value = u64::from(word(0)) | u64::from(word(4)) << 32;
        Some((value, word(8), word(12), word(16)))
    };
    let most = process.limits.lock()[abi::RLIMIT_SIGPENDING as usize][0];
    let timer = |number: u32| {
        let (value, signal, kind, tid) = asked.unwrap_or((number.into(), abi::SIGALRM, SIGNAL, 0));
        if kind != NONE && !(1..=COUNT).contains(&signal) {
            return Err(Errno::EINVAL);
        }
        let info = Info { signal, errno: 0, code: SI_TIMER, fields: [number.into(), value, 0, 0] };
        let is_own = || process.threads.lock().contains_key(&tid);
        let then = match kind {
            NONE => OnExpiry::Nothing,
            SIGNAL | THREAD => OnExpiry::SignalProcess(info),
            OF_THREAD if is_own() => OnExpiry::SignalThread(tid, info),
            _ => return Err(Errno::EINVAL),
        };
        Ok(Timer::new(then, clock))
    };
    let number = process.timers.lock().add(most, timer)?;
    if let Err(error) = uaccess::write(&thread.memory(), to, &number.to_le_bytes()) {
        process.timers.lock().remove(number);
        return Err(error);
    }
    Ok(0)
}

/// Returns the POSIX timer with this ID; `EINVAL` if there is none.
fn get(thread: &Thread, number: u64) -> Result<Timer, Errno> {
    let number = number as u32;
    thread.process.timers.lock().get(number).filter(|_| !is_interval(number)).ok_or(Errno::EINVAL)
}

/// Implements `timer_settime`.
pub fn settime(thread: &Arc<Thread>, number: u64, flags: u64, new: u64, old: u64) -> Answer {
    let timer = get(thread, number)?;
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let [interval, value] = clock::read_timer(thread, new)?;
    let deadline = match value {
        0 => 0,
        _ if flags as u32 & abi::TIMER_ABSTIME == 0 => {
            timer.clock.now(&thread.process).unwrap_or_default().saturating_add(value)
        }
        _ => timer.clock.deadline(value),
    };
    let before = set(&thread.process, number as u32, deadline, interval)?;
    if old != 0 {
        write(thread, old, &before)?;
    }
    Ok(0)
}

/// Implements `timer_gettime`.
pub fn gettime(thread: &Arc<Thread>, number: u64, to: u64) -> Answer {
    write(thread, to, &get(thread, number)?).map(|()| 0)
}

/// Implements `timer_getoverrun`.
pub fn getoverrun(thread: &Thread, number: u64) -> Answer {
    Ok(get(thread, number)?.overrun.min(i32::MAX as u64))
}

/// Implements `timer_delete`.
pub fn delete(thread: &Thread, number: u64) -> Answer {
    get(thread, number)?;
    thread.process.timers.lock().remove(number as u32);
    Ok(0)
}

fn write(thread: &Arc<Thread>, to: u64, timer: &Timer) -> Result<(), Errno> {
    clock::write_timer(thread, to, [timer.interval, timer.left(&thread.process)])
}
