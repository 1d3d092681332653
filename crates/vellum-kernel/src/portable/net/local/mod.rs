//! Sockets of one machine: `AF_UNIX` (unix(7)), and TCP and UDP over IPv4 and IPv6 as far as they
//! lead to the machine itself, which has no other network.
//!
//! A socket puts its bytes straight into the inbox of the other one. A socket refers to its peer
//! weakly: the end of its file ends it, and its peer notices. No task holds the locks of two
//! sockets at once, but for the one that `flight` names.
//!
//! | file | subject |
//! |---|---|
//! | `mod` | the socket, and its end |
//! | `rules` | the differences between domains and types |
//! | `names` | addresses: binding, and finding |
//! | `paths`, `ports` | from an address to its socket |
//! | `inbox` | bytes and messages that no call has received yet |
//! | `connect` | connections |
//! | `transfer` | sending and receiving |
//! | `options` | options of TCP and IP |
//! | `flight` | sockets that are only in inboxes: they are found, and closed |

mod connect;
mod flight;
mod inbox;
mod names;
mod options;
mod paths;
mod ports;
mod rules;
#[cfg(test)]
mod tests;
mod transfer;

pub use connect::pair;

use super::address::Address;
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
use options::Levels;
use rules::{Rules, rules_of};
use spin::Mutex;

/// The most messages that wait at a socket for sockets to which it is not connected, less one
/// (`/proc/sys/net/unix/max_dgram_qlen`).
const MOST_MESSAGES: usize = 10;

/// A socket.
pub struct Endpoint {
    common: Common,
    rules: &'static Rules,
    levels: Levels,
    this: Weak<Endpoint>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    phase: Phase,
    name: Address,
    /// The connected socket, which may have ended.
    peer: Weak<Endpoint>,
    /// The name of the peer when they were connected.
    peer_name: Address,
    /// The process at the other end; of a listening socket, the process that made it listen.
    identity: Option<Identity>,
    inbox: Inbox,
    shut: Shut,
    /// The peer has ended its direction of a TCP connection (Linux: `SOCK_DONE`). Calls that
    /// receive then find the end of the stream, whatever error is pending.
    finished: bool,
    error: Option<Errno>,
    /// The next call that connects finds that the connection is made: one before it did not wait.
    says_connected: bool,
    /// Sockets that found this one full: they are woken once it has room.
    senders: Vec<Weak<Endpoint>>,
}

#[derive(Default)]
enum Phase {
    #[default]
    Fresh,
    /// Another task is connecting it.
    Connecting,
    /// It is connected as soon as the backlog of the socket with this address has room.
    Pending(Address),
    Connected,
    /// Connected, and no task has accepted it yet.
    Waiting,
    Listening {
        backlog: VecDeque<Arc<Endpoint>>,
        most: usize,
    },
}

impl Phase {
    const fn is_connected(&self) -> bool {
        matches!(self, Phase::Connected | Phase::Waiting)
    }
}

impl State {
    /// The peer sends nothing more.
    fn finish(&mut self, rules: &Rules) {
        self.shut.read = true;
        self.finished |= !rules.has_identities;
    }

    /// The peer has reset the connection. The error says whether it had ended its direction before.
    fn reset(&mut self) {
        self.shut = Shut { read: true, write: true };
        self.error = Some(if self.finished { Errno::EPIPE } else { Errno::ECONNRESET });
    }

