//! Answers to requests of the protocol `NETLINK_ROUTE` (rtnetlink(7)): the machine has the
//! interface `lo`, its two addresses, and the routes to them.

use super::message::{ACK, Answers, DUMP, MULTI, REQUEST, Request};
use crate::errno::Errno;
use crate::net::address::{INET, INET6};
use crate::net::interface::{INDEX, LO, LOOPBACK, MTU, QUEUE};
use alloc::vec::Vec;

/// The kinds of requests.
const GETLINK: u16 = 18;
const GETADDR: u16 = 22;
const GETROUTE: u16 = 26;
/// The first kind of this protocol. Of the four kinds of each subject the third asks, and has this
/// remainder.
const FIRST: u16 = 16;
const ASKS: u16 = 2;
/// The kind behind the last.
const END: u16 = 124;

/// The sizes in bytes of the bodies `struct ifinfomsg` and `struct rtgenmsg`.
const LINK_BODY: usize = 16;

/// `IFF_UP`, `IFF_LOOPBACK`, `IFF_RUNNING` and `IFF_LOWER_UP`.
const FLAGS: u32 = 0x1_0049;
/// `IFA_F_PERMANENT`.
const PERMANENT: u8 = 0x80;
/// The scopes `RT_SCOPE_LINK` and `RT_SCOPE_HOST`; `RT_SCOPE_UNIVERSE` is 0.
const SCOPE_LINK: u8 = 253;
const SCOPE_HOST: u8 = 254;
/// The table of the machine's own addresses (`RT_TABLE_LOCAL`).
const TABLE_LOCAL: u8 = 255;
/// The route is the kernel's (`RTPROT_KERNEL`).
const FROM_KERNEL: u8 = 2;

const FOUR: &[u8] = &[127, 0, 0, 1];
const SIX: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];

/// A route: its domain, destination, length of the prefix, scope, and type (`RTN_LOCAL`,
/// `RTN_BROADCAST`).
const ROUTES: [(u16, &[u8], u8, u8, u8); 4] = [
    (INET, &[127, 0, 0, 0], 8, SCOPE_HOST, 2),
    (INET, FOUR, 32, SCOPE_HOST, 2),
    (INET, &[127, 255, 255, 255], 32, SCOPE_LINK, 3),
    (INET6, SIX, 128, 0, 2),
];

/// Returns the messages that answer a request of the socket with this port.
///
/// # Errors
/// `ENOMEM`.
pub(super) fn answer(request: &Request<'_>, port: u32) -> Result<Vec<Vec<u8>>, Errno> {
    let mut messages = Vec::new();
    messages.try_reserve_exact(2)?;
    if request.flags & REQUEST == 0 {
        return Ok(messages);
    }
    let mut answers = Answers::new(request, port);
    if request.kind >= FIRST && request.flags & DUMP != 0 && request.kind % 4 == ASKS && request.kind < END {
        list(request, &mut answers)?;
        let listed = answers.finish();
        messages.extend((!listed.is_empty()).then_some(listed));
        let mut end = Answers::new(request, port);
        end.done()?;
        messages.push(end.finish());
        return Ok(messages);
    }
    let outcome = match request.kind {
        ..FIRST => Ok(()),
        GETLINK if is_lo(request) => return link(&mut answers, 0).map(|()| one(messages, answers)),
        GETLINK => Err(Errno::ENODEV),
        _ => Err(Errno::EOPNOTSUPP),
    };
    if outcome.is_err() || request.flags & ACK != 0 {
        answers.outcome(request, outcome)?;
        messages.push(answers.finish());
    }
    Ok(messages)
}

/// Adds the only message to a list that has room for it.
fn one(mut messages: Vec<Vec<u8>>, answers: Answers) -> Vec<Vec<u8>> {
    messages.push(answers.finish());
    messages
}

/// Returns true if a request for an interface names `lo`, by its number or its name.
fn is_lo(request: &Request<'_>) -> bool {
    const NAME: u16 = 3;
    match request.word(4) {
        0 => request.attribute(LINK_BODY, NAME).is_some_and(|name| name.split(|byte| *byte == 0).next() == Some(LO)),
        index => index == INDEX,
    }
}

