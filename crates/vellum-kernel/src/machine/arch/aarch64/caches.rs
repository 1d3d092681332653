//! What the processor does to memory by the block.

use core::arch::asm;

/// DCZID_EL0: that `dc zva` is prohibited.
const PROHIBITED: u64 = 1 << 4;
/// CTR_EL0.L1Ip: that instructions are cached by their physical addresses.
const PHYSICAL: u64 = 0b11;

/// Overwrites memory with zeros, by blocks of the size that the processor says (Arm ARM, DDI 0487, "DC ZVA"): 64 bytes in most,
/// never more than half a page.
///
/// # Safety
///
/// As of `ptr::write_bytes`. Whole pages of normal memory.
pub unsafe fn zero(at: *mut u8, bytes: usize) {
    let how = read_register!("dczid_el0");
    if how & PROHIBITED != 0 {
        // SAFETY: by contract.
        return unsafe { at.write_bytes(0, bytes) };
    }
    let block = 4u64 << (how & 15);
    // SAFETY: by contract; a page is so many whole blocks.
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

/// Has every processor fetch the instructions that were written to memory (Arm ARM, DDI 0487, "Concurrent
/// modification and execution of instructions"), as far as CTR_EL0 says that this takes anything: IDC that data reaches them by
/// itself, DIC that processors notice by themselves.
pub fn publish_code(at: *const u8, bytes: usize) {
    let caches = read_register!("ctr_el0");
    let line = |shift: u32| 4usize << (caches >> shift & 15);
    let lines = |shift: u32| (0..bytes).step_by(line(shift)).map(|offset| at.addr() + offset);
    let (idc, dic) = (caches >> 28 & 1 != 0, caches >> 29 & 1 != 0);
    if !idc {
        for line in lines(16) {
            // SAFETY: cleaning changes no contents.
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
            // SAFETY: instructions are fetched anew.
            unsafe { asm!("ic ivau, {}", in(reg) line, options(nostack, preserves_flags)) };
        }
    } else {
        // Programs know the same memory by other addresses. SAFETY: as above.
        unsafe { asm!("ic ialluis", options(nostack, preserves_flags)) };
    }
    // Other processors come to user mode by an exception return, which discards what was fetched ahead.
    // SAFETY: barriers.
    unsafe { asm!("dsb ish", "isb", options(nostack, preserves_flags)) };
}

/// Copies memory that others may be writing to.
///
/// # Safety
///
/// As of `ptr::copy_nonoverlapping`, but for those others. Whole pages.
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: by contract; a page is so many times 64 bytes. To these instructions nothing is a data race.
    unsafe {
        asm!(
            "2: ldp {a}, {b}, [{from}]",
            "ldp {c}, {d}, [{from}, #16]",
            "ldp {e}, {f}, [{from}, #32]",
            "ldp {g}, {h}, [{from}, #48]",
            "add {from}, {from}, #64",
            "stp {a}, {b}, [{to}]",
            "stp {c}, {d}, [{to}, #16]",
            "stp {e}, {f}, [{to}, #32]",
            "stp {g}, {h}, [{to}, #48]",
            "add {to}, {to}, #64",
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
