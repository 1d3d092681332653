//! The instructions that touch user memory: each of them may fault, and be refused. Then the function says so.

core::arch::global_asm!(
    r#"
    .section .text.access, "ax", @progbits
user_copy:                              // (to, from, bytes): the bytes that were not copied
    movq %rdx, %rcx
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

unsafe extern "C" {
    fn user_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn user_copy_refused();
    fn user_exchange(address: u64, expected: u32, new: u32, found: *mut u32) -> u32;
    fn user_load(address: u64, value: *mut u64) -> u32;
    fn user_store(address: u64, value: u64) -> u32;
    fn user_refused();
}

/// Copies bytes, one of the two being user memory; the answer is how many were not copied.
///
/// # Safety
///
/// As of a copy, for the side that is not user memory. To user memory there is no reference. Inside `cpu::user_access`.
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    // SAFETY: by contract.
    unsafe { user_copy(to, from, bytes) }
}

/// Writes `new` to a word of user memory if it is `expected`; the answer is what was there, unless it was refused.
///
/// # Safety
///
/// As of [`copy`].
pub unsafe fn exchange(address: u64, expected: u32, new: u32) -> Option<u32> {
    let mut found = 0;
    // SAFETY: by contract, and a word of this function's.
    (unsafe { user_exchange(address, expected, new, &raw mut found) } == 0).then_some(found)
}

/// Reads a word of user memory, unless it is refused.
///
/// # Safety
///
/// As of [`copy`].
pub unsafe fn load(address: u64) -> Option<u64> {
    let mut value = 0;
    // SAFETY: by contract, and a word of this function's.
    (unsafe { user_load(address, &raw mut value) } == 0).then_some(value)
}

/// Writes a word of user memory; whether it was not refused.
///
/// # Safety
///
/// As of [`copy`].
pub unsafe fn store(address: u64, value: u64) -> bool {
    // SAFETY: by contract.
    unsafe { user_store(address, value) == 0 }
}

/// Where the code that faulted goes on if the access is refused, if it is one of those that may be.
pub fn refused(pc: u64) -> Option<u64> {
    let [copy, copy_refused] = [user_copy as *const () as u64, user_copy_refused as *const () as u64];
    let [exchange, refused] = [user_exchange as *const () as u64, user_refused as *const () as u64];
    if (copy..copy_refused).contains(&pc) {
        Some(copy_refused)
    } else {
        (exchange..refused).contains(&pc).then_some(refused)
    }
}
