//! Implements timers that are files (`timerfd`).
//!
//! A file counts its timer's expirations when it is read or polled. In between, a sleeper of the
//! machine's clock wakes the tasks that wait for the first of them.

use super::clock::{read_timer, write_timer};
use super::{Answer, file};
use crate::mem::now_ns;
use crate::task::Thread;
use crate::task::time::{self, Sleep};
use crate::task::timer::Clock;
use alloc::sync::Arc;
use alloc::task::Wake;
use core::any::Any;
use core::future::Future;
use core::pin::Pin;
use core::task::Context;
use linux_raw_sys::general as abi;
use spin::Mutex;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::{File, Open, Sink, device};
use vellum_kernel::wait::Queue;

/// A timer.
struct TimerFd {
    clock: Clock,
    state: Mutex<State>,
    expired: Arc<Expired>,
}

#[derive(Default)]
struct State {
    /// The time of the first expiration that was not read, in nanoseconds of the monotonic clock;
    /// 0: the timer is not set.
    first: u64,
    /// The time between expirations in nanoseconds; 0: it expires once.
    interval: u64,
    /// The sleeper that wakes [`Expired`] at that time.
    sleeper: Option<Sleep>,
}

/// The tasks that wait for an expiration.
struct Expired(Queue);

impl Wake for Expired {
    fn wake(self: Arc<Self>) {
        self.0.wake_all();
    }
}

impl State {
    /// Returns the number of expirations that were not read.
    fn expirations(&self, now: u64) -> u64 {
        match now.checked_sub(self.first).filter(|_| self.first != 0) {
            None => 0,
            Some(since) => 1 + since.checked_div(self.interval).unwrap_or(0),
        }
    }

    /// Returns the interval, and the time until the next expiration; 0: there is none.
    fn left(&self, now: u64) -> [u64; 2] {
        let next = match self.expirations(now) {
            _ if self.first == 0 => now,
            0 => self.first,
            _ if self.interval == 0 => now,
            expired => self.first.saturating_add(expired.saturating_mul(self.interval)),
        };
        [self.interval, next - now]
    }

    /// Sets the time of the first expiration, at which the sleeper wakes `expired`.
    fn set_first(&mut self, first: u64, expired: &Arc<Expired>) {
        self.first = first;
        self.sleeper = (first != 0).then(|| time::until(first));
        if let Some(sleeper) = &mut self.sleeper
            && Pin::new(sleeper).poll(&mut Context::from_waker(&expired.clone().into())).is_ready()
        {
            expired.0.wake_all();
        }
    }
}

impl File for TimerFd {
    fn ignores_seeks(&self) -> bool {
        true
    }

    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if to.room() < 8 {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        let expirations = state.expirations(now_ns());
        if expirations == 0 {
            return Err(Errno::EAGAIN);
        }
        if to.put(&expirations.to_le_bytes())? < 8 {
            return Err(Errno::EFAULT);
        }
        let passed = expirations.saturating_mul(state.interval);
        let next = if passed == 0 { 0 } else { state.first.saturating_add(passed) };
        state.set_first(next, &self.expired);
        Ok(8)
    }

    fn ready(&self) -> u32 {
        if self.state.lock().expirations(now_ns()) > 0 { abi::POLLIN } else { 0 }
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.expired.0)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Implements `timerfd_create`.
pub fn create(thread: &Thread, clock: u64, flags: u64) -> Answer {
    let flags = flags as u32;
    if flags & !(abi::TFD_CLOEXEC | abi::TFD_NONBLOCK) != 0 {
        return Err(Errno::EINVAL);
    }
    let clock = match clock as u32 {
        abi::CLOCK_REALTIME => Clock::Real,
        // The machine is never suspended.
        abi::CLOCK_MONOTONIC | abi::CLOCK_BOOTTIME => Clock::Monotonic,
        abi::CLOCK_REALTIME_ALARM | abi::CLOCK_BOOTTIME_ALARM => {
            thread.credentials().needs(abi::CAP_WAKE_ALARM)?;
            if clock as u32 == abi::CLOCK_REALTIME_ALARM { Clock::Real } else { Clock::Monotonic }
        }
        _ => return Err(Errno::EINVAL),
    };
    let timer = TimerFd { clock, state: Mutex::default(), expired: Arc::new(Expired(Queue::new())) };
    file::add(thread, device::open(Arc::new(timer), abi::O_RDWR | flags & abi::O_NONBLOCK), flags)
}

fn timer_of(open: &Open) -> Result<&TimerFd, Errno> {
    open.file()?.as_any().downcast_ref().ok_or(Errno::EINVAL)
}

/// Implements `timerfd_settime`.
pub fn settime(thread: &Arc<Thread>, fd: u64, flags: u64, new: u64, old: u64) -> Answer {
    let flags = flags as u32;
    let [interval, value] = read_timer(thread, new)?;
    // No program sets the clock, which would cancel a timer by `TFD_TIMER_CANCEL_ON_SET`.
    if flags & !(abi::TFD_TIMER_ABSTIME | abi::TFD_TIMER_CANCEL_ON_SET) != 0 {
        return Err(Errno::EINVAL);
    }
    let open = file::open_of(thread, fd)?;
    let timer = timer_of(&open)?;
    let now = now_ns();
    let first = match value {
        0 => 0,
        _ if flags & abi::TFD_TIMER_ABSTIME != 0 => timer.clock.deadline(value).max(1),
        _ => now.saturating_add(value),
    };
    let mut state = timer.state.lock();
    let before = state.left(now);
    state.interval = interval;
    state.set_first(first, &timer.expired);
    drop(state);
    if old != 0 {
        write_timer(thread, old, before)?;
    }
    Ok(0)
}

/// Implements `timerfd_gettime`.
pub fn gettime(thread: &Arc<Thread>, fd: u64, to: u64) -> Answer {
    let open = file::open_of(thread, fd)?;
    let left = timer_of(&open)?.state.lock().left(now_ns());
    write_timer(thread, to, left).map(|()| 0)
}
