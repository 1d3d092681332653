//! Masking interrupts on this CPU, and waiting for one.

use core::arch::asm;

/// DAIF.I, which masks interrupts.
const MASKED: u64 = 1 << 7;

/// Unmasks interrupts.
pub fn enable() {
    // SAFETY: interrupts are unmasked only after their handlers are installed; without `nomem`, so
    // that no access is moved over it.
    unsafe { asm!("msr daifclr, #2", options(nostack)) };
}

/// Masks interrupts.
pub fn disable() {
    // SAFETY: masking interrupts breaks nothing; without `nomem`, so that no access is moved over
    // it.
    unsafe { asm!("msr daifset, #2", options(nostack)) };
}

/// Waits for an interrupt, then unmasks interrupts. The caller has masked them, so an interrupt
/// that arrives before the wait stays pending and ends the wait at once.
pub fn enable_and_wait() {
    // SAFETY: interrupts are unmasked only after their handlers are installed; without `nomem`, so
    // that no access is moved over it.
    unsafe { asm!("dsb sy", "wfi", "msr daifclr, #2", options(nostack)) };
}

/// Waits for an interrupt, without unmasking.
pub fn halt() {
    // SAFETY: waiting breaks nothing.
    unsafe { asm!("dsb sy", "wfi", options(nostack)) };
}

/// Runs `body` with interrupts masked.
pub fn without<T>(body: impl FnOnce() -> T) -> T {
    let masked = read_register!("daif") & MASKED != 0;
    disable();
    let result = body();
    if !masked {
        enable();
    }
    result
}
