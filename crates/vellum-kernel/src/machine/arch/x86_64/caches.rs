//! Zeroing and copying whole pages, and instruction cache synchronization.

use core::arch::asm;

/// Zeroes memory by words even where byte stores are fast (ERMS). Whole pages take the same time
/// either way, but a clock of QEMU that counts instructions counts one for each word or byte, and
/// so an eighth for words.
///
/// # Safety
///
/// The range satisfies the contract of `ptr::write_bytes` and consists of whole pages.
pub unsafe fn zero(at: *mut u8, bytes: usize) {
    // SAFETY: the caller may write the range; the direction flag is clear, as everywhere in the
    // kernel.
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
    // SAFETY: the caller may read `from` and write `to`; the direction flag is clear, as everywhere
    // in the kernel. The instruction tolerates concurrent writes.
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
