//! Where QEMU's `virt` has devices' registers.

/// The configuration spaces of PCI, 1 MiB a bus.
pub const CONFIGURATION: u64 = 0x40_1000_0000;
/// Memory addresses that PCI answers to.
pub const MEMORY_WINDOW: u64 = 0x1000_0000;
