//! The cargo of the bytes that a socket sends: addresses, credentials, descriptors; and how
//! `sendmsg` and `recvmsg` pass them (control messages, cmsg(3)).

use super::address::Address;
use super::packet::{Packet, Wanted};
use super::rights::Rights;
use crate::errno::Errno;
use alloc::vec::Vec;
use linux_raw_sys::net;

/// The most descriptors of one message (Linux: `SCM_MAX_FD`).
pub const MOST_RIGHTS: usize = 253;
/// The size in bytes of the header of a control message.
const HEADER: usize = size_of::<net::cmsghdr>();
/// The alignment in bytes of control messages.
const ALIGNMENT: usize = 8;

/// The process that sends a message, as its receiver sees it (`struct ucred`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Identity {
    pub pid: u32,
    pub uid: u32,
    pub gid: u32,
}

impl Identity {
    /// Returns the identity as programs see it.
    pub fn bytes(&self) -> [u8; 12] {
        let words = [self.pid, self.uid, self.gid].map(u32::to_le_bytes);
        core::array::from_fn(|i| words[i / 4][i % 4])
    }

    /// Returns the identity in the bytes of a program.
    fn of(bytes: &[u8]) -> Option<Identity> {
        let word = |i: usize| bytes.get(i * 4..i * 4 + 4)?.try_into().ok().map(u32::from_le_bytes);
        Some(Identity { pid: word(0)?, uid: word(1)?, gid: word(2)? })
    }
}

/// The cargo that a call sends with its bytes.
pub struct Outgoing<'a> {
    /// The address to which they go; `None`: that to which the socket is connected.
    pub to: Option<&'a Address>,
    /// The process that sends them.
    pub who: Identity,
    /// The descriptors; taken with the first byte that is sent.
    pub rights: Option<Rights>,
    /// The header's fields, where they are not the socket's.
    pub header: Wanted,
}

/// The cargo that arrives with bytes.
#[derive(Default)]
pub struct Cargo {
    /// The process that sent them.
    pub who: Identity,
    /// The descriptors that came with them.
    pub rights: Option<Rights>,
    /// The address of the socket that sent them, if it has one.
    pub from: Option<Address>,
    /// The header of a packet of IP.
    pub packet: Option<Packet>,
}

/// A message.
#[derive(Default)]
#[allow(missing_docs)]
pub struct Message {
    pub bytes: Vec<u8>,
    pub cargo: Cargo,
}

/// The control messages of a `sendmsg`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Control {
    /// The numbers of the descriptors to send.
    pub descriptors: Vec<u32>,
    /// The identity that the program names.
    pub who: Option<Identity>,
    /// The header's fields that the program sets.
    pub header: Wanted,
}

impl Control {
    /// Reads the control messages of a program.
    ///
    /// # Errors
    /// `EINVAL`: malformed, or not known; `ENOMEM`.
    pub fn parse(mut bytes: &[u8]) -> Result<Control, Errno> {
        let mut control = Control::default();
        while bytes.len() >= HEADER {
            let length = usize::try_from(u64::from_le_bytes(core::array::from_fn(|i| bytes[i])));
            let length = length.ok().filter(|length| (HEADER..=bytes.len()).contains(length)).ok_or(Errno::EINVAL)?;
            let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
            let data = &bytes[HEADER..length];
            match (word(8), word(12)) {
                (net::SOL_SOCKET, net::SCM_RIGHTS) => {
                    let count = data.len() / 4;
                    if control.descriptors.len() + count > MOST_RIGHTS {
                        return Err(Errno::EINVAL);
                    }
                    control.descriptors.try_reserve(count)?;
                    let numbers = data.chunks_exact(4).map(|n| u32::from_le_bytes([n[0], n[1], n[2], n[3]]));
                    control.descriptors.extend(numbers);
                }
                (net::SOL_SOCKET, net::SCM_CREDENTIALS) => {
                    let exact = Some(data).filter(|data| data.len() == 12);
                    control.who = Some(exact.and_then(Identity::of).ok_or(Errno::EINVAL)?);
                }
                (net::SOL_SOCKET, _) => return Err(Errno::EINVAL),
                (level, kind) => control.header.note(level, kind, data)?,
            }
            bytes = &bytes[length.next_multiple_of(ALIGNMENT).min(bytes.len())..];
        }
        Ok(control)
    }
}

