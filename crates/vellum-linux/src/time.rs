//! Times an operation: by the clock, and by the time that its thread ran.

use std::ops::{Add, AddAssign};
use std::sync::LazyLock;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use crate::cpu::now_ns;

/// The time of an operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// Nanoseconds from its start to its end, those included in which other threads ran.
    pub wall_ns: u64,
    /// Nanoseconds for which the operation's thread ran. The kernel counts time that the
    /// hypervisor gives to other guests here, unless it accounts for steal time.
    pub cpu_ns: u64,
}

impl Time {
    /// Returns this time without `part`; at least zero.
    pub fn less(self, part: Time) -> Time {
        Time { wall_ns: self.wall_ns.saturating_sub(part.wall_ns), cpu_ns: self.cpu_ns.saturating_sub(part.cpu_ns) }
    }

    /// Returns the average of `count` equal parts of this time, rounded; zero for no parts.
    pub fn by(self, count: u64) -> Time {
        let part = |ns: u64| (ns + count / 2).checked_div(count).unwrap_or(0);
        Time { wall_ns: part(self.wall_ns), cpu_ns: part(self.cpu_ns) }
    }
}

impl Add for Time {
    type Output = Time;

    fn add(self, other: Time) -> Time {
        Time { wall_ns: self.wall_ns + other.wall_ns, cpu_ns: self.cpu_ns + other.cpu_ns }
    }
}

impl AddAssign for Time {
    fn add_assign(&mut self, other: Time) {
        *self = *self + other;
    }
}

/// A running measurement of this thread.
#[derive(Clone, Copy, Debug)]
pub struct Stopwatch(Time);

impl Stopwatch {
    /// Starts a measurement.
    #[inline]
    pub fn start() -> Stopwatch {
        // The clock of the thread is a system call, so the other one is read last here and first
        // at the end.
        let cpu_ns = cpu_ns(ClockId::ThreadCPUTime);
        Stopwatch(Time { wall_ns: now_ns(), cpu_ns })
    }

    /// Returns the time since the start, on the same thread, without what the measurement itself
    /// takes.
    #[inline]
    pub fn time(&self) -> Time {
        self.whole_time().less(*EMPTY)
    }

    /// Returns the time since the start, on the same thread.
    #[inline]
    fn whole_time(&self) -> Time {
        let wall_ns = now_ns();
        Time { wall_ns, cpu_ns: cpu_ns(ClockId::ThreadCPUTime) }.less(self.0)
    }
}

/// The time of an empty measurement, mostly that of the system call for the thread's clock: the
/// least of some hundred.
static EMPTY: LazyLock<Time> = LazyLock::new(|| {
    let least = |a: Time, b: Time| Time { wall_ns: a.wall_ns.min(b.wall_ns), cpu_ns: a.cpu_ns.min(b.cpu_ns) };
    (0..256).map(|_| Stopwatch::start().whole_time()).reduce(least).unwrap_or_default()
});

/// Returns the nanoseconds for which this process has run.
pub fn process_cpu_ns() -> u64 {
    cpu_ns(ClockId::ProcessCPUTime)
}

fn cpu_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_thread_takes_time_but_does_not_run() {
        let watch = Stopwatch::start();
        std::thread::sleep(std::time::Duration::from_millis(40));
        let time = watch.time();
        assert!(time.wall_ns >= 40_000_000 && time.cpu_ns < time.wall_ns / 2, "{time:?}");
    }

    #[test]
    fn times_are_added_subtracted_and_divided_by_both_clocks() {
        let (all, part) = (Time { wall_ns: 9, cpu_ns: 5 }, Time { wall_ns: 4, cpu_ns: 7 });
        assert_eq!(all.less(part), Time { wall_ns: 5, cpu_ns: 0 });
        assert_eq!(all + part, Time { wall_ns: 13, cpu_ns: 12 });
        assert_eq!(all.by(2), Time { wall_ns: 5, cpu_ns: 3 });
        assert_eq!(all.by(0), Time::default());
    }
}
