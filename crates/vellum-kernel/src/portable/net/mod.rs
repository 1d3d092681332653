//! Sockets. A [`Socket`] is the file; the operations of its domain and type are its [`Transport`].
//!
//! | file | subject |
//! |---|---|
//! | [`options`] | the options that all sockets have (`SOL_SOCKET`) |
//! | [`address`] | socket addresses, as programs pass them |
//! | [`message`] | the cargo of bytes and messages: addresses, credentials, descriptors |
//! | [`packet`] | the header of a packet of IP |
//! | [`rights`] | descriptors on their way between processes (`SCM_RIGHTS`) |
//! | [`interface`] | the machine's network interface |
//! | [`local`] | sockets of one machine: `AF_UNIX`, TCP, UDP |
//! | [`netlink`] | requests for network interfaces: `AF_NETLINK` |
//!
//! The operations of a transport never block: one that would have to fails with `EAGAIN`, and the
//! caller waits at the socket's wait queue, and retries.

pub mod address;
pub mod interface;
pub mod local;
pub mod message;
pub mod netlink;
pub mod options;
pub mod packet;
pub mod rights;

use crate::errno::Errno;
use crate::fs::bytes;
use crate::fs::device::AnonInode;
use crate::fs::inode::File;
use crate::fs::meta::{Device, Kind, Meta};
use crate::fs::{Open, Sink, Source};
use crate::wait::Queue;
use address::Address;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use linux_raw_sys::{general, net};
use message::{Cargo, Identity, Message, Outgoing};
use options::Options;

/// The type of a socket, with its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Type {
    Stream = net::SOCK_STREAM,
    Datagram = net::SOCK_DGRAM,
    SeqPacket = net::SOCK_SEQPACKET,
}

impl Type {
    /// Returns true if bytes arrive as the messages in which they were sent.
    pub const fn has_messages(self) -> bool {
        !matches!(self, Type::Stream)
    }

    /// Returns true if bytes can be sent only between two sockets that are connected.
    pub const fn is_connected(self) -> bool {
        !matches!(self, Type::Datagram)
    }
}

/// The part of a socket that is the same in all domains.
pub struct Common {
    /// The domain (`AF_UNIX`).
    pub domain: u16,
    /// The type.
    pub kind: Type,
    /// The number of the protocol.
    pub protocol: u16,
    /// The options of level `SOL_SOCKET`.
    pub options: Options,
    /// The wait queue of all that wait for an event of the socket.
    pub changed: Queue,
}

impl Common {
    /// Returns those of a new socket.
    pub fn new(domain: u16, kind: Type, protocol: u16) -> Common {
        Common { domain, kind, protocol, options: Options::default(), changed: Queue::new() }
    }
}

/// The directions that `shutdown` ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Shut {
    pub read: bool,
    pub write: bool,
}

/// The options of a call that receives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Receive {
    /// The bytes stay in the socket (`MSG_PEEK`).
    pub peeks: bool,
}

/// The operations of a socket of one domain.
pub trait Transport: Send + Sync + Any {
    /// Returns the part that is the same in all domains.
    fn common(&self) -> &Common;

    /// Gives the socket an address. Sockets of the user of `who` may share one.
    ///
    /// # Errors
    /// `EINVAL`: it has one; `EADDRINUSE`, `EADDRNOTAVAIL`; `ENOMEM`.
    fn bind(self: Arc<Self>, address: &Address, who: Identity) -> Result<(), Errno>;

    /// Makes the socket accept connections, of which `backlog` may wait. Processes that connect see
    /// `who` as their peer.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: not of such a type. `EINVAL`: it has no address, or is connected.
    fn listen(&self, _backlog: u32, _who: Identity) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Connects the socket. `waits`: the caller waits until it is connected.
    ///
    /// # Errors
    /// `EAGAIN`: the backlog is full. `EINPROGRESS`, `EALREADY`: it will be connected. `EISCONN`,
    /// `ECONNREFUSED`, `EPROTOTYPE`, `ENETUNREACH`, `EINVAL`, `ENOMEM`.
    fn connect(self: Arc<Self>, to: &Address, who: Identity, waits: bool) -> Result<(), Errno>;

    /// Takes a connection out of the backlog.
    ///
    /// # Errors
    /// `EAGAIN`: there is none. `EINVAL`: the socket does not listen. `EOPNOTSUPP`.
    fn accept(&self) -> Result<Arc<dyn Transport>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Ends one direction, or both.
    ///
    /// # Errors
    /// `ENOTCONN`.
    fn shutdown(&self, how: Shut) -> Result<(), Errno>;

    /// Returns the socket's own address.
    fn name(&self) -> Address;

    /// Returns the address of the socket to which this one is connected.
    ///
    /// # Errors
    /// `ENOTCONN`.
    fn peer(&self) -> Result<Address, Errno>;

    /// Returns the process at the other end (`SO_PEERCRED`), if the domain knows it.
    fn peer_identity(&self) -> Option<Identity> {
        None
    }

    /// Returns true if the socket listens.
    fn listens(&self) -> bool;

    /// Returns the error that a call without an own error would report, and forgets it
    /// (`SO_ERROR`).
    fn take_error(&self) -> Option<Errno>;

