//! Sending and receiving.

use super::flight::Flight;
use super::{Endpoint, Phase, State};
use crate::errno::Errno;
use crate::fs::io::in_pieces;
use crate::fs::{Sink, Source};
use crate::net::address::Address;
use crate::net::message::{Cargo, Message, Outgoing};
use crate::net::packet::{self, Packet};
use crate::net::{Receive, Type};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::mem;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use linux_raw_sys::net::{self, SO_PASSCRED};
use spin::MutexGuard;

/// The bytes of a send buffer that a message can't use (Linux: `unix_dgram_sendmsg`).
const RESERVED: usize = 32;

/// Calls `send`, and counts the descriptors that it puts into an inbox.
///
/// # Errors
/// `ETOOMANYREFS`, `ENOMEM`; those of `send`.
fn in_flight<T>(with: &mut Outgoing<'_>, send: impl FnOnce(&mut Outgoing<'_>) -> Result<T, Errno>) -> Result<T, Errno> {
    let Some(rights) = &with.rights else { return send(with) };
    let mut flight = Flight::lock();
    flight.take_off(rights)?;
    let sent = send(with);
    if let Some(unsent) = &with.rights {
        flight.land(unsent);
    }
    sent
}

impl Endpoint {
    /// Checks that this end may send: it has no error to report, and was not shut down.
    fn may_send(state: &mut State) -> Result<(), Errno> {
        match state.error.take() {
            Some(error) => Err(error),
            None if state.shut.write => Err(Errno::EPIPE),
            None => Ok(()),
        }
    }

    /// Implements [`crate::net::Transport::send`].
    pub(super) fn send_bytes(&self, from: &mut dyn Source, with: &mut Outgoing<'_>) -> Result<usize, Errno> {
        self.go_on();
        let mut state = self.state.lock();
        let connected = state.phase.is_connected();
        match with.to {
            Some(_) if self.rules.has_identities => {
                return Err(if connected { Errno::EISCONN } else { Errno::EOPNOTSUPP });
            }
            _ if matches!(state.phase, Phase::Pending(_)) => return Err(Errno::EAGAIN),
            _ if !connected => return Err(state.error.take().unwrap_or(self.rules.unconnected_send)),
            _ => Self::may_send(&mut state)?,
        }
        let Some(peer) = state.peer.upgrade() else {
            if self.rules.tells_read_end {
                return Err(Errno::EPIPE);
            }
            // The peer has ended: the bytes get lost, and its answer resets this end.
            (state.shut.read, state.shut.write, state.error) = (true, true, Some(Errno::EPIPE));
            drop(state);
            self.common.changed.wake_all();
            let mut lost = [0; 256];
            return in_pieces(|| from.take(&mut lost).map(|taken| (taken, taken > 0)));
        };
        drop(state);
        if from.left() == 0 {
            return Ok(0);
        }
        let sent = in_flight(with, |with| {
            let mut other = peer.state.lock();
            if other.shut.read && self.rules.tells_read_end {
                return Err(Errno::EPIPE);
            }
            if !peer.has_room(&mut other, self) {
                return Err(Errno::EAGAIN);
            }
            let room = self.common.options.send_buffer() - other.inbox.used();
            other.inbox.add(from, room, with.who, &mut with.rights)
        })?;
        peer.common.changed.wake_all();
        Ok(sent)
    }

    /// Locks the state to receive. A message with descriptors is taken only with the lock of those
    /// in flight, which comes first.
    fn lock_to_receive(&self) -> (Option<Flight>, MutexGuard<'_, State>) {
        let state = self.state.lock();
        if !state.inbox.has_rights() {
            return (None, state);
        }
        drop(state);
        (Some(Flight::lock()), self.state.lock())
    }

    /// Returns what a call finds where nothing has arrived: `Ok` at the end of the connection.
    fn nothing(&self, state: &mut State) -> Result<(), Errno> {
        if state.finished {
            return Ok(());
        }
        match state.error.take() {
            Some(error) => Err(error),
            None if state.shut.read => Ok(()),
            None if state.phase.is_connected() || matches!(state.phase, Phase::Pending(_)) => Err(Errno::EAGAIN),
            None => Err(self.rules.unconnected_receive),
        }
    }

    /// Implements [`crate::net::Transport::receive`].
    pub(super) fn receive_bytes(&self, to: &mut dyn Sink, how: Receive) -> Result<(usize, Cargo), Errno> {
        self.go_on();
        let one_sender = self.common.options.is_on(SO_PASSCRED);
        let (mut flight, mut state) = self.lock_to_receive();
        if state.inbox.is_empty() {
            return self.nothing(&mut state).map(|()| Default::default());
        }
        let from = Some(state.peer_name.clone()).filter(|from| self.rules.has_identities && from.is_named());
        let (count, mut cargo) = state.inbox.take(to, how.peeks, one_sender)?;
        cargo.from = from;
        let senders = if how.peeks { Vec::new() } else { mem::take(&mut state.senders) };
        drop(state);
        if let (Some(rights), Some(flight), false) = (&cargo.rights, &mut flight, how.peeks) {
            flight.land(rights);
        }
        drop(flight);
        if !how.peeks {
            self.wake_senders(senders);
        }
        Ok((count, cargo))
    }

