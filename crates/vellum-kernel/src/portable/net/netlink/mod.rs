//! Sockets of the domain `AF_NETLINK` (netlink(7)), of the protocol `NETLINK_ROUTE` alone: requests
//! for the machine's network interfaces, their addresses, and routes.
//!
//! A request is answered while it is sent; the answers wait in the socket until they are received.

mod message;
mod route;

use super::address::{Address, NETLINK};
use super::message::{Cargo, Identity, Message, Outgoing};
use super::{Common, Receive, Shut, Transport, Type};
use crate::errno::Errno;
use crate::fs::bytes::copy_of;
use crate::fs::{Sink, Source};
use alloc::collections::{BTreeSet, VecDeque};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use linux_raw_sys::general::{POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};
use spin::Mutex;

/// The level of the domain's own options (`SOL_NETLINK`).
const LEVEL: u32 = 270;
/// The numbers of options of that level are below this.
const OPTIONS: u32 = 16;

/// The upper half of the ports, from which the kernel chooses.
const UPPER: u32 = 1 << 31;
/// The number of ports that one choice tries.
const TRIES: u32 = 1024;
/// The next port of the upper half to try.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The ports of all sockets.
static PORTS: Mutex<BTreeSet<u32>> = Mutex::new(BTreeSet::new());

/// A socket.
pub struct Netlink {
    common: Common,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The own port; 0 until it has one.
    port: u32,
    groups: u32,
    /// The messages that no call has received yet.
    answers: VecDeque<Vec<u8>>,
    /// Their bytes.
    bytes: usize,
}

impl State {
    /// Gives the socket a port, unless it has one: the number of the process, or else a free one
    /// from the upper half.
    fn bind(&mut self, wanted: u32, who: Identity) -> Result<(), Errno> {
        if self.port != 0 {
            return if wanted == 0 || wanted == self.port { Ok(()) } else { Err(Errno::EINVAL) };
        }
        let mut ports = PORTS.lock();
        let port = match wanted {
            0 if who.pid != 0 && !ports.contains(&who.pid) => who.pid,
            0 => {
                let mut tries = (0..TRIES).map(|_| UPPER | NEXT.fetch_add(1, Relaxed));
                tries.find(|port| !ports.contains(port)).ok_or(Errno::EADDRINUSE)?
            }
            _ if ports.contains(&wanted) => return Err(Errno::EADDRINUSE),
            _ => wanted,
        };
        ports.insert(port);
        self.port = port;
        Ok(())
    }
}

impl Netlink {
    /// Creates a socket of the protocol `NETLINK_ROUTE`.
    pub fn new() -> Arc<Netlink> {
        Arc::new(Netlink { common: Common::new(NETLINK, Type::Datagram, 0), state: Mutex::default() })
    }
}

impl Drop for Netlink {
    fn drop(&mut self) {
        let port = self.state.get_mut().port;
        if port != 0 {
            PORTS.lock().remove(&port);
        }
    }
}

impl Transport for Netlink {
    fn common(&self) -> &Common {
        &self.common
    }

    fn bind(self: Arc<Self>, address: &Address, who: Identity) -> Result<(), Errno> {
        let Address::Netlink { port, groups } = address else { return Err(Errno::EINVAL) };
        let mut state = self.state.lock();
        state.bind(*port, who)?;
        // No group gets a message, because no interface changes.
        state.groups = *groups;
        Ok(())
    }

    fn connect(self: Arc<Self>, to: &Address, who: Identity, _waits: bool) -> Result<(), Errno> {
        match to {
            Address::Unspecified => Ok(()),
            Address::Netlink { port: 0, .. } => self.state.lock().bind(0, who),
            _ => Err(Errno::ECONNREFUSED),
        }
    }

    fn shutdown(&self, _how: Shut) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn name(&self) -> Address {
        let state = self.state.lock();
        Address::Netlink { port: state.port, groups: state.groups }
    }

    fn peer(&self) -> Result<Address, Errno> {
        Ok(Address::Netlink { port: 0, groups: 0 })
    }

    fn listens(&self) -> bool {
        false
    }

    fn take_error(&self) -> Option<Errno> {
        None
    }

    fn send(&self, _from: &mut dyn Source, _with: &mut Outgoing<'_>) -> Result<usize, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn receive(&self, _to: &mut dyn Sink, _how: Receive) -> Result<(usize, Cargo), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    fn send_message(self: Arc<Self>, bytes: &mut Vec<u8>, with: &mut Outgoing<'_>) -> Result<(), Errno> {
        match with.to {
            None | Some(Address::Netlink { port: 0, .. }) => {}
            Some(Address::Unspecified) => return Err(Errno::EINVAL),
            Some(_) => return Err(Errno::ECONNREFUSED),
        }
        let mut state = self.state.lock();
        state.bind(0, with.who)?;
        let state = &mut *state;
        let result = message::requests(bytes).try_for_each(|request| {
            let answers = route::answer(&request, state.port)?;
            let count: usize = answers.iter().map(Vec::len).sum();
            if state.bytes + count > self.common.options.receive_buffer() {
                return Err(Errno::ENOBUFS);
            }
            state.answers.try_reserve(answers.len())?;
            state.answers.extend(answers);
            state.bytes += count;
            Ok(())
        });
        self.common.changed.wake_all();
        result
    }

