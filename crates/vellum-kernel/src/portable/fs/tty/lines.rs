//! The input of a terminal that no program has read: lines that a read can return, and behind them
//! the line that the user still edits. In raw mode all of it can be read.

use crate::errno::Errno;
use crate::fs::io::{Sink, in_pieces};
use alloc::boxed::Box;
use alloc::vec::Vec;

/// The number of bytes that fit. The longest line has this many with its newline.
pub const SIZE: usize = 4096;

/// The byte that stands for `VEOF` at the end of a line. A read does not return it; a program that
/// turns raw mode on reads it.
const EOF: u8 = 0;

/// A set of bytes of the ring.
struct Marks([u64; SIZE / 64]);

impl Marks {
    const NONE: Marks = Marks([0; SIZE / 64]);

    fn has(&self, at: u64) -> bool {
        let at = at as usize % SIZE;
        self.0[at / 64] >> (at % 64) & 1 != 0
    }

    fn set(&mut self, at: u64, is_in: bool) {
        let at = at as usize % SIZE;
        let bit = 1 << (at % 64);
        if is_in { self.0[at / 64] |= bit } else { self.0[at / 64] &= !bit }
    }
}

/// A ring of bytes, with marks at the ends of lines. Positions count all bytes since the start.
pub struct Lines {
    bytes: Box<[u8]>,
    /// The bytes that end a line.
    ends: Marks,
    /// Those of them that stand for `VEOF`.
    eofs: Marks,
    /// The position of the first byte that was not read.
    read: u64,
    /// The position behind the last line that has its end.
    complete: u64,
    /// The position behind the last byte.
    written: u64,
}

