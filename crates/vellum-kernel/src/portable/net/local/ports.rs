//! Finds sockets of TCP and UDP by their addresses and ports.
//!
//! The machine has the addresses 127.0.0.0/8 and ::1. A socket without an address of its own
//! receives at all of them; one of IPv6 also at those of IPv4, unless it is bound to IPv6 alone.

use super::Endpoint;
use crate::errno::Errno;
use alloc::sync::{Arc, Weak};
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use core::ops::Range;
use hashbrown::HashMap;
use spin::Mutex;

/// The ports of sockets that ask for none (`/proc/sys/net/ipv4/ip_local_port_range`).
const OWN_PORTS: Range<u16> = 32_768..61_000;

/// A place: what a socket binds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// True for UDP.
    pub datagrams: bool,
    /// The address, which may be unspecified, and the port.
    pub at: SocketAddr,
    /// The socket also receives at addresses of IPv4 (without `IPV6_V6ONLY`).
    pub dual: bool,
    /// `SO_REUSEADDR`.
    pub shares_address: bool,
    /// `SO_REUSEPORT`, with the user that all sockets at the place must have.
    pub shares_port: Option<u32>,
}

struct Bound {
    place: Place,
    socket: Weak<Endpoint>,
    listens: bool,
    /// The address from which alone a connected socket of UDP receives.
    from: Option<SocketAddr>,
}

/// The bound sockets, by protocol and port. No lock is taken while this one is held.
static PORTS: Mutex<Option<Ports>> = Mutex::new(None);

#[derive(Default)]
struct Ports {
    bound: HashMap<(bool, u16), Vec<Bound>>,
    /// The place among [`OWN_PORTS`] where the search for a free port begins.
    next: u16,
    /// Counts lookups, so that sockets that share a port take turns.
    turn: usize,
}

/// Returns true if the machine has the address, or if it is unspecified.
pub(super) fn is_own(address: IpAddr) -> bool {
    address.is_unspecified() || address.is_loopback()
}

/// Returns the address that a program means that sends to an unspecified one.
pub(super) const fn destination(to: SocketAddr) -> SocketAddr {
    let ip = match to.ip() {
        IpAddr::V4(v4) if v4.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
        IpAddr::V6(v6) if v6.is_unspecified() => IpAddr::V6(Ipv6Addr::LOCALHOST),
        ip => ip,
    };
    SocketAddr::new(ip, to.port())
}

impl Place {
    /// Returns whether the place receives what is sent to an address: `Some(true)`: to this very
    /// address.
    fn receives_at(&self, address: IpAddr) -> Option<bool> {
        match (self.at.ip(), address) {
            (own, address) if own == address => Some(true),
            (IpAddr::V4(own), IpAddr::V4(_)) if own.is_unspecified() => Some(false),
            (IpAddr::V6(own), _) if own.is_unspecified() => (address.is_ipv6() || self.dual).then_some(false),
            _ => None,
        }
    }

    fn overlaps(&self, other: &Place) -> bool {
        self.receives_at(other.at.ip()).is_some() || other.receives_at(self.at.ip()).is_some()
    }

    /// Returns true if both can't be bound at once.
    fn conflicts(&self, bound: &Bound) -> bool {
        let other = &bound.place;
        let both_address = self.shares_address && other.shares_address && !bound.listens;
        let both_port = self.shares_port.is_some() && self.shares_port == other.shares_port;
        bound.socket.strong_count() > 0 && self.overlaps(other) && !both_address && !both_port
    }
}

/// Binds a socket to a place, with a port of the kernel's choice if the place has none. Returns the
/// address.
///
/// # Errors
/// `EADDRINUSE`; `EADDRNOTAVAIL`: not an address of the machine; `ENOMEM`.
pub(super) fn insert(mut place: Place, socket: &Weak<Endpoint>) -> Result<SocketAddr, Errno> {
    if !is_own(place.at.ip()) {
        return Err(Errno::EADDRNOTAVAIL);
    }
    let mut ports = PORTS.lock();
    let Ports { bound, next, .. } = ports.get_or_insert_default();
    if place.at.port() == 0 {
        let taken = |port: &u16| bound.get(&(place.datagrams, *port)).is_some_and(|all| !all.is_empty());
        let first = OWN_PORTS.start + *next % OWN_PORTS.len() as u16;
        let mut tries = (first..OWN_PORTS.end).chain(OWN_PORTS.start..first);
        let port = tries.find(|port| !taken(port)).ok_or(Errno::EADDRINUSE)?;
        *next = port + 1 - OWN_PORTS.start;
        place.at.set_port(port);
    }
    bound.try_reserve(1).map_err(|_| Errno::ENOMEM)?;
    let all = bound.entry((place.datagrams, place.at.port())).or_default();
    if all.iter().any(|other| place.conflicts(other)) {
        return Err(Errno::EADDRINUSE);
    }
    all.try_reserve(1)?;
    all.push(Bound { place, socket: socket.clone(), listens: false, from: None });
    Ok(place.at)
}

