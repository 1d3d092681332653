//! `memcpy` and `memset`, which the compiler calls to move and to fill large values.
//!
//! The target's own versions assume that only aligned accesses are allowed: if source and
//! destination are aligned differently, `memcpy` assembles each word from bytes, and `memset` takes
//! more than an instruction for each byte. The kernel's memory is mapped as normal memory, where
//! accesses need not be aligned (Arm ARM, B2, on alignment), so these versions move words at any
//! alignment.

use core::arch::global_asm;

// The loops move 64 bytes at a time until the count in X2 is negative. Bits 0 to 5 of X2 are then
// the number of bytes left.
global_asm!(
    r#"
    .section .text.memcpy, "ax", @progbits
    .globl  memcpy
memcpy:                                 // (to, from, bytes); returns `to`
    mov     x3, x0
    b       0f
8:  ldp     x4, x5, [x1], #64
    ldp     x6, x7, [x1, #-48]
    ldp     x8, x9, [x1, #-32]
    ldp     x10, x11, [x1, #-16]
    stp     x4, x5, [x3], #64
    stp     x6, x7, [x3, #-48]
    stp     x8, x9, [x3, #-32]
    stp     x10, x11, [x3, #-16]
0:  subs    x2, x2, #64
    b.hs    8b
    tbz     x2, #5, 2f
    ldp     x4, x5, [x1], #32
    ldp     x6, x7, [x1, #-16]
    stp     x4, x5, [x3], #32
    stp     x6, x7, [x3, #-16]
2:
    tbz     x2, #4, 3f
    ldp     x4, x5, [x1], #16
    stp     x4, x5, [x3], #16
3:  tbz     x2, #3, 4f
    ldr     x4, [x1], #8
    str     x4, [x3], #8
4:  tbz     x2, #2, 5f
    ldr     w4, [x1], #4
    str     w4, [x3], #4
5:  tbz     x2, #1, 6f
    ldrh    w4, [x1], #2
    strh    w4, [x3], #2
6:  tbz     x2, #0, 7f
    ldrb    w4, [x1]
    strb    w4, [x3]
7:  ret
    "#
);

global_asm!(
    r#"
    .section .text.memset, "ax", @progbits
    .globl  memset
memset:                                 // (to, byte, bytes); returns `to`
    and     x1, x1, #0xff
    mov     x3, #0x0101010101010101
    mul     x1, x1, x3
    mov     x3, x0
    b       0f
8:  stp     x1, x1, [x3], #64
    stp     x1, x1, [x3, #-48]
    stp     x1, x1, [x3, #-32]
    stp     x1, x1, [x3, #-16]
0:  subs    x2, x2, #64
    b.hs    8b
    tbz     x2, #5, 2f
    stp     x1, x1, [x3], #32
    stp     x1, x1, [x3, #-16]
2:  tbz     x2, #4, 3f
    stp     x1, x1, [x3], #16
3:  tbz     x2, #3, 4f
    str     x1, [x3], #8
4:  tbz     x2, #2, 5f
    str     w1, [x3], #4
5:  tbz     x2, #1, 6f
    strh    w1, [x3], #2
6:  tbz     x2, #0, 7f
    strb    w1, [x3]
7:  ret
    "#
);
