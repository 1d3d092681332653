//! What comes over the wire from the host: frames of a type, a length of two bytes (little endian),
//! and so many bytes.

/// The type of a frame with the first program's standard input. An empty one is its end.
const STDIN: u8 = 0;

/// Takes standard input out of its frames, byte by byte, as a serial port gives it.
#[derive(Default)]
pub struct StdinDecoder {
    head: [u8; 3],
    /// How many bytes of the head there are.
    head_len: usize,
    /// How many bytes of the frame are still to come.
    left: u16,
    eof: bool,
}

impl StdinDecoder {
    /// Nothing has come yet.
    pub const fn new() -> Self {
        StdinDecoder { head: [0; 3], head_len: 0, left: 0, eof: false }
    }

    /// The next byte of the wire: the byte of input that it is, if it is one. What is no input is
    /// passed over, and so is what comes after the end.
    pub fn decode(&mut self, byte: u8) -> Option<u8> {
        if self.left > 0 {
            self.left -= 1;
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

    /// Whether the host has said that there is no more.
    pub fn is_eof(&self) -> bool {
        self.eof
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn taken(input: &mut StdinDecoder, bytes: &[u8]) -> Vec<u8> {
        bytes.iter().filter_map(|byte| input.decode(*byte)).collect()
    }

    #[test]
    fn input_comes_without_its_frames() {
        let mut input = StdinDecoder::new();
        assert_eq!(taken(&mut input, b"\x00\x03\x00abc\x00\x01\x00"), b"abc");
        assert!(!input.is_eof(), "in the middle of a frame");
        assert_eq!(taken(&mut input, b"d\x00\x00\x00"), b"d");
        assert!(input.is_eof());
        assert_eq!(taken(&mut input, b"\x00\x01\x00e"), b"", "after the end");
    }

    #[test]
    fn a_length_has_two_bytes_and_other_frames_are_passed_over() {
        let mut input = StdinDecoder::new();
        let mut bytes = std::vec![0, 0x01, 0x01];
        bytes.extend([7; 257]);
        assert_eq!(taken(&mut input, &bytes), [7; 257]);
        assert_eq!(taken(&mut input, b"\x09\x02\x00xy\x09\x00\x00\x00\x01\x00z"), b"z");
        assert!(!input.is_eof(), "the end of something else");
    }
}
