//! Time: clocks, sleeping, timers.

use super::Answer;
use crate::mem::{now_ns, uaccess};
use crate::task::signal::{self, Info};
use crate::task::{Process, Thread, executor, process, time};
use alloc::sync::{Arc, Weak};
use core::future::pending;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

const SECOND: u64 = 1_000_000_000;
/// The day on which the machine's clock starts: nobody tells it better.
pub const EPOCH: u64 = 1_767_225_600 * SECOND;

/// Copies a `struct timespec` from a program, in nanoseconds.
pub fn read_time(thread: &Arc<Thread>, from: u64) -> Result<u64, Errno> {
    let [seconds, ns] = read_pair(thread, from)?;
    if seconds > i64::MAX as u64 || ns >= SECOND {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(ns))
}

/// Copies a `struct timeval` of how long, in nanoseconds.
pub fn read_micro(thread: &Arc<Thread>, from: u64) -> Result<u64, Errno> {
    let [seconds, us] = read_pair(thread, from)?;
    if seconds > i64::MAX as u64 || us > i64::MAX as u64 {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(us.saturating_mul(1000)))
}

/// Copies so many nanoseconds to a program's `struct timeval`.
pub fn write_micro(thread: &Arc<Thread>, to: u64, ns: u64) -> Result<(), Errno> {
    write_pair(thread, to, [ns / SECOND, ns % SECOND / 1000])
}

fn read_pair(thread: &Arc<Thread>, from: u64) -> Result<[u64; 2], Errno> {
    let mut bytes = [0; 16];
    uaccess::read(&thread.memory(), from, &mut bytes)?;
    let both = u128::from_le_bytes(bytes);
    Ok([both as u64, (both >> 64) as u64])
}

fn write_pair(thread: &Arc<Thread>, to: u64, pair: [u64; 2]) -> Result<(), Errno> {
    let both = u128::from(pair[0]) | u128::from(pair[1]) << 64;
    uaccess::write(&thread.memory(), to, &both.to_le_bytes())
}

/// What a clock says.
fn read(thread: &Thread, clock: u64) -> Result<u64, Errno> {
    match clock as u32 {
        abi::CLOCK_REALTIME | abi::CLOCK_REALTIME_COARSE | abi::CLOCK_TAI => Ok(EPOCH + now_ns()),
        abi::CLOCK_MONOTONIC | abi::CLOCK_MONOTONIC_RAW | abi::CLOCK_MONOTONIC_COARSE | abi::CLOCK_BOOTTIME => {
            Ok(now_ns())
        }
        abi::CLOCK_PROCESS_CPUTIME_ID => Ok(thread.process.processor_time()),
        abi::CLOCK_THREAD_CPUTIME_ID => Ok(thread.processor_time()),
        // Clocks of processes and threads, named by their numbers: above three bits that say which.
        _ if (clock as i32) < 0 => {
            const OF_THREAD: i32 = 4;
            let (number, of_thread) = (!(clock as i32 >> 3) as u32, clock as i32 & OF_THREAD != 0);
            match (number, of_thread) {
                (0, false) => Ok(thread.process.processor_time()),
                (0, true) => Ok(thread.processor_time()),
                (_, true) => Ok(process::find_thread(number).ok_or(Errno::EINVAL)?.processor_time()),
                (_, false) => Ok(process::find(number).ok_or(Errno::EINVAL)?.processor_time()),
            }
        }
        _ => Err(Errno::EINVAL),
    }
}

/// When the machine's clock reaches a moment that a program gives: of real time, or monotonic.
pub fn deadline(thread: &Arc<Thread>, from: u64, real: bool) -> Result<u64, Errno> {
    let at = read_time(thread, from)?;
    Ok(if real { at.saturating_sub(EPOCH) } else { at })
}

/// `clock_gettime`.
pub fn gettime(thread: &Arc<Thread>, clock: u64, to: u64) -> Answer {
    let now = read(thread, clock)?;
    write_pair(thread, to, [now / SECOND, now % SECOND]).map(|()| 0)
}

/// `clock_getres`.
pub fn getres(thread: &Arc<Thread>, clock: u64, to: u64) -> Answer {
    read(thread, clock)?;
    if to != 0 {
        write_pair(thread, to, [0, 1])?;
    }
    Ok(0)
}

/// `gettimeofday`.
pub fn gettimeofday(thread: &Arc<Thread>, to: u64) -> Answer {
    let now = EPOCH + now_ns();
    if to != 0 {
        write_pair(thread, to, [now / SECOND, now % SECOND / 1000])?;
    }
    Ok(0)
}

