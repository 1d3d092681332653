//! The instructions that touch user memory: each of them may fault, and be refused. Then the function says so.

core::arch::global_asm!(
    r#"
    .section .text.access, "ax", @progbits
user_copy:                              // (to, from, bytes): the bytes that were not copied
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
user_copy_bytes:                        // where a refused copy goes on, to find out how far it goes
    cbz     x2, user_copy_refused
    ldrb    w3, [x1], #1
    strb    w3, [x0]
    add     x0, x0, #1
    sub     x2, x2, #1
    b       user_copy_bytes
user_copy_refused:
    mov     x0, x2
    ret
user_exchange:                          // (address, expected, new, where to put what was there): whether it was refused
    ldaxr   w4, [x0]
    cmp     w4, w1
    b.ne    3f
    stlxr   w5, w2, [x0]
    cbnz    w5, user_exchange
3:  dmb     ish
    str     w4, [x3]
    mov     w0, wzr
    ret
user_load:                              // (address, where to put the value): whether it was refused
    ldr     x2, [x0]
    str     x2, [x1]
    mov     w0, wzr
    ret
user_store:                             // (address, value): whether it was refused
    str     x1, [x0]
    mov     w0, wzr
    ret
user_refused:
    mov     w0, #1
    ret
    "#
);

unsafe extern "C" {
    fn user_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn user_copy_bytes();
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
    let at = |function: *const ()| function as u64;
    let [copy, bytes] = [at(user_copy as *const ()), at(user_copy_bytes as *const ())];
    let [copy_refused, exchange] = [at(user_copy_refused as *const ()), at(user_exchange as *const ())];
    let refused = at(user_refused as *const ());
    if (copy..bytes).contains(&pc) {
        Some(bytes)
    } else if (bytes..copy_refused).contains(&pc) {
        Some(copy_refused)
    } else {
        (exchange..refused).contains(&pc).then_some(refused)
    }
}
