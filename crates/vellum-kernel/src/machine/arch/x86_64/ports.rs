//! The serial ports of a PC: the first for the console, the second for the wire.

use crate::arch::irq;
use uart_16550::backend::PioBackend;
use uart_16550::{Config, Uart16550};

/// How the wire's registers are reached.
pub type Backend = PioBackend;

const COM1: u16 = 0x3f8;
const COM2: u16 = 0x2f8;
/// The line of the second's interrupt.
const COM2_LINE: u8 = 3;

/// The console's port.
pub struct Console(Uart16550<PioBackend>);

impl Console {
    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.send_bytes_exact(bytes);
    }
}

/// The console's port, if there is one. To be asked for once.
pub fn console() -> Option<Console> {
    // SAFETY: COM1 has this address on every PC, and who asked for it is its only user.
    let mut port = unsafe { Uart16550::new_port(COM1) }.ok()?;
    port.init(Config::default()).ok()?;
    Some(Console(port))
}

/// The wire's port, if there is one. To be asked for once.
pub fn wire() -> Option<Uart16550<Backend>> {
    // SAFETY: as above.
    unsafe { Uart16550::new_port(COM2) }.ok()
}

/// From now on this processor is interrupted when something comes over the wire.
pub fn hear_wire() {
    irq::hear(COM2_LINE, irq::WIRE);
}
