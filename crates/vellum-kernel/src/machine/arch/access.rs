//! Accesses to user memory. If the page-fault hook does not resolve a fault of an access, the
//! access is refused: the function returns that to its caller instead of faulting.
//!
//! The instructions themselves are in the architecture's `touch` module.

unsafe extern "C" {
    fn user_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn user_copy_bytes();
    fn user_copy_refused();
    fn user_exchange(address: u64, expected: u32, new: u32, found: *mut u32) -> u32;
    fn user_load(address: u64, value: *mut u64) -> u32;
    fn user_store(address: u64, value: u64) -> u32;
    fn user_refused();
}

/// Copies bytes between kernel and user memory. Returns the number of bytes not copied.
///
/// # Safety
///
/// The kernel's range is valid for the copy, no reference to the user's range exists, and the call
/// is inside `cpu::user_access`.
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) -> usize {
    // SAFETY: this function has the contract of the assembly routine.
    unsafe { user_copy(to, from, bytes) }
}

/// Writes `new` to a word of user memory if it holds `expected`, atomically. Returns the word's
/// previous value, or `None` if the access was refused.
///
/// # Safety
///
/// No reference to the word exists, and the call is inside `cpu::user_access`.
pub unsafe fn exchange(address: u64, expected: u32, new: u32) -> Option<u32> {
    let mut found = 0;
    // SAFETY: the word satisfies this function's contract; `found` is a local variable.
    (unsafe { user_exchange(address, expected, new, &raw mut found) } == 0).then_some(found)
}

/// Reads a word of user memory. Returns `None` if the access was refused.
///
/// # Safety
///
/// No reference to the word exists, and the call is inside `cpu::user_access`.
pub unsafe fn load(address: u64) -> Option<u64> {
    let mut value = 0;
    // SAFETY: the word satisfies this function's contract; `value` is a local variable.
    (unsafe { user_load(address, &raw mut value) } == 0).then_some(value)
}

/// Writes a word of user memory. Returns false if the access was refused.
///
/// # Safety
///
/// No reference to the word exists, and the call is inside `cpu::user_access`.
pub unsafe fn store(address: u64, value: u64) -> bool {
    // SAFETY: the word satisfies this function's contract.
    unsafe { user_store(address, value) == 0 }
}

/// Returns the address at which code that faulted at `pc` continues after a refused access (Linux:
/// the exception table), or `None` if `pc` is not one of the instructions that may fault.
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
