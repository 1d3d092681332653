//! Implements the `futex` operations, `futex_waitv`, and the robust list.

use super::{Answer, clock, pi};
use crate::mem::{now_ns, uaccess};
use crate::task::futex::FutexWait;
use crate::task::{Thread, futex};
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::general as abi;
use vellum_kernel::errno::Errno;

/// The bit set of an operation without one (`FUTEX_BITSET_MATCH_ANY`).
const ANY: u32 = u32::MAX;

/// Implements `futex`.
pub async fn futex(thread: &Arc<Thread>, [address, op, value, timeout, second, third]: [u64; 6]) -> Answer {
    let (op, value) = (op as u32, value as u32);
    let command = op & !(abi::FUTEX_PRIVATE_FLAG | abi::FUTEX_CLOCK_REALTIME);
    let memory = thread.memory();
    let key = |address| {
        // A shared futex is keyed by its memory, which must be readable; a private one by its
        // address.
        if op & abi::FUTEX_PRIVATE_FLAG == 0 && address % 4 == 0 {
            futex::word(&memory, address)?;
        }
        futex::key(&memory, address)
    };
    match command {
        abi::FUTEX_WAIT | abi::FUTEX_WAIT_BITSET => {
            let bits = if command == abi::FUTEX_WAIT { ANY } else { third as u32 };
            if bits == 0 {
                return Err(Errno::EINVAL);
            }
            let deadline = match timeout {
                0 => None,
                _ if command == abi::FUTEX_WAIT => Some(now_ns().saturating_add(clock::read_time(thread, timeout)?)),
                _ => Some(clock::deadline(thread, timeout, op & abi::FUTEX_CLOCK_REALTIME != 0)?),
            };
            let deadline = deadline.map(|deadline| thread.wait_until(deadline));
            let watched = FutexWait { address, expected: value, bits };
            futex::wait(thread, &[watched], deadline).await.map(|_| 0)
        }
        abi::FUTEX_WAKE => Ok(futex::wake(key(address)?, value.max(1), ANY).into()),
        abi::FUTEX_WAKE_BITSET if third as u32 == 0 => Err(Errno::EINVAL),
        abi::FUTEX_WAKE_BITSET => Ok(futex::wake(key(address)?, value, third as u32).into()),
        abi::FUTEX_REQUEUE | abi::FUTEX_CMP_REQUEUE => {
            let (from, to) = (key(address)?, key(second)?);
            if (value as i32) < 0 || (timeout as i32) < 0 {
                return Err(Errno::EINVAL);
            }
            if command == abi::FUTEX_CMP_REQUEUE && futex::word(&memory, address)? != third as u32 {
                return Err(Errno::EAGAIN);
            }
            let woken = futex::wake(from, value, ANY);
            Ok(u64::from(woken) + u64::from(futex::requeue(from, to, timeout as u32)?))
        }
        abi::FUTEX_LOCK_PI => pi::lock(thread, address, timeout, true).await,
        abi::FUTEX_LOCK_PI2 => pi::lock(thread, address, timeout, op & abi::FUTEX_CLOCK_REALTIME != 0).await,
        abi::FUTEX_TRYLOCK_PI => pi::try_lock(thread, address),
        abi::FUTEX_UNLOCK_PI => pi::unlock(thread, address),
        abi::FUTEX_WAKE_OP => {
            let (first, other) = (key(address)?, key(second)?);
            let old = change(thread, second, third as u32)?;
            let mut woken = futex::wake(first, value, ANY);
            if compares(old, third as u32)? {
                woken += futex::wake(other, timeout as u32, ANY);
            }
            Ok(woken.into())
        }
        _ => Err(Errno::ENOSYS),
    }
}

