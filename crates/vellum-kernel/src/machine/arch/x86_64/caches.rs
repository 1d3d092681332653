//! Zeroing and copying whole pages, and instruction cache synchronization.
//!
//! Both use the instructions that Linux's `clear_pages` and `copy_mc_to_kernel` use: by bytes where
//! the CPU has ERMS (enhanced `rep movsb` and `rep stosb`; Intel optimization manual, "Enhanced REP
//! MOVSB and STOSB Operation"), and by words elsewhere.

use super::cpu;
use core::arch::asm;

/// Zeroes memory.
///
/// # Safety
///
/// The range satisfies the contract of `ptr::write_bytes` and consists of whole pages.
pub unsafe fn zero(at: *mut u8, bytes: usize) {
    if cpu::has_erms() {
        // SAFETY: the caller may write the range; the direction flag is clear, as everywhere in the
        // kernel.
        return unsafe {
            asm!(
                "rep stosb",
                inout("rcx") bytes => _,
                inout("rdi") at => _,
                in("al") 0u8,
                options(nostack, preserves_flags),
            );
        };
    }
    // SAFETY: as above.
    unsafe {
        asm!(
            "rep stosq",
            inout("rcx") bytes / 8 => _,
            inout("rdi") at => _,
            in("rax") 0,
            options(nostack, preserves_flags),
        );
    }
}

/// Copies memory that other CPUs may be writing to.
///
/// # Safety
///
/// Both ranges satisfy the contract of `ptr::copy_nonoverlapping`, except that other CPUs may write
/// to `from` during the copy. They consist of whole pages.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    if cpu::has_erms() {
        // SAFETY: the caller may read `from` and write `to`; the direction flag is clear, as
        // everywhere in the kernel. The instruction tolerates concurrent writes.
        return unsafe {
            asm!(
                "rep movsb",
                inout("rcx") bytes => _,
                inout("rsi") from => _,
                inout("rdi") to => _,
                options(nostack, preserves_flags),
            );
        };
    }
    // SAFETY: as above.
    unsafe {
        asm!(
            "rep movsq",
            inout("rcx") bytes / 8 => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags),
        );
    }
}

/// Makes every CPU fetch newly written instructions. x86 CPUs notice by themselves (Intel SDM,
/// volume 3A, "Self-modifying code").
pub fn sync_icache(_at: *const u8, _bytes: usize) {}
