//! Where a processor finds what is its own: through TPIDR_EL1.

use core::arch::asm;
use core::cell::Cell;
use core::mem::offset_of;

/// The architecture's part of [`crate::percpu::PerCpu`]. The entry code knows the offsets of the fields.
#[repr(C)]
pub struct Own {
    /// The kernel's stack pointer while this processor is in user mode.
    kernel_sp: Cell<u64>,
    /// The top of the stack for exceptions of the kernel's.
    pub exception_sp: Cell<u64>,
}

/// Offset of a field, for the entry code.
pub const KERNEL_SP: usize = offset_of!(Own, kernel_sp);
/// As above.
pub const EXCEPTION_SP: usize = offset_of!(Own, exception_sp);

impl Own {
    /// Nobody's yet.
    pub const fn new() -> Self {
        Self { kernel_sp: Cell::new(0), exception_sp: Cell::new(0) }
    }
}

/// Has the running processor find this.
///
/// # Safety
///
/// It lives for ever, and is no other processor's.
pub unsafe fn install(own: *mut Own) {
    // SAFETY: by contract; nothing else has a use for the register.
    unsafe { write_register!("tpidr_el1", own as u64) };
}

/// The running processor's.
#[inline(always)]
pub fn current() -> *const Own {
    let own: *const Own;
    // SAFETY: reads a register. Without `nomem` and `pure`: code that waits may go on on another processor.
    unsafe { asm!("mrs {}, tpidr_el1", out(reg) own, options(nostack, preserves_flags, readonly)) };
    own
}
