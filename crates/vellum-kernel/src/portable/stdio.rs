//! Decodes the stdio channel from the host: a stream of frames, each with a type (one byte), a
//! length (two bytes, little endian), and that many bytes of payload.

/// The type of a frame with the first program's standard input. An empty one marks the end of the
/// input.
const STDIN: u8 = 0;
/// The type of a frame with the size of the window of the host's terminal: rows, columns, and both
/// in pixels, two bytes each, little endian.
const WINDOW: u8 = 4;

/// A decoder that extracts standard input from the frames, byte by byte, as a serial port delivers
/// them.
#[derive(Default)]
pub struct StdinDecoder {
    head: [u8; 3],
    /// The number of bytes in `head`.
    head_len: usize,
    /// The number of payload bytes still to come.
    left: u16,
    eof: bool,
    /// The payload of a frame with a window's size, as far as it has come.
    window: [u8; 8],
    /// The last size of the window that was not taken.
    resized: Option<[u16; 4]>,
}

impl StdinDecoder {
    /// Creates a decoder at the start of the channel.
    pub const fn new() -> Self {
        StdinDecoder { head: [0; 3], head_len: 0, left: 0, eof: false, window: [0; 8], resized: None }
    }

    /// Decodes the next byte of the channel. Returns the byte if it is standard input. Returns
    /// `None` for a frame's header, for other types of frames, and after the end of the input.
    pub fn decode(&mut self, byte: u8) -> Option<u8> {
        if self.left > 0 {
            self.left -= 1;
            if self.head[0] == WINDOW {
                self.window.rotate_left(1);
                self.window[7] = byte;
                if self.left == 0 {
                    self.resized = Some(core::array::from_fn(|i| {
                        u16::from_le_bytes([self.window[2 * i], self.window[2 * i + 1]])
                    }));
                }
            }
            return (self.head[0] == STDIN && !self.eof).then_some(byte);
        }
        self.head[self.head_len] = byte;
        self.head_len += 1;
        if self.head_len == self.head.len() {
            self.head_len = 0;
            self.left = u16::from_le_bytes([self.head[1], self.head[2]]);
            self.eof |= self.left == 0 && self.head[0] == STDIN;
        }
        None
    }

    /// Returns and forgets the last size of the window.
    pub fn take_window(&mut self) -> Option<[u16; 4]> {
        self.resized.take()
    }

    /// Returns whether the host has ended the input.
    pub fn is_eof(&self) -> bool {
        self.eof
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn decode_all(input: &mut StdinDecoder, bytes: &[u8]) -> Vec<u8> {
        bytes.iter().filter_map(|byte| input.decode(*byte)).collect()
    }

    #[test]
    fn frames_are_stripped_from_the_input() {
        let mut input = StdinDecoder::new();
        assert_eq!(decode_all(&mut input, b"\x00\x03\x00abc\x00\x01\x00"), b"abc");
        assert!(!input.is_eof(), "in the middle of a frame");
        assert_eq!(decode_all(&mut input, b"d\x00\x00\x00"), b"d");
        assert!(input.is_eof());
        assert_eq!(decode_all(&mut input, b"\x00\x01\x00e"), b"", "after the end");
    }

    #[test]
    fn a_window_has_a_size_and_is_no_input() {
        let mut input = StdinDecoder::new();
        let bytes = b"\x00\x01\x00a\x04\x08\x00\x18\0\x50\0\x01\x02\x03\x04\x00\x01\x00b";
        assert_eq!(decode_all(&mut input, bytes), b"ab");
        assert_eq!((input.take_window(), input.take_window()), (Some([24, 80, 0x201, 0x403]), None));
    }

    #[test]
    fn lengths_have_two_bytes_and_other_frames_are_skipped() {
        let mut input = StdinDecoder::new();
        let mut bytes = std::vec![0, 0x01, 0x01];
        bytes.extend([7; 257]);
        assert_eq!(decode_all(&mut input, &bytes), [7; 257]);
        assert_eq!(decode_all(&mut input, b"\x09\x02\x00xy\x09\x00\x00\x00\x01\x00z"), b"z");
        assert!(!input.is_eof(), "an empty frame of another type is no end");
    }
}
