//! Pins threads to CPUs, and reads the clock.

use rustix::thread::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Returns nanoseconds of the monotonic clock, which all processes share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Guard. Pins this thread, and the processes it starts, to the CPU it runs on, until dropped.
///
/// If a thread migrates, its old CPU stays in the `mm_cpumask` of its address space. The kernel
/// then interrupts that CPU for each TLB flush, and freed pages stay on that CPU's lists. Neither
/// cost belongs to the measured operation.
pub struct PinnedCpu(Option<CpuSet>);

impl PinnedCpu {
    /// Pins the thread. If the kernel refuses, the thread may migrate, which only costs precision.
    pub fn pin() -> PinnedCpu {
        let before = sched_getaffinity(None).ok();
        let mut here = CpuSet::new();
        here.set(sched_getcpu());
        PinnedCpu(before.filter(|_| sched_setaffinity(None, &here).is_ok()))
    }
}

/// Returns the CPUs that this thread may run on, in order.
pub fn allowed_cpus() -> Vec<usize> {
    let all = sched_getaffinity(None);
    all.map_or_else(|_| vec![sched_getcpu()], |all| (0..CpuSet::MAX_CPU).filter(|&cpu| all.is_set(cpu)).collect())
}

/// Pins this thread to a CPU for the rest of its life. If the kernel refuses, it may migrate.
pub fn pin_to(cpu: usize) {
    let mut there = CpuSet::new();
    there.set(cpu);
    let _ = sched_setaffinity(None, &there);
}

impl Drop for PinnedCpu {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before);
        }
    }
}
