//! Implements NUMA memory policies. The machine has one node, so a policy is validated and stored.

use super::Answer;
use crate::mem::uaccess;
use crate::task::Thread;
use crate::task::context::Policy;
use alloc::sync::Arc;
use linux_raw_sys::general::CAP_SYS_NICE;
use vellum::addr::{FRAME_SIZE, align_up};
use vellum_kernel::errno::Errno;

/// Modes from `linux/mempolicy.h`.
const DEFAULT: u32 = 0;
const PREFERRED: u32 = 1;
const LOCAL: u32 = 4;
const LAST: u32 = 6;
/// Mode flags that define how node numbers are counted.
const STATIC_NODES: u32 = 1 << 15;
const RELATIVE_NODES: u32 = 1 << 14;
/// The set of existing nodes.
const NODES: u64 = 1;

/// Reads a node mask from a program.
fn nodes(thread: &Thread, at: u64, most: u64) -> Result<u64, Errno> {
    if at == 0 || most <= 1 {
        return Ok(0);
    }
    // `maxnode` is one more than the number of bits. Linux rejects masks larger than a page.
    let bits = most - 1;
    if bits > 8 * FRAME_SIZE {
        return Err(Errno::EINVAL);
    }
    let mut bytes = [0; 8];
    uaccess::read(&thread.memory(), at, &mut bytes)?;
    let set = u64::from_le_bytes(bytes) & if bits >= 64 { u64::MAX } else { (1 << bits) - 1 };
    for word in 1..bits.div_ceil(64) {
        uaccess::read(&thread.memory(), at.wrapping_add(8 * word), &mut bytes)?;
        if bytes != [0; 8] {
            return Err(Errno::EINVAL);
        }
    }
    Ok(set)
}

/// Validates the policy that a program passes.
fn wanted(thread: &Thread, mode: u64, at: u64, most: u64) -> Result<Policy, Errno> {
    let (mode, flags) = (mode as u32 & !(STATIC_NODES | RELATIVE_NODES), mode as u32 & (STATIC_NODES | RELATIVE_NODES));
    let set = nodes(thread, at, most)?;
    let right = match mode {
        DEFAULT => set == 0,
        LOCAL => set == 0 && flags == 0,
        PREFERRED => set & !NODES == 0,
        _ => mode <= LAST && set & NODES != 0 && (set & !NODES == 0 || flags != 0),
    };
    if right && flags != STATIC_NODES | RELATIVE_NODES {
        Ok(Policy { mode, nodes: set & NODES })
    } else {
        Err(Errno::EINVAL)
    }
}

/// Implements `set_mempolicy`.
pub fn set(thread: &Thread, mode: u64, at: u64, most: u64) -> Answer {
    let policy = wanted(thread, mode, at, most)?;
    thread.traits.lock().policy = policy;
    Ok(0)
}

/// Implements `mbind`.
pub fn bind(thread: &Thread, [addr, len, mode, at, most, flags]: [u64; 6]) -> Answer {
    const STRICT: u64 = 1;
    const MOVE: u64 = 2;
    const MOVE_ALL: u64 = 4;
    if flags & !(STRICT | MOVE | MOVE_ALL) != 0 || !addr.is_multiple_of(FRAME_SIZE) {
        return Err(Errno::EINVAL);
    }
    if flags & MOVE_ALL != 0 {
        thread.credentials().needs(CAP_SYS_NICE)?;
    }
    let len = align_up(len, FRAME_SIZE.ilog2()).ok_or(Errno::EINVAL)?;
    let end = addr.checked_add(len).ok_or(Errno::EINVAL)?;
    wanted(thread, mode, at, most)?;
    let mut mapped = addr;
    thread.memory().engine.vmas(addr, |vma| {
        let continues = vma.range.start <= mapped;
        mapped = if continues { vma.range.end } else { mapped };
        continues && mapped < end
    });
    if mapped < end { Err(Errno::EFAULT) } else { Ok(0) }
}

/// Implements `get_mempolicy`.
pub fn get(thread: &Arc<Thread>, [mode, at, most, addr, flags]: [u64; 5]) -> Answer {
    const NODE: u64 = 1;
    const ADDRESS: u64 = 2;
    const ALLOWED: u64 = 4;
    let (memory, policy) = (thread.memory(), thread.traits.lock().policy);
    if flags & !(NODE | ADDRESS | ALLOWED) != 0 || (at != 0 && most < 1) {
        return Err(Errno::EINVAL);
    }
    let (said, set) = match flags {
        ALLOWED => (0, NODES),
        _ if flags & ALLOWED != 0 => return Err(Errno::EINVAL),
        _ if flags & ADDRESS != 0 => {
            let mut found = false;
            memory.engine.vmas(addr, |vma| {
                found = vma.range.start <= addr;
                false
            });
            if !found {
                return Err(Errno::EFAULT);
            }
            (if flags & NODE != 0 { 0 } else { policy.mode }, policy.nodes)
        }
        // The next node exists only with interleaving, which is not implemented.
        NODE => return Err(Errno::EINVAL),
        _ if addr != 0 => return Err(Errno::EINVAL),
        _ => (policy.mode, policy.nodes),
    };
    if mode != 0 {
        uaccess::write(&memory, mode, &said.to_le_bytes())?;
    }
    if at != 0 {
        for word in 0..most.div_ceil(64).min(FRAME_SIZE / 8) {
            let bits = if word == 0 { set } else { 0 };
            uaccess::write(&memory, at.wrapping_add(8 * word), &bits.to_le_bytes())?;
        }
    }
    Ok(0)
}
