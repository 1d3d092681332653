//! Implements the system calls on sockets, other than those that move bytes.

use super::message::retry;
use super::{Answer, file, path};
use crate::mem::uaccess;
use crate::task::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::Ordering;
use linux_raw_sys::{general as abi, net};
use vellum_kernel::credentials::id_index::{EFFECTIVE, REAL};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Access;
use vellum_kernel::fs::{Kind, Open};
use vellum_kernel::net::address::{Address, INET, INET6, LONGEST, NETLINK, Name, UNIX};
use vellum_kernel::net::local::{self, Endpoint};
use vellum_kernel::net::message::Identity;
use vellum_kernel::net::netlink::Netlink;
use vellum_kernel::net::{Shut, Socket, Transport, Type, socket_of};

/// `SOCK_NONBLOCK` and `SOCK_CLOEXEC` in the type of a new socket.
const FLAGS: u32 = abi::O_NONBLOCK | abi::O_CLOEXEC;
/// The first port that programs without privilege may have
/// (`/proc/sys/net/ipv4/ip_unprivileged_port_start`).
const FIRST_FREE: u16 = 1024;
/// The longest value of an option that is read, in bytes.
const LONGEST_VALUE: u64 = 256;

/// Returns the identity that a peer or a receiver sees. `index`: that of the IDs.
pub fn identity(thread: &Thread, index: usize) -> Identity {
    let own = thread.credentials();
    Identity { pid: thread.process.pid, uid: own.uids[index], gid: own.gids[index] }
}

/// Returns a new socket as an open file.
fn opened(thread: &Thread, transport: Arc<dyn Transport>, flags: u32) -> Arc<Open> {
    let own = thread.credentials().file_credentials();
    Socket::open(transport, flags, (own.uid, own.gid))
}

/// Adds a descriptor of a new socket.
fn add(thread: &Thread, transport: Arc<dyn Transport>, flags: u32) -> Answer {
    file::add(thread, opened(thread, transport, flags), flags)
}

/// Returns the domain, the type and the protocol of a new socket.
fn checked(domain: u64, kind: u32, protocol: u64) -> Result<(u16, Type, u16), Errno> {
    const TCP: u32 = 6;
    const UDP: u32 = 17;
    if kind & !(FLAGS | 0xf) != 0 {
        return Err(Errno::EINVAL);
    }
    let domain = u16::try_from(domain as u32).map_err(|_| Errno::EAFNOSUPPORT)?;
    let protocol = protocol as u32;
    match (domain, kind & 0xf) {
        // AF_UNIX has one protocol, which has the number of the domain.
        (UNIX, _) if ![0, net::AF_UNIX].contains(&protocol) => Err(Errno::EPROTONOSUPPORT),
        (UNIX, net::SOCK_STREAM) => Ok((UNIX, Type::Stream, 0)),
        (UNIX, net::SOCK_DGRAM | net::SOCK_RAW) => Ok((UNIX, Type::Datagram, 0)),
        (UNIX, net::SOCK_SEQPACKET) => Ok((UNIX, Type::SeqPacket, 0)),
        (INET | INET6, net::SOCK_STREAM) if [0, TCP].contains(&protocol) => Ok((domain, Type::Stream, TCP as u16)),
        (INET | INET6, net::SOCK_DGRAM) if [0, UDP].contains(&protocol) => Ok((domain, Type::Datagram, UDP as u16)),
        (INET | INET6, net::SOCK_STREAM | net::SOCK_DGRAM | net::SOCK_RAW) => Err(Errno::EPROTONOSUPPORT),
        // NETLINK_ROUTE is the only protocol.
        (NETLINK, net::SOCK_RAW | net::SOCK_DGRAM) if protocol == 0 => Ok((NETLINK, Type::Datagram, 0)),
        (NETLINK, net::SOCK_RAW | net::SOCK_DGRAM) => Err(Errno::EPROTONOSUPPORT),
        (UNIX | INET | INET6 | NETLINK, _) => Err(Errno::ESOCKTNOSUPPORT),
        _ => Err(Errno::EAFNOSUPPORT),
    }
}

