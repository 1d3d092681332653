//! Staying on one CPU, and the clock.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of the monotonic clock, which all processes of the machine share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Keeps this thread, and the children it starts, on the CPU it is on, until dropped.
///
/// A thread that moves leaves its address space's mark on the CPU it left, and the kernel then has
/// to interrupt that CPU for every invalidation; its free-page lists stay behind as well. Nothing
/// of that belongs to the operation.
pub struct OnOneCpu(Option<CpuSet>);

impl OnOneCpu {
    /// Pins. A kernel that refuses leaves the thread free to move, which only costs precision.
    pub fn pin() -> OnOneCpu {
        let before = sched_getaffinity(None).ok();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        OnOneCpu(before.filter(|_| sched_setaffinity(None, &here).is_ok()))
    }
}

/// The CPUs that this thread may run on, in order.
pub fn allowed() -> Vec<usize> {
    let all = sched_getaffinity(None);
    all.map_or_else(|_| vec![sched_getcpu()], |all| (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect())
}

/// Keeps this thread on one CPU for the rest of its life. A kernel that refuses leaves it free to
/// move.
pub fn stay_on(cpu: usize) {
    let mut there = CpuSet::new();
    there.set(cpu);
    let _ = sched_setaffinity(None, &there);
}

impl Drop for OnOneCpu {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}
