//! Socket addresses, as programs pass them (`struct sockaddr`).

use crate::errno::Errno;
use crate::fs::Inode;
use crate::fs::bytes::copy_of;
use alloc::sync::Arc;
use alloc::vec::Vec;
use linux_raw_sys::net;

/// The size in bytes of the field that all addresses begin with, their domain.
const FAMILY: usize = 2;
/// The longest address in bytes (`struct sockaddr_storage`).
pub const LONGEST: usize = 128;

/// An address.
#[derive(Clone)]
pub enum Address {
    /// None (`AF_UNSPEC`): `connect` to it ends a connection.
    Unspecified,
    /// Of a socket of one machine.
    Unix(Name),
}

impl Address {
    /// Returns the address of a socket of `domain` that a program passes.
    ///
    /// # Errors
    /// `EINVAL`: too short, too long, or of another domain. `ENOMEM`.
    pub fn parse(domain: u16, bytes: &[u8]) -> Result<Address, Errno> {
        let (family, rest) = bytes.split_first_chunk::<FAMILY>().ok_or(Errno::EINVAL)?;
        match u16::from_le_bytes(*family) {
            0 => Ok(Address::Unspecified),
            family if family != domain => Err(Errno::EINVAL),
            _ => Name::parse(rest).map(Address::Unix),
        }
    }

    /// Returns the address as programs get it.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn bytes(&self) -> Result<Vec<u8>, Errno> {
        let mut bytes = Vec::new();
        bytes.try_reserve(LONGEST)?;
        match self {
            Address::Unspecified => bytes.extend_from_slice(&0u16.to_le_bytes()),
            Address::Unix(name) => {
                bytes.extend_from_slice(&(net::AF_UNIX as u16).to_le_bytes());
                name.write(&mut bytes);
            }
        }
        Ok(bytes)
    }
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

impl Name {
    /// Returns the name in the bytes behind an address's domain.
    ///
    /// # Errors
    /// `EINVAL`: too long; `ENOMEM`.
    pub fn parse(bytes: &[u8]) -> Result<Name, Errno> {
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
    pub fn write(&self, to: &mut Vec<u8>) {
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

    /// Returns true if a socket has this name.
    pub const fn is_named(&self) -> bool {
        !matches!(self, Name::Unnamed)
    }
}