/// `time`.
pub fn seconds(thread: &Arc<Thread>, to: u64) -> Answer {
    let now = (EPOCH + now_ns()) / SECOND;
    if to != 0 {
        uaccess::write(&thread.memory(), to, &now.to_le_bytes())?;
    }
    Ok(now)
}

/// `nanosleep`.
pub async fn nanosleep(thread: &Arc<Thread>, from: u64, left: u64) -> Answer {
    let ns = read_time(thread, from)?;
    sleep(thread, now_ns().saturating_add(ns), left).await
}

/// `clock_nanosleep`.
pub async fn clock_nanosleep(thread: &Arc<Thread>, clock: u64, flags: u64, from: u64, left: u64) -> Answer {
    let (now, ns) = (read(thread, clock)?, read_time(thread, from)?);
    if clock as u32 == abi::CLOCK_THREAD_CPUTIME_ID {
        return Err(Errno::EINVAL);
    }
    if flags as u32 & abi::TIMER_ABSTIME != 0 {
        sleep(thread, now_ns().saturating_add(ns.saturating_sub(now)), 0).await
    } else {
        sleep(thread, now_ns().saturating_add(ns), left).await
    }
}

async fn sleep(thread: &Arc<Thread>, deadline: u64, left: u64) -> Answer {
    let deadline = thread.wait_until(deadline);
    match thread.interruptible(pending::<()>(), Some(deadline)).await {
        Err(Errno::ETIMEDOUT) => Ok(0),
        _ => {
            if left != 0 {
                let ns = deadline.saturating_sub(now_ns());
                write_pair(thread, left, [ns / SECOND, ns % SECOND])?;
            }
            Err(Errno::EINTR)
        }
    }
}

/// A process's interval timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct Timer {
    /// When it fires; 0: never.
    pub deadline: u64,
    /// How long until it fires again; 0: once.
    pub interval: u64,
    /// Changes with each setting, so that what waits for an older one knows.
    pub version: u64,
}

/// Sets a process's timer; what it was.
fn set_timer(process: &Arc<Process>, ns: u64, interval: u64) -> Timer {
    let mut timer = process.timer.lock();
    let before = *timer;
    let deadline = if ns == 0 { 0 } else { now_ns() + ns };
    *timer = Timer { deadline, interval, version: before.version + 1 };
    let now = *timer;
    drop(timer);
    if deadline != 0 {
        executor::spawn(run_timer(Arc::downgrade(process), now));
    }
    before
}

async fn run_timer(process: Weak<Process>, mut timer: Timer) {
    loop {
        time::until(timer.deadline).await;
        let Some(process) = process.upgrade() else { return };
        {
            let mut current = process.timer.lock();
            if current.version != timer.version {
                return;
            }
            timer.deadline = if timer.interval == 0 { 0 } else { timer.deadline + timer.interval };
            *current = timer;
        }
        let info = Info { signal: abi::SIGALRM, code: abi::SI_KERNEL as i32, fields: [0; 4] };
        signal::send(&process, info);
        if timer.deadline == 0 {
            return;
        }
    }
}

fn left(timer: &Timer) -> u64 {
    if timer.deadline == 0 { 0 } else { timer.deadline.saturating_sub(now_ns()).max(1) }
}

/// `alarm`.
pub fn alarm(thread: &Arc<Thread>, seconds: u64) -> Answer {
    let before = set_timer(&thread.process, (seconds & 0xffff_ffff) * SECOND, 0);
    Ok(left(&before).div_ceil(SECOND))
}

/// `setitimer`: of real time; the timers of processor time never fire.
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
    let (interval, value) = if new == 0 {
        (0, 0)
    } else {
        (micro(read_pair(thread, new)?)?, micro(read_pair(thread, new.wrapping_add(16))?)?)
    };
    let before = if which == 0 { set_timer(&thread.process, value, interval) } else { Timer::default() };
    if old != 0 {
        write_timer(thread, old, &before)?;
    }
    Ok(0)
}

/// `getitimer`.
pub fn getitimer(thread: &Arc<Thread>, which: u64, to: u64) -> Answer {
    if which > 2 {
        return Err(Errno::EINVAL);
    }
    let timer = if which == 0 { *thread.process.timer.lock() } else { Timer::default() };
    write_timer(thread, to, &timer).map(|()| 0)
}

fn write_timer(thread: &Arc<Thread>, to: u64, timer: &Timer) -> Result<(), Errno> {
    for (at, ns) in [(to, timer.interval), (to.wrapping_add(16), left(timer))] {
        write_pair(thread, at, [ns / SECOND, ns % SECOND / 1000])?;
    }
    Ok(())
}
