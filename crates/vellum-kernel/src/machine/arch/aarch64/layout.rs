//! The addresses of the kernel half of every address space.

/// The difference between virtual and physical addresses of the kernel's image; `link-aarch64.ld`
/// has the same number.
pub const KERNEL_BASE: u64 = 0xffff_ffff_4000_0000;
/// The difference between virtual and physical addresses in the direct map.
pub const DIRECT_MAP: u64 = 0xffff_0000_0000_0000;
