//! Implements interval timers and POSIX timers.

use super::Answer;
use super::clock::{self, SECOND, read_pair, write_pair};
use crate::mem::{EPOCH, now_ns, uaccess};
use crate::task::Thread;
use crate::task::signal::{COUNT, Info};
use crate::task::timer::{OnExpiry, REAL, SI_TIMER, Timer, set, set_real};
use alloc::sync::Arc;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

/// Implements `setitimer` for real time. The CPU-time timers are accepted and never fire.
pub fn setitimer(thread: &Arc<Thread>, which: u64, new: u64, old: u64) -> Answer {
    if which > 2 {
        return Err(Errno::EINVAL);
    }
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
    let before = if which == 0 { Some(set_real(&thread.process, value, interval)?) } else { None };
    if old != 0 {
        write_interval(thread, old, before)?;
    }
    Ok(0)
}

/// Implements `getitimer`.
pub fn getitimer(thread: &Arc<Thread>, which: u64, to: u64) -> Answer {
    if which > 2 {
        return Err(Errno::EINVAL);
    }
    let timer = if which == 0 { thread.process.timers.lock().get(&REAL).copied() } else { None };
    write_interval(thread, to, timer).map(|()| 0)
}

fn write_interval(thread: &Arc<Thread>, to: u64, timer: Option<Timer>) -> Result<(), Errno> {
    let (interval, left) = timer.map_or((0, 0), |timer| (timer.interval, timer.left()));
    clock::write_micro(thread, to, interval)?;
    clock::write_micro(thread, to.wrapping_add(16), left)
}

/// Implements `timer_create`.
pub fn create(thread: &Arc<Thread>, clock: u64, event: u64, to: u64) -> Answer {
    const SIGNAL: u32 = 0;
    const NONE: u32 = 1;
    const THREAD: u32 = 2;
    const OF_THREAD: u32 = 4;
    let real = match clock as u32 {
        abi::CLOCK_REALTIME | abi::CLOCK_TAI => true,
        abi::CLOCK_MONOTONIC | abi::CLOCK_BOOTTIME => false,
        _ => return Err(Errno::EINVAL),
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
    let number = {
        let mut timers = process.timers.lock();
        if timers.len() as u64 >= most {
            return Err(Errno::EAGAIN);
        }
        let taken = timers.keys().zip(0..).take_while(|(number, index)| *number == index).count();
        let number = taken as u32;
        let (value, signal, kind, tid) = asked.unwrap_or((number.into(), abi::SIGALRM, SIGNAL, 0));
        if kind != NONE && !(1..=COUNT).contains(&signal) {
            return Err(Errno::EINVAL);
        }
        let info = Info { signal, code: SI_TIMER, fields: [number.into(), value, 0, 0] };
        let is_own = || process.threads.lock().contains_key(&tid);
        let then = match kind {
            NONE => OnExpiry::Nothing,
            SIGNAL | THREAD => OnExpiry::SignalProcess(info),
            OF_THREAD if is_own() => OnExpiry::SignalThread(tid, info),
            _ => return Err(Errno::EINVAL),
        };
        timers.insert(number, Timer::new(then, real));
        number
    };
    if let Err(error) = uaccess::write(&thread.memory(), to, &number.to_le_bytes()) {
        process.timers.lock().remove(&number);
        return Err(error);
    }
    Ok(0)
}

/// Returns the POSIX timer with this ID; `EINVAL` if there is none.
fn get(thread: &Thread, number: u64) -> Result<Timer, Errno> {
    let number = number as u32;
    thread.process.timers.lock().get(&number).copied().filter(|_| number != REAL).ok_or(Errno::EINVAL)
}

/// Implements `timer_settime`.
pub fn settime(thread: &Arc<Thread>, number: u64, flags: u64, new: u64, old: u64) -> Answer {
    let timer = get(thread, number)?;
    if new == 0 {
        return Err(Errno::EINVAL);
    }
    let interval = clock::read_time(thread, new)?;
    let value = clock::read_time(thread, new.wrapping_add(16))?;
    let deadline = match value {
        0 => 0,
        _ if flags as u32 & abi::TIMER_ABSTIME == 0 => now_ns().saturating_add(value),
        _ if timer.real => value.saturating_sub(EPOCH).max(1),
        _ => value,
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
    thread.process.timers.lock().remove(&(number as u32));
    Ok(0)
}

fn write(thread: &Arc<Thread>, to: u64, timer: &Timer) -> Result<(), Errno> {
    for (at, ns) in [(to, timer.interval), (to.wrapping_add(16), timer.left())] {
        write_pair(thread, at, [ns / SECOND, ns % SECOND])?;
    }
    Ok(())
}
