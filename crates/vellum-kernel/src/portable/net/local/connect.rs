//! Connections: pairs, and sockets that listen.

use super::{Endpoint, Phase, State, ports, wake};
use crate::errno::Errno;
use crate::net::Type;
use crate::net::address::{Address, UNIX};
use crate::net::message::Identity;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::mem;

/// Returns two new sockets that are connected to each other (`socketpair`).
pub fn pair(kind: Type, who: Identity) -> [Arc<Endpoint>; 2] {
    let both = [Endpoint::new(UNIX, kind, 0), Endpoint::new(UNIX, kind, 0)];
    for (socket, peer) in [(&both[0], &both[1]), (&both[1], &both[0])] {
        let mut state = socket.state.lock();
        (state.phase, state.peer, state.identity) = (Phase::Connected, peer.this.clone(), Some(who));
    }
    both
}

impl Endpoint {
    /// Gives the socket an address if it has none and its domain does so.
    pub(super) fn bind_itself(&self, state: &mut State, who: Identity) -> Result<(), Errno> {
        if self.rules.binds_itself && !state.name.is_named() {
            let any = state.name.clone();
            state.name = self.name_it(&any, who).map_err(|error| match error {
                Errno::EADDRINUSE => Errno::EADDRNOTAVAIL,
                other => other,
            })?;
        }
        Ok(())
    }

    /// Implements `listen`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: not of such a type. `EINVAL`: it has no name, or is connected. `EADDRINUSE`.
    pub(super) fn begin_to_listen(&self, most: usize, who: Identity) -> Result<(), Errno> {
        if !self.common.kind.is_connected() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        let senders = match &mut state.phase {
            Phase::Listening { most: now, .. } => {
                *now = most;
                mem::take(&mut state.senders)
            }
            Phase::Fresh => {
                self.bind_itself(&mut state, who)?;
                match &state.name {
                    Address::Inet(at) => ports::listen(*at, self)?,
                    name if !name.is_named() => return Err(Errno::EINVAL),
                    _ => {}
                }
                state.phase = Phase::Listening { backlog: VecDeque::new(), most };
                state.shut = Default::default();
                Default::default()
            }
            _ => return Err(Errno::EINVAL),
        };
        state.identity = Some(who);
        drop(state);
        wake(&senders);
        Ok(())
    }

    /// Connects to the socket with an address. A socket of a stream is connected to a new socket,
    /// which then waits in the backlog of the one with the address. `waits`: the caller waits for
    /// the connection.
    ///
    /// # Errors
    /// `EAGAIN`: its backlog is full. `EINPROGRESS`: the connection is made, or will be as soon as
    /// the backlog has room. `EALREADY`, `ECONNREFUSED`, `EPROTOTYPE`, `EISCONN`, `EINVAL`,
    /// `EPERM`, `ENETUNREACH`, `EADDRNOTAVAIL`, `ENOMEM`.
    pub(super) fn connect_to(&self, to: &Address, who: Identity, waits: bool) -> Result<(), Errno> {
        if self.common.kind == Type::Datagram {
            return self.connect_messages(to, who);
        }
        self.go_on();
        let own = {
            let mut state = self.state.lock();
            let says_connected = mem::take(&mut state.says_connected);
            match &state.phase {
                Phase::Fresh => {}
                Phase::Pending(_) => return Err(if waits { Errno::EAGAIN } else { Errno::EALREADY }),
                Phase::Connected | Phase::Waiting if says_connected => return Ok(()),
                Phase::Connected | Phase::Waiting => return Err(Errno::EISCONN),
                Phase::Connecting => return Err(Errno::EALREADY),
                Phase::Listening { .. } if self.rules.has_identities => return Err(Errno::EINVAL),
                Phase::Listening { .. } => return Err(Errno::EISCONN),
            }
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            self.bind_itself(&mut state, who)?;
            state.phase = Phase::Connecting;
            state.name.clone()
        };
        let later = self.rules.connects_later && !waits;
        match self.join(to, own, who) {
            Ok(()) if later => {
                self.state.lock().says_connected = true;
                Err(Errno::EINPROGRESS)
            }
            Err(Errno::EAGAIN) if later => {
                let mut state = self.state.lock();
                (state.phase, state.identity) = (Phase::Pending(to.clone()), Some(who));
                Err(Errno::EINPROGRESS)
            }
            Err(Errno::ECONNREFUSED) if later => {
                self.state.lock().error = Some(Errno::ECONNREFUSED);
                self.common.changed.wake_all();
                Err(Errno::EINPROGRESS)
            }
            joined => joined,
        }
    }

    /// Goes on to connect a socket whose connection waited for room in a backlog.
    pub(super) fn go_on(&self) {
        let mut state = self.state.lock();
        let Phase::Pending(to) = &state.phase else { return };
        let (to, own, who) = (to.clone(), state.name.clone(), state.identity.unwrap_or_default());
        state.phase = Phase::Connecting;
        drop(state);
        match self.join(&to, own, who) {
            Ok(()) => self.state.lock().says_connected = true,
            Err(Errno::EAGAIN) => {
                let mut state = self.state.lock();
                (state.phase, state.identity) = (Phase::Pending(to), Some(who));
            }
            Err(error) => self.state.lock().error = Some(error),
        }
    }

