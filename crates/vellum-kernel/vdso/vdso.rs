//! The shared object that the kernel maps into every program (`[vdso]`): the calls that read
//! clocks, without a system call.
//!
//! `build.rs` compiles this file and links it by `x86_64.ld` or `aarch64.ld`, which name the
//! functions that programs see. The page with the clocks' parameters lies before the object.

#![no_std]
#![deny(unsafe_op_in_unsafe_fn)]

#[cfg_attr(target_arch = "aarch64", path = "aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "x86_64.rs")]
mod arch;
#[path = "../src/portable/exec/vvar.rs"]
#[allow(dead_code, reason = "the kernel needs the rest")]
mod vvar;

use vvar::{SECOND, Vvar};

/// Returns the page with the clocks' parameters.
fn page() -> &'static Vvar {
    // SAFETY: the kernel maps the page before this object, and its fields are atomic.
    unsafe { &*(arch::start().wrapping_sub(4096) as *const Vvar) }
}

/// Reads a clock: `clock_gettime`. The caller's memory is written as the C caller promises; a bad
/// address raises a signal, as on Linux.
///
/// # Safety
///
/// `to` points to a `struct timespec`.
unsafe fn gettime(clock: i32, to: *mut [i64; 2]) -> i32 {
    if !vvar::is_of_machine(clock as u32) {
        return arch::system_call(arch::CLOCK_GETTIME, clock as u64, to as u64) as i32;
    }
    let ns = page().read(clock as u32, arch::ticks());
    // SAFETY: this function's contract.
    unsafe { to.write([(ns / SECOND) as i64, (ns % SECOND) as i64]) };
    0
}

/// Returns the resolution of a clock: `clock_getres`.
///
/// # Safety
///
/// `to` is null, or points to a `struct timespec`.
unsafe fn getres(clock: i32, to: *mut [i64; 2]) -> i32 {
    if !vvar::is_of_machine(clock as u32) {
        return arch::system_call(arch::CLOCK_GETRES, clock as u64, to as u64) as i32;
    }
    if !to.is_null() {
        // SAFETY: this function's contract.
        unsafe { to.write([0, 1]) };
    }
    0
}

/// Reads the wall clock: `gettimeofday`. The time zone is that of Greenwich.
///
/// # Safety
///
/// `to` and `zone` are each null, or point to a `struct timeval` and a `struct timezone`.
unsafe fn gettimeofday(to: *mut [i64; 2], zone: *mut [i32; 2]) -> i32 {
    if !to.is_null() {
        let ns = page().wall_clock(arch::ticks());
        // SAFETY: this function's contract.
        unsafe { to.write([(ns / SECOND) as i64, (ns % SECOND / 1000) as i64]) };
    }
    if !zone.is_null() {
        // SAFETY: this function's contract.
        unsafe { zone.write([0; 2]) };
    }
    0
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}
