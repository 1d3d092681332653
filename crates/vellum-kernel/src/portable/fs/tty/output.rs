//! The output of a terminal: what programs write and what the terminal echoes, on its way to the
//! master. Tracks the column, by which tabs are expanded and erased.

use super::termios::Termios;
use crate::errno::Errno;
use crate::fs::bytes::Bytes;
use linux_raw_sys::general::{ECHOCTL, IUTF8, OCRNL, OLCUC, ONLCR, ONLRET, ONOCR, OPOST, TABDLY, XTABS};

/// The most bytes on their way to the master before a write waits.
const CAPACITY: usize = 16 << 10;
/// The bytes that the master's own buffer would have on Linux: only the master drops them.
const DELIVERED: usize = 4095;
/// The most bytes of echo, beyond [`CAPACITY`]. More echo is lost.
const ECHO_RESERVE: usize = 4 << 10;
/// The least room with which a write does not wait.
const LEAST_ROOM: usize = 256;
/// The most bytes that one byte of output becomes: a tab of eight spaces.
pub const MOST_FOR_ONE: usize = 8;

/// The reasons for which no output goes to the master.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stopped {
    /// The user typed `VSTOP`.
    pub by_user: bool,
    /// A program called `tcflow(TCOOFF)`, which `VSTART` does not undo.
    pub by_program: bool,
}

/// The output of a terminal.
#[derive(Default)]
pub struct Output {
    /// The bytes that the master has not read.
    bytes: Bytes,
    /// The echo that waits until the output is started again.
    held: Bytes,
    column: usize,
    /// The column at which the echo of the incomplete line began.
    line_column: usize,
    pub(super) stopped: Stopped,
}

/// Returns true for a byte that is not the first one of a character in UTF-8.
pub fn is_continuation(termios: &Termios, byte: u8) -> bool {
    termios.input(IUTF8) && byte & 0xc0 == 0x80
}

/// Returns true for a byte that an echo shows as `^` and a letter.
pub fn is_shown_as_control(termios: &Termios, byte: u8) -> bool {
    termios.local(ECHOCTL) && byte.is_ascii_control() && byte != b'\t'
}

fn push(to: &mut Bytes, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let room = to.room()?;
        let count = room.len().min(bytes.len());
        room[..count].copy_from_slice(&bytes[..count]);
        to.add(count);
        bytes = &bytes[count..];
    }
    Ok(())
}

impl Output {
    /// Returns whether no output goes to the master.
    pub fn is_stopped(&self) -> bool {
        self.stopped != Stopped::default()
    }

    /// Returns the number of bytes that a write may add now, as they come out; 0 if it waits.
    pub fn room(&self) -> usize {
        let room = if self.is_stopped() { 0 } else { CAPACITY.saturating_sub(self.bytes.len()) };
        if room < LEAST_ROOM { 0 } else { room }
    }

    /// Returns the number of bytes that the master has not read.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the first bytes that the master has not read, as many as lie in one piece.
    pub fn first(&self) -> &[u8] {
        self.bytes.first()
    }

    /// Removes the first `count` bytes, which the master has read.
    pub fn drop_first(&mut self, count: usize) {
        self.bytes.drop_first(count);
    }

    /// Drops the output that is on its way to the master: all but the first bytes, which the master
    /// has in its own buffer.
    pub fn drop_undelivered(&mut self) {
        self.bytes.truncate(DELIVERED);
        self.held = Bytes::default();
    }

    /// Drops all that the master has not read.
    pub fn clear(&mut self) {
        (self.bytes, self.held) = (Bytes::default(), Bytes::default());
    }

    /// Adds a byte of a program's output, processed as the settings say. The caller has checked the
    /// room ([`MOST_FOR_ONE`]).
    ///
    /// # Errors
    /// `ENOMEM`: the byte is lost.
    pub fn write(&mut self, termios: &Termios, byte: u8) -> Result<(), Errno> {
        let mut buffer = [b' '; MOST_FOR_ONE];
        let count = self.process(termios, byte, &mut buffer);
        push(&mut self.bytes, &buffer[..count])
    }

