//! CPU setup: protections, and access to user memory.
//!
//! With PAN, kernel accesses to user memory fault except inside [`user_access`]. Every exception
//! sets PAN. A CPU without PAN runs the same code without this check.

use crate::arch::percpu;
use crate::arch::{paging, stack};
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static PAN: AtomicBool = AtomicBool::new(false);

/// Returns the four-bit field of an identification register at `shift`.
fn field(register: u64, shift: u32) -> u64 {
    register >> shift & 15
}

/// Enables the CPU's features: hardware updates of accessed and dirty bits, and PAN.
///
/// # Safety
///
/// Called once by each CPU, with interrupts off, after [`percpu::install`].
pub unsafe fn init() {
    let cpu = percpu::current();
    cpu.entry.exception_sp.set(stack::fault_stack_top(cpu.index));
    // ID_AA64MMFR1_EL1: HAFDBS.
    let updates = field(read_register!("id_aa64mmfr1_el1"), 0);
    let mut control = read_register!("tcr_el1");
    control |= u64::from(updates >= 1) << 39 | u64::from(updates >= 2) << 40;
    // SAFETY: the engine's page-table format expects that the CPU sets accessed and dirty bits, and
    // the kernel's own PTEs have theirs set already. User mode may use the vector registers and
    // read the timer's virtual counter.
    unsafe {
        write_register!("tcr_el1", control);
        write_register!("cpacr_el1", 0b11 << 20);
        write_register!("cntkctl_el1", 0b10);
    }
    paging::flush_all();
    // ID_AA64MMFR1_EL1: PAN.
    PAN.store(field(read_register!("id_aa64mmfr1_el1"), 20) != 0, Relaxed);
    forbid_user_access();
}

/// Returns whether TLB entries are tagged with the address space (ASID): always.
pub fn has_tags() -> bool {
    true
}

/// Returns whether the CPU has PAN.
pub fn has_pan() -> bool {
    PAN.load(Relaxed)
}

/// Runs `body`, which may access user memory. A page fault in it calls the hook of
/// [`crate::arch::hooks`]; the access is retried once the hook has resolved the fault.
pub fn user_access<T>(body: impl FnOnce() -> T) -> T {
    if !has_pan() {
        return body();
    }
    // SAFETY: `msr pan, #0`, which exists with PAN. Without `nomem`, so that the compiler moves no
    // access over it.
    unsafe { asm!(".inst 0xd500409f", options(nostack)) };
    let result = body();
    forbid_user_access();
    result
}

/// Forbids access to user memory until the next [`user_access`].
fn forbid_user_access() {
    if has_pan() {
        // SAFETY: `msr pan, #1`, which exists with PAN.
        unsafe { asm!(".inst 0xd500419f", options(nostack)) };
    }
}

/// Orders an earlier `SeqCst` store before later loads, so that of two CPUs that each store and
/// then check the other's store, at least one sees it.
///
/// `SeqCst` alone guarantees that, and CPUs comply (Arm ARM, B2.3: a load-acquire is not moved
/// before a store-release). QEMU 7.2 does not when it runs each CPU on a host thread: a
/// store-release waits in the host's store buffer while the load-acquire after it is executed (8 %
/// of a million handshakes failed). QEMU does execute a barrier correctly.
#[inline(always)]
pub fn store_load_barrier() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// Pauses in a loop that waits for another CPU.
///
/// `yield`, not the barrier that [`core::hint::spin_loop`] is on AArch64: on `yield`, QEMU switches
/// to another CPU where one host thread runs all CPUs in turn. Otherwise their turns are a tenth of
/// a second apart.
#[inline]
pub fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
}

/// Returns the caller's frame pointer.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    frame
}
