//! The names and numbers by which programs know the architecture.

use crate::arch::held::Held;
use crate::arch::paging::user_end;
use crate::mem::{UserSpace, uaccess};
use crate::sys::Answer;
use crate::task::Thread;
use alloc::sync::Arc;
use core::arch::x86_64::__cpuid;
use vellum_kernel::errno::Errno;

/// What `uname` and the auxiliary vector call it.
pub const NAME: &str = "x86_64";
/// Programs that don't ask for more have the addresses below this.
pub const ADDRESSES_END: u64 = 1 << 47;
/// What an ELF file calls it.
pub const ELF_MACHINE: u16 = elf::abi::EM_X86_64;
/// The flag of `mmap` that asks for a low address.
pub const MAP_LOW: u32 = linux_raw_sys::general::MAP_32BIT;
/// The least stack for a signal handler, with the vector registers.
pub const LEAST_SIGNAL_STACK: u64 = 3632;
/// A system call as a program makes it, in as many bytes as it has.
pub const SYSTEM_CALL: &[u8] = &[0x0f, 0x05];

/// Puts into a program's memory what it finds there without asking: nothing.
///
/// # Errors
///
/// None.
pub fn furnish(_space: &Arc<UserSpace>) -> Result<(), Errno> {
    Ok(())
}

/// What the auxiliary vector says of the processor.
pub fn hwcap() -> [u64; 2] {
    [__cpuid(1).edx.into(), 0]
}

/// Of the arguments of `clone`: where to write the child's number for the child, and its thread pointer.
pub fn child_and_thread_pointer(arguments: [u64; 6]) -> [u64; 2] {
    [arguments[3], arguments[4]]
}

/// `arch_prctl`.
pub fn arch_prctl(thread: &Arc<Thread>, code: u64, value: u64) -> Answer {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    let memory = thread.memory();
    // SAFETY: the thread's own future.
    let held: &mut Held = &mut unsafe { thread.context() }.held;
    match code {
        SET_FS | SET_GS if value >= user_end() => return Err(Errno::EPERM),
        SET_FS => held.fs = value,
        SET_GS => held.gs = value,
        GET_FS => return uaccess::write(&memory, value, &held.fs.to_le_bytes()).map(|()| 0),
        GET_GS => return uaccess::write(&memory, value, &held.gs.to_le_bytes()).map(|()| 0),
        _ => return Err(Errno::EINVAL),
    }
    held.restore_bases();
    Ok(0)
}