    /// Notes that `sender` waits until this socket has room. Without memory for the note, wakes it
    /// at once.
    fn note_sender(&mut self, sender: &Weak<Endpoint>) {
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
fn wake(sockets: &[Weak<Endpoint>]) {
    sockets.iter().filter_map(Weak::upgrade).for_each(|socket| socket.common.changed.wake_all());
}

impl Endpoint {
    /// Returns a new socket.
    pub fn new(domain: u16, kind: Type, protocol: u16) -> Arc<Endpoint> {
        let rules = rules_of(domain, kind);
        let common = Common::new(domain, kind, protocol);
        if let Some([send, receive]) = rules.buffers {
            common.options.set_buffers(send, receive);
        }
        let state = State { name: Address::none(domain), ..Default::default() };
        Arc::new_cyclic(|this| Endpoint {
            common,
            rules,
            levels: Levels::default(),
            this: this.clone(),
            state: Mutex::new(state),
        })
    }

    /// Returns the socket to which this one is connected, if it has not ended.
    fn peer_socket(&self) -> Option<Arc<Endpoint>> {
        self.state.lock().peer.upgrade()
    }

    /// Returns true if this socket may take a message of `sender`, or bytes of it. If not, the
    /// sender is woken once that has changed.
    fn has_room(&self, state: &mut State, sender: &Endpoint) -> bool {
        let used = state.inbox.used();
        let full = if !self.rules.waits_for_room {
            used >= self.common.options.receive_buffer()
        } else if self.common.kind.is_connected() || state.peer.ptr_eq(&sender.this) {
            used >= sender.common.options.send_buffer()
        } else {
            state.inbox.messages() > MOST_MESSAGES
        };
        if full && self.rules.waits_for_room {
            state.note_sender(&sender.this);
        }
        !full
    }

    /// Wakes the tasks that wait for this socket to have room.
    fn wake_senders(&self, senders: Vec<Weak<Endpoint>>) {
        wake(&senders);
        if let Some(peer) = self.peer_socket() {
            peer.common.changed.wake_all();
        }
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        let mut state = mem::take(self.state.get_mut());
        self.unbind(&state.name);
        if self.common.kind.is_connected()
            && let Some(peer) = state.peer.upgrade()
        {
            let resets = !state.inbox.is_empty()
                || matches!(state.phase, Phase::Waiting)
                || self.common.options.linger() == Some(0) && !self.rules.has_identities;
            let mut other = peer.state.lock();
            if resets {
                other.reset();
            } else {
                other.finish(self.rules);
                other.shut.write |= self.rules.tells_read_end;
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

impl Transport for Endpoint {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, address: &Address, who: Identity) -> Result<(), Errno> {
        // The lock is held while the address is given, so that the socket gets one only.
        let mut state = self.state.lock();
        match address {
            Address::Unix(super::address::Name::Unnamed) if state.name.is_named() => return Ok(()),
            _ if state.name.is_named() || !matches!(state.phase, Phase::Fresh) => return Err(Errno::EINVAL),
            _ => {}
        }
        state.name = self.name_it(address, who)?;
        Ok(())
    }

    fn listen(&self, backlog: u32, who: Identity) -> Result<(), Errno> {
        self.begin_to_listen(backlog as usize, who)
    }

    fn connect(self: Arc<Self>, to: &Address, who: Identity, waits: bool) -> Result<(), Errno> {
        match to {
            Address::Unspecified => self.disconnect(),
            _ if to.is_named() => self.connect_to(to, who, waits),
            Address::Unix(_) | Address::Netlink { .. } => Err(Errno::EINVAL),
            Address::Inet(_) => Err(Errno::ECONNREFUSED),
        }
    }

    fn accept(&self) -> Result<Arc<dyn Transport>, Errno> {
        self.accept_one().map(|socket| socket as Arc<dyn Transport>)
    }

    fn shutdown(&self, how: Shut) -> Result<(), Errno> {
        let mut state = self.state.lock();
        // The error does not keep the directions open, so that tasks that receive are woken.
        let unconnected = !self.rules.has_identities && matches!(state.phase, Phase::Fresh);
        state.shut.read |= how.read;
        state.shut.write |= how.write;
        let peer = if self.common.kind.is_connected() { state.peer.upgrade() } else { None };
        let senders = mem::take(&mut state.senders);
        drop(state);
        if let Some(peer) = peer {
            let mut other = peer.state.lock();
            if how.write {
                other.finish(self.rules);
            }
            other.shut.write |= how.read && self.rules.tells_read_end;
            drop(other);
            peer.common.changed.wake_all();
        }
        self.common.changed.wake_all();
        wake(&senders);
        if unconnected { Err(Errno::ENOTCONN) } else { Ok(()) }
    }

    fn name(&self) -> Address {
        self.state.lock().name.clone()
    }

    fn peer(&self) -> Result<Address, Errno> {
        let state = self.state.lock();
        let at_connect = state.peer_name.clone();
        match (state.peer.upgrade(), &state.phase) {
            (Some(peer), _) if self.rules.has_identities => {
                drop(state);
                Ok(peer.name())
            }
            (_, Phase::Connected | Phase::Waiting) => Ok(at_connect),
            _ => Err(Errno::ENOTCONN),
        }
    }

    fn peer_identity(&self) -> Option<Identity> {
        self.state.lock().identity.filter(|_| self.rules.has_identities)
    }

    fn listens(&self) -> bool {
        matches!(self.state.lock().phase, Phase::Listening { .. })
    }

    fn take_error(&self) -> Option<Errno> {
        self.go_on();
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
        self.go_on();
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
            Phase::Pending(_) => false,
            Phase::Fresh | Phase::Connecting if connected => {
                ready |= POLLHUP;
                true
            }
            _ => true,
        };
        let peer = state.peer.upgrade().filter(|_| self.rules.waits_for_room);
        drop(state);
        let has_room = |peer: &Arc<Endpoint>| {
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
            return Err(Errno::EINVAL);
        }
        Ok(state.inbox.next_len() as u64)
    }

    fn unsent(&self) -> Result<u64, Errno> {
        let state = self.state.lock();
        if matches!(state.phase, Phase::Listening { .. }) {
            return Err(Errno::EINVAL);
        }
        let peer = state.peer.upgrade().filter(|_| self.rules.waits_for_room);
        drop(state);
        Ok(peer.map_or(0, |peer| peer.state.lock().inbox.len() as u64))
    }

    fn option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        self.levels.get(&self.common, level, name)
    }

    fn is_on(&self, level: u32, name: u32) -> bool {
        self.levels.value(level, name) != 0
    }

    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        self.levels.set(&self.common, level, name, value)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
