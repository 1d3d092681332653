//! Socket addresses, as programs pass them (`struct sockaddr`).

use crate::errno::Errno;
use crate::fs::Inode;
use crate::fs::bytes::copy_of;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use linux_raw_sys::net;

/// The size in bytes of the field that all addresses begin with, their domain.
const FAMILY: usize = 2;
/// The longest address in bytes (`struct sockaddr_storage`).
pub const LONGEST: usize = 128;
/// The domains.
pub const UNIX: u16 = net::AF_UNIX as u16;
/// That of IPv4.
pub const INET: u16 = net::AF_INET as u16;
/// That of IPv6.
pub const INET6: u16 = net::AF_INET6 as u16;
/// That of netlink(7).
pub const NETLINK: u16 = net::AF_NETLINK as u16;

/// An address.
#[derive(Clone, Default)]
pub enum Address {
    /// None (`AF_UNSPEC`): `connect` to it ends a connection.
    #[default]
    Unspecified,
    /// Of a socket of one machine.
    Unix(Name),
    /// Of IPv4 or IPv6: an address and a port. An IPv4 address that is mapped to IPv6 is here as
    /// what it stands for.
    Inet(SocketAddr),
    /// Of a netlink socket: its number, which is 0 for the kernel, and a set of groups.
    Netlink {
        /// The number.
        port: u32,
        /// The groups, a bit each.
        groups: u32,
    },
}

/// The name of a socket of one machine (unix(7)).
#[derive(Clone, Default)]
pub enum Name {
    /// None.
    #[default]
    Unnamed,
    /// A name without an inode.
    Abstract(Arc<[u8]>),
    /// A path, and its inode once the path was looked up.
    Path(Arc<[u8]>, Option<Arc<dyn Inode>>),
}

/// Returns the array at the beginning of `bytes`.
///
/// # Errors
/// `EINVAL`: too short.
fn array<const N: usize>(bytes: &[u8]) -> Result<[u8; N], Errno> {
    bytes.first_chunk().copied().ok_or(Errno::EINVAL)
}

/// Returns the address of which IPv6 has a mapped form, if `address` has it.
fn unmapped(address: Ipv6Addr) -> IpAddr {
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

impl Address {
    /// Returns the address of a new socket of a domain.
    pub const fn none(domain: u16) -> Address {
        match domain {
            INET => Address::Inet(SocketAddr::new(IpAddr::V4(Ipv4Addr::UNSPECIFIED), 0)),
            INET6 => Address::Inet(SocketAddr::new(IpAddr::V6(Ipv6Addr::UNSPECIFIED), 0)),
            NETLINK => Address::Netlink { port: 0, groups: 0 },
            _ => Address::Unix(Name::Unnamed),
        }
    }

    /// Returns the address of a socket of `domain` that a program passes.
    ///
    /// # Errors
    /// `EINVAL`: too short, or too long. `EAFNOSUPPORT`, or for [`UNIX`] `EINVAL`: of another
    /// domain. `ENOMEM`.
    pub fn parse(domain: u16, bytes: &[u8]) -> Result<Address, Errno> {
        let (family, rest) = bytes.split_first_chunk::<FAMILY>().ok_or(Errno::EINVAL)?;
        match (u16::from_le_bytes(*family), domain) {
            (0, _) => Ok(Address::Unspecified),
            (UNIX, UNIX) => Name::parse(rest).map(Address::Unix),
            (_, UNIX) => Err(Errno::EINVAL),
            (INET, INET) => {
                let [p, q, address @ ..] = array::<14>(rest)?;
                Ok(Address::Inet(SocketAddr::new(
                    Ipv4Addr::from(array::<4>(&address)?).into(),
                    u16::from_be_bytes([p, q]),
                )))
            }
            (INET6, INET6) => {
                let [p, q, _, _, _, _, address @ ..] = array::<22>(rest)?;
                Ok(Address::Inet(SocketAddr::new(unmapped(Ipv6Addr::from(address)), u16::from_be_bytes([p, q]))))
            }
            (NETLINK, NETLINK) => {
                let [_, _, p, q, r, s, groups @ ..] = array::<10>(rest)?;
                Ok(Address::Netlink { port: u32::from_le_bytes([p, q, r, s]), groups: u32::from_le_bytes(groups) })
            }
            (_, NETLINK) => Err(Errno::EINVAL),
            _ => Err(Errno::EAFNOSUPPORT),
        }
    }

    /// Returns the address as programs get it from a socket of `domain`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn bytes(&self, domain: u16) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve(LONGEST)?;
        match self {
            Address::Unspecified => bytes.extend_from_slice(&0u16.to_le_bytes()),
            Address::Unix(name) => {
                bytes.extend_from_slice(&UNIX.to_le_bytes());
                name.write(&mut bytes);
            }
            Address::Inet(address) => {
                bytes.extend_from_slice(&domain.to_le_bytes());
                bytes.extend_from_slice(&address.port().to_be_bytes());
                match address.ip() {
                    IpAddr::V4(v4) if domain == INET => bytes.extend_from_slice(&v4.octets()),
                    IpAddr::V4(v4) => {
                        six(&mut bytes, if v4.is_unspecified() { Ipv6Addr::UNSPECIFIED } else { v4.to_ipv6_mapped() })
                    }
                    IpAddr::V6(v6) => six(&mut bytes, v6),
                }
                bytes.resize(if domain == INET { 16 } else { 28 }, 0);
            }
            Address::Netlink { port, groups } => {
                bytes.extend_from_slice(&NETLINK.to_le_bytes());
                bytes.extend_from_slice(&[0; 2]);
                bytes.extend_from_slice(&port.to_le_bytes());
                bytes.extend_from_slice(&groups.to_le_bytes());
            }
        }
        Ok(bytes)
    }

    /// Returns true if a socket has this address.
    pub const fn is_named(&self) -> bool {
        match self {
            Address::Unspecified | Address::Unix(Name::Unnamed) => false,
            Address::Unix(_) => true,
            Address::Inet(address) => address.port() != 0,
            Address::Netlink { port, .. } => *port != 0,
        }
    }
}

