//! The entry code's part of the per-CPU record, which each CPU finds through its GS segment base.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{GsBase, KernelGsBase};
use x86_64::structures::tss::TaskStateSegment;

/// The entry code's record of a CPU: the first field of [`ArchCpu`](crate::arch::percpu::ArchCpu).
/// The entry code uses the offsets of some fields.
#[repr(C)]
pub struct EntryState {
    this: *const EntryState,
    /// The kernel's stack pointer while this CPU is in user mode.
    kernel_sp: Cell<u64>,
    /// The user's stack pointer, temporarily, while a system call enters the kernel.
    user_sp: Cell<u64>,
    /// The end of the registers of the thread in user mode: the entry code pushes down from here.
    registers_end: Cell<u64>,
    /// The task state segment, from which the CPU reads the stack pointer for an exception.
    pub task: UnsafeCell<TaskStateSegment>,
}

/// Offset of the stack pointer that the CPU loads for an exception from user mode (Intel SDM,
/// volume 3A, "64-Bit Mode TSS": RSP0 at byte 4).
pub const TASK_SP: usize = offset_of!(EntryState, task) + 4;
/// Offset of `kernel_sp`, for the entry code.
pub const KERNEL_SP: usize = offset_of!(EntryState, kernel_sp);
/// Offset of `user_sp`, for the entry code.
pub const USER_SP: usize = offset_of!(EntryState, user_sp);
/// Offset of `registers_end`, for the entry code.
pub const REGISTERS_END: usize = offset_of!(EntryState, registers_end);

impl EntryState {
    /// Returns the state of a CPU that has not started.
    pub const fn new() -> Self {
        Self {
            this: ptr::null(),
            kernel_sp: Cell::new(0),
            user_sp: Cell::new(0),
            registers_end: Cell::new(0),
            task: UnsafeCell::new(TaskStateSegment::new()),
        }
    }
}

/// Makes `state` the one that [`current`] returns on this CPU.
///
/// # Safety
///
/// `state` lives forever, and no other CPU installs it.
pub unsafe fn install(state: *mut EntryState) {
    // SAFETY: the record is this CPU's own and lives forever.
    unsafe { (*state).this = state };
    GsBase::write(VirtAddr::from_ptr(state));
    KernelGsBase::write(VirtAddr::zero());
}

/// Returns the state that this CPU has installed.
#[inline(always)]
pub fn current() -> *const EntryState {
    let this: *const EntryState;
    // SAFETY: from `install` on, GS points to an `EntryState` whenever the kernel runs, and the
    // first word of that is its own address.
    unsafe { asm!("mov {}, gs:[0]", out(reg) this, options(nostack, preserves_flags, readonly, pure)) };
    this
}