    /// Sends some bytes of a stream.
    ///
    /// # Errors
    /// `EAGAIN`: no room. `EPIPE`, `ENOTCONN`, `ECONNRESET`, `EISCONN`, `EOPNOTSUPP`, `EFAULT`.
    fn send(&self, from: &mut dyn Source, with: &mut Outgoing<'_>) -> Result<usize, Errno>;

    /// Receives some bytes of a stream; 0 at its end.
    ///
    /// # Errors
    /// `EAGAIN`: there are none yet. `ECONNRESET`, `ENOTCONN`, `EFAULT`.
    fn receive(&self, to: &mut dyn Sink, how: Receive) -> Result<(usize, Cargo), Errno>;

    /// Sends a message, and takes `bytes` if it succeeds.
    ///
    /// # Errors
    /// Those of [`Transport::send`]; `EMSGSIZE`; `EDESTADDRREQ`, `ECONNREFUSED`.
    fn send_message(self: Arc<Self>, bytes: &mut Vec<u8>, with: &mut Outgoing<'_>) -> Result<(), Errno>;

    /// Receives a message; an empty one at the end of a connection.
    ///
    /// # Errors
    /// Those of [`Transport::receive`].
    fn receive_message(&self, how: Receive) -> Result<Message, Errno>;

    /// Returns the ready events.
    fn ready(&self) -> u32;

    /// Returns the number of bytes that can be read without waiting (`FIONREAD`).
    ///
    /// # Errors
    /// `EINVAL`: the socket listens.
    fn unread(&self) -> Result<u64, Errno>;

    /// Returns the number of bytes that the other end has not read yet (`SIOCOUTQ`).
    ///
    /// # Errors
    /// `EINVAL`: the socket listens.
    fn unsent(&self) -> Result<u64, Errno>;

    /// Returns the value of an option of the domain's own levels.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EOPNOTSUPP`.
    fn option(&self, _level: u32, _name: u32) -> Result<Vec<u8>, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns true if an option of the domain's own levels is on.
    fn is_on(&self, _level: u32, _name: u32) -> bool {
        false
    }

    /// Sets an option of the domain's own levels.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EINVAL`, `EOPNOTSUPP`.
    fn set_option(&self, _level: u32, _name: u32, _value: &[u8]) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the transport for a downcast to the type of its domain.
    fn as_any(&self) -> &dyn Any;
}

/// A socket as a file.
pub struct Socket {
    transport: Arc<dyn Transport>,
}

impl Socket {
    /// Returns an open file description of a new socket, as `socket` and `accept` return it.
    /// `flags`: `O_NONBLOCK` counts.
    pub fn open(transport: Arc<dyn Transport>, flags: u32, (uid, gid): (u32, u32)) -> Arc<Open> {
        /// The number of the next socket's inode.
        static NUMBERS: AtomicU64 = AtomicU64::new(1);
        let number = NUMBERS.fetch_add(1, Relaxed);
        let mut meta = Meta::new(Device { major: 0, minor: 8 }, number, Kind::Socket, 0o777);
        (meta.uid, meta.gid) = (uid, gid);
        let flags = general::O_RDWR | flags & general::O_NONBLOCK;
        Arc::new(Open::new(Arc::new(AnonInode(meta)), Some(Arc::new(Socket { transport })), flags, None))
    }

    /// Returns the operations.
    pub fn transport(&self) -> &Arc<dyn Transport> {
        &self.transport
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EOPNOTSUPP`.
    pub fn option(&self, level: u32, name: u32) -> Result<Vec<u8>, Errno> {
        if level != net::SOL_SOCKET {
            return self.transport.option(level, name);
        }
        let common = self.transport.common();
        let number = match name {
            net::SO_TYPE => common.kind as u32,
            net::SO_DOMAIN => common.domain.into(),
            net::SO_PROTOCOL => common.protocol.into(),
            net::SO_ERROR => self.transport.take_error().map_or(0, |error| error.number() as u32),
            net::SO_ACCEPTCONN => self.transport.listens().into(),
            net::SO_PEERCRED => {
                let unknown = Identity { pid: 0, uid: u32::MAX, gid: u32::MAX };
                return bytes::copy_of(&self.transport.peer_identity().unwrap_or(unknown).bytes());
            }
            _ => return common.options.get(name),
        };
        bytes::copy_of(&number.to_le_bytes())
    }

    /// Sets an option. `privileged`: the caller has `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// `ENOPROTOOPT`, `EINVAL`, `EPERM`, `EDOM`, `EOPNOTSUPP`.
    pub fn set_option(&self, level: u32, name: u32, value: &[u8], privileged: bool) -> Result<(), Errno> {
        if level != net::SOL_SOCKET {
            return self.transport.set_option(level, name, value);
        }
        self.transport.common().options.set(name, value, privileged)
    }
}

/// Returns the socket that an open file description is.
///
/// # Errors
/// `ENOTSOCK`; `EBADF`: opened with `O_PATH`.
pub fn socket_of(open: &Open) -> Result<&Socket, Errno> {
    let file = match open.file() {
        Err(Errno::EBADF) => return Err(Errno::EBADF),
        Err(_) => return Err(Errno::ENOTSOCK),
        Ok(file) => file,
    };
    file.as_any().downcast_ref::<Socket>().ok_or(Errno::ENOTSOCK)
}

impl File for Socket {
    fn ready(&self) -> u32 {
        self.transport.ready()
    }

    fn queue(&self) -> Option<&Queue> {
        Some(&self.transport.common().changed)
    }

    fn unread(&self, _at: u64) -> Result<u64, Errno> {
        self.transport.unread()
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