/// Adds the flow and the address of an IPv6 address.
fn six(to: &mut Vec<u8>, address: Ipv6Addr) {
    to.extend_from_slice(&[0; 4]);
    to.extend_from_slice(&address.octets());
}

impl Name {
    /// Returns the name in the bytes behind an address's domain.
    ///
    /// # Errors
    /// `EINVAL`: too long; `ENOMEM`.
    fn parse(bytes: &[u8]) -> Result<Name, Errno> {
        match bytes {
            [] => Ok(Name::Unnamed),
            _ if bytes.len() > net::UNIX_PATH_MAX as usize => Err(Errno::EINVAL),
            [0, rest @ ..] => Ok(Name::Abstract(copy_of(rest)?.into())),
            _ => {
                let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
                Ok(Name::Path(copy_of(&bytes[..end])?.into(), None))
            }
        }
    }

    /// Adds the name as programs get it.
    fn write(&self, to: &mut Vec<u8>) {
        match self {
            Name::Unnamed => {}
            Name::Abstract(name) => {
                to.push(0);
                to.extend_from_slice(name);
            }
            Name::Path(path, _) => {
                to.extend_from_slice(path);
                to.push(0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec;

    #[test]
    fn addresses_are_read_and_written_as_their_domain_says() {
        let v4 = [2, 0, 0, 80, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0];
        let mut mapped = vec![10, 0, 0, 80, 0, 0, 0, 0];
        mapped.extend([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 127, 0, 0, 1, 0, 0, 0, 0]);
        let one = Address::parse(INET, &v4).unwrap();
        assert_eq!((one.bytes(INET).unwrap(), one.bytes(INET6).unwrap()), (v4.to_vec(), mapped.clone()));
        let other = Address::parse(INET6, &mapped).unwrap();
        assert!(matches!(other, Address::Inet(address) if address == "127.0.0.1:80".parse().unwrap()));
        assert_eq!(Address::none(INET6).bytes(INET6).unwrap(), [vec![10, 0], vec![0; 26]].concat());
        let error = |domain, bytes: &[u8]| Address::parse(domain, bytes).err();
        assert_eq!((error(INET, &v4[..15]), error(INET6, &mapped[..23])), (Some(Errno::EINVAL), Some(Errno::EINVAL)));
        assert_eq!((error(INET6, &v4), error(INET, &[10; 28])), (Some(Errno::EAFNOSUPPORT), Some(Errno::EAFNOSUPPORT)));
        assert_eq!((error(UNIX, &[1]), error(UNIX, &v4)), (Some(Errno::EINVAL), Some(Errno::EINVAL)));
    }

    #[test]
    fn netlink_addresses_have_a_number_and_groups() {
        let bytes = [16, 0, 0, 0, 1, 2, 0, 0, 3, 0, 0, 0];
        let address = Address::parse(NETLINK, &bytes).unwrap();
        assert!(matches!(address, Address::Netlink { port: 513, groups: 3 }));
        assert_eq!(address.bytes(NETLINK).unwrap(), bytes);
        let error = |bytes: &[u8]| Address::parse(NETLINK, bytes).err();
        assert_eq!((error(&bytes[..11]), error(&[2; 16])), (Some(Errno::EINVAL), Some(Errno::EINVAL)));
    }

    #[test]
    fn names_end_at_the_first_nul_unless_they_are_abstract() {
        let bytes =
            |path: &[u8]| Address::parse(UNIX, &[&[1, 0], path].concat()).map(|address| address.bytes(UNIX).unwrap());
        assert_eq!(bytes(b"/a/b"), Ok(b"\x01\0/a/b\0".to_vec()));
        assert_eq!(bytes(b"/a\0b"), Ok(b"\x01\0/a\0".to_vec()));
        assert_eq!(bytes(b"\0a\0b"), Ok(b"\x01\0\0a\0b".to_vec()));
        assert_eq!((bytes(b""), bytes(&[b'a'; 109])), (Ok(b"\x01\0".to_vec()), Err(Errno::EINVAL)));
        assert_eq!(bytes(&[b'a'; 108]).map(|bytes| bytes.len()), Ok(111));
    }
}
