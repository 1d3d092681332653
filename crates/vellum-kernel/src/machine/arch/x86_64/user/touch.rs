//! The instructions that access user memory. If the page-fault hook does not resolve a fault of one
//! of them, the access is refused: the function ends early and reports it
//! ([`crate::arch::access`]).

core::arch::global_asm!(
    r#"
    .section .text.access, "ax", @progbits
user_copy:                              // (to, from, bytes) -> number of bytes not copied
    movq %rdx, %rcx
    cmpq $64, %rdx                      // below, starting `rep movsb` costs more than words do
    jb 2f
    cmpb $0, {erms}(%rip)
    jne 3f
2:
    shrq $3, %rcx
    rep movsq
user_copy_bytes:                        // a refused copy continues here, to count the bytes copied
    andl $7, %edx
    leaq (%rdx,%rcx,8), %rcx
3:
    rep movsb
user_copy_refused:
    movq %rcx, %rax
    retq
user_exchange:                          // (address, expected, new, &previous) -> 1 if refused
    movl %esi, %eax
    lock cmpxchgl %edx, (%rdi)
    movl %eax, (%rcx)
    xorl %eax, %eax
    retq
user_load:                              // (address, &value) -> 1 if refused
    movq (%rdi), %rax
    movq %rax, (%rsi)
    xorl %eax, %eax
    retq
user_store:                             // (address, value) -> 1 if refused
    movq %rsi, (%rdi)
    xorl %eax, %eax
    retq
user_refused:
    movl $1, %eax
    retq
    "#,
    erms = sym super::super::cpu::ERMS,
    options(att_syntax),
);