/// The control messages that a `recvmsg` returns, within the room that the program has for them.
pub struct ControlWriter {
    bytes: Vec<u8>,
    room: usize,
    truncated: bool,
}

impl ControlWriter {
    /// Returns an empty one.
    pub const fn new(room: usize) -> ControlWriter {
        ControlWriter { bytes: Vec::new(), room, truncated: false }
    }

    /// Returns how many descriptors have room.
    pub fn room_for_descriptors(&self) -> usize {
        (self.room - self.bytes.len()).saturating_sub(HEADER) / 4
    }

    /// Notes that something was left out.
    pub fn truncate(&mut self) {
        self.truncated = true;
    }

    /// Adds a control message of level `SOL_SOCKET`, or as much of it as has room.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add(&mut self, kind: u32, data: &[u8]) -> Result<(), Errno> {
        self.add_of(net::SOL_SOCKET, kind, data)
    }

    /// Adds a control message of a level, or as much of it as has room.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn add_of(&mut self, level: u32, kind: u32, data: &[u8]) -> Result<(), Errno> {
        let left = self.room - self.bytes.len();
        if left < HEADER {
            self.truncated = true;
            return Ok(());
        }
        let length = HEADER + data.len().min(left - HEADER);
        self.truncated |= length < HEADER + data.len();
        let end = self.bytes.len() + length.next_multiple_of(ALIGNMENT).min(left);
        self.bytes.try_reserve(end - self.bytes.len())?;
        self.bytes.extend_from_slice(&(length as u64).to_le_bytes());
        self.bytes.extend_from_slice(&level.to_le_bytes());
        self.bytes.extend_from_slice(&kind.to_le_bytes());
        self.bytes.extend_from_slice(&data[..length - HEADER]);
        self.bytes.resize(end, 0);
        Ok(())
    }

    /// Returns the control messages, and whether some did not fit (`MSG_CTRUNC`).
    pub fn finish(self) -> (Vec<u8>, bool) {
        (self.bytes, self.truncated)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    fn message(kind: u32, data: &[u8]) -> Vec<u8> {
        let mut writer = ControlWriter::new(2000);
        writer.add(kind, data).unwrap();
        writer.finish().0
    }

    #[test]
    fn control_messages_are_read_as_they_were_written() {
        let who = Identity { pid: 7, uid: 1000, gid: 100 };
        let bytes = [message(net::SCM_RIGHTS, &[3, 0, 0, 0]), message(net::SCM_CREDENTIALS, &who.bytes())].concat();
        assert_eq!(bytes.len() % ALIGNMENT, 0);
        assert_eq!(Control::parse(&bytes), Ok(Control { descriptors: vec![3], who: Some(who), ..Control::default() }));
        assert_eq!(Control::parse(&bytes[..10]), Ok(Control::default()), "no room for a header");
    }

    #[test]
    fn malformed_control_messages_are_refused() {
        let good = message(net::SCM_RIGHTS, &[3, 0, 0, 0]);
        for length in [0u64, 15, 1000, u64::MAX] {
            let mut bad = good.clone();
            bad[..8].copy_from_slice(&length.to_le_bytes());
            assert_eq!(Control::parse(&bad), Err(Errno::EINVAL), "length {length}");
        }
        assert_eq!(Control::parse(&message(77, &[])), Err(Errno::EINVAL));
        assert_eq!(Control::parse(&message(net::SCM_CREDENTIALS, &[0; 8])), Err(Errno::EINVAL));
        assert_eq!(Control::parse(&message(net::SCM_RIGHTS, &[0; 4 * 254])), Err(Errno::EINVAL));
    }

    #[test]
    fn control_messages_without_room_are_cut() {
        let mut writer = ControlWriter::new(HEADER + 6);
        assert_eq!(writer.room_for_descriptors(), 1);
        writer.add(net::SCM_CREDENTIALS, &[1; 12]).unwrap();
        writer.add(net::SCM_RIGHTS, &[1; 4]).unwrap();
        let (bytes, truncated) = writer.finish();
        assert_eq!((bytes.len(), bytes[0] as usize, truncated), (HEADER + 6, HEADER + 6, true));
    }
}
