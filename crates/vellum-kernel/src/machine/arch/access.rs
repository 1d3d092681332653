//! User memory, touched by instructions that may be refused: what comes of each says so.
//!
//! The instructions themselves are an architecture's (`touch`).

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
