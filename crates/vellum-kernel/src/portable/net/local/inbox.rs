//! The inbox of a socket: bytes of a stream or messages that no call has received yet.

use crate::errno::Errno;
use crate::fs::bytes::{Bytes, copy_of};
use crate::fs::io::in_pieces;
use crate::fs::{Sink, Source};
use crate::net::message::{Cargo, Identity, Message};
use crate::net::rights::Rights;
use alloc::collections::VecDeque;

/// The bytes that the room of a socket pays for each message beside its own.
const OVERHEAD: usize = 256;

/// The inbox of a socket.
#[derive(Default)]
pub(super) struct Inbox {
    /// The bytes of a stream.
    bytes: Bytes,
    /// The senders and descriptors of the bytes of a stream, for ranges of them, in order.
    records: VecDeque<Record>,
    messages: VecDeque<Message>,
    /// The bytes of the messages.
    message_bytes: usize,
    /// The number of records and messages with descriptors.
    parcels: usize,
}

struct Record {
    len: usize,
    who: Identity,
    rights: Option<Rights>,
}

/// Copies the descriptors of a message that stays, or takes those of one that goes.
fn rights_of(rights: &mut Option<Rights>, peeks: bool) -> Result<Option<Rights>, Errno> {
    if peeks { rights.as_ref().map(Rights::copy).transpose() } else { Ok(rights.take()) }
}

impl Inbox {
    /// Returns the number of bytes that it takes of the sender's room.
    pub fn used(&self) -> usize {
        self.bytes.len() + self.message_bytes + OVERHEAD * (self.records.len() + self.messages.len())
    }

    /// Returns the number of bytes that the next call can receive.
    pub fn next_len(&self) -> usize {
        self.messages.front().map_or(self.bytes.len(), |message| message.bytes.len())
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.message_bytes
    }

    /// Returns the number of messages.
    pub fn messages(&self) -> usize {
        self.messages.len()
    }

    /// Returns true if nothing has arrived.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.messages.is_empty()
    }

    /// Returns true if descriptors have arrived.
    pub const fn has_rights(&self) -> bool {
        self.parcels > 0
    }

    /// Returns the descriptors that have arrived, by message.
    pub fn rights(&self) -> impl Iterator<Item = &Rights> {
        let records = self.records.iter().filter_map(|record| record.rights.as_ref());
        records.chain(self.messages.iter().filter_map(|message| message.cargo.rights.as_ref()))
    }

    /// Takes one message's descriptors out; its bytes stay.
    pub fn take_rights(&mut self) -> Option<Rights> {
        let records = self.records.iter_mut().map(|record| &mut record.rights);
        let all = records.chain(self.messages.iter_mut().map(|message| &mut message.cargo.rights));
        let taken = all.filter_map(Option::take).next();
        self.parcels -= usize::from(taken.is_some());
        taken
    }

    /// Adds up to `room` bytes of a stream, and what comes with them if there is a byte. Returns
    /// their number.
    ///
    /// # Errors
    /// `EFAULT`, `ENOMEM`.
    pub fn add(
        &mut self,
        from: &mut dyn Source,
        mut room: usize,
        who: Identity,
        rights: &mut Option<Rights>,
    ) -> Result<usize, Errno> {
        self.records.try_reserve(1)?;
        let bytes = &mut self.bytes;
        let added = in_pieces(|| {
            if room == 0 || from.left() == 0 {
                return Ok((0, false));
            }
            let place = bytes.room()?;
            let count = room.min(place.len());
            let taken = from.take(&mut place[..count]);
            let added = taken.unwrap_or(0);
            bytes.add(added);
            room -= added;
            taken.map(|taken| (taken, taken > 0))
        })?;
        match self.records.back_mut() {
            _ if added == 0 => {}
            Some(last) if rights.is_none() && last.rights.is_none() && last.who == who => last.len += added,
            _ => {
                self.parcels += usize::from(rights.is_some());
                self.records.push_back(Record { len: added, who, rights: rights.take() });
            }
        }
        Ok(added)
    }

    /// Takes bytes of a stream, or copies them with `peeks`: up to the end of the first range that
    /// came with descriptors, and with `one_sender` from one process. Returns their number, and
    /// what came with them.
    ///
    /// # Errors
    /// `EFAULT`; `ENOMEM`.
    pub fn take(&mut self, to: &mut dyn Sink, peeks: bool, one_sender: bool) -> Result<(usize, Cargo), Errno> {
        let mut cargo = Cargo::default();
        let (mut done, mut at) = (0, 0);
        while to.room() > 0 {
            let Some(record) = self.records.get_mut(at) else { break };
            if done > 0 && one_sender && record.who != cargo.who {
                break;
            }
            let wanted = record.len.min(to.room());
            let moved = if peeks {
                let mut pieces = self.bytes.pieces(done);
                let mut left = wanted;
                in_pieces(|| {
                    let piece = pieces.next().unwrap_or_default();
                    let piece = &piece[..piece.len().min(left)];
                    if piece.is_empty() {
                        return Ok((0, false));
                    }
                    let put = to.put(piece)?;
                    left -= put;
                    Ok((put, put == piece.len()))
                })
            } else {
                let (bytes, mut left) = (&mut self.bytes, wanted);
                in_pieces(|| {
                    let first = bytes.first();
                    let first = &first[..first.len().min(left)];
                    if first.is_empty() {
                        return Ok((0, false));
                    }
                    let (put, all) = (to.put(first)?, first.len());
                    bytes.drop_first(put);
                    left -= put;
                    Ok((put, put == all))
                })
            };
            let moved = match moved {
                Ok(moved) => moved,
                Err(error) if done == 0 => return Err(error),
                Err(_) => break,
            };
            cargo.who = record.who;
            let had_rights = record.rights.is_some();
            let rights = rights_of(&mut record.rights, peeks);
            self.parcels -= usize::from(had_rights && !peeks);
            done += moved;
            if peeks {
                at += 1;
            } else {
                record.len -= moved;
                if record.len == 0 {
                    self.records.pop_front();
                }
            }
            cargo.rights = rights?;
            if had_rights || moved < wanted {
                break;
            }
        }
        Ok((done, cargo))
    }

    /// Makes room for a message ([`Inbox::add_message`]).
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn make_room(&mut self) -> Result<(), Errno> {
        Ok(self.messages.try_reserve(1)?)
    }

    /// Adds a message, for which there is room.
    pub fn add_message(&mut self, message: Message) {
        self.message_bytes += message.bytes.len();
        self.parcels += usize::from(message.cargo.rights.is_some());
        self.messages.push_back(message);
    }

    /// Takes the first message, or copies it with `peeks`; `None`: there is none.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn take_message(&mut self, peeks: bool) -> Result<Option<Message>, Errno> {
        if peeks {
            let Some(first) = self.messages.front_mut() else { return Ok(None) };
            let rights = rights_of(&mut first.cargo.rights, true)?;
            let cargo = Cargo { rights, from: first.cargo.from.clone(), ..first.cargo };
            return Ok(Some(Message { bytes: copy_of(&first.bytes)?, cargo }));
        }
        let Some(first) = self.messages.pop_front() else { return Ok(None) };
        self.message_bytes -= first.bytes.len();
        self.parcels -= usize::from(first.cargo.rights.is_some());
        Ok(Some(first))
    }
}
