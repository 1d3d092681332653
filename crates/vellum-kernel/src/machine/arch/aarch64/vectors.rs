//! The exception vectors (Arm ARM, DDI 0487, D1.3.4, "Exception vectors"). Exceptions run on
//! SP_EL1, as [`crate::arch::boot`] describes.

use crate::arch::entry::{SIZE, restore_registers, save_registers};
use crate::arch::trap;

/// The kind of a synchronous exception.
pub const SYNCHRONOUS: u64 = 0;
/// The kind of an interrupt.
pub const INTERRUPT: u64 = 1;
/// The kind of exceptions that never occur: fast interrupts and system errors.
pub const OTHER: u64 = 2;

core::arch::global_asm!(
    r#"
    .macro from_kernel kind
    .balign 128
    sub     sp, sp, #{size}
    stp     x0, x1, [sp]
    mov     x1, #\kind
    b       trap_from_kernel
    .endm
    .macro from_user kind
    .balign 128
    stp     x0, x1, [sp]
    mov     x1, #\kind
    b       trap_from_user
    .endm

    .section .text.vectors, "ax", @progbits
    .balign 2048
vectors:
    .rept 2                             // from the kernel, on its stack or on that for exceptions
    from_kernel {synchronous}
    from_kernel {interrupt}
    from_kernel {other}
    from_kernel {other}
    .endr
    from_user {synchronous}
    from_user {interrupt}
    from_user {other}
    from_user {other}
    .rept 4                             // from 32-bit user mode: there is none
    from_user {other}
    .endr

    .balign 128
trap_from_kernel:                       // X0 and X1 are saved, X1 is the kind
    "#,
    save_registers!(),
    r#"
    stp     xzr, x2, [sp, #272]
    mov     x0, sp
    bl      {handle}
    ldp     x2, x3, [sp, #256]
    msr     elr_el1, x2
    msr     spsr_el1, x3
    ldr     x30, [sp, #240]
    "#,
    restore_registers!(),
    r#"
    add     sp, sp, #{size}
    eret
    "#,
    size = const SIZE,
    synchronous = const SYNCHRONOUS,
    interrupt = const INTERRUPT,
    other = const OTHER,
    handle = sym trap::handle,
);

unsafe extern "C" {
    static vectors: u8;
}

/// Installs the vectors on this CPU.
///
/// # Safety
///
/// SP_EL1 points to the top of an exception stack.
pub unsafe fn install() {
    // SAFETY: the vectors live forever, and each leads to code that handles its exception.
    unsafe { write_register!("vbar_el1", &raw const vectors as u64) };
}
