//! Zeroing and copying whole pages, and instruction cache synchronization.

use core::arch::asm;

/// The bit of DCZID_EL0 (DZP) that is set if `dc zva` is prohibited.
const PROHIBITED: u64 = 1 << 4;
/// The value of CTR_EL0.L1Ip for an instruction cache that is physically indexed and tagged.
const PHYSICAL: u64 = 0b11;

/// Zeroes memory by blocks of the CPU's `dc zva` size (Arm ARM, DDI 0487, "DC ZVA"), which is
/// mostly 64 bytes and at most half a page.
///
/// # Safety
///
/// The range satisfies the contract of `ptr::write_bytes` and consists of whole pages of normal
/// memory.
pub unsafe fn zero(at: *mut u8, bytes: usize) {
    let how = read_register!("dczid_el0");
    if how & PROHIBITED != 0 {
        // SAFETY: this function's contract includes that of `write_bytes`.
        return unsafe { at.write_bytes(0, bytes) };
    }
    let block = 4u64 << (how & 15);
    // SAFETY: the caller may write the range, whose whole pages are a multiple of the `dc zva`
    // block.
    unsafe {
        asm!(
            "2: dc zva, {at}",
            "add {at}, {at}, {block}",
            "cmp {at}, {end}",
            "b.lo 2b",
            at = inout(reg) at => _,
            block = in(reg) block,
            end = in(reg) at.add(bytes),
            options(nostack),
        );
    }
}

/// Makes every CPU fetch newly written instructions (Arm ARM, DDI 0487, "Concurrent modification
/// and execution of instructions"). Skips what CTR_EL0 reports as unnecessary: cleaning the data
/// cache (IDC), invalidating the instruction cache (DIC).
pub fn sync_icache(at: *const u8, bytes: usize) {
    let caches = read_register!("ctr_el0");
    let line = |shift: u32| 4usize << (caches >> shift & 15);
    let lines = |shift: u32| (0..bytes).step_by(line(shift)).map(|offset| at.addr() + offset);
    let (idc, dic) = (caches >> 28 & 1 != 0, caches >> 29 & 1 != 0);
    if !idc {
        for line in lines(16) {
            // SAFETY: cleaning a cache line changes no contents.
            unsafe { asm!("dc cvau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    }
    // SAFETY: a barrier.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
    if dic {
        return;
    }
    if caches >> 14 & 3 == PHYSICAL {
        for line in lines(0) {
            // SAFETY: an invalidation only makes CPUs fetch the instructions again.
            unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    } else {
        // This instruction cache is not physically tagged, and programs map the same memory at
        // other addresses, so invalidate all of it. SAFETY: an invalidation only makes CPUs fetch
        // the instructions again.
        unsafe { asm!("ic ialluis", options(nostack, preserves_flags)) };
    }
    // Other CPUs enter user mode by an exception return, which discards prefetched instructions.
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// Copies memory that other CPUs may be writing to.
///
/// # Safety
///
/// Both ranges satisfy the contract of `ptr::copy_nonoverlapping`, except that other CPUs may write
/// to `from` during the copy. They consist of whole pages.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller may read `from` and write `to`, whose whole pages are a multiple of the 64
    // bytes copied at a time. The instructions tolerate concurrent writes.
    unsafe {
        asm!(
            "2: ldp {a}, {b}, [{from}], #64",
            "ldp {c}, {d}, [{from}, #-48]",
            "ldp {e}, {f}, [{from}, #-32]",
            "ldp {g}, {h}, [{from}, #-16]",
            "stp {a}, {b}, [{to}], #64",
            "stp {c}, {d}, [{to}, #-48]",
            "stp {e}, {f}, [{to}, #-32]",
            "stp {g}, {h}, [{to}, #-16]",
            "cmp {from}, {end}",
            "b.lo 2b",
            from = inout(reg) from => _,
            to = inout(reg) to => _,
            end = in(reg) from.add(bytes),
            a = out(reg) _, b = out(reg) _, c = out(reg) _, d = out(reg) _,
            e = out(reg) _, f = out(reg) _, g = out(reg) _, h = out(reg) _,
            options(nostack),
        );
    }
}
