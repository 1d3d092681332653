//! Bounds how long a scan holds the target's mmap lock.
//!
//! `PAGEMAP_SCAN` and reads of `/proc/PID/pagemap` hold the target's mmap lock for reading while
//! they walk its page tables. While the lock is held, the target's `mmap`, `munmap` and many of its
//! page faults wait. A [`Pace`] splits a scan into steps within a time budget. When a step has to
//! wait for the lock, the target is using it, and steps become shorter, with pauses between them.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// The most bytes of addresses walked in one step. If they have only empty page tables, a step
/// takes half a millisecond.
const SPAN: u64 = 1 << 30;
/// The fewest bytes of addresses walked in one step.
const LEAST_SPAN: u64 = 4 << 20;
/// The limit of pages that a step may return, initially.
const PAGES: u64 = 1 << 14;
const LEAST_PAGES: u64 = 1 << 10;
const MOST_PAGES: u64 = 1 << 20;
/// A step shorter than this is not checked for having waited for the lock, as the check itself
/// would take longer.
const SHORT: Duration = Duration::from_micros(15);
/// The time that the scan holds the lock between two pauses while the target contends; each pause
/// is `PAUSE` times as long.
const HOLD: Duration = Duration::from_micros(50);
const PAUSE: u32 = 15;
/// The number of pauses after the last step that had to wait.
const CONTENDED: u32 = 200;

/// A scan's budget of lock-hold time, the size of its steps, and the hold times measured so far.
#[derive(Debug)]
pub struct Pace<'a> {
    budget: Duration,
    stop: Option<&'a AtomicBool>,
    span: u64,
    pages: u64,
    /// The number of pauses still to be made before the target no longer counts as contending.
    contended: u32,
    since_pause: Duration,
    switches: i64,
    report: LockTimes,
}

/// The times for which a scan held the target's mmap lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LockTimes {
    /// The longest step, which is slightly more than the time the lock was held.
    pub longest: Duration,
    /// The sum of all steps.
    pub total: Duration,
    /// The number of steps.
    pub steps: u64,
    /// Steps that had to wait for the lock. Their time, the wait included, is in `total`, but not
    /// in `longest`.
    pub waited: u64,
}

/// The error of a scan whose caller asked it to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Interrupted;

impl<'a> Pace<'a> {
    /// Returns a pace whose steps take no longer than `budget`. A step's time is known only
    /// afterwards, so steps are sized for half of it.
    pub fn new(budget: Duration) -> Self {
        Pace {
            budget,
            stop: None,
            span: SPAN,
            pages: PAGES,
            contended: 0,
            since_pause: Duration::ZERO,
            switches: switches(),
            report: LockTimes::default(),
        }
    }

    /// Makes steps fail with [`Interrupted`] once `stop` is true.
    pub fn until(self, stop: &'a AtomicBool) -> Self {
        Pace { stop: Some(stop), ..self }
    }

    /// Returns the lock-hold times so far.
    pub fn lock_times(&self) -> LockTimes {
        self.report
    }

    /// Returns how many bytes of addresses the next step may walk.
    pub(crate) fn span(&self) -> u64 {
        self.span
    }

    /// Returns how many pages the next step may return.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// Runs `step`, which takes the mmap lock once, and pauses afterwards if the target contends
    /// for it.
    ///
    /// # Errors
    /// The caller asked to stop.
    pub(crate) fn step<T>(&mut self, step: impl FnOnce() -> T) -> Result<T, Interrupted> {
        if self.stop.is_some_and(|stop| stop.load(Relaxed)) {
            return Err(Interrupted);
        }
        let began = Instant::now();
        let result = step();
        self.took(began.elapsed());
        Ok(result)
    }

    /// Records a step of `time` and adapts the next one.
    fn took(&mut self, time: Duration) {
        self.report.steps += 1;
        self.report.total += time;
        let waited = time >= SHORT && {
            let now = switches();
            std::mem::replace(&mut self.switches, now) != now
        };
        if waited {
            self.report.waited += 1;
            self.contended = CONTENDED;
        } else {
            self.report.longest = self.report.longest.max(time);
        }
        let aim = if self.contended > 0 { HOLD.min(self.budget) } else { self.budget } / 2;
        if !waited && time > aim {
            self.span = (self.span / 2).max(LEAST_SPAN);
            self.pages = (self.pages / 2).max(LEAST_PAGES);
        } else if !waited && time < aim / 4 {
            // A step ends at its limit of bytes or at that of pages. Both limits grow here, because
            // this function does not know which one ended the step.
            self.span = (self.span * 2).min(SPAN);
            self.pages = (self.pages + self.pages / 8).min(MOST_PAGES);
        }
        self.since_pause += time;
        if self.contended > 0 && self.since_pause >= HOLD {
            self.contended -= 1;
            thread::sleep(PAUSE * self.since_pause);
            self.since_pause = Duration::ZERO;
            // Count anew: the sleep itself was a voluntary context switch.
            self.switches = switches();
        }
    }
}

/// Returns how often this thread has given up the CPU voluntarily.
fn switches() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is to a `rusage`, which Linux writes; any bits of it are a valid value,
    // so it is initialized even if Linux writes nothing.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}
