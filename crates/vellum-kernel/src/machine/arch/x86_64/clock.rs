//! The clock: the CPU's time-stamp counter, whose rate is calibrated once with the PC's interval
//! timer.

use core::arch::x86_64::_rdtsc;
use x86_64::instructions::port::Port;

/// The rate of every PC's interval timer.
const TIMER_HZ: u64 = 1_193_182;
/// The calibration time in timer ticks: 5 ms.
const TIMER_TICKS: u16 = (TIMER_HZ / 200) as u16;
/// The time-stamp ticks after which the timer is considered absent: a fifth of a second at 5 GHz.
const TIMEOUT: u64 = 1 << 30;

/// Reads the time-stamp counter.
pub fn ticks() -> u64 {
    // SAFETY: every 64-bit CPU has the instruction, and the kernel never disables it.
    unsafe { _rdtsc() }
}

/// A clock that starts at 0.
pub struct Clock {
    start: u64,
    /// The number of nanoseconds in 2³² ticks.
    scale: u64,
}

impl Clock {
    /// Starts the clock at the rate calibrated with the interval timer. With `counted` (QEMU counts
    /// instructions), the time-stamp counter is QEMU's virtual time in nanoseconds.
    ///
    /// # Safety
    ///
    /// No other code uses the interval timer during the call.
    pub unsafe fn start(counted: bool) -> Self {
        if counted {
            return Self { start: self::ticks(), scale: 1 << 32 };
        }
        // SAFETY: by this function's contract no other code uses the interval timer.
        let ticks = unsafe { ticks_of_timer() };
        // Without a timer the counter is taken to count nanoseconds.
        let scale = ticks.map_or(1 << 32, |ticks| ((u64::from(TIMER_TICKS) * 1_000_000_000 / TIMER_HZ) << 32) / ticks);
        Self { start: self::ticks(), scale }
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

/// Returns the time-stamp ticks that pass while the timer counts [`TIMER_TICKS`] down, or `None` if
/// there is no timer.
///
/// # Safety
///
/// No other code uses the interval timer during the call.
unsafe fn ticks_of_timer() -> Option<u64> {
    let (mut control, mut command, mut count) = (Port::<u8>::new(0x61), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    // SAFETY: the ports are those of the interval timer's channel 2, the only one without an
    // interrupt, and of its gate, or of no device. The loudspeaker on the same channel is kept
    // silent.
    unsafe {
        let gate = control.read() & !0b11;
        control.write(gate | 1);
        command.write(0b1011_0000); // channel 2, both bytes, mode 0: the output rises when the count is up
        count.write(TIMER_TICKS as u8);
        count.write((TIMER_TICKS >> 8) as u8);
        let start = ticks();
        while control.read() & 1 << 5 == 0 {
            if ticks() - start > TIMEOUT {
                return None;
            }
        }
        let passed = ticks() - start;
        control.write(gate);
        Some(passed).filter(|passed| *passed > 0)
    }
}
