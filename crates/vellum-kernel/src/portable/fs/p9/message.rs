//! Messages of the protocol 9P2000.L: numbers are little-endian, and a string has its length before
//! it. What the server says is checked here.
//!
//! Source: the protocol's description in the sources of `diod` (`protocol.md`).

use crate::errno::Errno;
use alloc::vec::Vec;

/// The type of a request. The reply has the next number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub(super) enum Request {
    Statfs = 8,
    Open = 12,
    ReadLink = 22,
    GetAttributes = 24,
    ReadDirectory = 40,
    Version = 100,
    Attach = 104,
    Walk = 110,
    Read = 116,
    Clunk = 120,
}

/// The type of a reply with an error number.
pub(super) const ERROR: u8 = 7;
/// The bytes before a message's own: its size, type and tag.
const HEADER: usize = 7;
/// The tag of the first request, which agrees on the version.
const NO_TAG: u16 = u16::MAX;

/// Bit of a [`Node::kind`]: a directory.
pub(super) const DIRECTORY: u8 = 0x80;
/// Bit of a [`Node::kind`]: a symbolic link.
pub(super) const LINK: u8 = 0x02;

/// The identity of a file (`qid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Node {
    pub kind: u8,
    /// The file's number, which no other file has.
    pub number: u64,
}

/// A request that is being written.
pub(super) struct Writer<'a>(&'a mut Vec<u8>);

impl<'a> Writer<'a> {
    /// Begins a request in `bytes`, whose capacity is not exceeded.
    pub fn new(bytes: &'a mut Vec<u8>, kind: Request) -> Self {
        bytes.clear();
        let tag = if kind == Request::Version { NO_TAG } else { 0 };
        Writer(bytes).u32(0).u8(kind as u8).u16(tag)
    }

    fn bytes(self, bytes: &[u8]) -> Self {
        // `end` refuses the empty request that is left of one without room.
        if self.0.capacity() - self.0.len() >= bytes.len() {
            self.0.extend_from_slice(bytes);
        } else {
            self.0.clear();
        }
        self
    }

    pub fn u8(self, value: u8) -> Self {
        self.bytes(&[value])
    }

    pub fn u16(self, value: u16) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u32(self, value: u32) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn u64(self, value: u64) -> Self {
        self.bytes(&value.to_le_bytes())
    }

    pub fn text(self, text: &[u8]) -> Self {
        match u16::try_from(text.len()) {
            Ok(len) => self.u16(len).bytes(text),
            Err(_) => {
                self.0.clear();
                self
            }
        }
    }

    /// Ends the request.
    ///
    /// # Errors
    /// `ENAMETOOLONG`: a part of it had no room.
    pub fn end(self) -> Result<(), Errno> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        let size = self.0.get_mut(..4).filter(|_| len as usize >= HEADER).ok_or(Errno::ENAMETOOLONG)?;
        size.copy_from_slice(&len.to_le_bytes());
        Ok(())
    }
}

/// The rest of a reply. Each method returns `None` if the reply ends before.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Returns the contents of the reply to a request of this type.
    ///
    /// # Errors
    /// The error that the server has replied. `EIO`: this is no reply to such a request.
    pub fn new(reply: &'a [u8], kind: Request) -> Result<Self, Errno> {
        let mut reader = Reader(reply);
        let head = reader.u32().zip(reader.u8()).zip(reader.u16());
        let ((size, found), _) = head.ok_or(Errno::EIO)?;
        let len = (size as usize).checked_sub(HEADER).ok_or(Errno::EIO)?;
        reader = Reader(reader.take(len).ok_or(Errno::EIO)?);
        if found == ERROR {
            let number = reader.u32().and_then(|number| i32::try_from(number).ok());
            return Err(number.and_then(Errno::of_linux).unwrap_or(Errno::EIO));
        }
        if found == kind as u8 + 1 { Ok(reader) } else { Err(Errno::EIO) }
    }

    /// Reads these bytes.
    pub fn of(bytes: &'a [u8]) -> Self {
        Reader(bytes)
    }

    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.array().map(u8::from_le_bytes)
    }

    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn text(&mut self) -> Option<&'a [u8]> {
        let len = self.u16()?;
        self.take(len.into())
    }

    pub fn node(&mut self) -> Option<Node> {
        let kind = self.u8()?;
        self.u32()?; // the version, by which caches are checked
        Some(Node { kind, number: self.u64()? })
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
