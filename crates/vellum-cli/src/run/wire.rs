//! The program's streams, in frames over a serial port: a type, a length of two bytes (little
//! endian), and so many bytes.

use std::io::{self, Read, Write};

/// What the machine says first, when the program is about to start.
const READY: u8 = b'V';

/// What a frame carries: the program's standard input, to the machine (empty: its end) …
const INPUT: u8 = 0;
/// … its standard output …
const OUTPUT: u8 = 1;
/// … its standard error …
const ERRORS: u8 = 2;
/// … and how it ended: four bytes, as a shell would say it.
const EXIT: u8 = 3;

/// Passes on what comes, until the program ends; its status, if it came to that.
///
/// # Errors
/// The output can't be written to; or what comes is no frame.
pub fn listen(
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
        return Err(io::Error::other("the machine does not speak as agreed"));
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
            kind => return Err(io::Error::other(format!("a frame of the unknown kind {kind}"))),
        }
    }
}

/// Sends all of `from` to the machine, and its end.
///
/// # Errors
/// Either side can't go on.
pub fn feed(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut buffer = [0; 4096];
    loop {
        let count = from.read(&mut buffer)?;
        let [low, high] = (count as u16).to_le_bytes();
        to.write_all(&[INPUT, low, high])?;
        to.write_all(&buffer[..count])?;
        to.flush()?;
        if count == 0 {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heard(bytes: &[u8]) -> (io::Result<Option<u32>>, Vec<u8>, Vec<u8>, bool) {
        let (mut output, mut errors, mut ready) = (Vec::new(), Vec::new(), false);
        let status = listen(bytes, &mut output, &mut errors, || ready = true);
        (status, output, errors, ready)
    }

    #[test]
    fn frames_go_where_they_belong() {
        let (status, output, errors, ready) =
            heard(b"V\x01\x02\x00hi\x02\x01\x00!\x01\x01\x00.\x03\x04\x00\x2a\0\0\0ignored");
        assert_eq!(
            (status.unwrap(), output.as_slice(), errors.as_slice(), ready),
            (Some(42), &b"hi."[..], &b"!"[..], true)
        );
    }

    #[test]
    fn an_end_without_a_status_is_no_status() {
        assert_eq!(heard(b"").0.unwrap(), None);
        assert_eq!(heard(b"V\x01\x01\x00x").0.unwrap(), None);
        assert!(heard(b"V\x01\x05\x00x").0.is_err(), "cut off in a frame");
        assert!(heard(b"Linux version").0.is_err());
    }

    #[test]
    fn input_ends_with_an_empty_frame() {
        let mut sent = Vec::new();
        feed(&b"abc"[..], &mut sent).unwrap();
        assert_eq!(sent, b"\x00\x03\x00abc\x00\x00\x00");
    }
}
