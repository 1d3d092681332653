//! The addresses of device registers on QEMU's `q35`.

/// The interrupt line of the device at slot 0 of the first PCI bus (QEMU:
/// `ich9_cc_update_ir`, for slots below 25).
pub const FIRST_PCI_LINE: u32 = 20;

/// The PCI configuration space, 1 MiB per bus, where the firmware leaves it.
pub const CONFIGURATION: u64 = 0xb000_0000;
/// The start of the addresses for PCI BARs: above the configuration space, and far below those that
/// the firmware assigns from the other end of the window.
pub const MEMORY_WINDOW: u64 = 0xc000_0000;
