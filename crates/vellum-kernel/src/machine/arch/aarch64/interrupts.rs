//! Whether interrupts come to this processor, and waiting for one.

use core::arch::asm;

/// The bit of DAIF that keeps them away.
const MASKED: u64 = 1 << 7;

/// Lets them come.
pub fn enable() {
    // SAFETY: whoever has interrupts come has what serves them in place; without `nomem`, so that nothing is moved over it.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
}

/// Keeps them away.
pub fn disable() {
    // SAFETY: as above.
    unsafe { asm!("msr daifset, #2", options(nostack)) };
}

/// Waits for one, and lets it come. They are kept away before: one that is there already ends the wait.
pub fn enable_and_wait() {
    // SAFETY: as above.
    unsafe { asm!("dsb sy", "wfi", "msr daifclr, #2", options(nostack)) };
}

/// Waits for one.
pub fn halt() {
    // SAFETY: as above.
    unsafe { asm!("dsb sy", "wfi", options(nostack)) };
}

/// Runs `body` while none comes.
pub fn without<T>(body: impl FnOnce() -> T) -> T {
    let masked = read_register!("daif") & MASKED != 0;
    disable();
    let result = body();
    if !masked {
        enable();
    }
    result
}
