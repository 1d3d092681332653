//! What the processor does to memory by the block.

use core::arch::asm;

/// Overwrites memory with zeros. By words also where bytes are said to be fast (ERMS): whole pages take the same time, and QEMU
/// counts an instruction for each word or byte.
///
/// # Safety
///
/// As of `ptr::write_bytes`. Whole pages.
pub unsafe fn zero(at: *mut u8, bytes: usize) {
    // SAFETY: by contract; the direction flag is clear, as everywhere.
    unsafe {
        asm!("rep stosq", inout("rcx") bytes / 8 => _, inout("rdi") at => _, in("rax") 0, options(nostack, preserves_flags));
    }
}

/// Copies memory that others may be writing to.
///
/// # Safety
///
/// As of `ptr::copy_nonoverlapping`, but for those others. Whole pages.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: by contract; the direction flag is clear, as everywhere. To this instruction nothing is a data race.
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

/// Has every processor fetch the instructions that were written to memory: they notice by themselves (Intel SDM, volume 3A,
/// "Self-modifying code").
pub fn publish_code(_at: *const u8, _bytes: usize) {}
