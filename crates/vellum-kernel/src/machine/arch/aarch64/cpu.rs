//! The processor: the protections that are switched on, and the way to user memory.
//!
//! With PAN the kernel faults on its own stray touches of user memory. It runs with the protection on, and lifts it only inside
//! [`user_access`]. An exception switches it on. A processor without it runs the same code, less guarded.

use crate::arch::percpu;
use crate::arch::{paging, stack};
use core::arch::asm;
use core::sync::atomic::{AtomicBool, Ordering::Relaxed};

static PAN: AtomicBool = AtomicBool::new(false);

/// The field of four bits of an identification register.
fn field(register: u64, shift: u32) -> u64 {
    register >> shift & 15
}

/// Switches on what the processor has: updates of accessed and dirty, the protection of user memory.
///
/// # Safety
///
/// To be called once by each processor, with interrupts off, after [`percpu::install`].
pub unsafe fn init() {
    let cpu = percpu::current();
    cpu.entry.exception_sp.set(stack::fault_stack_top(cpu.index));
    // ID_AA64MMFR1_EL1: HAFDBS.
    let updates = field(read_register!("id_aa64mmfr1_el1"), 0);
    let mut control = read_register!("tcr_el1");
    control |= u64::from(updates >= 1) << 39 | u64::from(updates >= 2) << 40;
    // SAFETY: the engine's format takes the processor's updates into account, and the kernel's own entries are settled. User
    // mode may use the vector registers, and read the timer's virtual counter.
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

/// Whether the TLB tags translations with the space that they belong to: always.
pub fn has_tags() -> bool {
    true
}

/// Whether the kernel's touches of user memory are kept apart.
pub fn has_pan() -> bool {
    PAN.load(Relaxed)
}

/// Runs `body`, which may touch user memory. A touch of a page that is not mapped, or not so, goes to the hook
/// of [`crate::arch::hooks`], and is retried when the hook has resolved it.
pub fn user_access<T>(body: impl FnOnce() -> T) -> T {
    if !has_pan() {
        return body();
    }
    // SAFETY: `msr pan, #0`, which exists. Without `nomem`, and so a barrier that the compiler moves no access over.
    unsafe { asm!(".inst 0xd500409f", options(nostack)) };
    let result = body();
    forbid_user_access();
    result
}

/// Forbids touching user memory until the next [`user_access`].
fn forbid_user_access() {
    if has_pan() {
        // SAFETY: `msr pan, #1`, as above.
        unsafe { asm!(".inst 0xd500419f", options(nostack)) };
    }
}

/// Between a store and a look at what another processor stores, where each looks after its own
/// store and at least one must see the other's.
///
/// `SeqCst` promises that by itself, and so do processors (Arm ARM, B2.3: a load-acquire is not
/// moved before a store-release). QEMU 7.2 does not keep the promise where it runs each processor
/// on a thread of the host: a store-release waits in the host's store buffer while the
/// load-acquire behind it is done (8 % of a million handshakes went wrong). A barrier it keeps.
#[inline(always)]
pub fn after_store() {
    core::sync::atomic::fence(core::sync::atomic::Ordering::SeqCst);
}

/// A processor calls this again and again while it waits for another one.
///
/// `yield`, and not the barrier that [`core::hint::spin_loop`] is here: QEMU takes it as a word to
/// run another processor where one thread of the host runs all of them in turns, which
/// otherwise come a tenth of a second apart.
#[inline]
pub fn relax() {
    // SAFETY: a hint.
    unsafe { asm!("yield", options(nomem, nostack, preserves_flags)) };
}

/// The frame pointer of the caller.
#[inline(always)]
pub fn frame_pointer() -> u64 {
    let frame: u64;
    // SAFETY: reads a register.
    unsafe { asm!("mov {}, x29", out(reg) frame, options(nomem, nostack, preserves_flags)) };
    frame
}
