//! Who and where a program is, what time it is, and chance.

use super::Answer;
use crate::mem::{now_ns, uaccess};
use crate::task::{Thread, time};
use alloc::sync::Arc;
use core::arch::x86_64::_rdtsc;
use core::sync::atomic::{AtomicU64, Ordering};
use vellum_kernel::errno::Errno;

/// `uname`.
pub fn uname(thread: &Arc<Thread>, to: u64) -> Answer {
    const FIELD: usize = 65;
    let fields: [&[u8]; 6] = [
        b"Linux",
        b"vellum",
        b"6.18.0-vellum",
        concat!("Vellum ", env!("CARGO_PKG_VERSION")).as_bytes(),
        b"x86_64",
        b"(none)",
    ];
    let mut names = [0; FIELD * 6];
    for (field, name) in names.chunks_exact_mut(FIELD).zip(fields) {
        field[..name.len()].copy_from_slice(name);
    }
    uaccess::write(&thread.memory, to, &names).map(|()| 0)
}

/// The next random number (SplitMix64, seeded by the time-stamp counter: nothing here is a secret).
pub fn random() -> u64 {
    static STATE: AtomicU64 = AtomicU64::new(0);
    // SAFETY: every 64-bit processor has the instruction.
    let seed = unsafe { _rdtsc() };
    let mut z = STATE.fetch_add(0x9e37_79b9_7f4a_7c15 ^ seed << 32, Ordering::Relaxed).wrapping_add(seed);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `getrandom`.
pub fn getrandom(thread: &Arc<Thread>, to: u64, len: u64) -> Answer {
    let len = len.min(i32::MAX as u64);
    let mut done = 0;
    while done < len {
        let bytes = random().to_le_bytes();
        let piece = (len - done).min(8) as usize;
        uaccess::write(&thread.memory, to + done, &bytes[..piece])?;
        done += piece as u64;
    }
    Ok(len)
}

/// `clock_gettime`: all clocks are the time since the start.
pub fn clock_gettime(thread: &Arc<Thread>, clock: u64, to: u64) -> Answer {
    if clock > 11 {
        return Err(Errno::EINVAL);
    }
    let now = now_ns();
    let time = [now / 1_000_000_000, now % 1_000_000_000];
    let bytes: [u8; 16] = core::array::from_fn(|i| time[i / 8].to_le_bytes()[i % 8]);
    uaccess::write(&thread.memory, to, &bytes).map(|()| 0)
}

/// `nanosleep`.
pub async fn nanosleep(thread: &Arc<Thread>, from: u64) -> Answer {
    let mut bytes = [0; 16];
    uaccess::read(&thread.memory, from, &mut bytes)?;
    let (seconds, ns) = (u128::from_le_bytes(bytes) as u64, (u128::from_le_bytes(bytes) >> 64) as u64);
    if seconds > i64::MAX as u64 || ns >= 1_000_000_000 {
        return Err(Errno::EINVAL);
    }
    time::until(now_ns().saturating_add(seconds.saturating_mul(1_000_000_000)).saturating_add(ns)).await;
    Ok(0)
}
