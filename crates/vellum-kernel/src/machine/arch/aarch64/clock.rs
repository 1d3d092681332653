//! Time: the generic timer's virtual counter, whose rate it says itself.

use core::arch::asm;

/// What the counter stands at.
#[inline]
pub fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register. The barrier keeps it from being read early.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// How often it counts in a second.
pub fn rate() -> u64 {
    read_register!("cntfrq_el0").max(1)
}

/// A clock that starts at 0.
pub struct Clock {
    start: u64,
    /// Nanoseconds in 2³² ticks.
    scale: u64,
}

impl Clock {
    /// Starts the clock. `_counted` is nothing to it: the counter says its rate in any case.
    ///
    /// # Safety
    ///
    /// None is broken here: other architectures have something to promise.
    pub unsafe fn start(_counted: bool) -> Self {
        Self { start: ticks(), scale: ((1_000_000_000u128 << 32) / u128::from(rate())) as u64 }
    }

    /// Nanoseconds since it was started.
    pub fn now_ns(&self) -> u64 {
        ((u128::from(ticks() - self.start) * u128::from(self.scale)) >> 32) as u64
    }
}
