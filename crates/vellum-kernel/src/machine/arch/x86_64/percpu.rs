//! Where a processor finds what is its own: through the GS segment.

use core::arch::asm;
use core::cell::{Cell, UnsafeCell};
use core::mem::offset_of;
use core::ptr;
use x86_64::VirtAddr;
use x86_64::registers::model_specific::{GsBase, KernelGsBase};
use x86_64::structures::tss::TaskStateSegment;

/// The architecture's part of [`crate::percpu::PerCpu`]. The entry code knows the offsets of some fields.
#[repr(C)]
pub struct Own {
    this: *const Own,
    /// The kernel's stack pointer while this processor is in user mode.
    kernel_sp: Cell<u64>,
    /// Where the entry of a system call puts the user's for a moment.
    user_sp: Cell<u64>,
    /// The end of the registers of the thread in user mode: where the entries push to.
    registers_end: Cell<u64>,
    /// The task state: the processor reads from it where to push at an exception.
    pub task: UnsafeCell<TaskStateSegment>,
}

/// Offset of the stack pointer of an entry, which is also that of the processor's own (Intel SDM, volume 3A, "64-Bit Mode
/// TSS": RSP0 at byte 4).
pub const TASK_SP: usize = offset_of!(Own, task) + 4;
/// Offset of a field, for the entry code.
pub const KERNEL_SP: usize = offset_of!(Own, kernel_sp);
/// As above.
pub const USER_SP: usize = offset_of!(Own, user_sp);
/// As above.
pub const REGISTERS_END: usize = offset_of!(Own, registers_end);

impl Own {
    /// Nobody's yet.
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

/// Has the running processor find this.
///
/// # Safety
///
/// It lives for ever, and is no other processor's.
pub unsafe fn install(own: *mut Own) {
    // SAFETY: by contract.
    unsafe { (*own).this = own };
    GsBase::write(VirtAddr::from_ptr(own));
    KernelGsBase::write(VirtAddr::zero());
}

/// The running processor's.
#[inline(always)]
pub fn current() -> *const Own {
    let this: *const Own;
    // SAFETY: GS points to an `Own` from `install` on, whenever the kernel runs, and its first word to itself.
    unsafe { asm!("mov {}, gs:[0]", out(reg) this, options(nostack, preserves_flags, readonly, pure)) };
    this
}
