//! Sockets of one machine (`AF_UNIX`, unix(7)).
//!
//! What a socket sends goes straight to the inbox of the other one, which the sender's buffer size
//! limits. A socket refers to its peer weakly: the end of its file ends it, and its peer notices.
//! No task holds the locks of two sockets at once.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the socket, and its end |
//! | `name` | from a name to its socket |
//! | `inbox` | what arrived, and was not received yet |
//! | `connect` | connections |
//! | `transfer` | sending and receiving |
//! | `flight` | sockets that are only in inboxes: they are found, and closed |

mod connect;
mod flight;
mod inbox;
mod name;
#[cfg(test)]
mod tests;
mod transfer;

pub use connect::pair;

use super::address::{Address, Name};
use super::message::{Cargo, Identity, Message, Outgoing};
use super::{Common, Receive, Shut, Transport, Type};
use crate::errno::Errno;
use crate::fs::{Sink, Source};
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::any::Any;
use core::mem;
use inbox::Inbox;
use linux_raw_sys::general::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDHUP, POLLRDNORM, POLLWRBAND, POLLWRNORM};
use linux_raw_sys::net::AF_UNIX;
use spin::Mutex;

/// The most messages that wait at a socket for sockets to which it is not connected, less one
/// (`/proc/sys/net/unix/max_dgram_qlen`).
const MOST_MESSAGES: usize = 10;

/// A socket.
pub struct UnixSocket {
    common: Common,
    this: Weak<UnixSocket>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    name: Name,
    /// The connected socket, which may have ended.
    peer: Weak<UnixSocket>,
    /// The name of the peer when they were connected.
    peer_name: Name,
    /// The process at the other end; of a listening socket, the process that made it listen.
    identity: Option<Identity>,
    inbox: Inbox,
    shut: Shut,
    error: Option<Errno>,
    /// Sockets that found this one full: they are woken once it has room.
    senders: Vec<Weak<UnixSocket>>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Fresh,
    /// Another task is connecting it.
    Connecting,
    Connected,
    /// Connected, and no task has accepted it yet.
    Waiting,
    Listening {
        backlog: VecDeque<Arc<UnixSocket>>,
        most: usize,
    },
}

impl Phase {
    const fn is_connected(&self) -> bool {
        matches!(self, Phase::Connected | Phase::Waiting)
    }
}

impl State {
    /// Notes that `sender` waits until this socket has room. Without memory for the note, wakes it
    /// at once.
    fn note_sender(&mut self, sender: &Weak<UnixSocket>) {
        if self.senders.iter().any(|noted| noted.ptr_eq(sender)) {
            return;
        }
        match self.senders.try_reserve(1) {
            Ok(()) => self.senders.push(sender.clone()),
            Err(_) => wake(core::slice::from_ref(sender)),
        }
    }
}

/// Wakes the tasks that wait at these sockets.
fn wake(sockets: &[Weak<UnixSocket>]) {
    sockets.iter().filter_map(Weak::upgrade).for_each(|socket| socket.common.changed.wake_all());
}

impl UnixSocket {
    /// Returns a new socket.
    pub fn new(kind: Type) -> Arc<UnixSocket> {
        let common = Common::new(AF_UNIX as u16, kind, 0);
        Arc::new_cyclic(|this| UnixSocket { common, this: this.clone(), state: Mutex::default() })
    }

    /// Returns the socket to which this one is connected, if it has not ended.
    fn peer_socket(&self) -> Option<Arc<UnixSocket>> {
        self.state.lock().peer.upgrade()
    }

    /// Returns true if this socket may take a message of `sender`, or bytes of it. If not, the
    /// sender is woken once that has changed.
    fn has_room(&self, state: &mut State, sender: &UnixSocket) -> bool {
        let used = state.inbox.used();
        let full = if self.common.kind.is_connected() || state.peer.ptr_eq(&sender.this) {
            used >= sender.common.options.send_buffer()
        } else {
            state.inbox.messages() > MOST_MESSAGES
        };
        if full {
            state.note_sender(&sender.this);
        }
        !full
    }

    /// Wakes the tasks that wait for this socket to have room.
    fn wake_senders(&self, senders: Vec<Weak<UnixSocket>>) {
        wake(&senders);
        if let Some(peer) = self.peer_socket() {
            peer.common.changed.wake_all();
        }
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        let mut state = mem::take(self.state.get_mut());
        name::remove(&state.name, self);
        if self.common.kind.is_connected()
            && let Some(peer) = state.peer.upgrade()
        {
            let mut other = peer.state.lock();
            (other.shut.read, other.shut.write) = (true, true);
            if !state.inbox.is_empty() || matches!(state.phase, Phase::Waiting) {
                other.error = Some(Errno::ECONNRESET);
            }
            drop(other);
            peer.common.changed.wake_all();
        }
        wake(&state.senders);
        while state.inbox.has_rights() {
            let mut flight = flight::Flight::lock();
            let rights = state.inbox.take_rights();
            rights.iter().for_each(|rights| flight.land(rights));
            drop(flight);
        }
        drop(state);
        flight::collect();
    }
}