/// Calls `change` with the entry of a socket that is bound to an address.
fn change(datagrams: bool, at: SocketAddr, socket: *const Endpoint, change: impl FnOnce(&mut Bound)) {
    let mut ports = PORTS.lock();
    let all = ports.as_mut().and_then(|ports| ports.bound.get_mut(&(datagrams, at.port())));
    if let Some(bound) = all.and_then(|all| all.iter_mut().find(|bound| bound.socket.as_ptr() == socket)) {
        change(bound);
    }
}

/// Notes that a socket listens.
///
/// # Errors
/// `EADDRINUSE`: another one listens there, that does not share its port.
pub(super) fn listen(at: SocketAddr, socket: *const Endpoint) -> Result<(), Errno> {
    let mut ports = PORTS.lock();
    let Some(all) = ports.as_mut().and_then(|ports| ports.bound.get_mut(&(false, at.port()))) else { return Ok(()) };
    let Some(index) = all.iter().position(|bound| bound.socket.as_ptr() == socket) else { return Ok(()) };
    let own = all[index].place;
    let other = |(i, bound): (usize, &Bound)| i != index && bound.listens && own.conflicts(bound);
    if all.iter().enumerate().any(other) {
        return Err(Errno::EADDRINUSE);
    }
    all[index].listens = true;
    Ok(())
}

/// Notes the address from which alone a socket of UDP receives, and its own address.
pub(super) fn connect(at: SocketAddr, own: SocketAddr, from: Option<SocketAddr>, socket: *const Endpoint) {
    change(true, at, socket, |bound| (bound.from, bound.place.at) = (from, own));
}

/// Removes a socket that is being closed.
pub(super) fn remove(datagrams: bool, at: SocketAddr, socket: *const Endpoint) {
    let mut ports = PORTS.lock();
    let Some(ports) = ports.as_mut() else { return };
    let key = (datagrams, at.port());
    if let Some(all) = ports.bound.get_mut(&key) {
        all.retain(|bound| bound.socket.as_ptr() != socket);
        if all.is_empty() {
            ports.bound.remove(&key);
        }
    }
}

