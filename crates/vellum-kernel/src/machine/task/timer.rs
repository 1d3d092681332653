//! A process's timers: the real-time interval timer (`setitimer`), and POSIX timers.
//!
//! Each setting of a timer starts a task that sleeps until the timer expires. A new setting changes
//! the timer's version; the previous setting's task ends when it finds another version.

use crate::mem::now_ns;
use crate::task::signal::{self, Info};
use crate::task::{Process, executor, time};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

/// The number of the real-time interval timer among a process's timers.
pub const REAL: u32 = u32::MAX;
/// The `si_code` of a POSIX timer's signal.
pub const SI_TIMER: i32 = -2;

/// The number of timer settings so far, from which versions are taken.
static SETTINGS: AtomicU64 = AtomicU64::new(0);

/// A process's timers.
pub type Timers = BTreeMap<u32, Timer>;

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

/// A timer.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    /// The time of the next expiration; 0: none.
    deadline: u64,
    /// The interval between expirations in nanoseconds; 0: expires once.
    pub interval: u64,
    /// The version, unique to each setting.
    version: u64,
    /// True if deadlines are in real time (`CLOCK_REALTIME`).
    pub real: bool,
    /// The number of expirations while the previous signal was not delivered yet.
    pub overrun: u64,
    then: OnExpiry,
}

impl Timer {
    /// Returns a timer that is not set.
    pub fn new(then: OnExpiry, real: bool) -> Self {
        Self { deadline: 0, interval: 0, version: 0, real, overrun: 0, then }
    }

    /// Returns the nanoseconds until the next expiration; 0: none.
    pub fn left(&self) -> u64 {
        if self.deadline == 0 { 0 } else { self.deadline.saturating_sub(now_ns()).max(1) }
    }
}

/// Sets a timer's deadline (0: never) and interval. Returns the previous state.
///
/// # Errors
///
/// `EINVAL`: there is no timer of this number.
pub fn set(process: &Arc<Process>, number: u32, deadline: u64, interval: u64) -> Result<Timer, Errno> {
    let mut timers = process.timers.lock();
    let timer = timers.get_mut(&number).ok_or(Errno::EINVAL)?;
    let before = *timer;
    // Versions are unique even among successive timers of the same number.
    let version = SETTINGS.fetch_add(1, Ordering::Relaxed) + 1;
    *timer = Timer { deadline, interval, version, overrun: 0, ..before };
    drop(timers);
    if deadline != 0 {
        executor::spawn(run(Arc::downgrade(process), number, version, deadline));
    }
    Ok(before)
}

/// Runs one setting of a timer: sleeps until each expiration and carries out the timer's action.
/// Ends when the timer is set again, is deleted, or does not repeat.
async fn run(process: Weak<Process>, number: u32, version: u64, mut deadline: u64) {
    while deadline != 0 {
        time::until(deadline).await;
        let Some(process) = process.upgrade() else { return };
        let then = {
            let mut timers = process.timers.lock();
            let Some(timer) = timers.get_mut(&number).filter(|timer| timer.version == version) else { return };
            // Missed expirations count as overruns, and so do those that would follow within the
            // next `SHORTEST` nanoseconds.
            let (late, next) = match timer.interval {
                0 => (0, 0),
                interval => {
                    let late = now_ns().saturating_sub(deadline) / interval + (SHORTEST - 1) / interval;
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

/// Sets the real-time interval timer, in nanoseconds. Returns the previous state.
///
/// # Errors
///
/// None: the timer is created if there is none.
pub fn set_real(process: &Arc<Process>, ns: u64, interval: u64) -> Result<Timer, Errno> {
    let info = Info { signal: abi::SIGALRM, code: abi::SI_KERNEL as i32, fields: [0; 4] };
    process.timers.lock().entry(REAL).or_insert(Timer::new(OnExpiry::SignalProcess(info), false));
    set(process, REAL, if ns == 0 { 0 } else { now_ns().saturating_add(ns) }, interval)
}