    /// Returns the socket to which a message goes, from the address `own`.
    fn target(&self, with: &Outgoing<'_>, own: &Address) -> Result<Arc<Endpoint>, Errno> {
        if matches!(with.to, Some(Address::Unspecified)) {
            return Err(Errno::EINVAL);
        }
        if let Some(to) = with.to.filter(|_| self.common.kind == Type::Datagram) {
            let target = self.find(to, own)?;
            return if target.common.kind == self.common.kind { Ok(target) } else { Err(Errno::EPROTOTYPE) };
        }
        let state = self.state.lock();
        match state.peer.upgrade() {
            Some(peer) => Ok(peer),
            None if !state.phase.is_connected() => Err(self.rules.unconnected_send),
            None if !self.rules.has_identities => {
                let to = state.peer_name.clone();
                drop(state);
                self.find(&to, own)
            }
            None if self.common.kind == Type::Datagram => {
                drop(state);
                self.disconnect()?;
                Err(Errno::ECONNREFUSED)
            }
            None => Err(Errno::EPIPE),
        }
    }

    /// Returns the header of a packet; `None` if the socket has no packets.
    fn packet(&self, with: &Outgoing<'_>) -> Option<Packet> {
        let to = match with.to.cloned().unwrap_or_else(|| self.state.lock().peer_name.clone()) {
            Address::Inet(to) => to.ip(),
            _ => return None,
        };
        let (level, hops, class) = match to {
            IpAddr::V4(_) => (packet::IP, net::IP_TTL, net::IP_TOS),
            IpAddr::V6(_) => (packet::IPV6, net::IPV6_UNICAST_HOPS, net::IPV6_TCLASS),
        };
        // A packet to no address goes to the machine itself.
        let to = match to {
            IpAddr::V4(v4) if v4.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(v6) if v6.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            to => to,
        };
        // −1 stands for the usual number.
        let hops = u8::try_from(self.levels.value(level, hops)).unwrap_or(64);
        let class = self.levels.value(level, class) as u8;
        Some(Packet { to, hops: with.header.hops.unwrap_or(hops), class: with.header.class.unwrap_or(class) })
    }

    /// Implements [`crate::net::Transport::send_message`].
    pub(super) fn send_one(&self, bytes: &mut Vec<u8>, with: &mut Outgoing<'_>) -> Result<(), Errno> {
        let (own, connected) = {
            let mut state = self.state.lock();
            if !(self.common.kind == Type::Datagram || state.phase.is_connected()) {
                return Err(Errno::ENOTCONN);
            }
            Self::may_send(&mut state)?;
            self.bind_itself(&mut state, with.who)?;
            (state.name.clone(), state.phase.is_connected())
        };
        if bytes.len() > self.rules.longest.min(self.common.options.send_buffer() - RESERVED) {
            return Err(Errno::EMSGSIZE);
        }
        let target = match self.target(with, &own) {
            // A socket of another machine would say so later, and to a connected one alone.
            Err(Errno::ECONNREFUSED) if !self.rules.waits_for_room => {
                let refused = (connected && with.to.is_none()).then_some(Errno::ECONNREFUSED);
                self.state.lock().error = refused;
                return Ok(());
            }
            target => target?,
        };
        // The receiver sees the address by which it can answer.
        let from = match with.to {
            Some(to) => Endpoint::ends(&own, to).0,
            None => own,
        };
        let packet = self.packet(with);
        in_flight(with, |with| {
            let mut other = target.state.lock();
            if self.rules.has_identities && other.peer.strong_count() > 0 && !other.peer.ptr_eq(&self.this) {
                return Err(Errno::EPERM);
            }
            if other.shut.read && self.rules.waits_for_room {
                return Err(Errno::EPIPE);
            }
            if !target.has_room(&mut other, self) {
                return if self.rules.waits_for_room { Err(Errno::EAGAIN) } else { Ok(()) };
            }
            other.inbox.make_room()?;
            let cargo =
                Cargo { who: with.who, rights: with.rights.take(), from: Some(from).filter(Address::is_named), packet };
            other.inbox.add_message(Message { bytes: mem::take(bytes), cargo });
            Ok(())
        })?;
        target.common.changed.wake_all();
        Ok(())
    }

    /// Implements [`crate::net::Transport::receive_message`].
    pub(super) fn receive_one(&self, how: Receive) -> Result<Message, Errno> {
        let (mut flight, mut state) = self.lock_to_receive();
        let Some(message) = state.inbox.take_message(how.peeks)? else {
            return self.nothing(&mut state).map(|()| Message::default());
        };
        let senders = if how.peeks { Vec::new() } else { mem::take(&mut state.senders) };
        drop(state);
        if let (Some(rights), Some(flight), false) = (&message.cargo.rights, &mut flight, how.peeks) {
            flight.land(rights);
        }
        drop(flight);
        if !how.peeks {
            self.wake_senders(senders);
        }
        Ok(message)
    }
}
