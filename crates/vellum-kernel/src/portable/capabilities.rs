//! Capabilities: the parts of the superuser's power (capabilities(7)).

use linux_raw_sys::general as abi;

/// A set of capabilities: bit `n` is the one of number `n`.
pub type Caps = u64;

/// The set of one capability (`CAP_KILL` and its kin).
pub const fn cap(number: u32) -> Caps {
    1 << number
}

/// All that there are.
pub const ALL: Caps = (1 << (abi::CAP_LAST_CAP + 1)) - 1;