impl Transport for UnixSocket {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, address: &Address) -> Result<(), Errno> {
        let Address::Unix(name) = address else { return Err(Errno::EINVAL) };
        // The lock is held while the name is given, so that the socket gets one only.
        let mut state = self.state.lock();
        state.name = match name {
            Name::Unnamed if state.name.is_named() => return Ok(()),
            _ if state.name.is_named() => return Err(Errno::EINVAL),
            Name::Unnamed => name::insert_any(&self.this)?,
            _ => name::insert(name, &self.this).map(|()| name.clone())?,
        };
        Ok(())
    }

    fn listen(&self, backlog: u32, who: Identity) -> Result<(), Errno> {
        self.begin_to_listen(backlog as usize, who)
    }

    fn connect(self: Arc<Self>, to: &Address, who: Identity) -> Result<(), Errno> {
        match to {
            Address::Unspecified if self.common.kind == Type::Datagram => self.disconnect(),
            Address::Unix(name) if name.is_named() => self.connect_to(name, who)?,
            _ => return Err(Errno::EINVAL),
        }
        Ok(())
    }

    fn accept(&self) -> Result<Arc<dyn Transport>, Errno> {
        self.accept_one().map(|socket| socket as Arc<dyn Transport>)
    }

    fn shutdown(&self, how: Shut) -> Result<(), Errno> {
        let mut state = self.state.lock();
        state.shut.read |= how.read;
        state.shut.write |= how.write;
        let peer = if self.common.kind.is_connected() { state.peer.upgrade() } else { None };
        let senders = mem::take(&mut state.senders);
        drop(state);
        if let Some(peer) = peer {
            let mut other = peer.state.lock();
            other.shut.read |= how.write;
            other.shut.write |= how.read;
            drop(other);
            peer.common.changed.wake_all();
        }
        self.common.changed.wake_all();
        wake(&senders);
        Ok(())
    }

    fn name(&self) -> Address {
        Address::Unix(self.state.lock().name.clone())
    }

    fn peer(&self) -> Result<Address, Errno> {
        let state = self.state.lock();
        let at_connect = state.peer_name.clone();
        match (state.peer.upgrade(), &state.phase) {
            (Some(peer), _) => {
                drop(state);
                Ok(peer.name())
            }
            (None, Phase::Connected) => Ok(Address::Unix(at_connect)),
            _ => Err(Errno::ENOTCONN),
        }
    }

    fn peer_identity(&self) -> Option<Identity> {
        self.state.lock().identity
    }

    fn listens(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Listening { .. })
    }

    fn take_error(&self) -> Option<Errno> {
        self.state.lock().error.take()
    }

    fn send(&self, from: &mut dyn Source, with: &mut Outgoing<'_>) -> Result<usize, Errno> {
        self.send_bytes(from, with)
    }

    fn receive(&self, to: &mut dyn Sink, how: Receive) -> Result<(usize, Cargo), Errno> {
        self.receive_bytes(to, how)
    }

    fn send_message(self: Arc<Self>, bytes: &mut Vec<u8>, with: &mut Outgoing<'_>) -> Result<(), Errno> {
        self.send_one(bytes, with)
    }

    fn receive_message(&self, how: Receive) -> Result<Message, Errno> {
        self.receive_one(how)
    }

    fn ready(&self) -> u32 {
        let state = self.state.lock();
        let connected = self.common.kind.is_connected();
        let mut ready = 0;
        ready |= if state.error.is_some() { POLLERR } else { 0 };
        ready |= if state.shut.read && state.shut.write { POLLHUP } else { 0 };
        ready |= if state.shut.read { POLLRDHUP | POLLIN | POLLRDNORM } else { 0 };
        ready |= if state.inbox.is_empty() { 0 } else { POLLIN | POLLRDNORM };
        let writable = match &state.phase {
            Phase::Listening { backlog, .. } => {
                ready |= if backlog.is_empty() { 0 } else { POLLIN | POLLRDNORM };
                false
            }
            Phase::Fresh | Phase::Connecting if connected => {
                ready |= POLLHUP;
                true
            }
            _ => true,
        };
        let peer = state.peer.upgrade();
        drop(state);
        let has_room = |peer: &Arc<UnixSocket>| {
            let mut other = peer.state.lock();
            if connected && other.inbox.used() * 4 > self.common.options.send_buffer() {
                other.note_sender(&self.this);
                return false;
            }
            peer.has_room(&mut other, self)
        };
        if writable && peer.as_ref().is_none_or(has_room) {
            ready |= POLLOUT | POLLWRNORM | POLLWRBAND;
        }
        ready
    }

    fn unread(&self) -> Result<u64, Errno> {
        let state = self.state.lock();
        if matches!(state.phase, Phase::Listening { .. }) {
            Err(Errno::EINVAL)
        } else {
            Ok(state.inbox.next_len() as u64)
        }
    }

    fn unsent(&self) -> Result<u64, Errno> {
        let state = self.state.lock();
        if matches!(state.phase, Phase::Listening { .. }) {
            return Err(Errno::EINVAL);
        }
        let peer = state.peer.upgrade();
        drop(state);
        Ok(peer.map_or(0, |peer| peer.state.lock().inbox.len() as u64))
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
