//! The kernel's accesses to user memory.
//!
//! Two instructions do it all, and they alone may fault: a copy, and the one of [`exchange`]. A fault is resolved by the
//! engine, as if the program itself had touched the address; if the engine refuses, the access ends early and says so.

use crate::arch::cpu::user_access;
use crate::arch::paging::user_end;
use crate::arch::percpu;
use crate::arch::trap::{Fault, Outcome};
use crate::mem::{UserSpace, space};
use crate::task::Thread;
use alloc::sync::Arc;
use vellum::space::{Access, FaultError};
use vellum_kernel::errno::Errno;
use x86_64::structures::idt::PageFaultErrorCode as Code;

core::arch::global_asm!(
    r#"
    .section .text.uaccess, "ax", @progbits
user_copy:                              // (to, from, bytes): the bytes that were not copied
    movq %rdx, %rcx
    rep movsb
user_copy_refused:
    movq %rcx, %rax
    retq
user_exchange:                          // (address, expected, new, where to put what was there): whether it was refused
    movl %esi, %eax
    lock cmpxchgl %edx, (%rdi)
user_exchange_done:
    movl %eax, (%rcx)
    xorl %eax, %eax
    retq
user_exchange_refused:
    movl $1, %eax
    retq
    "#,
    options(att_syntax),
);

unsafe extern "C" {
    fn user_copy(to: *mut u8, from: *const u8, bytes: usize) -> usize;
    fn user_copy_refused();
    fn user_exchange(address: u64, expected: u32, new: u32, found: *mut u32) -> u32;
    fn user_exchange_done();
    fn user_exchange_refused();
}

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
    to.len() - user_access(|| unsafe { user_copy(to.as_mut_ptr(), address as *const u8, to.len()) })
}

/// Copies to user memory, as far as it goes; the answer is how far.
pub fn write_some(memory: &Arc<UserSpace>, address: u64, from: &[u8]) -> usize {
    if check(address, from.len()).is_err() {
        return 0;
    }
    space::load(memory);
    // SAFETY: reads the slice only; what it writes is user memory, to which no reference exists, and a fault there ends it.
    from.len() - user_access(|| unsafe { user_copy(address as *mut u8, from.as_ptr(), from.len()) })
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
    let mut found = 0;
    // SAFETY: a word of user memory, to which no reference exists, and one of this function's.
    match user_access(|| unsafe { user_exchange(address, expected, new, &raw mut found) }) {
        0 => Ok(found),
        _ => Err(Errno::EFAULT),
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
    match space.engine.fault(fault.address, access(fault.code)) {
        Ok(()) => return Outcome::Retry,
        Err(error @ (FaultError::OutOfMemory | FaultError::OverLimit(_))) => {
            if let Some(thread) = Thread::current() {
                thread.starves(error);
            }
        }
        Err(_) => {}
    }
    let [copy, refused] = [user_copy as *const () as u64, user_copy_refused as *const () as u64];
    let [exchange, done] = [user_exchange as *const () as u64, user_exchange_done as *const () as u64];
    if (copy..refused).contains(&fault.rip) {
        Outcome::Resume(refused)
    } else if (exchange..done).contains(&fault.rip) {
        Outcome::Resume(user_exchange_refused as *const () as u64)
    } else {
        Outcome::Unresolved
    }
}

/// What a fault's error code says was tried.
#[inline]
pub fn access(code: Code) -> Access {
    if code.contains(Code::INSTRUCTION_FETCH) {
        Access::Exec
    } else if code.contains(Code::CAUSED_BY_WRITE) {
        Access::Write
    } else {
        Access::Read
    }
}
