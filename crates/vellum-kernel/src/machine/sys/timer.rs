//! Timers: the interval timer of real time, and those that programs make.
//!
//! A timer that is set has a task that sleeps until it fires; to set it anew makes the task's setting an old one, and the task
//! ends when it finds out.

use super::Answer;
use super::clock::{self, EPOCH, SECOND, read_pair, write_pair};
use crate::mem::{now_ns, uaccess};
use crate::task::signal::{self, COUNT, Info};
use crate::task::{Process, Thread, executor, time};
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::sync::atomic::{AtomicU64, Ordering};
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

/// The interval timer of real time, among timers by their numbers.
pub const REAL: u32 = u32::MAX;
/// A signal of a timer's, as it says why it came.
const SI_TIMER: i32 = -2;

/// How often a timer was set.
static SETTINGS: AtomicU64 = AtomicU64::new(0);

/// A process's timers.
pub type Timers = BTreeMap<u32, Timer>;

/// What happens when a timer fires.
#[derive(Clone, Copy, Debug)]
enum Then {
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
    interval: u64,
    /// Changes with each setting.
    version: u64,
    /// Whether moments are those of real time.
    real: bool,
    /// How often it fired while its signal was not yet delivered.
    overrun: u64,
    then: Then,
}

impl Timer {
    fn new(then: Then, real: bool) -> Self {
        Self { deadline: 0, interval: 0, version: 0, real, overrun: 0, then }
    }

    /// Nanoseconds until it fires; 0: never.
    pub fn left(&self) -> u64 {
        if self.deadline == 0 { 0 } else { self.deadline.saturating_sub(now_ns()).max(1) }
    }
}

/// Sets a timer: when it fires (0: never), and how long until it fires again; what it was.
fn set(process: &Arc<Process>, number: u32, deadline: u64, interval: u64) -> Result<Timer, Errno> {
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
pub fn set_real(process: &Arc<Process>, ns: u64, interval: u64) -> Result<Timer, Errno> {
    let info = Info { signal: abi::SIGALRM, code: abi::SI_KERNEL as i32, fields: [0; 4] };
    process.timers.lock().entry(REAL).or_insert(Timer::new(Then::Tell(info), false));
    set(process, REAL, if ns == 0 { 0 } else { now_ns().saturating_add(ns) }, interval)
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

/// `getitimer`.
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

/// `timer_create`.
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
            NONE => Then::Nothing,
            SIGNAL | THREAD => Then::Tell(info),
            OF_THREAD if is_own() => Then::TellThread(tid, info),
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

/// The timer of this number, of those that programs make.
fn get(thread: &Thread, number: u64) -> Result<Timer, Errno> {
    let number = number as u32;
    thread.process.timers.lock().get(&number).copied().filter(|_| number != REAL).ok_or(Errno::EINVAL)
}

/// `timer_settime`.
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

/// `timer_gettime`.
pub fn gettime(thread: &Arc<Thread>, number: u64, to: u64) -> Answer {
    write(thread, to, &get(thread, number)?).map(|()| 0)
}

/// `timer_getoverrun`.
pub fn getoverrun(thread: &Thread, number: u64) -> Answer {
    Ok(get(thread, number)?.overrun.min(i32::MAX as u64))
}

/// `timer_delete`.
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
