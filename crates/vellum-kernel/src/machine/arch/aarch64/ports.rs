//! The serial ports: the machine's own for the console, one on PCI for the wire.

use super::devices;
use crate::arch::irq;
use crate::arch::paging::phys_to_virt;
use arm_pl011_uart::{DataBits, LineConfig, PL011Registers, Parity, StopBits, Uart, UniqueMmioPointer};
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use uart_16550::Uart16550;
use uart_16550::backend::MmioBackend;

/// How the wire's registers are reached.
pub type Backend = MmioBackend;

/// Where the machine has the PL011, and the clock that drives it.
const PL011: u64 = 0x0900_0000;
const PL011_HZ: u32 = 24_000_000;

static WIRE_LINE: AtomicU32 = AtomicU32::new(0);

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

/// The console's port. To be asked for once.
pub fn console() -> Option<Console> {
    let registers = NonNull::new(phys_to_virt::<PL011Registers>(PL011))?;
    // SAFETY: the port has this address on the machine, and who asked for it is its only user.
    let mut port = Uart::new(unsafe { UniqueMmioPointer::new(registers) });
    let config = LineConfig { data_bits: DataBits::Bits8, parity: Parity::None, stop_bits: StopBits::One };
    port.enable(config, 115_200, PL011_HZ).ok()?;
    Some(Console(port))
}

/// The wire's port, if there is one. To be asked for once.
pub fn wire() -> Option<Uart16550<Backend>> {
    let (address, line) = devices::serial()?;
    WIRE_LINE.store(line, Relaxed);
    // SAFETY: the port's registers, a byte each; who asked for it is its only user.
    unsafe { Uart16550::new_mmio(NonNull::new(phys_to_virt(address))?, 1) }.ok()
}

/// From now on this processor is interrupted when something comes over the wire.
pub fn hear_wire() {
    irq::hear(WIRE_LINE.load(Relaxed));
}
