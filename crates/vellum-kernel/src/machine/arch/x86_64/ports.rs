//! The serial ports of a PC: COM1 is the console, COM2 the stdio channel.

use crate::arch::irq;
use uart_16550::backend::PioBackend;
use uart_16550::{Config, Uart16550};

/// The access to the stdio channel's registers.
pub type Backend = PioBackend;

const COM1: u16 = 0x3f8;
const COM2: u16 = 0x2f8;
/// COM2's interrupt line.
const COM2_LINE: u32 = 3;

/// The console's port.
pub struct Console(Uart16550<PioBackend>);

impl Console {
    /// Sends bytes.
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.send_bytes_exact(bytes);
    }
}

/// Returns the console's port, if there is one. Called once.
pub fn console() -> Option<Console> {
    // SAFETY: every PC has COM1 at this address, and the caller is its only user.
    let mut port = unsafe { Uart16550::new_port(COM1) }.ok()?;
    port.init(Config::default()).ok()?;
    Some(Console(port))
}

/// Returns the stdio channel's port, if there is one. Called once.
pub fn stdio() -> Option<Uart16550<Backend>> {
    // SAFETY: every PC has COM2 at this address, and the caller is its only user.
    unsafe { Uart16550::new_port(COM2) }.ok()
}

/// Makes bytes that arrive on the stdio channel interrupt this CPU.
pub fn enable_stdio_interrupt() {
    irq::enable_line(COM2_LINE);
}
