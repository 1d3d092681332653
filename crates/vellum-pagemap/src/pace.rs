//! Not to be in the way: who reads a process's page tables holds its address space's lock
//! meanwhile, and `mmap`, `munmap` and many faults of the process wait for it.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

/// Of addresses, no more is walked at once, however little was found before. If it is full of
/// tables that are empty, that takes half a millisecond.
const SPAN: u64 = 1 << 30;
/// Nor is it ever less.
const LEAST_SPAN: u64 = 4 << 20;
/// Pages that are found at once, at first.
const PAGES: u64 = 1 << 14;
const LEAST_PAGES: u64 = 1 << 10;
const MOST_PAGES: u64 = 1 << 20;
/// Steps shorter than this are not asked whether they had to wait: that would take longer.
const SHORT: Duration = Duration::from_micros(15);
/// Who was seen to be in the way holds the lock about so long between pauses, and a pause is so
/// many times as long.
const HOLD: Duration = Duration::from_micros(50);
const PAUSE: u32 = 15;
/// And goes on like that for so many pauses after it last saw it.
const CAREFUL: u32 = 200;

/// How much is asked for at once, so that no step holds the lock for longer than a budget; and how
/// long it was held.
///
/// Where a step has to wait for the lock, the process is at work with it, and waits for us as well:
/// then steps become small, and pauses are made between them.
#[derive(Debug)]
pub struct Pace<'a> {
    budget: Duration,
    stop: Option<&'a AtomicBool>,
    span: u64,
    pages: u64,
    /// Pauses that are still to be made.
    careful: u32,
    since_pause: Duration,
    switches: i64,
    report: Holds,
}

/// How long an address space's lock was held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    /// In one step, at most: as long as the step took, which is a little more.
    pub longest: Duration,
    /// In all.
    pub total: Duration,
    /// In so many steps.
    pub steps: u64,
    /// Steps that had to wait for the lock, and are in `total` with the time that they waited, but
    /// not in `longest`.
    pub waited: u64,
}

/// Whoever was asked to stop has done so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stopped;

impl<'a> Pace<'a> {
    /// With steps no longer than this. (What a step takes is known afterwards: they are sized for
    /// half of it.)
    pub fn new(budget: Duration) -> Self {
        Pace {
            budget,
            stop: None,
            span: SPAN,
            pages: PAGES,
            careful: 0,
            since_pause: Duration::ZERO,
            switches: switches(),
            report: Holds::default(),
        }
    }

    /// And no further once this is true.
    pub fn until(self, stop: &'a AtomicBool) -> Self {
        Pace { stop: Some(stop), ..self }
    }

    /// What was held so far.
    pub fn holds(&self) -> Holds {
        self.report
    }

    /// How many bytes of addresses the next step may walk.
    pub(crate) fn span(&self) -> u64 {
        self.span
    }

    /// How many pages the next step may find.
    pub(crate) fn pages(&self) -> u64 {
        self.pages
    }

    /// A step: something that takes the lock once.
    pub(crate) fn step<T>(&mut self, step: impl FnOnce() -> T) -> Result<T, Stopped> {
        if self.stop.is_some_and(|stop| stop.load(Relaxed)) {
            return Err(Stopped);
        }
        let began = Instant::now();
        let result = step();
        self.took(began.elapsed());
        Ok(result)
    }

    fn took(&mut self, time: Duration) {
        self.report.steps += 1;
        self.report.total += time;
        let waited = time >= SHORT && {
            let now = switches();
            std::mem::replace(&mut self.switches, now) != now
        };
        if waited {
            self.report.waited += 1;
            self.careful = CAREFUL;
        } else {
            self.report.longest = self.report.longest.max(time);
        }
        let aim = if self.careful > 0 { HOLD.min(self.budget) } else { self.budget } / 2;
        if !waited && time > aim {
            self.span = (self.span / 2).max(LEAST_SPAN);
            self.pages = (self.pages / 2).max(LEAST_PAGES);
        } else if !waited && time < aim / 4 {
            // By which of the two a step ended is not asked: the other one is back soon.
            self.span = (self.span * 2).min(SPAN);
            self.pages = (self.pages + self.pages / 8).min(MOST_PAGES);
        }
        self.since_pause += time;
        if self.careful > 0 && self.since_pause >= HOLD {
            self.careful -= 1;
            thread::sleep(PAUSE * self.since_pause);
            self.since_pause = Duration::ZERO;
            // Which was a switch as well.
            self.switches = switches();
        }
    }
}

/// How often this thread has waited for anything.
fn switches() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: Linux writes one such structure there, of which any bits are a value.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nvcsw
    }
}
