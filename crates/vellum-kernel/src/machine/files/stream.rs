//! Connects the first program's standard streams to the host, over the serial port; or the host's
//! terminal ([`super::terminals`]).
//!
//! The port is read only as fast as the program reads: the rest stays in the port's FIFO, and then
//! with the host. The port raises an interrupt when input reaches its empty FIFO, so a thread that
//! finds no input can sleep.

use crate::arch::serial::stdio;
use core::any::Any;
use linux_raw_sys::general::{POLLHUP, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};
use spin::Mutex;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::tty::terminal::Window;
use vellum_kernel::fs::{File, Sink, Source};
use vellum_kernel::stdio::StdinDecoder;
use vellum_kernel::wait::Queue;

/// A standard stream.
pub enum Stream {
    /// Standard input.
    Input,
    /// Standard output.
    Output,
    /// Standard error.
    Errors,
}

static ARRIVED: Mutex<Arrived> = Mutex::new(Arrived { frames: StdinDecoder::new(), bytes: [0; 256], first: 0, end: 0 });
static READERS: Queue = Queue::new();

/// Input that was taken from the port and not read yet.
struct Arrived {
    frames: StdinDecoder,
    bytes: [u8; 256],
    first: usize,
    end: usize,
}

impl Arrived {
    /// Returns the input at hand; takes more from the port if there is none.
    fn look(&mut self) -> &[u8] {
        if self.first == self.end {
            (self.first, self.end) = (0, 0);
        }
        while self.end < self.bytes.len() && !self.frames.is_eof() {
            let Some(byte) = stdio::receive() else { break };
            if let Some(input) = self.frames.decode(byte) {
                self.bytes[self.end] = input;
                self.end += 1;
            }
        }
        &self.bytes[self.first..self.end]
    }
}

/// A message of the host.
pub enum Arrival {
    /// The size of the window of the host's terminal.
    Window(Window),
    /// So many bytes of input.
    Bytes(usize),
    /// The end of the input.
    End,
}

/// Returns the queue that is woken when the host has sent something.
pub fn arrivals() -> &'static Queue {
    &READERS
}

/// Takes what the host sent next, and stores input in `to`. Returns `None` if there is nothing.
pub fn take(to: &mut [u8]) -> Option<Arrival> {
    let mut arrived = ARRIVED.lock();
    let input = arrived.look();
    let count = input.len().min(to.len());
    to[..count].copy_from_slice(&input[..count]);
    arrived.first += count;
    // Input that came before the end of a resize is shown at either size.
    if count > 0 {
        return Some(Arrival::Bytes(count));
    }
    match arrived.frames.take_window() {
        Some(window) => Some(Arrival::Window(window)),
        None => arrived.frames.is_eof().then_some(Arrival::End),
    }
}

/// Wakes all readers of standard input, which then check for input again.
pub fn tell() {
    READERS.wake_all();
}

fn read(to: &mut dyn Sink) -> Result<usize, Errno> {
    let mut done = 0;
    let mut arrived = ARRIVED.lock();
    while to.room() > 0 {
        let bytes = arrived.look();
        if bytes.is_empty() {
            if done == 0 && !arrived.frames.is_eof() {
                return Err(Errno::EAGAIN);
            }
            break;
        }
        match to.put(bytes) {
            Ok(put) => {
                arrived.first += put;
                done += put;
            }
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}

impl File for Stream {
    fn read(&self, _at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        match self {
            Stream::Input => read(to),
            Stream::Output | Stream::Errors => Err(Errno::EBADF),
        }
    }

    fn write(&self, _at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let frame = match self {
            Stream::Input => return Err(Errno::EBADF),
            Stream::Output => stdio::Frame::Output,
            Stream::Errors => stdio::Frame::Errors,
        };
        let mut buffer = [0; 1024];
        let mut done = 0;
        while from.left() > 0 {
            let wanted = from.left().min(buffer.len());
            match from.take(&mut buffer[..wanted]) {
                Ok(taken) => {
                    stdio::send(frame, &buffer[..taken]);
                    done += taken;
                }
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn ready(&self) -> u32 {
        match self {
            // Reports the events that a pipe would report.
            Stream::Input => {
                let mut arrived = ARRIVED.lock();
                let there = if arrived.look().is_empty() { 0 } else { POLLIN | POLLRDNORM };
                there | if arrived.frames.is_eof() { POLLHUP } else { 0 }
            }
            Stream::Output | Stream::Errors => POLLOUT | POLLWRNORM,
        }
    }

    fn queue(&self) -> Option<&Queue> {
        matches!(self, Stream::Input).then_some(&READERS)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
