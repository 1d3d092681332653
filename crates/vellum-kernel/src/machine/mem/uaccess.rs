//! The kernel's accesses to user memory (Linux: uaccess).
//!
//! All accesses go through the routines of [`access`], the only kernel code that may fault. The
//! engine resolves such a fault as if the program itself had accessed the address. If the engine
//! refuses, the routine ends early and its caller returns an error or a short count.

use crate::arch::access;
use crate::arch::cpu::user_access;
use crate::arch::hooks::{Fault, Outcome};
use crate::arch::paging::user_end;
use crate::arch::types::UserMemory;
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{UserSpace, percpu, space};
use alloc::sync::Arc;
use core::sync::atomic::AtomicU8;
use vellum_kernel::errno::Errno;

/// Checks that the range lies in user space.
fn check(address: u64, bytes: usize) -> Result<(), Errno> {
    match address.checked_add(bytes as u64) {
        Some(end) if end <= user_end() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Copies from user memory until a fault ends the copy. Returns the number of bytes copied.
pub fn read_some(memory: &Arc<UserSpace>, address: u64, to: &mut [u8]) -> usize {
    if check(address, to.len()).is_err() {
        return 0;
    }
    space::load(memory);
    // SAFETY: writes to the slice only; reads user memory, to which no reference exists, and where
    // a fault ends the copy.
    to.len() - user_access(|| unsafe { access::copy(to.as_mut_ptr(), address as *const u8, to.len()) })
}

/// Copies to user memory until a fault ends the copy. Returns the number of bytes copied.
pub fn write_some(memory: &Arc<UserSpace>, address: u64, from: &[u8]) -> usize {
    if check(address, from.len()).is_err() {
        return 0;
    }
    space::load(memory);
    // SAFETY: reads the slice only; writes user memory, to which no reference exists, and where a
    // fault ends the copy.
    from.len() - user_access(|| unsafe { access::copy(address as *mut u8, from.as_ptr(), from.len()) })
}

/// Copies from user memory to a page until a fault ends the copy. Returns the number of bytes
/// copied.
pub fn read_page(memory: &Arc<UserSpace>, address: u64, to: &[AtomicU8]) -> usize {
    if check(address, to.len()).is_err() {
        return 0;
    }
    space::load(memory);
    let page = to.as_ptr().cast::<u8>().cast_mut();
    // SAFETY: as in `read_some`. Other CPUs may access the page meanwhile, as they may while
    // hardware writes to it: the copy is one of the processor's instructions, and no Rust code
    // reads the bytes but as atomics.
    to.len() - user_access(|| unsafe { access::copy(page, address as *const u8, to.len()) })
}

/// Copies from a page to user memory until a fault ends the copy. Returns the number of bytes
/// copied.
pub fn write_page(memory: &Arc<UserSpace>, address: u64, from: &[AtomicU8]) -> usize {
    if check(address, from.len()).is_err() {
        return 0;
    }
    space::load(memory);
    // SAFETY: as in `write_some` and `read_page`.
    from.len() - user_access(|| unsafe { access::copy(address as *mut u8, from.as_ptr().cast(), from.len()) })
}

/// Fills `to` from user memory.
///
/// # Errors
///
/// `EFAULT`: part of the range is not readable. `to` may be partly filled.
pub fn read(memory: &Arc<UserSpace>, address: u64, to: &mut [u8]) -> Result<(), Errno> {
    if read_some(memory, address, to) == to.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies `from` to user memory.
///
/// # Errors
///
/// `EFAULT`: part of the range is not writable. Part of `from` may have been written.
pub fn write(memory: &Arc<UserSpace>, address: u64, from: &[u8]) -> Result<(), Errno> {
    if write_some(memory, address, from) == from.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Returns true if all bytes of a range of user memory are zero (Linux: `check_zeroed_user`).
///
/// # Errors
///
/// `EFAULT`: part of the range is not readable.
pub fn are_zero(memory: &Arc<UserSpace>, address: u64, len: u64) -> Result<bool, Errno> {
    let mut piece = [0; 256];
    let mut at = 0;
    while at < len {
        let some = (len - at).min(piece.len() as u64);
        let piece = &mut piece[..some as usize];
        read(memory, address.wrapping_add(at), piece)?;
        if piece.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        at += some;
    }
    Ok(true)
}

/// Writes `new` to a word of user memory if it holds `expected`, atomically. Returns the word's
/// previous value.
///
/// # Errors
///
/// `EFAULT`: the word is not writable.
pub fn exchange(memory: &Arc<UserSpace>, address: u64, expected: u32, new: u32) -> Result<u32, Errno> {
    check(address, 4)?;
    space::load(memory);
    // SAFETY: a word of user memory, to which no reference exists.
    user_access(|| unsafe { access::exchange(address, expected, new) }).ok_or(Errno::EFAULT)
}

impl UserMemory for Arc<UserSpace> {
    fn read(&self, address: u64, to: &mut [u8]) -> Result<(), Errno> {
        read(self, address, to)
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), Errno> {
        write(self, address, from)
    }
}

/// Returns the bytes of a Linux ABI structure.
pub fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: these structures consist of plain words and are zeroed before they are filled in, so
    // that each byte is initialized.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// Resolves a page fault of kernel code: the hook for [`Fault`]s in the routines of [`access`].
pub fn resolve(fault: &Fault) -> Outcome {
    // SAFETY: this CPU's own field. Neither the faulting code, which loaded the space, nor this
    // function changes it.
    let Some(space) = (unsafe { (*percpu::current().space.get()).as_ref() }) else {
        return Outcome::Unresolved;
    };
    if fault.denied_by_key {
        return access::refused(fault.pc).map_or(Outcome::Unresolved, Outcome::Resume);
    }
    let result = space.engine.fault(fault.address, fault.access);
    thread::current(|thread| thread.faults.count(&result));
    match result {
        Ok(_) => return Outcome::Retry,
        Err(error) => {
            if let Some(on) = BlockedOn::of(error, space) {
                thread::current(|thread| thread.block(on));
            }
        }
    }
    access::refused(fault.pc).map_or(Outcome::Unresolved, Outcome::Resume)
}
