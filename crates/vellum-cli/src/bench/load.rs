//! Tells how much of the machine other work used during a measurement.
//!
//! Noise does not cancel out of a ratio: a call of tens of milliseconds is preempted where one of
//! microseconds is not, and other work takes memory bandwidth from both. So a row that was measured
//! beside other work is marked, and the run fails in the end.

use std::time::Instant;

use procfs::CurrentSI;
use serde::Serialize;

/// The use of the machine by other work than this process and its children.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Load {
    /// The number of CPUs that other work kept busy, on average.
    pub others: f64,
    /// The share of the CPUs' time, 0 to 1, that the hypervisor gave to other guests.
    pub stolen: f64,
}

impl Load {
    /// The most CPUs that other work may keep busy.
    pub const MOST_OTHERS: f64 = 0.1;
    /// The largest share of time that the hypervisor may give to others.
    pub const MOST_STOLEN: f64 = 0.02;

    /// Returns whether figures measured under this load are in doubt.
    pub fn is_notable(&self) -> bool {
        self.others > Self::MOST_OTHERS || self.stolen > Self::MOST_STOLEN
    }

    /// Returns the larger of both loads, part by part.
    pub fn max(self, other: Load) -> Load {
        Load { others: self.others.max(other.others), stolen: self.stolen.max(other.stolen) }
    }
}

/// Seconds of CPU time until now.
#[derive(Clone, Copy)]
struct Seconds {
    /// Those in which some CPU ran anything.
    busy: f64,
    /// Those that the hypervisor gave to other guests.
    stolen: f64,
    /// Those of this process and of its children that have ended.
    own: f64,
}

/// A running measurement of the load.
pub struct Meter {
    start: Instant,
    /// `None` if the kernel doesn't tell.
    before: Option<Seconds>,
}

impl Meter {
    /// Starts a measurement.
    pub fn start() -> Meter {
        Meter { start: Instant::now(), before: Seconds::now() }
    }

    /// Returns the load since the start. All children started since then must have ended.
    pub fn load(&self) -> Load {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        match (self.before, Seconds::now()) {
            (Some(before), Some(now)) => between(before, now, self.start.elapsed().as_secs_f64(), cpus),
            _ => Load::default(),
        }
    }
}

/// Returns the load between two readings that are `seconds` apart.
fn between(before: Seconds, now: Seconds, seconds: f64, cpus: f64) -> Load {
    // The kernel counts whole ticks, for each CPU: less than that is not known.
    let unknown = cpus / procfs::ticks_per_second() as f64;
    let others = (now.busy - before.busy) - (now.own - before.own) - unknown;
    let stolen = now.stolen - before.stolen - unknown;
    let hundredths = |value: f64| (value.max(0.0) * 100.0).round() / 100.0;
    Load { others: hundredths(others / seconds), stolen: hundredths(stolen / (seconds * cpus)) }
}

impl Seconds {
    fn now() -> Option<Seconds> {
        let total = procfs::KernelStats::current().ok()?.total;
        let per_tick = 1.0 / procfs::ticks_per_second() as f64;
        let handlers = total.irq.unwrap_or(0) + total.softirq.unwrap_or(0);
        let ticks = total.user + total.nice + total.system + handlers;
        let own = [libc::RUSAGE_SELF, libc::RUSAGE_CHILDREN].map(seconds_of);
        Some(Seconds {
            busy: ticks as f64 * per_tick,
            stolen: total.steal.unwrap_or(0) as f64 * per_tick,
            own: own.iter().sum(),
        })
    }
}

/// Returns the CPU time of this process, or of its children that have ended.
fn seconds_of(which: libc::c_int) -> f64 {
    // SAFETY: all zeroes is a valid value of this plain C structure.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a live structure of the type that the call fills in.
    unsafe { libc::getrusage(which, &mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Seconds = Seconds { busy: 0.0, stolen: 0.0, own: 0.0 };

    #[test]
    fn the_benchmarks_own_time_is_no_load() {
        let own = between(NONE, Seconds { busy: 10.0, own: 10.0, ..NONE }, 10.0, 2.0);
        assert_eq!(own, Load::default());
        let beside = between(NONE, Seconds { busy: 12.5, own: 10.0, ..NONE }, 10.0, 2.0);
        assert!(beside.others == 0.25 && beside.is_notable(), "{beside:?}");
    }

    #[test]
    fn stolen_time_is_a_share_of_all_cpus() {
        let stolen = between(NONE, Seconds { stolen: 2.02, ..NONE }, 10.0, 2.0);
        assert!(stolen.others == 0.0 && stolen.stolen == 0.1 && stolen.is_notable(), "{stolen:?}");
    }

    #[test]
    fn less_than_a_tick_of_each_cpu_is_not_known() {
        assert!(!between(NONE, Seconds { busy: 0.02, stolen: 0.02, ..NONE }, 0.05, 2.0).is_notable());
    }
}
