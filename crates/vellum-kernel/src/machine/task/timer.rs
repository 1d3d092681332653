//! A process's timers: the interval timer of real time, and those that programs make.
//!
//! A timer that is set has a task that sleeps until it fires. Setting the timer anew makes the
//! task's setting an old one, and the task ends when it finds that out.

use crate::mem::now_ns;
use crate::task::signal::{self, Info};
use crate::task::{Process, executor, time};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

/// The interval timer of real time, among timers by their numbers.
pub const REAL: u32 = u32::MAX;
/// A signal of a timer's, as it says why it came.
pub const SI_TIMER: i32 = -2;

/// How often a timer was set.
static SETTINGS: AtomicU64 = AtomicU64::new(0);

/// A process's timers.
pub type Timers = BTreeMap<u32, Timer>;

/// What happens when a timer fires.
#[derive(Clone, Copy, Debug)]
pub enum Then {
    /// Nothing.
    Nothing,
    /// The process gets this.
    Tell(Info),
    /// This thread does.
    TellThread(u32, Info),
}

/// A timer fires no more often than this, in nanoseconds: whatever its program asks for, other
/// threads have the processor in between.
const SHORTEST: u64 = 100_000;

/// A timer.
#[derive(Clone, Copy, Debug)]
pub struct Timer {
    /// When it fires; 0: never.
    deadline: u64,
    /// How long until it fires again; 0: once.
    pub interval: u64,
    /// Changes with each setting.
    version: u64,
    /// Whether moments are those of real time.
    pub real: bool,
    /// How often it fired while its signal was not yet delivered.
    pub overrun: u64,
    then: Then,
}

impl Timer {
    /// Returns a timer that is not set.
    pub fn new(then: Then, real: bool) -> Self {
        Self { deadline: 0, interval: 0, version: 0, real, overrun: 0, then }
    }

    /// Nanoseconds until it fires; 0: never.
    pub fn left(&self) -> u64 {
        if self.deadline == 0 { 0 } else { self.deadline.saturating_sub(now_ns()).max(1) }
    }
}

/// Sets a timer: when it fires (0: never), and how long until it fires again; what it was.
///
/// # Errors
///
/// `EINVAL`: there is no timer of this number.
pub fn set(process: &Arc<Process>, number: u32, deadline: u64, interval: u64) -> Result<Timer, Errno> {
    let mut timers = process.timers.lock();
    let timer = timers.get_mut(&number).ok_or(Errno::EINVAL)?;
    let before = *timer;
    // No two settings have the same, not of timers that had the same number either.
    let version = SETTINGS.fetch_add(1, Ordering::Relaxed) + 1;
    *timer = Timer { deadline, interval, version, overrun: 0, ..before };
    drop(timers);
    if deadline != 0 {
        executor::spawn(run(Arc::downgrade(process), number, version, deadline));
    }
    Ok(before)
}

async fn run(process: Weak<Process>, number: u32, version: u64, mut deadline: u64) {
    while deadline != 0 {
        time::until(deadline).await;
        let Some(process) = process.upgrade() else { return };
        let then = {
            let mut timers = process.timers.lock();
            let Some(timer) = timers.get_mut(&number).filter(|timer| timer.version == version) else { return };
            // What it is late by counts as often as it should have fired, and so does what it
            // would fire in the next moment.
            let (late, next) = match timer.interval {
                0 => (0, 0),
                interval => {
                    let late = now_ns().saturating_sub(deadline) / interval + (SHORTEST - 1) / interval;
                    (late, deadline.saturating_add((late + 1).saturating_mul(interval)))
                }
            };
            deadline = next;
            timer.deadline = deadline;
            if waits(&process, number, timer.then) {
                timer.overrun = timer.overrun.saturating_add(late + 1);
                continue;
            }
            timer.overrun = late;
            timer.then
        };
        match then {
            Then::Nothing => {}
            Then::Tell(info) => signal::send(&process, info),
            Then::TellThread(tid, info) => {
                let thread = process.threads.lock().get(&tid).cloned();
                if let Some(thread) = thread {
                    signal::send_to(&thread, info);
                }
            }
        }
    }
}

/// Whether the timer's last signal is still to be delivered.
fn waits(process: &Process, number: u32, then: Then) -> bool {
    let own = |info: &Info| info.code == SI_TIMER && info.fields[0] as u32 == number;
    match then {
        Then::Nothing => false,
        Then::Tell(_) => process.signals.lock().pending.any(own),
        Then::TellThread(tid, _) => {
            let thread = process.threads.lock().get(&tid).cloned();
            thread.is_some_and(|thread| thread.pending.lock().any(own))
        }
    }
}

/// Sets the interval timer of real time; what it was.
///
/// # Errors
///
/// None.
pub fn set_real(process: &Arc<Process>, ns: u64, interval: u64) -> Result<Timer, Errno> {
    let info = Info { signal: abi::SIGALRM, code: abi::SI_KERNEL as i32, fields: [0; 4] };
    process.timers.lock().entry(REAL).or_insert(Timer::new(Then::Tell(info), false));
    set(process, REAL, if ns == 0 { 0 } else { now_ns().saturating_add(ns) }, interval)
}
