//! The names and numbers by which programs know the architecture.

use core::arch::x86_64::__cpuid;

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

/// Returns the code that a program finds in its memory without asking, and the address of its page: none.
pub fn trampoline() -> Option<(u64, &'static [u8])> {
    None
}

/// What the auxiliary vector says of the processor.
pub fn hwcap() -> [u64; 2] {
    [__cpuid(1).edx.into(), 0]
}

/// Of the arguments of `clone`: where to write the child's number for the child, and its thread pointer.
pub fn child_and_thread_pointer(arguments: [u64; 6]) -> [u64; 2] {
    [arguments[3], arguments[4]]
}
