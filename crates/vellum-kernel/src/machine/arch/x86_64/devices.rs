//! Where QEMU's `q35` has devices' registers.

/// The configuration spaces of PCI, 1 MiB a bus, as the firmware leaves them.
pub const CONFIGURATION: u64 = 0xb000_0000;
/// Addresses that PCI answers to: above the configuration spaces, and so far down that the firmware, which begins at the other
/// end, has put nothing there.
pub const MEMORY_WINDOW: u64 = 0xc000_0000;