    /// Stores what a byte becomes in `to`, and returns the number of bytes.
    fn process(&mut self, termios: &Termios, mut byte: u8, to: &mut [u8; MOST_FOR_ONE]) -> usize {
        if termios.output(OPOST) {
            if byte == b'\r' && termios.output(OCRNL) {
                byte = b'\n';
            } else if byte == b'\r' && termios.output(ONOCR) && self.column == 0 {
                return 0;
            }
            match byte {
                b'\n' if termios.output(ONLCR) => {
                    self.column = 0;
                    to[..2].copy_from_slice(b"\r\n");
                    return 2;
                }
                b'\n' if termios.output(ONLRET) => self.column = 0,
                b'\r' => self.column = 0,
                b'\t' => {
                    let width = 8 - self.column % 8;
                    self.column += width;
                    if termios.oflag & TABDLY == XTABS {
                        to[..width].fill(b' ');
                        return width;
                    }
                }
                8 => self.column = self.column.saturating_sub(1),
                _ => {
                    byte = if termios.output(OLCUC) { byte.to_ascii_uppercase() } else { byte };
                    self.column += usize::from(!byte.is_ascii_control() && !is_continuation(termios, byte));
                }
            }
        }
        to[0] = byte;
        1
    }

    /// Echoes a byte as it is, apart from the processing of output.
    pub fn echo_raw(&mut self, termios: &Termios, byte: u8) {
        let mut buffer = [b' '; MOST_FOR_ONE];
        let count = self.process(termios, byte, &mut buffer);
        let (to, most) =
            if self.is_stopped() { (&mut self.held, ECHO_RESERVE) } else { (&mut self.bytes, CAPACITY + ECHO_RESERVE) };
        if to.len() + count <= most {
            // Echo for which there is no memory is lost, as echo for which there is no room is.
            let _ = push(to, &buffer[..count]);
        }
    }

    /// Echoes a byte; with `ECHOCTL`, a control character as `^` and a letter.
    pub fn echo(&mut self, termios: &Termios, byte: u8) {
        if is_shown_as_control(termios, byte) {
            self.echo_raw(termios, b'^');
            self.echo_raw(termios, byte ^ 0x40);
        } else {
            self.echo_raw(termios, byte);
        }
    }

    /// Notes that the echo of a new line begins here.
    pub fn begin_line(&mut self) {
        self.line_column = self.column;
    }

    /// Returns the width of a byte on the screen. `before`: the bytes of the line before it, the
    /// last one first. A byte that continues a character has none.
    pub fn width(&self, termios: &Termios, byte: u8, before: impl Iterator<Item = u8>) -> usize {
        if byte != b'\t' {
            return if is_shown_as_control(termios, byte) {
                2
            } else {
                usize::from(!byte.is_ascii_control() && !is_continuation(termios, byte))
            };
        }
        // A tab ends at a multiple of eight columns, so only the bytes behind the last one count.
        let mut column = 0;
        for other in before {
            if other == b'\t' {
                return 8 - column % 8;
            }
            column += self.width(termios, other, core::iter::empty());
        }
        8 - (self.line_column + column) % 8
    }

    /// Erases a character of this width on the screen. A tab has left nothing to overwrite.
    pub fn erase(&mut self, termios: &Termios, width: usize, is_tab: bool) {
        for _ in 0..width {
            self.echo_raw(termios, 8);
            if !is_tab {
                self.echo_raw(termios, b' ');
                self.echo_raw(termios, 8);
            }
        }
    }

    /// Sends the echo that waited until the output was started again, if it is.
    pub fn release(&mut self) {
        while !self.is_stopped() && !self.held.is_empty() {
            let first = self.held.first();
            let count = first.len();
            let _ = push(&mut self.bytes, first);
            self.held.drop_first(count);
        }
    }
}
