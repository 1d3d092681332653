//! Addresses: binding, and finding.

use super::{Endpoint, paths, ports};
use crate::errno::Errno;
use crate::net::Type;
use crate::net::address::{Address, INET6};
use crate::net::message::Identity;
use alloc::sync::Arc;
use core::net::SocketAddr;
use linux_raw_sys::net::{SO_REUSEADDR, SO_REUSEPORT};
use ports::Place;

impl Endpoint {
    /// Gives the socket an address, and returns it; one of the kernel's choice if `wanted` leaves
    /// that open.
    ///
    /// # Errors
    /// `EADDRINUSE`, `EADDRNOTAVAIL`, `EINVAL`: of another domain; `ENOMEM`.
    pub(super) fn name_it(&self, wanted: &Address, who: Identity) -> Result<Address, Errno> {
        match wanted {
            Address::Unix(name) => paths::insert(name, &self.this).map(Address::Unix),
            Address::Inet(at) => {
                let options = &self.common.options;
                let place = Place {
                    datagrams: self.common.kind == Type::Datagram,
                    at: *at,
                    dual: self.common.domain == INET6 && !self.levels.is_six_only(),
                    shares_address: options.is_on(SO_REUSEADDR),
                    shares_port: options.is_on(SO_REUSEPORT).then_some(who.uid),
                };
                ports::insert(place, &self.this).map(Address::Inet)
            }
            Address::Unspecified | Address::Netlink { .. } => Err(Errno::EINVAL),
        }
    }

    /// Removes the address of the socket, which is being closed.
    pub(super) fn unbind(&self, name: &Address) {
        match name {
            Address::Unix(name) => paths::remove(name, self),
            Address::Inet(at) => ports::remove(self.common.kind == Type::Datagram, *at, self),
            Address::Unspecified | Address::Netlink { .. } => {}
        }
    }

    /// Returns the socket with an address, as this one reaches it.
    ///
    /// # Errors
    /// `ECONNREFUSED`: there is none. `ENETUNREACH`: not of this machine. `EINVAL`.
    pub(super) fn find(&self, to: &Address, own: &Address) -> Result<Arc<Endpoint>, Errno> {
        match (to, own) {
            (Address::Unix(name), _) => paths::find(name),
            (Address::Inet(to), Address::Inet(own)) => {
                let to = ports::destination(*to);
                if !ports::is_own(to.ip()) {
                    return Err(Errno::ENETUNREACH);
                }
                let from = SocketAddr::new(source(*own, to), own.port());
                ports::find(self.common.kind == Type::Datagram, from, to)
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Returns the address of this socket and that of the other one, as two sockets see each other
    /// once they are connected.
    pub(super) fn ends(own: &Address, to: &Address) -> (Address, Address) {
        match (own, to) {
            (Address::Inet(own), Address::Inet(to)) => {
                let to = ports::destination(*to);
                (Address::Inet(SocketAddr::new(source(*own, to), own.port())), Address::Inet(to))
            }
            _ => (own.clone(), to.clone()),
        }
    }
}

/// Returns the address from which a socket with the address `own` sends.
fn source(own: SocketAddr, to: SocketAddr) -> core::net::IpAddr {
    use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};
    match (own.ip(), to.ip()) {
        (ip, _) if !ip.is_unspecified() => ip,
        (_, IpAddr::V4(_)) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        (_, IpAddr::V6(_)) => IpAddr::V6(Ipv6Addr::LOCALHOST),
    }
}
