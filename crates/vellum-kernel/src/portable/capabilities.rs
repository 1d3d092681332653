//! Capabilities: the superuser's privileges, one by one (capabilities(7)).

use linux_raw_sys::general as abi;

/// A set of capabilities: bit `n` is the capability with number `n`.
pub type Caps = u64;

/// Returns the set of one capability, by its number (such as `CAP_KILL`).
pub const fn cap(number: u32) -> Caps {
    1 << number
}

/// All capabilities that Linux defines.
pub const ALL: Caps = (1 << (abi::CAP_LAST_CAP + 1)) - 1;