/// Implements `socket`.
pub fn socket(thread: &Thread, domain: u64, kind: u64, protocol: u64) -> Answer {
    let flags = kind as u32;
    let (domain, kind, protocol) = checked(domain, flags, protocol)?;
    match domain {
        NETLINK => add(thread, Netlink::new(), flags),
        _ => add(thread, Endpoint::new(domain, kind, protocol), flags),
    }
}

/// Implements `socketpair`.
pub fn pair(thread: &Thread, [domain, kind, protocol, to, ..]: [u64; 6]) -> Answer {
    let flags = kind as u32;
    let (domain, kind, _) = checked(domain, flags, protocol)?;
    if domain != UNIX {
        return Err(Errno::EOPNOTSUPP);
    }
    let [one, other] = local::pair(kind, identity(thread, EFFECTIVE));
    file::add_pair(thread, to, [opened(thread, one, flags), opened(thread, other, flags)], flags)
}

/// Reads an address of a program.
///
/// # Errors
///
/// `EINVAL`: too long, or of another domain; `EFAULT`, `ENOMEM`.
pub fn read_address(thread: &Thread, socket: &Socket, at: u64, len: u64) -> Result<Address, Errno> {
    let len = usize::try_from(len as i32).ok().filter(|len| *len <= LONGEST).ok_or(Errno::EINVAL)?;
    let mut bytes = [0; LONGEST];
    uaccess::read(&thread.memory(), at, &mut bytes[..len])?;
    Address::parse(socket.transport().common().domain, &bytes[..len])
}

/// Looks up the path in the address of another socket.
///
/// # Errors
///
/// `ECONNREFUSED`: not a socket. `EACCES`: it may not be written. Those of a path lookup.
pub fn resolve(thread: &Thread, address: Address) -> Result<Address, Errno> {
    let Address::Unix(Name::Path(name, _)) = address else { return Ok(address) };
    let inode = path::with(thread, path::HERE, &name, |view| {
        let inode = view.get(&name, true)?;
        view.cred.may(inode.rights(), Access::WRITE)?;
        Ok(inode)
    })?;
    if inode.kind() != Kind::Socket {
        return Err(Errno::ECONNREFUSED);
    }
    Ok(Address::Unix(Name::Path(name, Some(inode))))
}

/// Writes an address for a program, which says how much room it has, and learns the length.
pub fn write_address(thread: &Thread, domain: u16, address: &Address, [to, len]: [u64; 2]) -> Result<(), Errno> {
    let memory = thread.memory();
    let mut room = [0; 4];
    uaccess::read(&memory, len, &mut room)?;
    let room = usize::try_from(i32::from_le_bytes(room)).map_err(|_| Errno::EINVAL)?;
    let bytes = address.bytes(domain)?;
    uaccess::write(&memory, to, &bytes[..room.min(bytes.len())])?;
    uaccess::write(&memory, len, &(bytes.len() as u32).to_le_bytes())
}

/// Implements `bind`.
pub fn bind(thread: &Thread, fd: u64, at: u64, len: u64) -> Answer {
    let open = file::open_of(thread, fd)?;
    let socket = socket_of(&open)?;
    let transport = socket.transport().clone();
    let who = identity(thread, EFFECTIVE);
    match read_address(thread, socket, at, len)? {
        Address::Unspecified => Err(Errno::EINVAL),
        Address::Unix(Name::Path(name, _)) => {
            let mode = 0o777 & !thread.files().umask.load(Ordering::Relaxed);
            path::with(thread, path::HERE, &name, |view| {
                view.make(&name, Kind::Socket, mode, Default::default(), &[]).map_err(|error| match error {
                    Errno::EEXIST => Errno::EADDRINUSE,
                    other => other,
                })?;
                let inode = view.get(&name, false)?;
                let bound = transport.bind(&Address::Unix(Name::Path(name.clone(), Some(inode))), who);
                bound.inspect_err(|_| _ = view.remove(&name, false))
            })
            .map(|()| 0)
        }
        Address::Inet(at)
            if (1..FIRST_FREE).contains(&at.port()) && !thread.credentials().has(abi::CAP_NET_BIND_SERVICE) =>
        {
            Err(Errno::EACCES)
        }
        address => transport.bind(&address, who).map(|()| 0),
    }
}

