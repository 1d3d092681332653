//! The line discipline (Linux: `N_TTY`): edits lines, echoes input, turns special characters into
//! signals, and processes output.

use super::lines::{Lines, SIZE};
use super::output::{MOST_FOR_ONE, Output, Stopped, is_continuation};
use super::termios::Termios;
use crate::errno::Errno;
use crate::fs::io::Sink;
use linux_raw_sys::general::{
    ECHO, ECHOCTL, ECHOE, ECHOK, ECHOKE, ECHONL, ICANON, ICRNL, IEXTEN, IGNCR, INLCR, ISIG, ISTRIP, IUCLC, IXANY, IXON,
    NOFLSH, SIGINT, SIGQUIT, SIGTSTP, TIOCPKT_DOSTOP, TIOCPKT_FLUSHREAD, TIOCPKT_FLUSHWRITE, TIOCPKT_NOSTOP,
    TIOCPKT_START, TIOCPKT_STOP, VERASE, VINTR, VKILL, VLNEXT, VQUIT, VREPRINT, VSTART, VSTOP, VSUSP, VWERASE,
};

/// The extent of an erasure.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Erase {
    Character,
    Word,
    Line,
}

/// A terminal's line discipline.
pub struct Discipline {
    termios: Termios,
    lines: Lines,
    /// The output to the master.
    pub output: Output,
    /// True after `VLNEXT`: the next byte has no special meaning.
    is_literal: bool,
    /// The signals that the input raised: bit 0 is signal 1.
    raised: u64,
    /// The events of the terminal since the master looked, as `TIOCPKT_` bits.
    status: u32,
}

