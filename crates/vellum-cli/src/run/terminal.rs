//! The host's terminal, in which `vellum run --tty` shows the machine's.

use super::stdio::{self, Window};
use rustix::termios::{self, OptionalActions, Termios};
use signal_hook::consts::SIGWINCH;
use signal_hook::iterator::Signals;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex};
use std::thread;

/// The size of the window without a terminal.
const USUAL: Window = [24, 80, 0, 0];

/// Returns the size of the window of the terminal on standard input or output.
pub fn window() -> Window {
    let size = termios::tcgetwinsize(io::stdin()).or_else(|_| termios::tcgetwinsize(io::stdout()));
    match size {
        Ok(size) if size.ws_row > 0 && size.ws_col > 0 => [size.ws_row, size.ws_col, size.ws_xpixel, size.ws_ypixel],
        _ => USUAL,
    }
}

/// Guard. The terminal on standard input passes all bytes on as they are, until this is dropped.
pub struct Raw {
    before: Termios,
}

impl Raw {
    /// Sets the terminal on standard input to raw mode. Returns `None` if it is no terminal.
    pub fn begin() -> Option<Self> {
        let before = io::stdin().is_terminal().then(|| termios::tcgetattr(io::stdin()).ok()).flatten()?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(io::stdin(), OptionalActions::Drain, &raw).ok()?;
        Some(Raw { before })
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // Ignore an error: the terminal may be gone.
        let _ = termios::tcsetattr(io::stdin(), OptionalActions::Drain, &self.before);
    }
}

/// Sends the size of the window to the machine, now and after each change, from a thread.
///
/// # Errors
/// The signal can't be listened for.
pub fn follow_window(to: Arc<Mutex<impl Write + Send + 'static>>) -> io::Result<()> {
    let mut signals = Signals::new([SIGWINCH])?;
    // From here on a change is a signal, so that none is lost.
    thread::spawn(move || {
        let mut sent = stdio::resize(&to, window());
        for _ in signals.forever() {
            if sent.is_err() {
                break;
            }
            sent = stdio::resize(&to, window());
        }
    });
    Ok(())
}
