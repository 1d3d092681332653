//! The entry code's part of the per-CPU record, which each CPU finds through TPIDR_EL1.

use core::arch::asm;
use core::cell::Cell;
use core::mem::offset_of;

/// The entry code's record of a CPU: the first field of [`ArchCpu`](crate::arch::percpu::ArchCpu).
/// The entry code uses the offsets of the fields.
#[repr(C)]
pub struct EntryState {
    /// The kernel's stack pointer while this CPU is in user mode.
    kernel_sp: Cell<u64>,
    /// The top of the exception stack.
    pub exception_sp: Cell<u64>,
}

/// Offset of `kernel_sp`, for the entry code.
pub const KERNEL_SP: usize = offset_of!(EntryState, kernel_sp);
/// Offset of `exception_sp`, for the entry code.
pub const EXCEPTION_SP: usize = offset_of!(EntryState, exception_sp);

impl EntryState {
    /// Returns the state of a CPU that has not started.
    pub const fn new() -> Self {
        Self { kernel_sp: Cell::new(0), exception_sp: Cell::new(0) }
    }
}

/// Makes `state` the one that [`current`] returns on this CPU.
///
/// # Safety
///
/// `state` lives forever, and no other CPU installs it.
pub unsafe fn install(state: *mut EntryState) {
    // SAFETY: the record is this CPU's own and lives forever; no other code uses the register.
    unsafe { write_register!("tpidr_el1", state as u64) };
}

/// Returns the state that this CPU has installed.
#[inline(always)]
pub fn current() -> *const EntryState {
    let state: *const EntryState;
    // SAFETY: reads a register. Without `nomem` and `pure`, because a future that awaits may
    // continue on another CPU.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) state, options(nostack, preserves_flags, readonly)) };
    state
}
