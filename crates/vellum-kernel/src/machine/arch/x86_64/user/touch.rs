//! The instructions that touch user memory: each of them may fault, and be refused. Then the function says so. What they are to the
//! rest of the kernel: [`crate::arch::access`].

core::arch::global_asm!(
    r#"
    .section .text.access, "ax", @progbits
user_copy:                              // (to, from, bytes): the bytes that were not copied
    movq %rdx, %rcx
    shrq $3, %rcx
    rep movsq
user_copy_bytes:                        // where a refused copy goes on, to find out how far it goes
    andl $7, %edx
    leaq (%rdx,%rcx,8), %rcx
    rep movsb
user_copy_refused:
    movq %rcx, %rax
    retq
user_exchange:                          // (address, expected, new, where to put what was there): whether it was refused
    movl %esi, %eax
    lock cmpxchgl %edx, (%rdi)
    movl %eax, (%rcx)
    xorl %eax, %eax
    retq
user_load:                              // (address, where to put the value): whether it was refused
    movq (%rdi), %rax
    movq %rax, (%rsi)
    xorl %eax, %eax
    retq
user_store:                             // (address, value): whether it was refused
    movq %rsi, (%rdi)
    xorl %eax, %eax
    retq
user_refused:
    movl $1, %eax
    retq
    "#,
    options(att_syntax),
);