/// Returns the socket that receives what is sent from one address to another: of TCP one that
/// listens there.
///
/// # Errors
/// `ECONNREFUSED`: there is none.
pub(super) fn find(datagrams: bool, from: SocketAddr, to: SocketAddr) -> Result<Arc<Endpoint>, Errno> {
    let mut ports = PORTS.lock();
    let Ports { bound, turn, .. } = ports.as_mut().ok_or(Errno::ECONNREFUSED)?;
    let all = bound.get(&(datagrams, to.port())).ok_or(Errno::ECONNREFUSED)?;
    let rank = |bound: &Bound| {
        let exact = bound.place.receives_at(to.ip())?;
        let connected = bound.from == Some(from);
        let open = datagrams && (connected || bound.from.is_none()) || bound.listens;
        (open && bound.socket.strong_count() > 0).then_some((connected, exact, bound.place.at.is_ipv4()))
    };
    let best = all.iter().filter_map(rank).max().ok_or(Errno::ECONNREFUSED)?;
    let equal = || all.iter().filter(|bound| rank(bound) == Some(best));
    *turn = turn.wrapping_add(1);
    let chosen = equal().nth(*turn % equal().count().max(1));
    chosen.and_then(|bound| bound.socket.upgrade()).ok_or(Errno::ECONNREFUSED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::Type;
    use crate::net::address::INET;

    /// Each test has ports of its own, as all tests share the table.
    fn place(at: &str) -> Place {
        let at = at.parse().unwrap();
        Place { datagrams: true, at, dual: false, shares_address: false, shares_port: None }
    }

    fn socket() -> Arc<Endpoint> {
        Endpoint::new(INET, Type::Datagram, 0)
    }

    fn bound(place: Place) -> Result<Arc<Endpoint>, Errno> {
        let socket = socket();
        insert(place, &socket.this).map(|_| socket)
    }

    #[test]
    fn places_conflict_where_their_addresses_overlap() {
        let pairs = [
            ("127.0.0.1:101", "127.0.0.1:101", false, true),
            ("127.0.0.1:102", "127.0.0.2:102", false, false),
            ("0.0.0.0:103", "127.0.0.2:103", false, true),
            ("127.0.0.2:104", "0.0.0.0:104", false, true),
            ("[::]:105", "0.0.0.0:105", false, false),
            ("[::]:106", "0.0.0.0:106", true, true),
            ("[::]:107", "127.0.0.1:107", true, true),
            ("[::]:108", "[::1]:108", false, true),
            ("[::1]:109", "127.0.0.1:109", true, false),
        ];
        for (one, other, dual, conflicts) in pairs {
            let first = bound(Place { dual, ..place(one) }).unwrap();
            assert_eq!(bound(place(other)).err(), conflicts.then_some(Errno::EADDRINUSE), "{one} and {other}");
            // A socket that has ended is in the way of none, though it is still in the table.
            let mut ended = Place { dual, ..place(one) };
            ended.at.set_port(ended.at.port() + 1000);
            insert(ended, &Weak::new()).unwrap();
            assert!(bound(ended).is_ok());
            drop(first);
        }
    }

    #[test]
    fn sockets_share_a_place_if_both_say_so() {
        let address = Place { shares_address: true, ..place("127.0.0.1:201") };
        let user = |user| Place { shares_port: Some(user), ..place("127.0.0.1:202") };
        let all = [bound(address).unwrap(), bound(address).unwrap(), bound(user(1)).unwrap(), bound(user(1)).unwrap()];
        assert_eq!(bound(place("127.0.0.1:201")).err(), Some(Errno::EADDRINUSE));
        assert_eq!(bound(user(2)).err(), Some(Errno::EADDRINUSE));
        drop(all);
    }

    #[test]
    fn the_place_that_fits_best_receives() {
        let mut others = std::vec::Vec::new();
        let from = "127.0.0.1:9".parse().unwrap();
        let mut add = |at: &str, connected: Option<SocketAddr>| {
            let socket = bound(Place { shares_address: true, dual: true, ..place(at) }).unwrap();
            connect(at.parse().unwrap(), at.parse().unwrap(), connected, &*socket);
            others.push(socket.clone());
            socket
        };
        let to = "127.0.0.1:301".parse().unwrap();
        assert_eq!(find(true, from, to).err(), Some(Errno::ECONNREFUSED));
        // Each fits better than those before, but for the last, which is connected to another.
        let better = [
            (add("[::]:301", None), true),
            (add("0.0.0.0:301", None), true),
            (add("127.0.0.1:301", None), true),
            (add("127.0.0.1:301", Some(from)), true),
            (add("127.0.0.1:301", Some("127.0.0.1:10".parse().unwrap())), false),
        ];
        for index in (0..better.len()).rev() {
            let expected = better[..=index].iter().rfind(|(_, fits)| *fits).unwrap();
            assert!(Arc::ptr_eq(&find(true, from, to).unwrap(), &expected.0), "{index}");
            remove(true, to, &*better[index].0);
        }
    }

    #[test]
    fn a_socket_without_a_port_gets_a_free_one() {
        let sockets: std::vec::Vec<_> = (0..3).map(|_| socket()).collect();
        let ports = sockets.iter().map(|socket| insert(place("0.0.0.0:0"), &socket.this).unwrap().port());
        let ports: std::vec::Vec<_> = ports.collect();
        assert!(ports.iter().all(|port| OWN_PORTS.contains(port)));
        assert!(ports[0] != ports[1] && ports[1] != ports[2] && ports[0] != ports[2]);
        assert_eq!(insert(place("192.0.2.1:0"), &sockets[0].this), Err(Errno::EADDRNOTAVAIL));
    }
}
