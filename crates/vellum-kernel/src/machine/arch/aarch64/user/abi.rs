//! The names and numbers by which programs know the architecture.

use crate::arch::paging::user_end;

pub use crate::arch::cpuinfo::hwcap;

/// What `uname` and the auxiliary vector call it.
pub const NAME: &str = "aarch64";
/// Programs that don't ask for more have the addresses below this.
pub const ADDRESSES_END: u64 = 1 << 48;
/// What an ELF file calls it.
pub const ELF_MACHINE: u16 = elf::abi::EM_AARCH64;
/// The flag of `mmap` that asks for a low address: there is none.
pub const MAP_LOW: u32 = 0;
/// The least stack for a signal handler.
pub const LEAST_SIGNAL_STACK: u64 = 4720;
/// A system call as a program makes it.
pub const SYSTEM_CALL: &[u8] = &[0x01, 0x00, 0x00, 0xd4];

/// How a handler returns that says no other way: `mov x8, #139; svc #0`, the system call `rt_sigreturn`.
const RETURN: [u8; 8] = [0x68, 0x11, 0x80, 0xd2, 0x01, 0x00, 0x00, 0xd4];

/// Where that is in each program's memory: in the last page, which the stack leaves free.
pub fn return_from_handler() -> u64 {
    user_end() - 4096
}

/// Returns the code that a program finds in its memory without asking, and the address of its page.
pub fn trampoline() -> Option<(u64, &'static [u8])> {
    Some((return_from_handler(), &RETURN))
}

/// Of the arguments of `clone`: where to write the child's number for the child, and its thread pointer.
pub fn child_and_thread_pointer(arguments: [u64; 6]) -> [u64; 2] {
    [arguments[4], arguments[3]]
}