/// Implements `listen`.
pub fn listen(thread: &Thread, fd: u64, backlog: u64) -> Answer {
    /// `/proc/sys/net/core/somaxconn`.
    const MOST: u32 = 4096;
    let open = file::open_of(thread, fd)?;
    // A negative number is a large one.
    let backlog = (backlog as u32).min(MOST);
    socket_of(&open)?.transport().listen(backlog, identity(thread, EFFECTIVE)).map(|()| 0)
}

/// Implements `connect`.
pub async fn connect(thread: &Arc<Thread>, fd: u64, at: u64, len: u64) -> Answer {
    let open = file::open_of(thread, fd)?;
    let socket = socket_of(&open)?;
    let to = resolve(thread, read_address(thread, socket, at, len)?)?;
    let who = identity(thread, EFFECTIVE);
    let waits = open.flags() & abi::O_NONBLOCK == 0;
    retry(thread, &open, 0, true, || socket.transport().clone().connect(&to, who, waits)).await.map(|()| 0)
}

/// Implements `accept` and `accept4`.
pub async fn accept(thread: &Arc<Thread>, fd: u64, to: u64, len: u64, flags: u64) -> Answer {
    let flags = flags as u32;
    if flags & !FLAGS != 0 {
        return Err(Errno::EINVAL);
    }
    let open = file::open_of(thread, fd)?;
    let socket = socket_of(&open)?;
    let transport = retry(thread, &open, 0, false, || socket.transport().accept()).await?;
    if to != 0 {
        let peer = transport.peer().map_err(|_| Errno::ECONNABORTED)?;
        write_address(thread, transport.common().domain, &peer, [to, len])?;
    }
    add(thread, transport, flags)
}

/// Implements `shutdown`.
pub fn shutdown(thread: &Thread, fd: u64, how: u64) -> Answer {
    let how = match how as u32 {
        net::SHUT_RD => Shut { read: true, write: false },
        net::SHUT_WR => Shut { read: false, write: true },
        net::SHUT_RDWR => Shut { read: true, write: true },
        _ => return Err(Errno::EINVAL),
    };
    let open = file::open_of(thread, fd)?;
    socket_of(&open)?.transport().shutdown(how).map(|()| 0)
}

/// Implements `getsockname`, and `getpeername` for the `peer`.
pub fn name(thread: &Thread, fd: u64, to: u64, len: u64, peer: bool) -> Answer {
    let open = file::open_of(thread, fd)?;
    let transport = socket_of(&open)?.transport();
    let address = if peer { transport.peer()? } else { transport.name() };
    write_address(thread, transport.common().domain, &address, [to, len]).map(|()| 0)
}

/// Implements `setsockopt`.
pub fn set_option(thread: &Thread, [fd, level, name, at, len, _]: [u64; 6]) -> Answer {
    let open = file::open_of(thread, fd)?;
    let len = u64::try_from(len as i32).map_err(|_| Errno::EINVAL)?.min(LONGEST_VALUE);
    let mut value = [0; LONGEST_VALUE as usize];
    let value = &mut value[..len as usize];
    uaccess::read(&thread.memory(), at, value)?;
    let privileged = thread.credentials().has(abi::CAP_NET_ADMIN);
    socket_of(&open)?.set_option(level as u32, name as u32, value, privileged).map(|()| 0)
}

/// Implements `getsockopt`.
pub fn option(thread: &Thread, [fd, level, name, to, len, _]: [u64; 6]) -> Answer {
    let open = file::open_of(thread, fd)?;
    let memory = thread.memory();
    let mut room = [0; 4];
    uaccess::read(&memory, len, &mut room)?;
    let room = usize::try_from(i32::from_le_bytes(room)).map_err(|_| Errno::EINVAL)?;
    let mut value: Vec<u8> = socket_of(&open)?.option(level as u32, name as u32)?;
    value.truncate(room);
    uaccess::write(&memory, to, &value)?;
    uaccess::write(&memory, len, &(value.len() as u32).to_le_bytes()).map(|()| 0)
}

/// Returns the open socket and the identity by which the thread's messages are known.
pub fn sender(thread: &Thread, fd: u64) -> Result<(Arc<Open>, Identity), Errno> {
    let open = file::open_of(thread, fd)?;
    socket_of(&open)?;
    Ok((open, identity(thread, REAL)))
}
