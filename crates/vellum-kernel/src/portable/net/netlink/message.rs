//! The form of netlink messages: a header, a body of a fixed size, and attributes (netlink(7),
//! rtnetlink(7)).

use crate::errno::Errno;
use alloc::vec::Vec;

/// The size in bytes of `struct nlmsghdr`.
pub(super) const HEADER: usize = 16;
/// The alignment in bytes of messages and attributes.
const ALIGNMENT: usize = 4;

/// The flags: a request; one of several answers; an answer is wanted, if only that all went well;
/// everything is to be listed.
pub(super) const REQUEST: u16 = 1;
pub(super) const MULTI: u16 = 2;
pub(super) const ACK: u16 = 4;
pub(super) const DUMP: u16 = 0x300;

/// The kinds of messages of all protocols: an error, or none; the end of several answers.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// A request of a program.
pub(super) struct Request<'a> {
    pub kind: u16,
    pub flags: u16,
    pub number: u32,
    /// All its bytes, with the header.
    pub bytes: &'a [u8],
}

/// Returns the requests among the bytes that a program sends, up to the first that is malformed.
pub(super) fn requests(mut bytes: &[u8]) -> impl Iterator<Item = Request<'_>> {
    core::iter::from_fn(move || {
        let header = bytes.first_chunk::<HEADER>()?;
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|index| header[at + index]));
        let len = word(0) as usize;
        if !(HEADER..=bytes.len()).contains(&len) {
            return None;
        }
        let (this, _) = bytes.split_at(len);
        bytes = &bytes[len.next_multiple_of(ALIGNMENT).min(bytes.len())..];
        Some(Request { kind: word(4) as u16, flags: (word(4) >> 16) as u16, number: word(8), bytes: this })
    })
}

impl Request<'_> {
    /// Returns a byte of the body; 0 behind its end.
    pub fn byte(&self, at: usize) -> u8 {
        self.bytes.get(HEADER + at).copied().unwrap_or(0)
    }

    /// Returns a number of four bytes of the body; 0 behind its end.
    pub fn word(&self, at: usize) -> u32 {
        u32::from_le_bytes(core::array::from_fn(|index| self.byte(at + index)))
    }

    /// Returns the value of the attribute `kind` behind a body of `body` bytes.
    pub fn attribute(&self, body: usize, kind: u16) -> Option<&[u8]> {
        let mut rest = self.bytes.get(HEADER + body..)?;
        loop {
            let [a, b, c, d] = *rest.first_chunk()?;
            let len = usize::from(u16::from_le_bytes([a, b]));
            let value = rest.get(4..len)?;
            if u16::from_le_bytes([c, d]) == kind {
                return Some(value);
            }
            rest = rest.get(len.next_multiple_of(ALIGNMENT)..)?;
        }
    }
}

/// Answers to one request, one behind the other.
pub(super) struct Answers {
    bytes: Vec<u8>,
    /// Where the last message begins.
    start: usize,
    number: u32,
    port: u32,
}

impl Answers {
    /// Returns no answers to a request of the socket with this port.
    pub fn new(request: &Request<'_>, port: u32) -> Answers {
        Answers { bytes: Vec::new(), start: 0, number: request.number, port }
    }

    fn extend(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        self.bytes.try_reserve(bytes.len() + ALIGNMENT)?;
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(self.bytes.len().next_multiple_of(ALIGNMENT), 0);
        // The header of the last message has its length.
        let len = (self.bytes.len() - self.start) as u32;
        self.bytes[self.start..self.start + 4].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    /// Begins a message.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn begin(&mut self, kind: u16, flags: u16, body: &[u8]) -> Result<(), Errno> {
        self.start = self.bytes.len();
        let [k, l] = kind.to_le_bytes();
        let [f, g] = flags.to_le_bytes();
        let [n, p] = [self.number, self.port].map(u32::to_le_bytes);
        let header = [0, 0, 0, 0, k, l, f, g, n[0], n[1], n[2], n[3], p[0], p[1], p[2], p[3]];
        self.extend(&header)?;
        self.extend(body)
    }

    /// Adds an attribute to the last message.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn attribute(&mut self, kind: u16, value: &[u8]) -> Result<(), Errno> {
        let [l, m] = (4 + value.len() as u16).to_le_bytes();
        let [k, n] = kind.to_le_bytes();
        self.extend(&[l, m, k, n])?;
        self.extend(value)
    }

    /// Ends several answers.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn done(&mut self) -> Result<(), Errno> {
        self.begin(DONE, MULTI, &[0; 4])
    }

    /// Adds the outcome of a request, with the request.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn outcome(&mut self, request: &Request<'_>, outcome: Result<(), Errno>) -> Result<(), Errno> {
        let error = -outcome.err().map_or(0, |error| error.number());
        self.begin(ERROR, 0, &error.to_le_bytes())?;
        // The request itself comes back with an error alone; its header always does.
        self.extend(if outcome.is_err() { request.bytes } else { &request.bytes[..HEADER] })
    }

    /// Returns the answers.
    pub fn finish(self) -> Vec<u8> {
        self.bytes
    }
}
