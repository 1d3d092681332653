//! The machine's instructions, and the names by which programs find the functions, on AArch64.

use core::arch::{asm, global_asm};

/// The numbers of the system calls for clocks that only the kernel can read.
pub const CLOCK_GETTIME: u64 = 113;
pub const CLOCK_GETRES: u64 = 114;

global_asm!(
    r#"
    .section .text.sigreturn, "ax", @progbits
    nop                                     // not part of any function: unwinders look one byte back
    .globl __kernel_rt_sigreturn
    .type __kernel_rt_sigreturn, @function
__kernel_rt_sigreturn:                      // the return address of handlers without a restorer
    mov     x8, #139
    svc     #0
    .size __kernel_rt_sigreturn, . - __kernel_rt_sigreturn
    "#
);

/// Returns the address of this object.
#[inline(always)]
pub fn start() -> usize {
    let start;
    // SAFETY: computes an address.
    unsafe {
        asm!(
            "adrp {0}, __ehdr_start",
            "add {0}, {0}, :lo12:__ehdr_start",
            out(reg) start,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    start
}

/// Reads the counter, after all that comes before in the program.
#[inline(always)]
pub fn ticks() -> u64 {
    let ticks;
    // SAFETY: reads a register that the kernel lets programs read.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) ticks, options(nostack, preserves_flags)) };
    ticks
}

/// Makes a system call with two arguments.
pub fn system_call(number: u64, first: u64, second: u64) -> i64 {
    let answer;
    // SAFETY: the kernel checks the arguments, and keeps all registers but the first.
    unsafe {
        asm!("svc #0", in("x8") number, inlateout("x0") first => answer, in("x1") second, options(nostack));
    }
    answer
}

// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __kernel_clock_gettime(clock: i32, to: *mut [i64; 2]) -> i32 {
    // SAFETY: each address is null or has room for the value, as the C declaration demands.
    unsafe { super::gettime(clock, to) }
}

// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __kernel_clock_getres(clock: i32, to: *mut [i64; 2]) -> i32 {
    // SAFETY: each address is null or has room for the value, as the C declaration demands.
    unsafe { super::getres(clock, to) }
}

// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __kernel_gettimeofday(to: *mut [i64; 2], zone: *mut [i32; 2]) -> i32 {
    // SAFETY: each address is null or has room for the value, as the C declaration demands.
    unsafe { super::gettimeofday(to, zone) }
}
