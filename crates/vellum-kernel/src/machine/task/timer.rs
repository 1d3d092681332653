//! A process's timers: interval timers (`setitimer`), and POSIX timers.
//!
//! Each setting of a timer starts a task that sleeps until the timer expires. The timer owns the
//! task: a new setting, the end of the timer and that of the process end the task, however far the
//! deadline is. A task that runs at that moment finds another version.
//!
//! No time slice is checked against timers of CPU time: their task sleeps for as long as they can't
//! have expired even on all CPUs, and then looks again.

use crate::mem::{machine, now_ns, started_at};
use crate::task::executor::{self, Owned};
use crate::task::signal::{self, Info};
use crate::task::{Process, time};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as abi;
use vellum::platform::Cpus;
use vellum_kernel::errno::Errno;

/// The interval timers, in Linux's order (`ITIMER_*`): their numbers among a process's timers, and
/// their signals.
pub const INTERVAL: [(u32, u32); 3] =
    [(u32::MAX, abi::SIGALRM), (u32::MAX - 1, abi::SIGVTALRM), (u32::MAX - 2, abi::SIGPROF)];
/// Returns whether this is the number of an interval timer.
pub fn is_interval(number: u32) -> bool {
    INTERVAL.iter().any(|(interval, _)| *interval == number)
}

/// The `si_code` of a POSIX timer's signal.
pub const SI_TIMER: i32 = -2;

/// The number of timer settings so far, from which versions are taken.
static SETTINGS: AtomicU64 = AtomicU64::new(0);

/// A process's timers.
#[derive(Default)]
pub struct Timers {
    timers: BTreeMap<u32, (Timer, Option<Owned>)>,
}

impl Timers {
    /// Returns the timer with a number, as it is now.
    pub fn get(&self, number: u32) -> Option<Timer> {
        self.timers.get(&number).map(|(timer, _)| *timer)
    }

    /// Adds a POSIX timer with the lowest free number. `timer` makes it of that number.
    ///
    /// # Errors
    ///
    /// `EAGAIN`: there are `most` timers. The errors of `timer`.
    pub fn add(&mut self, most: u64, timer: impl FnOnce(u32) -> Result<Timer, Errno>) -> Result<u32, Errno> {
        if self.timers.len() as u64 >= most {
            return Err(Errno::EAGAIN);
        }
        let number = self.timers.keys().zip(0..).take_while(|(number, index)| *number == index).count() as u32;
        self.timers.insert(number, (timer(number)?, None));
        Ok(number)
    }

    /// Removes a timer.
    pub fn remove(&mut self, number: u32) {
        self.timers.remove(&number);
    }

    /// Removes the POSIX timers: interval timers survive `execve`.
    pub fn remove_posix(&mut self) {
        self.timers.retain(|number, _| is_interval(*number));
    }
}

/// The action when a timer expires.
#[derive(Clone, Copy, Debug)]
pub enum OnExpiry {
    /// Nothing.
    Nothing,
    /// Send this signal to the process.
    SignalProcess(Info),
    /// Send this signal to the thread with this number.
    SignalThread(u32, Info),
}

/// The shortest time between expirations, in nanoseconds: regardless of a timer's interval, other
/// threads run in between.
const SHORTEST: u64 = 100_000;

/// The longest time for which the task of a timer of CPU time sleeps while the process sleeps, too,
/// in nanoseconds.
const LONGEST_SLEEP: u64 = 50_000_000;

/// The clock of a timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// `CLOCK_REALTIME`. Its deadlines are kept in monotonic time: the clock is not set.
    Real,
    /// `CLOCK_MONOTONIC`.
    Monotonic,
    /// The CPU time of the process.
    Process,
    /// The CPU time of the thread with this number.
    Thread(u32),
}

impl Clock {
    /// Returns the time in which deadlines are kept, in nanoseconds; `None` if the thread is gone.
    pub fn now(self, process: &Process) -> Option<u64> {
        match self {
            Clock::Real | Clock::Monotonic => Some(now_ns()),
            Clock::Process => Some(process.cpu_time()),
            Clock::Thread(tid) => Some(process.threads.lock().get(&tid)?.cpu_time()),
        }
    }

    /// Returns the deadline for a time of this clock that a program names.
    pub fn deadline(self, at: u64) -> u64 {
        if self == Clock::Real { at.saturating_sub(started_at()).max(1) } else { at }
    }

    /// Waits until the clock reaches a deadline. Returns false if it never will.
    async fn reaches(self, process: &Weak<Process>, deadline: u64) -> bool {
        if matches!(self, Clock::Real | Clock::Monotonic) {
            time::until(deadline).await;
            return true;
        }
        let (mut before, mut sleep) = (0, time::TIME_SLICE);
        loop {
            let Some(now) = process.upgrade().filter(|process| !process.life.lock().is_over()) else { return false };
            let Some(now) = self.now(&now) else { return false };
            let Some(left) = deadline.checked_sub(now).filter(|left| *left > 0) else { return true };
            // A process that has not run since does not run on all CPUs now.
            sleep = if now == before { (sleep * 2).min(LONGEST_SLEEP) } else { time::TIME_SLICE };
            before = now;
            time::until(now_ns() + sleep.max(left / machine().platform().count() as u64)).await;
        }
    }
}