impl Discipline {
    /// Creates a line discipline with the usual settings.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        Ok(Discipline {
            termios: Termios::default(),
            lines: Lines::new()?,
            output: Output::default(),
            is_literal: false,
            raised: 0,
            status: 0,
        })
    }

    /// Returns the settings.
    pub fn termios(&self) -> &Termios {
        &self.termios
    }

    /// Returns true if programs read lines (`ICANON`).
    fn is_canonical(&self) -> bool {
        self.termios.local(ICANON)
    }

    /// Replaces the settings.
    pub fn set_termios(&mut self, termios: Termios) {
        let before = core::mem::replace(&mut self.termios, termios);
        if before.local(ICANON) != termios.local(ICANON) {
            self.lines.change_mode(termios.local(ICANON));
            self.is_literal = false;
        }
        if before.has_usual_flow() != termios.has_usual_flow() {
            self.status &= !(TIOCPKT_DOSTOP | TIOCPKT_NOSTOP);
            self.status |= if termios.has_usual_flow() { TIOCPKT_DOSTOP } else { TIOCPKT_NOSTOP };
        }
        if before.input(IXON) && !termios.input(IXON) {
            self.set_stopped(Stopped { by_user: false, ..self.output.stopped });
        }
    }

    /// Returns and forgets the signals that the input raised.
    pub fn take_raised(&mut self) -> u64 {
        core::mem::take(&mut self.raised)
    }

    /// Returns what happened since the last [`Discipline::take_status`].
    pub fn status(&self) -> u32 {
        self.status
    }

    /// Returns and forgets what happened.
    pub fn take_status(&mut self) -> u32 {
        core::mem::take(&mut self.status)
    }

    /// Returns whether a byte of input is taken now. If not, a program has to read first: only an
    /// incomplete line goes on without room, and loses what does not fit.
    pub fn takes_input(&self) -> bool {
        self.lines.len() < SIZE - 1 || self.is_canonical() && self.lines.complete_len() == 0
    }

    /// Returns the number of bytes that can be read (`FIONREAD`).
    pub fn unread(&self) -> usize {
        if self.is_canonical() { self.lines.readable_len() } else { self.lines.len() }
    }

    /// Returns whether a read returns at once with `least` bytes or more, in canonical mode with a
    /// line.
    pub fn has_input(&self, least: usize) -> bool {
        if self.is_canonical() { self.lines.complete_len() > 0 } else { self.lines.len() >= least.max(1) }
    }

    /// Reads a line, or in raw mode all that there is.
    ///
    /// # Errors
    /// `EAGAIN`: there is nothing, and the settings do not have a read return without (`VMIN` and
    /// `VTIME` of 0). The sink's.
    pub fn read(&mut self, to: &mut dyn Sink) -> Result<usize, Errno> {
        if to.room() == 0 {
            return Ok(0);
        }
        if !self.has_input(1) {
            let returns = !self.is_canonical() && self.termios.timing() == (0, 0);
            return if returns { Ok(0) } else { Err(Errno::EAGAIN) };
        }
        self.lines.read(self.is_canonical(), to)
    }

    /// Writes bytes of a program's output, as many as there is room for, and returns their number.
    ///
    /// # Errors
    /// `ENOMEM`: none was written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        for (at, byte) in bytes.iter().enumerate() {
            match self.output.write(&self.termios, *byte) {
                Ok(()) => {}
                Err(_) if at > 0 => return Ok(at),
                Err(error) => return Err(error),
            }
        }
        Ok(bytes.len())
    }

    /// Returns the number of bytes that [`Discipline::write`] takes now.
    pub fn room(&self) -> usize {
        self.output.room() / MOST_FOR_ONE
    }

    /// Drops the input that was not read.
    pub fn flush_input(&mut self) {
        self.lines.clear();
        self.is_literal = false;
        self.status |= TIOCPKT_FLUSHREAD;
    }

    /// Drops the output that is on its way to the master.
    pub fn flush_output(&mut self) {
        self.output.drop_undelivered();
        self.status |= TIOCPKT_FLUSHWRITE;
    }

    /// Stops or starts the output.
    pub fn set_stopped(&mut self, stopped: Stopped) {
        let before = self.output.is_stopped();
        self.output.stopped = stopped;
        if before != self.output.is_stopped() {
            self.status &= !(TIOCPKT_STOP | TIOCPKT_START);
            self.status |= if before { TIOCPKT_START } else { TIOCPKT_STOP };
        }
        self.output.release();
    }

    /// Starts output that the user stopped.
    fn start(&mut self) {
        self.set_stopped(Stopped { by_user: false, ..self.output.stopped });
    }

    /// Takes a byte that the user typed.
    pub fn receive(&mut self, byte: u8) {
        if core::mem::take(&mut self.is_literal) {
            return self.take_plain(byte);
        }
        let byte = if self.termios.input(ISTRIP) { byte & 0x7f } else { byte };
        let lowers = self.termios.input(IUCLC) && self.termios.local(IEXTEN);
        let byte = if lowers { byte.to_ascii_lowercase() } else { byte };
        if !self.takes_flow_control(byte) && !self.takes_signal(byte) {
            self.take_text(byte);
        }
    }

    /// Returns true if the byte was taken to stop or start the output.
    fn takes_flow_control(&mut self, byte: u8) -> bool {
        if !self.termios.input(IXON) {
            return false;
        }
        if self.termios.is(byte, VSTART) {
            self.start();
        } else if self.termios.is(byte, VSTOP) {
            self.set_stopped(Stopped { by_user: true, ..self.output.stopped });
        } else {
            return false;
        }
        true
    }

    /// Returns true if the byte was taken for a signal.
    fn takes_signal(&mut self, byte: u8) -> bool {
        let signals = [(VINTR, SIGINT), (VQUIT, SIGQUIT), (VSUSP, SIGTSTP)];
        let found = signals.into_iter().find(|(index, _)| self.termios.is(byte, *index));
        let Some((_, signal)) = found.filter(|_| self.termios.local(ISIG)) else { return false };
        self.raised |= 1 << (signal - 1);
        if !self.termios.local(NOFLSH) {
            self.flush_output();
            self.flush_input();
        }
        if self.termios.input(IXON) {
            self.start();
        }
        if self.termios.local(ECHO) {
            self.output.echo(&self.termios, byte);
        }
        true
    }

    /// Takes a byte that is no signal.
    fn take_text(&mut self, byte: u8) {
        if self.termios.input(IXON) && self.termios.input(IXANY) {
            self.start();
        }
        let byte = match byte {
            b'\r' if self.termios.input(IGNCR) => return,
            b'\r' if self.termios.input(ICRNL) => b'\n',
            b'\n' if self.termios.input(INLCR) => b'\r',
            byte => byte,
        };
        if !self.is_canonical() || !self.takes_edit(byte) {
            self.take_plain(byte);
        }
    }

    /// Returns true if the byte was taken to edit the line, or to end it.
    fn takes_edit(&mut self, byte: u8) -> bool {
        let termios = self.termios;
        let (extended, echoes) = (termios.local(IEXTEN), termios.local(ECHO));
        match byte {
            _ if termios.is(byte, VERASE) => self.erase(Erase::Character, byte),
            _ if termios.is(byte, VKILL) => self.erase(Erase::Line, byte),
            _ if extended && termios.is(byte, VWERASE) => self.erase(Erase::Word, byte),
            _ if extended && termios.is(byte, VLNEXT) => {
                self.is_literal = true;
                if echoes && termios.local(ECHOCTL) {
                    self.output.echo_raw(&termios, b'^');
                    self.output.echo_raw(&termios, 8);
                }
            }
            _ if extended && echoes && termios.is(byte, VREPRINT) => self.reprint(byte),
            b'\n' => {
                if echoes || termios.local(ECHONL) {
                    self.output.echo_raw(&termios, b'\n');
                }
                self.lines.complete(Some(b'\n'));
            }
            _ if termios.is_eof(byte) => self.lines.complete(None),
            _ if termios.is_other_end(byte) => {
                if echoes {
                    self.output.echo(&termios, byte);
                }
                self.lines.complete(Some(byte));
            }
            _ => return false,
        }
        true
    }

    /// Takes a byte without a special meaning.
    fn take_plain(&mut self, byte: u8) {
        let termios = self.termios;
        if termios.local(ECHO) {
            if self.lines.last().is_none() {
                self.output.begin_line();
            }
            match byte {
                b'\n' => self.output.echo_raw(&termios, byte),
                _ => self.output.echo(&termios, byte),
            }
        }
        // The last place is for the end of a line.
        if self.lines.len() < SIZE - 1 {
            self.lines.push(byte);
        }
    }

    /// Echoes `VREPRINT`, and the incomplete line anew.
    fn reprint(&mut self, byte: u8) {
        let termios = self.termios;
        self.output.echo(&termios, byte);
        self.output.echo_raw(&termios, b'\n');
        self.output.begin_line();
        for byte in self.lines.incomplete().rev() {
            self.output.echo(&termios, byte);
        }
    }

    /// Erases a part of the incomplete line: the last character, the last word with the blanks
    /// behind it, or all.
    fn erase(&mut self, erase: Erase, byte: u8) {
        let termios = self.termios;
        if self.lines.last().is_none() {
            return;
        }
        let visibly = termios.local(ECHO) && termios.local(ECHOE);
        if erase == Erase::Line && !(visibly && termios.local(ECHOK) && termios.local(ECHOKE)) {
            self.lines.drop_incomplete();
            if termios.local(ECHO) {
                self.output.echo(&termios, byte);
                if termios.local(ECHOK) {
                    self.output.echo_raw(&termios, b'\n');
                }
            }
            return;
        }
        let mut in_word = false;
        while let Some(last) = self.lines.last() {
            let is_word = last.is_ascii_alphanumeric() || last == b'_';
            if erase == Erase::Word && in_word && !is_word && !is_continuation(&termios, last) {
                break;
            }
            in_word |= is_word;
            self.erase_last(visibly);
            if erase == Erase::Character {
                break;
            }
        }
        if termios.local(ECHO) && !visibly {
            self.output.echo(&termios, byte);
        }
    }

    /// Removes the last character, whatever number of bytes it has, and also from the screen.
    fn erase_last(&mut self, visibly: bool) {
        let termios = self.termios;
        while let Some(last) = self.lines.last() {
            let width = self.output.width(&termios, last, self.lines.incomplete().skip(1));
            self.lines.pop();
            if visibly {
                self.output.erase(&termios, width, last == b'\t');
            }
            if !is_continuation(&termios, last) {
                break;
            }
        }
    }
}
