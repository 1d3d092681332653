//! The console: the first serial port, written to and never read.

use core::fmt::{self, Write};
use spin::Mutex;
use uart_16550::{Config, Uart16550, backend::PioBackend};

/// The I/O port of the first serial port on a PC.
const COM1: u16 = 0x3f8;

static PORT: Mutex<Option<Uart16550<PioBackend>>> = Mutex::new(None);

/// Sets the port up. Before this, and on a machine without the port, what is printed is lost.
pub fn init() {
    // SAFETY: COM1 has this address on every PC, and `PORT`'s lock makes this driver its only user.
    let port = unsafe { Uart16550::new_port(COM1) };
    if let Ok(mut port) = port
        && port.init(Config::default()).is_ok()
    {
        *PORT.lock() = Some(port);
    }
}

/// Takes the console from whoever holds it: for a report after which nothing else will run.
pub fn seize() {
    // SAFETY: the holder is either this processor, stopped inside `write_str` by the fault being reported, or
    // another one that may lose a few bytes; the port's driver keeps no state that half a write would break.
    unsafe { PORT.force_unlock() };
}

struct Console;

impl Write for Console {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        // Locked for each piece and not for the whole line: formatting runs code that may fault, and whoever
        // handles the fault may print.
        if let Some(port) = PORT.lock().as_mut() {
            port.send_bytes_exact(text.as_bytes());
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
        $crate::serial::print(format_args!("{}\n", format_args!($($argument)*)))
    };
}
