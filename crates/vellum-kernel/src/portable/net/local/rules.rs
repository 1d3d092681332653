//! The differences between the domains and types of sockets.

use crate::errno::Errno;
use crate::net::Type;
use crate::net::address::UNIX;

/// The rules of one domain and type.
pub(super) struct Rules {
    /// The error with which a socket sends that is not connected.
    pub unconnected_send: Errno,
    /// The error with which it receives.
    pub unconnected_receive: Errno,
    /// Messages and connections carry identities and descriptors, and a socket of messages that is
    /// connected refuses those of others.
    pub has_identities: bool,
    /// A socket gets an address when it needs one.
    pub binds_itself: bool,
    /// A sender waits while the inbox has no room; otherwise its message is lost.
    pub waits_for_room: bool,
    /// The other end learns that this one does not receive any more, and may not send.
    pub tells_read_end: bool,
    /// A call that connects returns before the connection is made, if the socket does not wait
    /// (`EINPROGRESS`).
    pub connects_later: bool,
    /// The bytes of the buffers of a new socket, to send and to receive. `None`: the usual.
    pub buffers: Option<[u32; 2]>,
    /// The most bytes of a message.
    pub longest: usize,
}

const UNIX_STREAM: Rules = Rules {
    unconnected_send: Errno::ENOTCONN,
    unconnected_receive: Errno::EINVAL,
    has_identities: true,
    binds_itself: false,
    waits_for_room: true,
    tells_read_end: true,
    connects_later: false,
    buffers: None,
    longest: usize::MAX,
};

/// `SOCK_STREAM` of `AF_UNIX`.
static STREAM: Rules = UNIX_STREAM;
/// `SOCK_SEQPACKET`.
static SEQ_PACKET: Rules = Rules { unconnected_receive: Errno::ENOTCONN, ..UNIX_STREAM };
/// `SOCK_DGRAM` of `AF_UNIX`.
static DATAGRAM: Rules = Rules { unconnected_receive: Errno::EAGAIN, ..UNIX_STREAM };
/// TCP. The buffers are those that a connection to the same machine has on Linux.
static TCP: Rules = Rules {
    unconnected_send: Errno::EPIPE,
    unconnected_receive: Errno::ENOTCONN,
    has_identities: false,
    binds_itself: true,
    tells_read_end: false,
    connects_later: true,
    buffers: Some([2_626_560, 131_072]),
    ..UNIX_STREAM
};
/// UDP.
static UDP: Rules = Rules {
    unconnected_send: Errno::EDESTADDRREQ,
    unconnected_receive: Errno::EAGAIN,
    has_identities: false,
    binds_itself: true,
    waits_for_room: false,
    tells_read_end: false,
    longest: 65_507,
    ..UNIX_STREAM
};

/// Returns the rules of the sockets of a domain and type.
pub(super) fn rules_of(domain: u16, kind: Type) -> &'static Rules {
    match (domain, kind) {
        (UNIX, Type::Stream) => &STREAM,
        (UNIX, Type::Datagram) => &DATAGRAM,
        (_, Type::SeqPacket) => &SEQ_PACKET,
        (_, Type::Stream) => &TCP,
        (_, Type::Datagram) => &UDP,
    }
}
