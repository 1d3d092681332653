//! Carries a program's standard streams over a serial port, in frames: a type, a length of two
//! bytes (little endian), and that many bytes.

use std::io::{self, Read, Write};
use std::sync::{Mutex, PoisonError};

/// The byte that the machine sends first, when the program is about to start.
const READY: u8 = b'V';

/// Frame type: standard input, to the machine; an empty frame is its end.
const INPUT: u8 = 0;
/// Frame type: standard output.
const OUTPUT: u8 = 1;
/// Frame type: standard error.
const ERRORS: u8 = 2;
/// Frame type: the exit status, four bytes.
const EXIT: u8 = 3;
/// Frame type: the size of the window of the machine's terminal, to the machine; eight bytes.
const WINDOW: u8 = 4;

/// The size of a terminal's window: rows, columns, and both in pixels.
pub type Window = [u16; 4];

/// Writes the program's output and errors until it exits. Returns its status, or `None` if the
/// machine ended without one. Calls `ready` when the machine is ready.
///
/// # Errors
/// The output can't be written, or the data is not a frame.
pub fn receive(
    mut from: impl Read,
    mut output: impl Write,
    mut errors: impl Write,
    ready: impl FnOnce(),
) -> io::Result<Option<u32>> {
    let mut first = [0];
    if from.read(&mut first)? == 0 {
        return Ok(None);
    }
    if first[0] != READY {
        return Err(io::Error::other("the machine's first byte is not 'V'"));
    }
    ready();
    let mut payload = Vec::new();
    loop {
        let mut head = [0; 3];
        match from.read_exact(&mut head) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            Err(error) => return Err(error),
        }
        payload.resize(usize::from(u16::from_le_bytes([head[1], head[2]])), 0);
        from.read_exact(&mut payload)?;
        match head[0] {
            OUTPUT => {
                output.write_all(&payload)?;
                output.flush()?;
            }
            ERRORS => errors.write_all(&payload)?,
            EXIT => return Ok(payload.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))),
            kind => return Err(io::Error::other(format!("unknown frame type {kind}"))),
        }
    }
}

/// Sends a frame in one piece.
fn send_frame(to: &Mutex<impl Write>, kind: u8, payload: &[u8]) -> io::Result<()> {
    let [low, high] = (payload.len() as u16).to_le_bytes();
    let frame = [&[kind, low, high], payload].concat();
    let mut to = to.lock().unwrap_or_else(PoisonError::into_inner);
    to.write_all(&frame)?;
    to.flush()
}

/// Sends the size of the window of the machine's terminal.
///
/// # Errors
/// The write failed.
pub fn resize(to: &Mutex<impl Write>, window: Window) -> io::Result<()> {
    send_frame(to, WINDOW, window.map(u16::to_le_bytes).as_flattened())
}

/// Sends all of `from` to the machine as standard input, and then the frame that marks its end.
///
/// # Errors
/// A read or a write failed.
pub fn send(mut from: impl Read, to: &Mutex<impl Write>) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let count = from.read(&mut buffer)?;
        send_frame(to, INPUT, &buffer[..count])?;
        if count == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(bytes: &[u8]) -> (io::Result<Option<u32>>, Vec<u8>, Vec<u8>, bool) {
        let (mut output, mut errors, mut ready) = (Vec::new(), Vec::new(), false);
        let status = receive(bytes, &mut output, &mut errors, || ready = true);
        (status, output, errors, ready)
    }

    #[test]
    fn frames_go_to_their_streams() {
        let (status, output, errors, ready) =
            received(b"V\x01\x02\x00hi\x02\x01\x00!\x01\x01\x00.\x03\x04\x00\x2a\0\0\0ignored");
        assert_eq!(
            (status.unwrap(), output.as_slice(), errors.as_slice(), ready),
            (Some(42), &b"hi."[..], &b"!"[..], true)
        );
    }

    #[test]
    fn an_early_end_has_no_status() {
        assert_eq!(received(b"").0.unwrap(), None);
        assert_eq!(received(b"V\x01\x01\x00x").0.unwrap(), None);
        assert!(received(b"V\x01\x05\x00x").0.is_err(), "cut off in a frame");
        assert!(received(b"Linux version").0.is_err());
    }

    #[test]
    fn input_ends_with_an_empty_frame() {
        let sent = Mutex::new(Vec::new());
        send(&b"abc"[..], &sent).unwrap();
        assert_eq!(sent.into_inner().unwrap(), b"\x00\x03\x00abc\x00\x00\x00");
    }

    #[test]
    fn a_window_is_a_frame_of_eight_bytes() {
        let sent = Mutex::new(Vec::new());
        resize(&sent, [24, 80, 0x201, 0]).unwrap();
        assert_eq!(sent.into_inner().unwrap(), b"\x04\x08\x00\x18\0\x50\0\x01\x02\0\0");
    }
}