/// Implements `futex_waitv`: waits on several futex words.
pub async fn waitv(thread: &Arc<Thread>, [array, count, flags, timeout, clock, _]: [u64; 6]) -> Answer {
    const MOST: u64 = 128;
    const OF_32_BITS: u64 = 2;
    if flags != 0 || !(1..=MOST).contains(&count) || array == 0 {
        return Err(Errno::EINVAL);
    }
    let deadline = match (timeout, clock as u32) {
        (0, _) => None,
        (_, abi::CLOCK_MONOTONIC | abi::CLOCK_REALTIME) => {
            Some(clock::deadline(thread, timeout, clock as u32 == abi::CLOCK_REALTIME)?)
        }
        _ => return Err(Errno::EINVAL),
    };
    let mut watched = Vec::new();
    watched.try_reserve_exact(count as usize)?;
    for index in 0..count {
        let mut bytes = [0; 24];
        uaccess::read(&thread.memory(), array.wrapping_add(24 * index), &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[8 * at + i]));
        // The upper 32 bits are reserved and must be 0.
        let kind = word(2) & !u64::from(abi::FUTEX_PRIVATE_FLAG);
        if kind != OF_32_BITS || word(0) > u64::from(u32::MAX) {
            return Err(Errno::EINVAL);
        }
        watched.push(FutexWait { address: word(1), expected: word(0) as u32, bits: ANY });
    }
    futex::wait(thread, &watched, deadline).await.map(|index| index as u64)
}

/// Applies the change of `FUTEX_WAKE_OP` to a word, atomically. Returns the word's old value.
fn change(thread: &Arc<Thread>, address: u64, how: u32) -> Result<u32, Errno> {
    let memory = thread.memory();
    let argument = (how << 8) as i32 >> 20;
    let argument = if how >> 31 != 0 { 1 << (argument & 31) } else { argument as u32 };
    loop {
        let old = futex::word(&memory, address)?;
        let new = match how >> 28 & 7 {
            abi::FUTEX_OP_SET => argument,
            abi::FUTEX_OP_ADD => old.wrapping_add(argument),
            abi::FUTEX_OP_OR => old | argument,
            abi::FUTEX_OP_ANDN => old & !argument,
            abi::FUTEX_OP_XOR => old ^ argument,
            _ => return Err(Errno::ENOSYS),
        };
        if uaccess::exchange(&memory, address, old, new)? == old {
            return Ok(old);
        }
    }
}

fn compares(old: u32, how: u32) -> Result<bool, Errno> {
    let (old, with) = (old as i32, (how << 20) as i32 >> 20);
    Ok(match how >> 24 & 15 {
        abi::FUTEX_OP_CMP_EQ => old == with,
        abi::FUTEX_OP_CMP_NE => old != with,
        abi::FUTEX_OP_CMP_LT => old < with,
        abi::FUTEX_OP_CMP_LE => old <= with,
        abi::FUTEX_OP_CMP_GT => old > with,
        abi::FUTEX_OP_CMP_GE => old >= with,
        _ => return Err(Errno::ENOSYS),
    })
}

/// Marks the robust locks that an exiting thread still owns with `FUTEX_OWNER_DIED`, and wakes one
/// waiter of each (`set_robust_list`).
pub fn release_robust_list(thread: &Arc<Thread>, head: u64) {
    const MOST: usize = 2048;
    let memory = thread.memory();
    let word = |address: u64| {
        let mut bytes = [0; 8];
        uaccess::read(&memory, address, &mut bytes).ok().map(|()| u64::from_le_bytes(bytes))
    };
    let release = |entry: u64, offset: u64| {
        let address = entry.wrapping_add(offset);
        let Ok(owner) = futex::word(&memory, address) else { return };
        if owner & abi::FUTEX_TID_MASK != thread.tid {
            return;
        }
        let died = owner & abi::FUTEX_WAITERS | abi::FUTEX_OWNER_DIED;
        if uaccess::exchange(&memory, address, owner, died) == Ok(owner)
            && owner & abi::FUTEX_WAITERS != 0
            && let Ok(key) = futex::key(&memory, address)
        {
            futex::wake(key, 1, ANY);
        }
    };
    let (Some(first), Some(offset), Some(pending)) =
        (word(head), word(head.wrapping_add(8)), word(head.wrapping_add(16)))
    else {
        return;
    };
    let mut entry = first;
    for _ in 0..MOST {
        if entry & !1 == head {
            break;
        }
        let next = word(entry & !1);
        if entry != pending {
            release(entry & !1, offset);
        }
        match next {
            Some(next) => entry = next,
            None => return,
        }
    }
    if pending != 0 {
        release(pending & !1, offset);
    }
}
