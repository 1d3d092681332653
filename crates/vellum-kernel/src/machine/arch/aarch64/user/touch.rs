//! The instructions that access user memory. If the page-fault hook does not resolve a fault of one
//! of them, the access is refused: the function ends early and reports it
//! ([`crate::arch::access`]).

core::arch::global_asm!(
    r#"
    .section .text.access, "ax", @progbits
user_copy:                              // (to, from, bytes) -> number of bytes not copied
    cmp     x2, #64
    b.lo    2f
1:  ldp     x3, x4, [x1]
    ldp     x5, x6, [x1, #16]
    ldp     x7, x8, [x1, #32]
    ldp     x9, x10, [x1, #48]
    stp     x3, x4, [x0]
    stp     x5, x6, [x0, #16]
    stp     x7, x8, [x0, #32]
    stp     x9, x10, [x0, #48]
    add     x1, x1, #64
    add     x0, x0, #64
    sub     x2, x2, #64
    cmp     x2, #64
    b.hs    1b
2:  cmp     x2, #8
    b.lo    user_copy_bytes
    ldr     x3, [x1]
    str     x3, [x0]
    add     x1, x1, #8
    add     x0, x0, #8
    sub     x2, x2, #8
    b       2b
user_copy_bytes:                        // a refused copy continues here, to count the bytes copied
    cbz     x2, user_copy_refused
    ldrb    w3, [x1], #1
    strb    w3, [x0]
    add     x0, x0, #1
    sub     x2, x2, #1
    b       user_copy_bytes
user_copy_refused:
    mov     x0, x2
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
