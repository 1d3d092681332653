//! Options of TCP and IP. Most have no effect on a network that loses nothing: they are kept, and
//! returned as they were set.

use crate::errno::Errno;
use crate::fs::bytes::copy_of;
use crate::net::address::{INET6, UNIX};
use crate::net::packet::{IP, IPV6};
use crate::net::{Common, Type};
use alloc::vec::Vec;
use linux_raw_sys::net;
use spin::Mutex;

/// A level (`IPPROTO_…`).
const TCP: u32 = 6;
/// The number of bytes of a segment (`TCP_MAXSEG`): the link's, less the headers.
const SEGMENT: u32 = 65_483;
/// The names of congestion control that Linux knows without a module.
const CONGESTION: [&[u8]; 2] = [b"cubic", b"reno"];

/// The options that are numbers: level, name, and value of a new socket.
const NUMBERS: [(u32, u32, u32); 40] = [
    (TCP, net::TCP_NODELAY, 0),
    (TCP, net::TCP_MAXSEG, SEGMENT),
    (TCP, net::TCP_CORK, 0),
    (TCP, net::TCP_KEEPIDLE, 7200),
    (TCP, net::TCP_KEEPINTVL, 75),
    (TCP, net::TCP_KEEPCNT, 9),
    (TCP, net::TCP_SYNCNT, 6),
    (TCP, net::TCP_LINGER2, 60),
    (TCP, net::TCP_DEFER_ACCEPT, 0),
    (TCP, net::TCP_WINDOW_CLAMP, 0),
    (TCP, net::TCP_QUICKACK, 1),
    (TCP, net::TCP_USER_TIMEOUT, 0),
    (TCP, net::TCP_FASTOPEN, 0),
    (TCP, net::TCP_NOTSENT_LOWAT, u32::MAX),
    (IP, net::IP_TOS, 0),
    (IP, net::IP_TTL, 64),
    (IP, net::IP_RECVTOS, 0),
    (IP, net::IP_RECVTTL, 0),
    (IP, net::IP_PKTINFO, 0),
    (IP, net::IP_MTU_DISCOVER, 1),
    (IP, net::IP_RECVERR, 0),
    (IP, net::IP_FREEBIND, 0),
    (IP, net::IP_TRANSPARENT, 0),
    (IP, net::IP_BIND_ADDRESS_NO_PORT, 0),
    (IP, net::IP_MULTICAST_TTL, 1),
    (IP, net::IP_MULTICAST_LOOP, 1),
    (IP, net::IP_MULTICAST_ALL, 1),
    (IP, net::IP_MULTICAST_IF, 0),
    (IPV6, net::IPV6_V6ONLY, 0),
    (IPV6, net::IPV6_UNICAST_HOPS, 64),
    (IPV6, net::IPV6_MULTICAST_HOPS, 1),
    (IPV6, net::IPV6_MULTICAST_LOOP, 1),
    (IPV6, net::IPV6_MULTICAST_IF, 0),
    (IPV6, net::IPV6_RECVERR, 0),
    (IPV6, net::IPV6_RECVPKTINFO, 0),
    (IPV6, net::IPV6_RECVHOPLIMIT, 0),
    (IPV6, net::IPV6_TCLASS, 0),
    (IPV6, net::IPV6_RECVTCLASS, 0),
    (IPV6, net::IPV6_MTU_DISCOVER, 1),
    (IPV6, net::IPV6_DONTFRAG, 0),
];

/// The values of options that a program has set, by their index in [`NUMBERS`].
#[derive(Default)]
pub(super) struct Levels(Mutex<Vec<(usize, u32)>>);

/// Returns the index of an option.
fn index(common: &Common, level: u32, name: u32) -> Result<usize, Errno> {
    let own = match level {
        TCP => common.kind == Type::Stream,
        IPV6 => common.domain == INET6,
        IP => true,
        _ => false,
    };
    if common.domain == UNIX {
        return Err(Errno::EOPNOTSUPP);
    }
    if !own {
        return Err(Errno::ENOPROTOOPT);
    }
    NUMBERS.iter().position(|(l, n, _)| (*l, *n) == (level, name)).ok_or(Errno::ENOPROTOOPT)
}

impl Levels {
    fn number(&self, index: usize) -> u32 {
        let set = self.0.lock();
        set.iter().find(|(at, _)| *at == index).map_or(NUMBERS[index].2, |(_, value)| *value)
    }

    /// Returns the value of an option that is a number; 0 if there is none of this name.
    pub fn value(&self, level: u32, name: u32) -> u32 {
        let index = NUMBERS.iter().position(|(own, other, _)| (*own, *other) == (level, name));
        index.map_or(0, |index| self.number(index))
    }

    /// Returns true with `IPV6_V6ONLY`.
    pub fn is_six_only(&self) -> bool {
        self.value(IPV6, net::IPV6_V6ONLY) != 0
    }

    /// Sets the options that another socket has set, for a connection that it accepts.
    pub fn copy(&self, from: &Levels) {
        let set = from.0.lock();
        let mut own = self.0.lock();
        // Without memory the connection has the values of a new socket.
        if own.try_reserve(set.len()).is_ok() {
            own.extend_from_slice(&set);
        }
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EOPNOTSUPP`, `ENOMEM`.
    pub fn get(&self, common: &Common, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        match (level, name) {
            (TCP, net::TCP_CONGESTION) if common.kind == Type::Stream => copy_of(b"cubic\0\0\0\0\0\0\0\0\0\0\0"),
            _ => copy_of(&self.number(index(common, level, name)?).to_le_bytes()),
        }
    }

    /// Sets an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EOPNOTSUPP`; `EINVAL`: too short; `ENOENT`: no such congestion control;
    /// `ENOMEM`.
    pub fn set(&self, common: &Common, level: u32, name: u32, value: &[u8]) -> Result<(), Errno> {
        if (level, name, common.kind) == (TCP, net::TCP_CONGESTION, Type::Stream) {
            let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
            return if CONGESTION.contains(&&value[..end]) { Ok(()) } else { Err(Errno::ENOENT) };
        }
        let index = index(common, level, name)?;
        let number = match value {
            [a, b, c, d, ..] => u32::from_le_bytes([*a, *b, *c, *d]),
            // Options of IP may be a single byte.
            [one, ..] if level == IP => (*one).into(),
            _ => return Err(Errno::EINVAL),
        };
        let mut set = self.0.lock();
        if let Some((_, value)) = set.iter_mut().find(|(at, _)| *at == index) {
            *value = number;
            return Ok(());
        }
        set.try_reserve(1)?;
        set.push((index, number));
        Ok(())
    }
}