/// Lists everything of the kind that a request asks for.
fn list(request: &Request<'_>, to: &mut Answers) -> Result<(), Errno> {
    let family = u16::from(request.byte(0));
    let wants = |domain: u16| family == 0 || family == domain;
    match request.kind {
        GETLINK => link(to, MULTI),
        GETADDR => {
            if wants(INET) {
                address(to, INET, 8, FOUR)?;
            }
            if wants(INET6) {
                address(to, INET6, 128, SIX)?;
            }
            Ok(())
        }
        GETROUTE => ROUTES.iter().filter(|route| wants(route.0)).try_for_each(|route| add_route(to, route)),
        // The machine has nothing of the other kinds: no neighbours, no rules.
        _ => Ok(()),
    }
}

/// Describes the interface.
fn link(to: &mut Answers, flags: u16) -> Result<(), Errno> {
    const NEWLINK: u16 = 16;
    let mut body = [0; LINK_BODY];
    body[2..4].copy_from_slice(&LOOPBACK.to_le_bytes());
    body[4..8].copy_from_slice(&INDEX.to_le_bytes());
    body[8..12].copy_from_slice(&FLAGS.to_le_bytes());
    to.begin(NEWLINK, flags, &body)?;
    // IFLA_IFNAME, IFLA_TXQLEN, IFLA_OPERSTATE, IFLA_LINKMODE, IFLA_MTU, IFLA_GROUP, IFLA_QDISC,
    // IFLA_ADDRESS, IFLA_BROADCAST, IFLA_STATS64.
    to.attribute(3, b"lo\0")?;
    to.attribute(13, &QUEUE.to_le_bytes())?;
    to.attribute(16, &[0])?;
    to.attribute(17, &[0])?;
    to.attribute(4, &MTU.to_le_bytes())?;
    to.attribute(27, &[0; 4])?;
    to.attribute(6, b"noqueue\0")?;
    to.attribute(1, &[0; 6])?;
    to.attribute(2, &[0; 6])?;
    to.attribute(23, &[0; 200])
}

/// Describes an address of the interface.
fn address(to: &mut Answers, domain: u16, prefix: u8, address: &[u8]) -> Result<(), Errno> {
    const NEWADDR: u16 = 20;
    let mut body = [domain as u8, prefix, PERMANENT, SCOPE_HOST, 0, 0, 0, 0];
    body[4..].copy_from_slice(&INDEX.to_le_bytes());
    to.begin(NEWADDR, MULTI, &body)?;
    // IFA_ADDRESS; and of IPv4 IFA_LOCAL and IFA_LABEL.
    to.attribute(1, address)?;
    if domain == INET {
        to.attribute(2, address)?;
        to.attribute(3, b"lo\0")?;
    }
    // IFA_CACHEINFO: preferred and valid for ever. IFA_FLAGS.
    let mut times = [0; 16];
    times[..8].fill(0xff);
    to.attribute(6, &times)?;
    to.attribute(8, &u32::from(PERMANENT).to_le_bytes())
}

/// Describes a route.
fn add_route(to: &mut Answers, route: &(u16, &[u8], u8, u8, u8)) -> Result<(), Errno> {
    const NEWROUTE: u16 = 24;
    let (domain, destination, prefix, scope, kind) = *route;
    to.begin(NEWROUTE, MULTI, &[domain as u8, prefix, 0, 0, TABLE_LOCAL, FROM_KERNEL, scope, kind, 0, 0, 0, 0])?;
    // RTA_TABLE, RTA_DST, RTA_PREFSRC of IPv4, RTA_PRIORITY of IPv6, RTA_OIF.
    to.attribute(15, &u32::from(TABLE_LOCAL).to_le_bytes())?;
    to.attribute(1, destination)?;
    if domain == INET {
        to.attribute(7, FOUR)?;
    } else {
        to.attribute(6, &[0; 4])?;
    }
    to.attribute(4, &INDEX.to_le_bytes())
}
