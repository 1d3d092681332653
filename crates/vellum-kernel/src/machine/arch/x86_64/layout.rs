//! Where the kernel half of every address space has what.

/// The kernel's image is linked at its physical address plus this; `link-x86_64.ld` says the same
/// number.
pub const KERNEL_BASE: u64 = 0xffff_ffff_8000_0000;
/// Physical memory is mapped at its physical address plus this.
pub const DIRECT_MAP: u64 = 0xffff_8880_0000_0000;
/// The entry of the top-level table that the direct map lives in.
pub const DIRECT_MAP_SLOT: u64 = DIRECT_MAP >> 39 & 511;
