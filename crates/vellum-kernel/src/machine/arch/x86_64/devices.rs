//! The addresses of device registers on QEMU's `q35`.

/// The PCI configuration space, 1 MiB per bus, where the firmware leaves it.
pub const CONFIGURATION: u64 = 0xb000_0000;
/// The start of the addresses for PCI BARs: above the configuration space, and far below those that
/// the firmware assigns from the other end of the window.
pub const MEMORY_WINDOW: u64 = 0xc000_0000;
