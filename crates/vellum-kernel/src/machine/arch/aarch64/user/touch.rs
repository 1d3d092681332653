//! The instructions that access user memory. If the page-fault hook does not resolve a fault of one
//! of them, the access is refused: the function ends early and reports it
//! ([`crate::arch::access`]).

core::arch::global_asm!(
    r#"
    .section .text.access, "ax", @progbits
user_copy:                              // (to, from, bytes) -> number of bytes not copied
    sub     x11, x1, x0                 // the source is at x0 + x11: only x0 says how far the copy is
    add     x12, x0, x2                 // the end
    cmp     x2, #64
    b.lo    2f
    sub     x13, x12, #64
1:  ldp     x3, x4, [x1], #64
    ldp     x5, x6, [x1, #-48]
    ldp     x7, x8, [x1, #-32]
    ldp     x9, x10, [x1, #-16]
    stp     x5, x6, [x0, #16]
    stp     x7, x8, [x0, #32]
    stp     x9, x10, [x0, #48]
    stp     x3, x4, [x0], #64           // the last store, so that x0 moves with the whole block
    cmp     x0, x13
    b.ls    1b
2:  sub     x13, x12, #8
3:  cmp     x0, x13
    b.hi    user_copy_bytes
    ldr     x3, [x0, x11]
    str     x3, [x0], #8
    b       3b
user_copy_bytes:                        // a refused copy continues here, to count the bytes copied
    cmp     x0, x12
    b.hs    user_copy_refused
    ldrb    w3, [x0, x11]
    strb    w3, [x0], #1
    b       user_copy_bytes
user_copy_refused:
    sub     x0, x12, x0
    ret
user_exchange:                          // (address, expected, new, &previous) -> 1 if refused
    ldaxr   w4, [x0]
    cmp     w4, w1
    b.ne    3f
    stlxr   w5, w2, [x0]
    cbnz    w5, user_exchange
3:  dmb     ish
    str     w4, [x3]
    mov     w0, wzr
    ret
user_load:                              // (address, &value) -> 1 if refused
    ldr     x2, [x0]
    str     x2, [x1]
    mov     w0, wzr
    ret
user_store:                             // (address, value) -> 1 if refused
    str     x1, [x0]
    mov     w0, wzr
    ret
user_refused:
    mov     w0, #1
    ret
    "#
);
