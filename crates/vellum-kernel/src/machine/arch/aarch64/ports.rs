//! The serial ports: the machine's PL011 is the console; `pci-serial`, a 16550 behind one I/O BAR,
//! is the stdio channel.

use crate::arch::irq;
use crate::arch::kernel_map::phys_to_virt;
use crate::arch::pci;
use arm_pl011_uart::{DataBits, LineConfig, PL011Registers, Parity, StopBits, Uart, UniqueMmioPointer};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uart_16550::Uart16550;
use uart_16550::backend::MmioBackend;
use virtio_drivers::transport::pci::bus::Command;

/// The access to the stdio channel's registers.
pub type Backend = MmioBackend;

/// The PL011's address, and the rate of its clock.
const PL011: u64 = 0x0900_0000;
const PL011_HZ: u32 = 24_000_000;

/// The memory address of PCI's I/O window.
const IO_WINDOW: u64 = 0x3eff_0000;
/// The PCI I/O address that the kernel assigns to the stdio channel's port.
const IO_ADDRESS: u32 = 0x1000;
/// Red Hat's `pci-serial`: vendor and device.
const SERIAL: (u16, u16) = (0x1b36, 0x0002);

static STDIO_LINE: AtomicU32 = AtomicU32::new(0);

/// The console's port.
pub struct Console(Uart<'static>);

impl Console {
    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        for byte in bytes {
            while self.0.is_tx_fifo_full() {
                core::hint::spin_loop();
            }
            self.0.write_word(*byte);
        }
    }
}

/// Returns the console's port. Called once.
pub fn console() -> Option<Console> {
    let registers = NonNull::new(phys_to_virt::<PL011Registers>(PL011))?;
    // SAFETY: the machine has the port at this address, and the caller is its only user.
    let mut port = Uart::new(unsafe { UniqueMmioPointer::new(registers) });
    let config = LineConfig { data_bits: DataBits::Bits8, parity: Parity::None, stop_bits: StopBits::One };
    port.enable(config, 115_200, PL011_HZ).ok()?;
    Some(Console(port))
}

/// Returns the stdio channel's port, if there is one. Called once.
pub fn stdio() -> Option<Uart16550<Backend>> {
    let (address, line) = pci_serial()?;
    STDIO_LINE.store(line, Relaxed);
    // SAFETY: these are the port's byte-wide registers, and the caller is its only user.
    unsafe { Uart16550::new_mmio(NonNull::new(phys_to_virt(address))?, 1) }.ok()
}

/// Makes bytes that arrive on the stdio channel interrupt this CPU.
pub fn enable_stdio_interrupt() {
    irq::enable_line(STDIO_LINE.load(Relaxed));
}

/// Finds the PCI serial port and enables it. Returns the physical address of its registers and its
/// interrupt line.
fn pci_serial() -> Option<(u64, u32)> {
    let mut root = pci::root();
    let device = pci::find(&root, |_, info| (info.vendor_id, info.device_id) == SERIAL)?;
    root.set_bar_32(device, 0, IO_ADDRESS | 1);
    root.set_command(device, Command::IO_SPACE);
    Some((IO_WINDOW + u64::from(IO_ADDRESS), pci::line(device.device)))
}