    /// Connects a socket that is [`Phase::Connecting`], or makes it fresh again.
    fn join(&self, to: &Address, own: Address, who: Identity) -> Result<(), Errno> {
        let joined = self.find(to, &own).and_then(|other| {
            if other.common.kind != self.common.kind {
                return Err(Errno::EPROTOTYPE);
            }
            self.enter_backlog(&other, to, own, who).map(|()| other)
        });
        let mut state = self.state.lock();
        match joined {
            Ok(other) => {
                state.phase = Phase::Connected;
                drop(state);
                other.common.changed.wake_all();
                Ok(())
            }
            Err(error) => {
                (state.phase, state.peer) = (Phase::Fresh, Weak::new());
                Err(error)
            }
        }
    }

    /// Adds a new socket, the peer of this one, to a backlog.
    fn enter_backlog(&self, listener: &Arc<Endpoint>, to: &Address, own: Address, who: Identity) -> Result<(), Errno> {
        let new = Endpoint::new(listener.common.domain, self.common.kind, listener.common.protocol);
        new.common.options.copy(&listener.common.options);
        new.levels.copy(&listener.levels);
        let mut state = listener.state.lock();
        let full = match &mut state.phase {
            Phase::Listening { backlog, most } => {
                backlog.try_reserve(1)?;
                backlog.len() > *most
            }
            _ => return Err(Errno::ECONNREFUSED),
        };
        if state.shut.read {
            return Err(Errno::ECONNREFUSED);
        }
        if full {
            state.note_sender(&self.this);
            return Err(Errno::EAGAIN);
        }
        let identity = state.identity;
        let (mine, theirs) = match Endpoint::ends(&own, to) {
            // The path by which a socket was found is not its name: that is what it was bound to.
            (own, Address::Unix(_)) => (own, state.name.clone()),
            ends => ends,
        };
        drop(state);
        {
            let mut state = self.state.lock();
            (state.peer, state.peer_name, state.identity) = (new.this.clone(), theirs.clone(), identity);
            // What ended an earlier connection does not end this one.
            (state.name, state.shut, state.error) = (mine.clone(), Default::default(), None);
        }
        {
            let mut state = new.state.lock();
            (state.phase, state.peer, state.peer_name) = (Phase::Waiting, self.this.clone(), mine);
            (state.name, state.identity) = (theirs, Some(who));
        }
        let mut state = listener.state.lock();
        let Phase::Listening { backlog, .. } = &mut state.phase else { return Err(Errno::ECONNREFUSED) };
        backlog.try_reserve(1)?;
        backlog.push_back(new);
        Ok(())
    }

    /// Connects a socket of messages: to its peer go those that it sends without an address, and
    /// from it alone it receives.
    fn connect_messages(&self, to: &Address, who: Identity) -> Result<(), Errno> {
        let mut state = self.state.lock();
        self.bind_itself(&mut state, who)?;
        let (own, peer) = Endpoint::ends(&state.name, to);
        if let (Address::Inet(before), Address::Inet(at), Address::Inet(from)) = (&state.name, &own, &peer) {
            if !ports::is_own(from.ip()) {
                return Err(Errno::ENETUNREACH);
            }
            ports::connect(*before, *at, Some(*from), self);
            (state.phase, state.peer_name, state.name) = (Phase::Connected, peer, own);
            return Ok(());
        }
        drop(state);
        let other = self.find(to, &own)?;
        if other.common.kind != self.common.kind {
            return Err(Errno::EPROTOTYPE);
        }
        let (theirs, name) = {
            let other = other.state.lock();
            (other.peer.clone(), other.name.clone())
        };
        if theirs.strong_count() > 0 && !theirs.ptr_eq(&self.this) {
            return Err(Errno::EPERM);
        }
        let mut state = self.state.lock();
        (state.phase, state.peer, state.peer_name) = (Phase::Connected, other.this.clone(), name);
        Ok(())
    }

    /// Ends the connection (`connect` to no address). A stream of `AF_UNIX` can't do that.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(super) fn disconnect(&self) -> Result<(), Errno> {
        if self.common.kind.is_connected() && self.rules.has_identities {
            return Err(Errno::EINVAL);
        }
        let mut state = self.state.lock();
        let peer = mem::take(&mut state.peer).upgrade().filter(|_| self.common.kind.is_connected());
        (state.phase, state.peer_name, state.shut, state.finished) = Default::default();
        if let (Address::Inet(at), false) = (&state.name, self.common.kind.is_connected()) {
            ports::connect(*at, *at, None, self);
        }
        drop(state);
        if let Some(peer) = peer {
            let mut other = peer.state.lock();
            other.reset();
            drop(other);
            peer.common.changed.wake_all();
        }
        Ok(())
    }

    /// Takes a socket out of the backlog.
    ///
    /// # Errors
    /// `EAGAIN`: it is empty. `EINVAL`: the socket does not listen, or was shut down. `EOPNOTSUPP`.
    pub(super) fn accept_one(&self) -> Result<Arc<Endpoint>, Errno> {
        if !self.common.kind.is_connected() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        let shut = state.shut.read;
        let Phase::Listening { backlog, .. } = &mut state.phase else { return Err(Errno::EINVAL) };
        let Some(socket) = backlog.pop_front() else {
            return Err(if shut { Errno::EINVAL } else { Errno::EAGAIN });
        };
        let senders = mem::take(&mut state.senders);
        drop(state);
        wake(&senders);
        socket.state.lock().phase = Phase::Connected;
        Ok(socket)
    }
}
