//! The addresses of device registers on QEMU's `virt`.

/// The interrupt line of the device at slot 0 of the PCI bus, as a number among the GIC's shared
/// interrupts.
pub const FIRST_PCI_LINE: u32 = 3;

/// The PCI configuration space, 1 MiB per bus.
pub const CONFIGURATION: u64 = 0x40_1000_0000;
/// The start of the addresses for PCI BARs.
pub const MEMORY_WINDOW: u64 = 0x1000_0000;
