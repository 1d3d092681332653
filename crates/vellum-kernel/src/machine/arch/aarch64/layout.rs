//! Where the kernel half of every address space has what.

/// The kernel's image is linked at its physical address plus this; `link-aarch64.ld` says the same
/// number.
pub const KERNEL_BASE: u64 = 0xffff_ffff_4000_0000;
/// Physical memory is mapped at its physical address plus this.
pub const DIRECT_MAP: u64 = 0xffff_0000_0000_0000;
