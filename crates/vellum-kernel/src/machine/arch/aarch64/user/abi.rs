//! Architecture names and constants of the user ABI.

pub use crate::arch::cpuinfo::hwcap;

/// The name in `uname` and the auxiliary vector.
pub const NAME: &str = "aarch64";
/// The address below which a new program's stack lies, even if the CPU has higher user addresses.
pub const ADDRESSES_END: u64 = 1 << 48;
/// The architecture's number for filters of system calls.
pub const AUDIT_ARCH: u32 = linux_raw_sys::ptrace::AUDIT_ARCH_AARCH64;
/// The machine number in ELF files.
pub const ELF_MACHINE: u16 = elf::abi::EM_AARCH64;
/// The `mmap` flag that requests a low address: AArch64 has none.
pub const MAP_LOW: u32 = 0;
/// The smallest stack for a signal handler, in bytes.
pub const LEAST_SIGNAL_STACK: u64 = 4720;
/// The bytes of the system call instruction.
pub const SYSTEM_CALL: &[u8] = &[0x01, 0x00, 0x00, 0xd4];

/// The offset in the vDSO of the code that returns from a signal handler without a restorer;
/// `vdso/aarch64.ld` has the same number.
pub const RETURN_OFFSET: Option<u64> = Some(0x804);

/// Returns, of `clone`'s arguments, the address for the child's number and the thread pointer.
pub fn child_and_thread_pointer(arguments: [u64; 6]) -> [u64; 2] {
    [arguments[4], arguments[3]]
}
