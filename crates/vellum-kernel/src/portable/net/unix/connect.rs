//! Connections: pairs, and sockets that listen.

use super::name;
use super::{Phase, UnixSocket, wake};
use crate::errno::Errno;
use crate::net::Type;
use crate::net::address::Name;
use crate::net::message::Identity;
use alloc::collections::VecDeque;
use alloc::sync::{Arc, Weak};
use core::mem;

/// Returns two new sockets that are connected to each other (`socketpair`).
pub fn pair(kind: Type, who: Identity) -> [Arc<UnixSocket>; 2] {
    let both = [UnixSocket::new(kind), UnixSocket::new(kind)];
    for (socket, peer) in [(&both[0], &both[1]), (&both[1], &both[0])] {
        let mut state = socket.state.lock();
        (state.phase, state.peer, state.identity) = (Phase::Connected, peer.this.clone(), Some(who));
    }
    both
}

impl UnixSocket {
    /// Implements `listen`.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: not of such a type. `EINVAL`: it has no name, or is connected.
    pub(super) fn begin_to_listen(&self, most: usize, who: Identity) -> Result<(), Errno> {
        if !self.common.kind.is_connected() {
            return Err(Errno::EOPNOTSUPP);
        }
        let mut state = self.state.lock();
        if !state.name.is_named() {
            return Err(Errno::EINVAL);
        }
        let senders = match &mut state.phase {
            Phase::Listening { most: now, .. } => {
                *now = most;
                mem::take(&mut state.senders)
            }
            Phase::Fresh => {
                state.phase = Phase::Listening { backlog: VecDeque::new(), most };
                Default::default()
            }
            _ => return Err(Errno::EINVAL),
        };
        state.identity = Some(who);
        drop(state);
        wake(&senders);
        Ok(())
    }

    /// Connects to the socket with a name. A socket without messages is connected to a new socket,
    /// which then waits in the backlog of the one with the name.
    ///
    /// # Errors
    /// `EAGAIN`: its backlog is full. `ECONNREFUSED`, `EPROTOTYPE`, `EISCONN`, `EINVAL`, `EPERM`,
    /// `ENOMEM`.
    pub(super) fn connect_to(&self, to: &Name, who: Identity) -> Result<(), Errno> {
        let other = name::find(to)?;
        if other.common.kind != self.common.kind {
            return Err(Errno::EPROTOTYPE);
        }
        if self.common.kind == Type::Datagram {
            return self.connect_messages(&other);
        }
        let own = {
            let mut state = self.state.lock();
            match state.phase {
                Phase::Fresh => state.phase = Phase::Connecting,
                Phase::Connected | Phase::Waiting => return Err(Errno::EISCONN),
                Phase::Connecting | Phase::Listening { .. } => return Err(Errno::EINVAL),
            }
            state.name.clone()
        };
        let connected = self.join(&other, own, who);
        let mut state = self.state.lock();
        match connected {
            Ok(_) => state.phase = Phase::Connected,
            Err(_) => (state.phase, state.peer) = (Phase::Fresh, Weak::new()),
        }
        drop(state);
        connected.map(|()| other.common.changed.wake_all())
    }

    /// Adds a new socket, the peer of this one, to a backlog.
    fn join(&self, listener: &Arc<UnixSocket>, own: Name, who: Identity) -> Result<(), Errno> {
        let new = UnixSocket::new(self.common.kind);
        new.common.options.copy(&listener.common.options);
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
        let (name, identity) = (state.name.clone(), state.identity);
        drop(state);
        {
            let mut mine = self.state.lock();
            (mine.peer, mine.peer_name, mine.identity) = (new.this.clone(), name.clone(), identity);
            // What ended an earlier connection does not end this one.
            (mine.shut, mine.error) = Default::default();
        }
        {
            let mut theirs = new.state.lock();
            (theirs.phase, theirs.peer, theirs.peer_name) = (Phase::Waiting, self.this.clone(), own);
            (theirs.name, theirs.identity) = (name, Some(who));
        }
        let mut state = listener.state.lock();
        let Phase::Listening { backlog, .. } = &mut state.phase else { return Err(Errno::ECONNREFUSED) };
        backlog.try_reserve(1)?;
        backlog.push_back(new);
        Ok(())
    }

    /// Connects a socket of messages: to its peer go those that it sends without an address, and
    /// from it alone it receives.
    fn connect_messages(&self, other: &Arc<UnixSocket>) -> Result<(), Errno> {
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

    /// Ends the connection of a socket of messages.
    pub(super) fn disconnect(&self) {
        let mut state = self.state.lock();
        (state.phase, state.peer, state.peer_name) = Default::default();
    }

    /// Takes a socket out of the backlog.
    ///
    /// # Errors
    /// `EAGAIN`: it is empty. `EINVAL`: the socket does not listen, or was shut down. `EOPNOTSUPP`.
    pub(super) fn accept_one(&self) -> Result<Arc<UnixSocket>, Errno> {
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
