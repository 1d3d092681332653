//! Architecture names and constants of the user ABI.

use core::arch::x86_64::__cpuid;

/// The name in `uname` and the auxiliary vector.
pub const NAME: &str = "x86_64";
/// The address below which a new program's stack lies, even if the CPU has higher user addresses.
pub const ADDRESSES_END: u64 = 1 << 47;
/// The architecture's number for filters of system calls.
pub const AUDIT_ARCH: u32 = linux_raw_sys::ptrace::AUDIT_ARCH_X86_64;
/// The machine number in ELF files.
pub const ELF_MACHINE: u16 = elf::abi::EM_X86_64;
/// The `mmap` flag that requests a low address.
pub const MAP_LOW: u32 = linux_raw_sys::general::MAP_32BIT;
/// The smallest stack for a signal handler, in bytes, vector registers included.
pub const LEAST_SIGNAL_STACK: u64 = 3632;
/// The bytes of the system call instruction.
pub const SYSTEM_CALL: &[u8] = &[0x0f, 0x05];
/// The offset in the vDSO of the code that returns from a signal handler; x86-64 has none, because
/// a handler brings its own.
pub const RETURN_OFFSET: Option<u64> = None;

/// Returns the `AT_HWCAP` values of the auxiliary vector.
pub fn hwcap() -> [u64; 2] {
    [__cpuid(1).edx.into(), 0]
}

/// Returns, of `clone`'s arguments, the address for the child's number and the thread pointer.
pub fn child_and_thread_pointer(arguments: [u64; 6]) -> [u64; 2] {
    [arguments[3], arguments[4]]
}
