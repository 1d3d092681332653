//! Time: the processor's time-stamp counter, whose rate is found out once by the PC's interval timer.

use core::arch::x86_64::_rdtsc;
use x86_64::instructions::port::Port;

/// The rate at which every PC's interval timer counts.
const TIMER_HZ: u64 = 1_193_182;
/// So long the two counters are compared: 5 ms.
const TIMER_TICKS: u16 = (TIMER_HZ / 200) as u16;
/// If the timer is not done by then there is none. At 5 GHz a fifth of a second.
const PATIENCE: u64 = 1 << 30;

/// What the time-stamp counter stands at.
pub fn ticks() -> u64 {
    // SAFETY: every 64-bit processor has the instruction, and nothing here forbids it.
    unsafe { _rdtsc() }
}

/// A clock that starts at 0.
pub struct Clock {
    start: u64,
    /// Nanoseconds in 2³² ticks.
    scale: u64,
}

impl Clock {
    /// Starts the clock, at the rate that the interval timer says. `counted`: the counter is QEMU's virtual time, in nanoseconds.
    ///
    /// # Safety
    ///
    /// Nobody else uses the timer meanwhile.
    pub unsafe fn start(counted: bool) -> Self {
        if counted {
            return Self { start: self::ticks(), scale: 1 << 32 };
        }
        // SAFETY: by contract.
        let ticks = unsafe { ticks_of_timer() };
        // A counter that nothing can be said about is taken to count nanoseconds.
        let scale = ticks.map_or(1 << 32, |ticks| ((u64::from(TIMER_TICKS) * 1_000_000_000 / TIMER_HZ) << 32) / ticks);
        Self { start: self::ticks(), scale }
    }

    /// Nanoseconds since it was started.
    pub fn now_ns(&self) -> u64 {
        ((u128::from(ticks() - self.start) * u128::from(self.scale)) >> 32) as u64
    }
}

/// How far the time-stamp counter comes while the timer counts [`TIMER_TICKS`] down; `None` if there is no timer.
///
/// # Safety
///
/// Nobody else uses the timer meanwhile.
unsafe fn ticks_of_timer() -> Option<u64> {
    let (mut control, mut command, mut count) = (Port::<u8>::new(0x61), Port::<u8>::new(0x43), Port::<u8>::new(0x42));
    // SAFETY: the ports of the interval timer's third channel, the only one without an interrupt, and of its gate;
    // or of nothing. The loudspeaker, which hangs on it too, is kept silent.
    unsafe {
        let gate = control.read() & !0b11;
        control.write(gate | 1);
        command.write(0b1011_0000); // channel 2, both bytes, mode 0: the output rises when the count is up
        count.write(TIMER_TICKS as u8);
        count.write((TIMER_TICKS >> 8) as u8);
        let start = ticks();
        while control.read() & 1 << 5 == 0 {
            if ticks() - start > PATIENCE {
                return None;
            }
        }
        let passed = ticks() - start;
        control.write(gate);
        Some(passed).filter(|passed| *passed > 0)
    }
}
