//! Implements the system calls that read clocks and sleep.

use super::Answer;
use crate::mem::{now_ns, started_at, uaccess};
use crate::task::{Thread, process};
use alloc::sync::Arc;
use core::future::pending;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

pub const SECOND: u64 = 1_000_000_000;

/// Reads a `struct timespec` from a program and returns it in nanoseconds.
pub fn read_time(thread: &Arc<Thread>, from: u64) -> Result<u64, Errno> {
    let [seconds, ns] = read_pair(thread, from)?;
    if seconds > i64::MAX as u64 || ns >= SECOND {
        return Err(Errno::EINVAL);
    }
    Ok(seconds.saturating_mul(SECOND).saturating_add(ns))
}

/// Writes `ns` nanoseconds to a program's `struct timeval`.
pub fn write_micro(thread: &Arc<Thread>, to: u64, ns: u64) -> Result<(), Errno> {
    write_pair(thread, to, [ns / SECOND, ns % SECOND / 1000])
}

/// Reads two 64-bit words from a program.
pub fn read_pair(thread: &Arc<Thread>, from: u64) -> Result<[u64; 2], Errno> {
    let mut bytes = [0; 16];
    uaccess::read(&thread.memory(), from, &mut bytes)?;
    let both = u128::from_le_bytes(bytes);
    Ok([both as u64, (both >> 64) as u64])
}

/// Writes two 64-bit words to a program.
pub fn write_pair(thread: &Arc<Thread>, to: u64, pair: [u64; 2]) -> Result<(), Errno> {
    let both = u128::from(pair[0]) | u128::from(pair[1]) << 64;
    uaccess::write(&thread.memory(), to, &both.to_le_bytes())
}

/// Reads a `struct itimerspec` from a program and returns the interval and the value, in
/// nanoseconds.
pub fn read_timer(thread: &Arc<Thread>, from: u64) -> Result<[u64; 2], Errno> {
    Ok([read_time(thread, from)?, read_time(thread, from.wrapping_add(16))?])
}

/// Writes an interval and a value, in nanoseconds, to a program's `struct itimerspec`.
pub fn write_timer(thread: &Arc<Thread>, to: u64, times: [u64; 2]) -> Result<(), Errno> {
    for (at, ns) in [to, to.wrapping_add(16)].into_iter().zip(times) {
        write_pair(thread, at, [ns / SECOND, ns % SECOND])?;
    }
    Ok(())
}

/// Returns the ID of the process or thread whose CPU time a clock counts, or 0 for the caller's,
/// and whether it is a thread; `EINVAL` if this is no such clock.
pub fn cpu_clock(clock: u64) -> Result<(u32, bool), Errno> {
    /// The kind of the clocks that are files, of which there are none, in the lowest bits.
    const OF_FILE: u64 = 3;
    const OF_THREAD: i32 = 4;
    match clock as u32 {
        abi::CLOCK_PROCESS_CPUTIME_ID => Ok((0, false)),
        abi::CLOCK_THREAD_CPUTIME_ID => Ok((0, true)),
        // The inverted ID above three bits that select the kind.
        _ if (clock as i32) < 0 && clock & 3 != OF_FILE => {
            Ok((!(clock as i32 >> 3) as u32, clock as i32 & OF_THREAD != 0))
        }
        _ => Err(Errno::EINVAL),
    }
}

/// Returns the time of a clock in nanoseconds; `EINVAL` for an unknown clock.
pub fn read(thread: &Thread, clock: u64) -> Result<u64, Errno> {
    match clock as u32 {
        abi::CLOCK_REALTIME | abi::CLOCK_REALTIME_COARSE | abi::CLOCK_TAI => Ok(started_at() + now_ns()),
        abi::CLOCK_MONOTONIC | abi::CLOCK_MONOTONIC_RAW | abi::CLOCK_MONOTONIC_COARSE | abi::CLOCK_BOOTTIME => {
            Ok(now_ns())
        }
        _ => match cpu_clock(clock)? {
            (0, false) => Ok(thread.process.cpu_time()),
            (0, true) => Ok(thread.cpu_time()),
            (number, true) => Ok(process::find_thread(number).ok_or(Errno::EINVAL)?.cpu_time()),
            (number, false) => Ok(process::find(number).ok_or(Errno::EINVAL)?.cpu_time()),
        },
    }
}

/// Reads a deadline from a program and returns it in nanoseconds of the monotonic clock. With
/// `real`, the program gave it in real time.
pub fn deadline(thread: &Arc<Thread>, from: u64, real: bool) -> Result<u64, Errno> {
    let at = read_time(thread, from)?;
    Ok(if real { at.saturating_sub(started_at()) } else { at })
}

/// Implements `clock_gettime`.
pub fn gettime(thread: &Arc<Thread>, clock: u64, to: u64) -> Answer {
    let now = read(thread, clock)?;
    write_pair(thread, to, [now / SECOND, now % SECOND]).map(|()| 0)
}

/// Implements `clock_getres`.
pub fn getres(thread: &Arc<Thread>, clock: u64, to: u64) -> Answer {
    read(thread, clock)?;
    if to != 0 {
        write_pair(thread, to, [0, 1])?;
    }
    Ok(0)
}

/// Implements `gettimeofday`.
pub fn gettimeofday(thread: &Arc<Thread>, to: u64, zone: u64) -> Answer {
    let now = started_at() + now_ns();
    if to != 0 {
        write_pair(thread, to, [now / SECOND, now % SECOND / 1000])?;
    }
    if zone != 0 {
        // The clock is that of Greenwich.
        uaccess::write(&thread.memory(), zone, &[0; 8])?;
    }
    Ok(0)
}

/// Implements `nanosleep`.
pub async fn nanosleep(thread: &Arc<Thread>, from: u64, left: u64) -> Answer {
    let ns = read_time(thread, from)?;
    sleep(thread, now_ns().saturating_add(ns), left).await
}

/// Implements `clock_nanosleep`.
pub async fn clock_nanosleep(thread: &Arc<Thread>, clock: u64, flags: u64, from: u64, left: u64) -> Answer {
    let (now, ns) = (read(thread, clock)?, read_time(thread, from)?);
    if clock as u32 == abi::CLOCK_THREAD_CPUTIME_ID {
        return Err(Errno::EOPNOTSUPP);
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
