//! PCI, as far as it takes to find the wire's port: QEMU's `pci-serial`, a 16550 behind one I/O region.

use crate::arch::irq::PCI_LINES;
use crate::arch::paging::phys_to_virt;

/// Where the machine has the configuration spaces, 1 MiB a bus, and its window to I/O addresses.
const CONFIGURATION: u64 = 0x40_1000_0000;
const IO_WINDOW: u64 = 0x3eff_0000;
/// The I/O address that the port is given.
const IO_ADDRESS: u32 = 0x1000;
/// Red Hat's `pci-serial`: device and vendor.
const SERIAL: u32 = 0x0002_1b36;
const COMMAND: u64 = 0x04;
const FIRST_REGION: u64 = 0x10;
/// It answers to I/O addresses.
const IO_ENABLED: u32 = 1;

fn register(slot: u64, offset: u64) -> *mut u32 {
    phys_to_virt(CONFIGURATION + (slot << 15) + offset)
}

/// The serial port on the first bus, made to answer: its physical address, and its interrupt's line.
pub fn serial() -> Option<(u64, u32)> {
    // SAFETY: reads of configuration registers, which there are for each slot, if only to say that nobody is there.
    let slot = (0..32).find(|slot| unsafe { register(*slot, 0).read_volatile() } == SERIAL)?;
    // SAFETY: the device's own registers. The I/O address is nobody else's.
    unsafe {
        register(slot, FIRST_REGION).write_volatile(IO_ADDRESS | 1);
        register(slot, COMMAND).write_volatile(IO_ENABLED);
    }
    Some((IO_WINDOW + u64::from(IO_ADDRESS), PCI_LINES + slot as u32 % 4))
}
