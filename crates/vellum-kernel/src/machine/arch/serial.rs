//! The serial ports: the console, which is only written, and the stdio channel to the host.

use crate::arch::ports;
use core::fmt::{self, Write};
use spin::Mutex;

static CONSOLE: Mutex<Option<ports::Console>> = Mutex::new(None);

/// Sets up the console. Output before this, or on a machine without the port, is lost.
pub fn init() {
    *CONSOLE.lock() = ports::console();
}

/// Breaks the console's lock, for a final report after which the machine stops.
pub fn seize() {
    // SAFETY: the lock's holder is either this CPU, interrupted in `write_str` by the fault to
    // report, or another CPU, which may lose a few bytes. The port's driver keeps no state that an
    // interrupted write could corrupt.
    unsafe { CONSOLE.force_unlock() };
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Locked for each piece and not for the whole line: formatting runs code that may fault,
        // and the fault's handler may print.
        if let Some(port) = CONSOLE.lock().as_mut() {
            port.send(text.as_bytes());
        }
        Ok(())
    }
}

/// Prints to the console; the function behind [`println!`](println).
pub fn print(arguments: fmt::Arguments) {
    // `Console` never fails. Only a `Display` implementation can, and then only its text is lost.
    let _ = Console.write_fmt(arguments);
}

/// Prints a line on the console.
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::arch::serial::print(format_args!("{}\n", format_args!($($argument)*)))
    };
}
pub(crate) use println;

/// The stdio channel to the host: carries a program's streams in frames, each of a type, a length
/// and that many bytes of data.
pub mod stdio {
    use super::{Mutex, ports};
    use uart_16550::spec::registers::IER;
    use uart_16550::{BaudRate, Config, Uart16550};

    /// The byte that announces to the host that a program is about to start.
    const READY: u8 = b'V';

    /// The type of a frame.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Frame {
        /// Bytes of the program's standard output.
        Output = 1,
        /// Bytes of its standard error.
        Errors = 2,
        /// The program's exit status, 4 bytes, little endian.
        Exit = 3,
    }

    static PORT: Mutex<Option<Uart16550<ports::Backend>>> = Mutex::new(None);

    /// Sets up the port and sends the ready byte to the host. From then on incoming bytes interrupt
    /// this CPU.
    pub fn init() {
        if let Some(mut port) = ports::stdio()
            // The fastest rate: while few bytes are waiting, the port delays its interrupt by the
            // time that four bytes take at this rate.
            && port
                .init(Config { interrupts: IER::DATA_READY, baud_rate: BaudRate::Baud115200, ..Config::default() })
                .is_ok()
        {
            ports::enable_stdio_interrupt();
            port.send_bytes_exact(&[READY]);
            *PORT.lock() = Some(port);
        }
    }

    /// Returns the next byte from the host, if one has arrived.
    pub fn receive() -> Option<u8> {
        PORT.lock().as_mut()?.try_receive_byte().ok()
    }

    /// Sends bytes as one frame, or as several if they exceed a frame's length.
    pub fn send(frame: Frame, bytes: &[u8]) {
        if let Some(port) = PORT.lock().as_mut() {
            for piece in bytes.chunks(u16::MAX as usize) {
                let [low, high] = (piece.len() as u16).to_le_bytes();
                port.send_bytes_exact(&[frame as u8, low, high]);
                port.send_bytes_exact(piece);
            }
        }
    }
}
