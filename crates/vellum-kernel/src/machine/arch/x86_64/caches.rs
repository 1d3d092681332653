//! Zeroing and copying whole pages, and instruction cache synchronization.

use core::arch::asm;

/// Zeroes memory by words even where byte stores are fast (ERMS): whole pages take the same time,
/// and QEMU counts one instruction per word or byte.
///
/// # Safety
///
/// As of `ptr::write_bytes`. The range consists of whole pages.
pub unsafe fn zero(at: *mut u8, bytes: usize) {
    // SAFETY: by contract; the direction flag is clear, as everywhere in the kernel.
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
/// As of `ptr::copy_nonoverlapping`, except that concurrent writes are allowed. The range consists
/// of whole pages.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: by contract; the direction flag is clear, as everywhere in the kernel. The
    // instruction tolerates concurrent writes.
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
