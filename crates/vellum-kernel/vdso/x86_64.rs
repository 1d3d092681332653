//! The machine's instructions, and the names by which programs find the functions, on x86-64.

use core::arch::asm;

/// The numbers of the system calls for clocks that only the kernel can read.
pub const CLOCK_GETTIME: u64 = 228;
pub const CLOCK_GETRES: u64 = 229;
/// The segment whose limit is the CPU's number (`cpu::CPU_NUMBER` of the kernel).
const CPU_NUMBER: u32 = 0x3b;

/// Returns the address of this object.
#[inline(always)]
pub fn start() -> usize {
    let start;
    // SAFETY: computes an address.
    unsafe {
        asm!("lea {}, [rip + __ehdr_start]", out(reg) start, options(pure, nomem, nostack, preserves_flags));
    }
    start
}

/// Reads the counter, after all that comes before in the program.
#[inline(always)]
pub fn ticks() -> u64 {
    let (high, low): (u64, u64);
    // SAFETY: reads the time-stamp counter. Where a thread may not, that raises a signal.
    unsafe { asm!("lfence", "rdtsc", out("rdx") high, out("rax") low, options(nostack, preserves_flags)) };
    high << 32 | low
}

/// Makes a system call with two arguments.
pub fn system_call(number: u64, first: u64, second: u64) -> i64 {
    let answer;
    // SAFETY: the kernel checks the arguments, and keeps all registers but these.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => answer,
            in("rdi") first,
            in("rsi") second,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    answer
}

// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdso_clock_gettime(clock: i32, to: *mut [i64; 2]) -> i32 {
    // SAFETY: each address is null or has room for the value, as the C declaration demands.
    unsafe { super::gettime(clock, to) }
}

// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdso_clock_getres(clock: i32, to: *mut [i64; 2]) -> i32 {
    // SAFETY: each address is null or has room for the value, as the C declaration demands.
    unsafe { super::getres(clock, to) }
}

// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdso_gettimeofday(to: *mut [i64; 2], zone: *mut [i32; 2]) -> i32 {
    // SAFETY: each address is null or has room for the value, as the C declaration demands.
    unsafe { super::gettimeofday(to, zone) }
}

/// Returns the wall clock in seconds, and stores it at `to` unless that is null.
// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdso_time(to: *mut i64) -> i64 {
    let seconds = (super::page().wall_clock(ticks()) / super::SECOND) as i64;
    if !to.is_null() {
        // SAFETY: each address is null or has room for the value, as the C declaration demands.
        unsafe { to.write(seconds) };
    }
    seconds
}

/// Stores the CPU and its NUMA node, each unless the address is null.
// SAFETY: no other item of the shared object has the name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __vdso_getcpu(cpu: *mut u32, node: *mut u32, _unused: *mut u8) -> i32 {
    let number: u32;
    // SAFETY: reads a segment's limit.
    unsafe { asm!("lsl {0:e}, {1:e}", out(reg) number, in(reg) CPU_NUMBER, options(nomem, nostack)) };
    // SAFETY: each address is null or has room for the value, as the C declaration demands.
    unsafe {
        if !cpu.is_null() {
            cpu.write(number);
        }
        if !node.is_null() {
            node.write(super::page().node(number as usize).into());
        }
    }
    0
}