    fn receive_message(&self, how: Receive) -> Result<Message, Errno> {
        let mut state = self.state.lock();
        let first = state.answers.front().ok_or(Errno::EAGAIN)?;
        let bytes = if how.peeks {
            copy_of(first)?
        } else {
            state.bytes -= first.len();
            state.answers.pop_front().unwrap_or_default()
        };
        let from = Some(Address::Netlink { port: 0, groups: 0 });
        Ok(Message { bytes, cargo: Cargo { from, ..Cargo::default() } })
    }

    fn ready(&self) -> u32 {
        let readable = if self.state.lock().answers.is_empty() { 0 } else { POLLIN | POLLRDNORM };
        readable | POLLOUT | POLLWRNORM
    }

    fn unread(&self) -> Result<u64, Errno> {
        Ok(self.state.lock().answers.front().map_or(0, Vec::len) as u64)
    }

    fn unsent(&self) -> Result<u64, Errno> {
        Ok(0)
    }

    fn option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        if level == LEVEL && name < OPTIONS { copy_of(&0u32.to_le_bytes()) } else { Err(Errno::ENOPROTOOPT) }
    }

    fn set_option(&self, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        // Groups, and how errors are told: without effect.
        match (level, name) {
            (LEVEL, 1..OPTIONS) if value.len() >= 4 => Ok(()),
            (LEVEL, 1..OPTIONS) => Err(Errno::EINVAL),
            _ => Err(Errno::ENOPROTOOPT),
        }
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends requests of the process `pid`. Tests that run at once have processes of their own.
    fn sent(socket: &Arc<Netlink>, pid: u32, mut bytes: Vec<u8>) -> Result<(), Errno> {
        let who = Identity { pid, uid: 0, gid: 0 };
        let mut with = Outgoing { to: None, who, rights: None, header: Default::default() };
        socket.clone().send_message(&mut bytes, &mut with)
    }

    /// A request to list all of a kind.
    fn dump(kind: u16, family: u8) -> Vec<u8> {
        let mut bytes = [&20u32.to_le_bytes()[..], &kind.to_le_bytes(), &0x301u16.to_le_bytes()].concat();
        bytes.extend([9, 0, 0, 0, 0, 0, 0, 0, family, 0, 0, 0]);
        bytes
    }

    #[test]
    fn a_dump_ends_with_a_message_that_says_so() {
        let socket = Netlink::new();
        assert_eq!(socket.receive_message(Receive::default()).err(), Some(Errno::EAGAIN));
        for (kind, family, count) in [(18, 0, 1), (22, 0, 2), (22, 2, 1), (22, 10, 1), (26, 0, 4), (30, 0, 0)] {
            sent(&socket, 77, dump(kind, family)).unwrap();
            let (mut kinds, mut is_done) = (0, false);
            while let Ok(Message { bytes, .. }) = socket.receive_message(Receive::default()) {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let word = |at: usize| u32::from_le_bytes([rest[at], rest[at + 1], rest[at + 2], rest[at + 3]]);
                    assert_eq!((word(8), word(12)), (9, 77), "the request's number, and the own port");
                    assert!(word(4) >> 16 & 2 != 0, "one of several");
                    match word(4) as u16 {
                        3 => is_done = true,
                        answer => {
                            assert_eq!(answer, kind - 2);
                            kinds += 1;
                        }
                    }
                    rest = &rest[(word(0) as usize).next_multiple_of(4)..];
                }
            }
            assert_eq!((kinds, is_done), (count, true), "kind {kind}, family {family}");
        }
    }

    #[test]
    fn ports_are_of_one_socket_each() {
        let (one, other, third) = (Netlink::new(), Netlink::new(), Netlink::new());
        let who = Identity { pid: 78, uid: 0, gid: 0 };
        let port = |socket: &Arc<Netlink>| match socket.name() {
            Address::Netlink { port, .. } => port,
            _ => 0,
        };
        let bind = |socket: &Arc<Netlink>, port| socket.clone().bind(&Address::Netlink { port, groups: 0 }, who);
        assert_eq!((bind(&one, 0), bind(&other, 78), bind(&other, 0)), (Ok(()), Err(Errno::EADDRINUSE), Ok(())));
        assert_eq!((port(&one), port(&other) >> 31), (78, 1));
        drop(one);
        assert_eq!((bind(&third, 78), bind(&third, 79)), (Ok(()), Err(Errno::EINVAL)));
    }

    #[test]
    fn malformed_requests_have_no_answer() {
        let socket = Netlink::new();
        for len in 0..20 {
            sent(&socket, 80, dump(18, 0)[..len].to_vec()).unwrap();
        }
        let mut long = dump(18, 0);
        long[0] = 21;
        sent(&socket, 80, long).unwrap();
        let mut short = dump(18, 0);
        short[0] = 15;
        sent(&socket, 80, short).unwrap();
        assert_eq!(socket.ready() & POLLIN, 0);
        // A request that the kernel does not know has an error, with the request behind it.
        sent(&socket, 80, dump(99, 0)[..16].iter().map(|&byte| if byte == 20 { 16 } else { byte }).collect()).unwrap();
        let answer = socket.receive_message(Receive { peeks: true }).unwrap().bytes;
        assert_eq!((answer.len(), answer[4], answer[20]), (36, 2, 16));
        assert_eq!(i32::from_le_bytes([answer[16], answer[17], answer[18], answer[19]]), -95);
        assert_eq!(socket.unread(), Ok(36));
    }
}
