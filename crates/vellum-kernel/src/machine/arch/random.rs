//! Random numbers that are not fit for secrets.

use crate::arch::clock::ticks;
use core::sync::atomic::{AtomicU64, Ordering};

/// Returns a random number (SplitMix64, seeded by the CPU's counter; not cryptographically secure).
pub fn random() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let seed = ticks();
    let mut z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15 ^ seed << 32, Ordering::Relaxed).wrapping_add(seed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
