//! The addresses of the kernel half of every address space.

/// The difference between virtual and physical addresses of the kernel's image; `link-x86_64.ld`
/// has the same number.
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// The difference between virtual and physical addresses in the direct map.
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// The index of the direct map's entry in the root page table.
pub const DIRECT_MAP_SLOT: u64 = DIRECT_MAP >> 39 & 511;
