//! The clock: the generic timer's virtual counter, whose rate a register contains.

use core::arch::asm;

/// Reads the counter.
#[inline]
pub fn ticks() -> u64 {
    let ticks: u64;
    // SAFETY: reads a register. The barrier keeps the read from being executed early.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// Returns the counter's ticks per second.
pub fn rate() -> u64 {
    read_register!("cntfrq_el0").max(1)
}

/// A clock that starts at 0.
pub struct Clock {
    start: u64,
    /// The number of nanoseconds in 2³² ticks.
    scale: u64,
}

impl Clock {
    /// Starts the clock. `_counted` has no effect, because the counter's rate is known in any case.
    ///
    /// # Safety
    ///
    /// None here: only the x86-64 function of this name uses a device that other code could use
    /// too.
    pub unsafe fn start(_counted: bool) -> Self {
        Self { start: ticks(), scale: ((1_000_000_000u128 << 32) / u128::from(rate())) as u64 }
    }

    /// Returns the counter's value at the start, and the nanoseconds in 2³² ticks.
    pub fn counter(&self) -> [u64; 2] {
        [self.start, self.scale]
    }

    /// Returns the nanoseconds since the clock was started.
    pub fn now_ns(&self) -> u64 {
        ((u128::from(ticks() - self.start) * u128::from(self.scale)) >> 32) as u64
    }
}
