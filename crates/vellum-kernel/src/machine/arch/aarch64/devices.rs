//! Where QEMU's `virt` has devices' registers; and the one device beside the disk that is no part of the machine: the wire's
//! port, `pci-serial`, a 16550 behind one I/O region.

use crate::arch::irq::PCI_LINES;
use crate::arch::pci;
use virtio_drivers::transport::pci::bus::Command;

/// The configuration spaces of PCI, 1 MiB a bus.
pub const CONFIGURATION: u64 = 0x40_1000_0000;
/// Memory addresses that PCI answers to.
pub const MEMORY_WINDOW: u64 = 0x1000_0000;
/// Where in memory PCI's I/O addresses are.
const IO_WINDOW: u64 = 0x3eff_0000;
/// The I/O address that the port is given.
const IO_ADDRESS: u32 = 0x1000;
/// Red Hat's `pci-serial`: vendor and device.
const SERIAL: (u16, u16) = (0x1b36, 0x0002);

/// The serial port, made to answer: its physical address, and its interrupt's line.
pub fn serial() -> Option<(u64, u32)> {
    let mut root = pci::root();
    let device = pci::find(&root, |info| (info.vendor_id, info.device_id) == SERIAL)?;
    root.set_bar_32(device, 0, IO_ADDRESS | 1);
    root.set_command(device, Command::IO_SPACE);
    Some((IO_WINDOW + u64::from(IO_ADDRESS), PCI_LINES + u32::from(device.device) % 4))
}
