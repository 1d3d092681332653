//! The kernel's accesses to user memory.
//!
//! The instructions of [`access`] do it all, and they alone may fault. A fault is resolved by the engine, as if the program
//! itself had touched the address; if the engine refuses, the access ends early and says so.

use crate::arch::access;
use crate::arch::cpu::user_access;
use crate::arch::hooks::{Fault, Outcome};
use crate::arch::paging::user_end;
use crate::arch::types::UserMemory;
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{UserSpace, percpu, space};
use alloc::sync::Arc;
use vellum_kernel::errno::Errno;

/// Whether the range lies in user space.
fn check(address: u64, bytes: usize) -> Result<(), Errno> {
    match address.checked_add(bytes as u64) {
        Some(end) if end <= user_end() => Ok(()),
        _ => Err(Errno::EFAULT),
    }
}

/// Copies from user memory, as far as it goes; the answer is how far.
pub fn read_some(memory: &Arc<UserSpace>, address: u64, to: &mut [u8]) -> usize {
    if check(address, to.len()).is_err() {
        return 0;
    }
    space::load(memory);
    // SAFETY: writes to the slice only; what it reads is user memory, to which no reference exists, and a fault there ends it.
    to.len() - user_access(|| unsafe { access::copy(to.as_mut_ptr(), address as *const u8, to.len()) })
}

/// Copies to user memory, as far as it goes; the answer is how far.
pub fn write_some(memory: &Arc<UserSpace>, address: u64, from: &[u8]) -> usize {
    if check(address, from.len()).is_err() {
        return 0;
    }
    space::load(memory);
    // SAFETY: reads the slice only; what it writes is user memory, to which no reference exists, and a fault there ends it.
    from.len() - user_access(|| unsafe { access::copy(address as *mut u8, from.as_ptr(), from.len()) })
}

/// Copies from user memory.
///
/// # Errors
///
/// `EFAULT`: not all of it may be read.
pub fn read(memory: &Arc<UserSpace>, address: u64, to: &mut [u8]) -> Result<(), Errno> {
    if read_some(memory, address, to) == to.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Copies to user memory.
///
/// # Errors
///
/// `EFAULT`: not all of it may be written.
pub fn write(memory: &Arc<UserSpace>, address: u64, from: &[u8]) -> Result<(), Errno> {
    if write_some(memory, address, from) == from.len() { Ok(()) } else { Err(Errno::EFAULT) }
}

/// Writes `new` to a word if it is `expected`; the answer is what was there.
///
/// # Errors
///
/// `EFAULT`: it may not be written.
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

/// The bytes of a structure of Linux's.
pub fn bytes_of<T: Copy>(value: &T) -> &[u8] {
    // SAFETY: the structures that the kernel hands out are plain words, zeroed before they are filled in, so that each byte
    // has a value.
    unsafe { core::slice::from_raw_parts(core::ptr::from_ref(value).cast(), size_of::<T>()) }
}

/// The hook for page faults of the kernel's.
pub fn resolve(fault: &Fault) -> Outcome {
    // SAFETY: this processor's own. The code that faulted had it loaded and does not change it, nor does this.
    let Some(space) = (unsafe { (*percpu::current().space.get()).as_ref() }) else {
        return Outcome::Unresolved;
    };
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
