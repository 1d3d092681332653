//! Where exceptions begin (Arm ARM, DDI 0487, D1.3.4, "Exception vectors"). SP_EL1 is the stack pointer: see
//! [`crate::arch::boot`].

use crate::arch::entry::SIZE;
use crate::arch::trap;

/// The kinds of exceptions that the vectors tell apart.
pub const SYNCHRONOUS: u64 = 0;
/// As above.
pub const INTERRUPT: u64 = 1;
/// What never comes: a fast interrupt, or an error of the system's.
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
    stp     x2, x3, [sp, #16]
    stp     x4, x5, [sp, #32]
    stp     x6, x7, [sp, #48]
    stp     x8, x9, [sp, #64]
    stp     x10, x11, [sp, #80]
    stp     x12, x13, [sp, #96]
    stp     x14, x15, [sp, #112]
    stp     x16, x17, [sp, #128]
    stp     x18, x19, [sp, #144]
    stp     x20, x21, [sp, #160]
    stp     x22, x23, [sp, #176]
    stp     x24, x25, [sp, #192]
    stp     x26, x27, [sp, #208]
    stp     x28, x29, [sp, #224]
    mrs     x2, sp_el0
    stp     x30, x2, [sp, #240]
    mrs     x2, elr_el1
    mrs     x3, spsr_el1
    stp     x2, x3, [sp, #256]
    mrs     x2, esr_el1
    stp     xzr, x2, [sp, #272]
    mov     x0, sp
    bl      {handle}
    ldp     x2, x3, [sp, #256]
    msr     elr_el1, x2
    msr     spsr_el1, x3
    ldr     x30, [sp, #240]
    ldp     x28, x29, [sp, #224]
    ldp     x26, x27, [sp, #208]
    ldp     x24, x25, [sp, #192]
    ldp     x22, x23, [sp, #176]
    ldp     x20, x21, [sp, #160]
    ldp     x18, x19, [sp, #144]
    ldp     x16, x17, [sp, #128]
    ldp     x14, x15, [sp, #112]
    ldp     x12, x13, [sp, #96]
    ldp     x10, x11, [sp, #80]
    ldp     x8, x9, [sp, #64]
    ldp     x6, x7, [sp, #48]
    ldp     x4, x5, [sp, #32]
    ldp     x2, x3, [sp, #16]
    ldp     x0, x1, [sp]
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

/// Has this processor find them.
///
/// # Safety
///
/// SP_EL1 points to a stack.
pub unsafe fn install() {
    // SAFETY: the vectors live for ever, and each leads to code that serves its exception.
    unsafe { write_register!("vbar_el1", &raw const vectors as u64) };
}