impl Lines {
    /// Creates an empty buffer.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new() -> Result<Self, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(SIZE)?;
        bytes.resize(SIZE, 0);
        Ok(Lines {
            bytes: bytes.into_boxed_slice(),
            ends: Marks::NONE,
            eofs: Marks::NONE,
            read: 0,
            complete: 0,
            written: 0,
        })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        (self.written - self.read) as usize
    }

    /// Returns the number of bytes in complete lines, ends by `VEOF` included.
    pub fn complete_len(&self) -> usize {
        (self.complete - self.read) as usize
    }

    /// Returns the number of bytes that a program could read now in canonical mode, if it called
    /// read until nothing is left (`FIONREAD`).
    pub fn readable_len(&self) -> usize {
        self.complete_len() - (self.read..self.complete).filter(|at| self.eofs.has(*at)).count()
    }

    fn byte(&self, at: u64) -> u8 {
        self.bytes[at as usize % SIZE]
    }

    /// Appends a byte. Returns false if it does not fit.
    pub fn push(&mut self, byte: u8) -> bool {
        let fits = self.len() < SIZE;
        if fits {
            self.bytes[self.written as usize % SIZE] = byte;
            self.ends.set(self.written, false);
            self.eofs.set(self.written, false);
            self.written += 1;
        }
        fits
    }

    /// Completes the present line with this byte at its end, or without one (`VEOF`). The caller
    /// has left room for a byte.
    pub fn complete(&mut self, end: Option<u8>) {
        if self.push(end.unwrap_or(EOF)) {
            self.ends.set(self.written - 1, true);
            self.eofs.set(self.written - 1, end.is_none());
            self.complete = self.written;
        }
    }

    /// Returns the bytes of the incomplete line, the last one first.
    pub fn incomplete(&self) -> impl DoubleEndedIterator<Item = u8> {
        (self.complete..self.written).rev().map(|at| self.byte(at))
    }

    /// Returns the last byte of the incomplete line; `None` if it is empty.
    pub fn last(&self) -> Option<u8> {
        (self.written > self.complete).then(|| self.byte(self.written - 1))
    }

    /// Removes the last byte of the incomplete line.
    pub fn pop(&mut self) {
        if self.written > self.complete {
            self.written -= 1;
        }
    }

    /// Removes the incomplete line.
    pub fn drop_incomplete(&mut self) {
        self.written = self.complete;
    }

    /// Removes all.
    pub fn clear(&mut self) {
        (self.read, self.complete) = (self.written, self.written);
    }

    /// Removes the ends of lines. If lines are read from now on (`canonical`), all bytes are one
    /// line.
    pub fn change_mode(&mut self, canonical: bool) {
        (self.ends, self.eofs) = (Marks::NONE, Marks::NONE);
        self.complete = if canonical { self.written } else { self.read };
        if canonical && self.written > self.read {
            self.ends.set(self.written - 1, true);
        }
    }

    /// Reads from the first line, without the end that `VEOF` made, or if not `canonical` from all
    /// bytes. Returns their number. The caller has checked that there are some, and room for them.
    ///
    /// # Errors
    /// The sink's.
    pub fn read(&mut self, canonical: bool, to: &mut dyn Sink) -> Result<usize, Errno> {
        let end = (self.read..self.complete).find(|at| self.ends.has(*at));
        let (until, has_eof) = match end {
            _ if !canonical => (self.written, false),
            Some(end) if self.eofs.has(end) => (end, true),
            Some(end) => (end + 1, false),
            None => (self.complete, false),
        };
        let done = in_pieces(|| {
            let first = self.read as usize % SIZE;
            let count = ((until - self.read) as usize).min(SIZE - first).min(to.room());
            if count == 0 {
                return Ok((0, false));
            }
            let put = to.put(&self.bytes[first..first + count])?;
            self.read += put as u64;
            Ok((put, put == count))
        })?;
        if has_eof && self.read == until {
            self.read += 1;
        }
        self.complete = self.complete.max(self.read);
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::io::testing::FaultsAfter;
    use std::vec;

    fn read(lines: &mut Lines, canonical: bool, room: usize) -> vec::Vec<u8> {
        let mut bytes = vec![0; room];
        let count = lines.read(canonical, &mut &mut bytes[..]).unwrap();
        bytes.truncate(count);
        bytes
    }

    fn push(lines: &mut Lines, bytes: &[u8]) {
        assert!(bytes.iter().all(|byte| lines.push(*byte)));
    }

    #[test]
    fn a_read_ends_with_a_line_and_an_eof_is_no_byte() {
        let mut lines = Lines::new().unwrap();
        push(&mut lines, b"ab");
        lines.complete(Some(b'\n'));
        push(&mut lines, b"cd");
        lines.complete(None);
        lines.complete(None);
        push(&mut lines, b"e");
        assert_eq!((lines.len(), lines.complete_len(), lines.readable_len()), (8, 7, 5));
        assert_eq!(read(&mut lines, true, 2), b"ab");
        assert_eq!(read(&mut lines, true, 9), b"\n");
        assert_eq!(read(&mut lines, true, 2), b"cd", "the end is read with the last byte");
        assert_eq!(read(&mut lines, true, 9), b"", "an empty line is an end of file");
        assert_eq!((lines.complete_len(), lines.len()), (0, 1));
    }

    #[test]
    fn only_the_incomplete_line_is_edited() {
        let mut lines = Lines::new().unwrap();
        push(&mut lines, b"ab");
        lines.complete(Some(b'\n'));
        push(&mut lines, b"xyz");
        lines.pop();
        assert!(lines.incomplete().eq(*b"yx"));
        (0..5).for_each(|_| lines.pop());
        push(&mut lines, b"q");
        lines.drop_incomplete();
        assert_eq!(lines.len(), 3);
    }

    #[test]
    fn modes_change_what_a_read_returns() {
        let mut lines = Lines::new().unwrap();
        push(&mut lines, b"ab");
        lines.complete(None);
        push(&mut lines, b"cd");
        lines.change_mode(false);
        assert_eq!(read(&mut lines, false, 9), b"ab\0cd", "an end by `VEOF` is a byte in raw mode");
        push(&mut lines, b"ef");
        lines.change_mode(true);
        push(&mut lines, b"g");
        lines.complete(Some(b'\n'));
        assert_eq!(read(&mut lines, true, 9), b"ef", "bytes of raw mode are a line by themselves");
        assert_eq!(read(&mut lines, true, 9), b"g\n");
        assert_eq!((lines.complete_len(), lines.len()), (0, 0));
    }

    #[test]
    fn the_ring_wraps_and_a_fault_loses_no_byte() {
        let mut lines = Lines::new().unwrap();
        let mut next = 0u8;
        for round in 0..50 {
            let count = 1 + round * 83 % SIZE;
            let sent: vec::Vec<u8> = (0..count).map(|i| next.wrapping_add(i as u8)).collect();
            next = next.wrapping_add(7);
            push(&mut lines, &sent);
            let mut bytes = vec![0; count];
            let half = count / 2;
            let first = lines.read(false, &mut FaultsAfter(&mut bytes[..], half));
            assert_eq!(first, if half == 0 { Err(Errno::EFAULT) } else { Ok(half) });
            assert_eq!(read(&mut lines, false, SIZE), &sent[half..]);
            assert_eq!(bytes[..half], sent[..half]);
        }
        push(&mut lines, &[1; SIZE]);
        assert!(!lines.push(1));
        lines.clear();
        assert!(lines.len() == 0 && lines.push(1));
    }
}