/// A timer.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    /// The time of the next expiration; 0: none.
    deadline: u64,
    /// The interval between expirations in nanoseconds; 0: expires once.
    pub interval: u64,
    /// The version, unique to each setting.
    version: u64,
    /// The clock of the deadlines.
    pub clock: Clock,
    /// The number of expirations while the previous signal was not delivered yet.
    pub overrun: u64,
    then: OnExpiry,
}

impl Timer {
    /// Returns a timer that is not set.
    pub fn new(then: OnExpiry, clock: Clock) -> Self {
        Self { deadline: 0, interval: 0, version: 0, clock, overrun: 0, then }
    }

    /// Returns the nanoseconds until the next expiration; 0: none.
    pub fn left(&self, process: &Process) -> u64 {
        match self.clock.now(process).filter(|_| self.deadline != 0) {
            Some(now) => self.deadline.saturating_sub(now).max(1),
            None => 0,
        }
    }
}

/// Sets a timer's deadline (0: never) and interval. Returns the previous state.
///
/// # Errors
///
/// `EINVAL`: there is no timer of this number.
pub fn set(process: &Arc<Process>, number: u32, deadline: u64, interval: u64) -> Result<Timer, Errno> {
    let mut timers = process.timers.lock();
    let (timer, task) = timers.timers.get_mut(&number).ok_or(Errno::EINVAL)?;
    let (before, clock) = (*timer, timer.clock);
    // Versions are unique even among successive timers of the same number.
    let version = SETTINGS.fetch_add(1, Ordering::Relaxed) + 1;
    *timer = Timer { deadline, interval, version, overrun: 0, ..before };
    let runs = || executor::spawn_owned(run(Arc::downgrade(process), number, (clock, version), deadline));
    *task = (deadline != 0).then(runs);
    Ok(before)
}

/// Runs one setting of a timer: sleeps until each expiration and carries out the timer's action.
/// Ends when the timer is set again, is deleted, or does not repeat.
async fn run(process: Weak<Process>, number: u32, (clock, version): (Clock, u64), mut deadline: u64) {
    while deadline != 0 && clock.reaches(&process, deadline).await {
        let Some(process) = process.upgrade() else { return };
        let Some(now) = clock.now(&process) else { return };
        let then = {
            let mut timers = process.timers.lock();
            let timer = timers.timers.get_mut(&number).map(|(timer, _)| timer);
            let Some(timer) = timer.filter(|timer| timer.version == version) else { return };
            // Missed expirations count as overruns, and so do those that would follow within the
            // next `SHORTEST` nanoseconds.
            let (late, next) = match timer.interval {
                0 => (0, 0),
                interval => {
                    let late = now.saturating_sub(deadline) / interval + (SHORTEST - 1) / interval;
                    (late, deadline.saturating_add((late + 1).saturating_mul(interval)))
                }
            };
            deadline = next;
            timer.deadline = deadline;
            if is_signal_pending(&process, number, timer.then) {
                timer.overrun = timer.overrun.saturating_add(late + 1);
                continue;
            }
            timer.overrun = late;
            timer.then
        };
        match then {
            OnExpiry::Nothing => {}
            OnExpiry::SignalProcess(info) => signal::send(&process, info),
            OnExpiry::SignalThread(tid, info) => {
                let thread = process.threads.lock().get(&tid).cloned();
                if let Some(thread) = thread {
                    signal::send_to(&thread, info);
                }
            }
        }
    }
}

/// Returns whether the timer's last signal is still pending.
fn is_signal_pending(process: &Process, number: u32, then: OnExpiry) -> bool {
    let own = |info: &Info| info.code == SI_TIMER && info.fields[0] as u32 == number;
    match then {
        OnExpiry::Nothing => false,
        OnExpiry::SignalProcess(_) => process.signals.lock().pending.any(own),
        OnExpiry::SignalThread(tid, _) => {
            let thread = process.threads.lock().get(&tid).cloned();
            thread.is_some_and(|thread| thread.pending.lock().any(own))
        }
    }
}

/// Sets an interval timer ([`INTERVAL`]), in nanoseconds. Returns the previous state. The kernel's
/// work for a process counts for both timers of CPU time.
///
/// # Errors
///
/// None: the timer is created if there is none.
pub fn set_interval(process: &Arc<Process>, which: usize, ns: u64, interval: u64) -> Result<Timer, Errno> {
    let (number, signal) = INTERVAL[which];
    let clock = if signal == abi::SIGALRM { Clock::Monotonic } else { Clock::Process };
    let info = Info { signal, errno: 0, code: abi::SI_KERNEL as i32, fields: [0; 4] };
    let now = clock.now(process).unwrap_or_default();
    let fresh = || (Timer::new(OnExpiry::SignalProcess(info), clock), None);
    process.timers.lock().timers.entry(number).or_insert_with(fresh);
    set(process, number, if ns == 0 { 0 } else { now.saturating_add(ns) }, interval)
}
