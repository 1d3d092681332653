//! Implements `mprotect`, and the calls about protection keys.

use super::Answer;
use crate::arch::keys;
use crate::mem::thread::failed;
use crate::task::Thread;
use linux_raw_sys::general as abi;
use vellum::addr::{FRAME_SIZE, align_up};
use vellum::memcg::MayBeRefused;
use vellum::vma::{Prot, Vma};
use vellum_kernel::errno::Errno;

/// Converts `PROT_` bits. Returns `None` if a bit is unknown.
fn prot(bits: u64) -> Option<Prot> {
    let known = (abi::PROT_READ | abi::PROT_WRITE | abi::PROT_EXEC | abi::PROT_SEM) as u64;
    (bits & !known == 0).then(|| Prot::from_bits_truncate(bits as u8))
}

/// Implements `pkey_alloc`.
pub fn allocate(thread: &Thread, flags: u64, denied: u64) -> Answer {
    if flags != 0 || denied & !u64::from(abi::PKEY_ACCESS_MASK) != 0 {
        return Err(Errno::EINVAL);
    }
    let key = thread.memory().keys.lock().allocate(keys::count()).ok_or(Errno::ENOSPC)?;
    thread.deny_key(key, denied as u32);
    Ok(key.into())
}

/// Implements `pkey_free`.
pub fn free(thread: &Thread, key: u64) -> Answer {
    let key = u8::try_from(key as u32).map_err(|_| Errno::EINVAL)?;
    if thread.memory().keys.lock().free(key) { Ok(0) } else { Err(Errno::EINVAL) }
}

/// Returns the key for memory with the protection `prot`, if that permits execution alone: a key of
/// its own, so that the memory can't be read. Denies the thread to read memory with that key.
pub fn execute_only(thread: &Thread, prot: Prot) -> Option<u8> {
    if prot != Prot::EXEC {
        return None;
    }
    let key = thread.memory().keys.lock().execute_only(keys::count())?;
    thread.deny_key(key, abi::PKEY_DISABLE_ACCESS);
    Some(key)
}

/// Implements `mprotect`, where `key` is −1, and `pkey_mprotect`. Without a key, memory keeps its
/// own key, except memory that could be executed only.
pub fn protect(thread: &Thread, [addr, len, bits]: [u64; 3], key: i32) -> Answer {
    let memory = thread.memory();
    let prot = prot(bits).ok_or(Errno::EINVAL)?;
    let is_checked = len > 0 && addr.is_multiple_of(FRAME_SIZE) && align_up(len, FRAME_SIZE.ilog2()).is_some();
    let owned = *memory.keys.lock();
    let key = match u8::try_from(key) {
        Ok(key) if owned.owns(key) => Some(key),
        _ if key != -1 && is_checked => return Err(Errno::EINVAL),
        _ => execute_only(thread, prot),
    };
    let of = |vma: &Vma| match key {
        Some(key) => prot.with_key(key),
        None if vma.prot.with_key(0) == Prot::EXEC && owned.is_execute_only(vma.prot.key()) => prot,
        None => prot.with_key(vma.prot.key()),
    };
    memory.engine.protect(addr, len, of).map_err(|error| failed(error.refused(), error.errno())).map(|()| 0)
}
