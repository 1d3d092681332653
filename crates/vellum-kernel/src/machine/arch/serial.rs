//! The console, a port that is written to and never read; and the wire, another, to the host.

use crate::arch::ports;
use core::fmt::{self, Write};
use spin::Mutex;

static CONSOLE: Mutex<Option<ports::Console>> = Mutex::new(None);

/// Sets the console up. Before this, and on a machine without the port, what is printed is lost.
pub fn init() {
    *CONSOLE.lock() = ports::console();
}

/// Takes the console from whoever holds it: for a report after which nothing else will run.
pub fn seize() {
    // SAFETY: the holder is either this processor, stopped inside `write_str` by the fault being reported, or
    // another one that may lose a few bytes; the port's driver keeps no state that half a write would break.
    unsafe { CONSOLE.force_unlock() };
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Locked for each piece and not for the whole line: formatting runs code that may fault, and whoever
        // handles the fault may print.
        if let Some(port) = CONSOLE.lock().as_mut() {
            port.send(text.as_bytes());
        }
        Ok(())
    }
}

/// What [`println!`](crate::println) calls.
pub fn print(arguments: fmt::Arguments) {
    // `Console` never fails, so only a `Display` that does could be the cause; its text is lost, no more.
    let _ = Console.write_fmt(arguments);
}

/// Prints a line on the console.
#[macro_export]
macro_rules! println {
    ($($argument:tt)*) => {
        $crate::arch::serial::print(format_args!("{}\n", format_args!($($argument)*)))
    };
}

/// The wire to the host: a program's streams, in frames of a type, a length and so many bytes.
pub mod wire {
    use super::{Mutex, ports};
    use uart_16550::spec::registers::IER;
    use uart_16550::{BaudRate, Config, Uart16550};

    /// What says that a program is about to start.
    const READY: u8 = b'V';

    /// What a frame carries.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    #[repr(u8)]
    pub enum Frame {
        /// The program's standard output.
        Output = 1,
        /// Its standard error.
        Errors = 2,
        /// How it ended: a status, 4 bytes, little endian.
        Exit = 3,
    }

    static PORT: Mutex<Option<Uart16550<ports::Backend>>> = Mutex::new(None);

    /// Sets the port up and tells the host. From now on this processor is interrupted when something comes.
    pub fn init() {
        if let Some(mut port) = ports::wire()
            // Fast, as the port waits for the time of four bytes before it tells of less than a handful.
            && port.init(Config { interrupts: IER::DATA_READY, baud_rate: BaudRate::Baud115200, ..Config::default() }).is_ok()
        {
            ports::hear_wire();
            port.send_bytes_exact(&[READY]);
            *PORT.lock() = Some(port);
        }
    }

    /// The next byte from the host, if there is one.
    pub fn receive() -> Option<u8> {
        PORT.lock().as_mut()?.try_receive_byte().ok()
    }

    /// Sends a frame; what is longer than a frame goes in several.
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
