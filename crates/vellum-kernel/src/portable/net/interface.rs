//! The machine's network interface, `lo`, as programs ask for it by `ioctl`.

use crate::errno::Errno;
use linux_raw_sys::{ioctl, net};

/// The size in bytes of `struct ifreq`.
pub const REQUEST_SIZE: usize = 40;
/// The size in bytes of the interface's name, with its NULs (`IFNAMSIZ`).
const NAME: usize = 16;
/// The interface's name, number, flags (up, loopback, running), and size of packets.
pub(super) const LO: &[u8] = b"lo";
pub(super) const INDEX: u32 = 1;
const FLAGS: u16 = 0x49;
pub(super) const MTU: u32 = 65536;
/// The number of packets that may wait to be sent.
pub(super) const QUEUE: u32 = 1000;
/// The kind of hardware addresses that it has, which is none (`ARPHRD_LOOPBACK`).
pub(super) const LOOPBACK: u16 = 772;
const ADDRESS: [u8; 4] = [127, 0, 0, 1];
const MASK: [u8; 4] = [255, 0, 0, 0];

/// Returns whether a request of `ioctl` asks for an interface by a `struct ifreq`.
pub fn is_request(request: u32) -> bool {
    matches!(
        request,
        ioctl::SIOCGIFNAME
            | ioctl::SIOCGIFFLAGS
            | ioctl::SIOCGIFADDR
            | ioctl::SIOCGIFDSTADDR
            | ioctl::SIOCGIFBRDADDR
            | ioctl::SIOCGIFNETMASK
            | ioctl::SIOCGIFMETRIC
            | ioctl::SIOCGIFMTU
            | ioctl::SIOCGIFHWADDR
            | ioctl::SIOCGIFINDEX
            | ioctl::SIOCGIFTXQLEN
    )
}

/// Fills in a `struct ifreq` that asks for an interface, by its name or its number.
///
/// # Errors
/// `ENODEV`: there is no such interface. `ENOTTY`: there is no such request.
pub fn answer(request: u32, bytes: &mut [u8; REQUEST_SIZE]) -> Result<(), Errno> {
    let (name, value) = bytes.split_at_mut(NAME);
    let mut put = |from: &[u8]| value[..from.len()].copy_from_slice(from);
    if request == ioctl::SIOCGIFNAME {
        if value[..4] != INDEX.to_le_bytes() {
            return Err(Errno::ENODEV);
        }
        name.fill(0);
        name[..LO.len()].copy_from_slice(LO);
        return Ok(());
    }
    // A name may have the number of an alias behind a colon, of which there is none.
    if name.split(|byte| *byte == 0).next() != Some(LO) {
        return Err(Errno::ENODEV);
    }
    match request {
        ioctl::SIOCGIFFLAGS => put(&FLAGS.to_le_bytes()),
        ioctl::SIOCGIFADDR | ioctl::SIOCGIFDSTADDR => put(&socket_address(ADDRESS)),
        ioctl::SIOCGIFBRDADDR => put(&socket_address([0; 4])),
        ioctl::SIOCGIFNETMASK => put(&socket_address(MASK)),
        ioctl::SIOCGIFMETRIC => put(&0u32.to_le_bytes()),
        ioctl::SIOCGIFMTU => put(&MTU.to_le_bytes()),
        ioctl::SIOCGIFHWADDR => {
            let mut address = [0; 16];
            address[..2].copy_from_slice(&LOOPBACK.to_le_bytes());
            put(&address);
        }
        ioctl::SIOCGIFINDEX => put(&INDEX.to_le_bytes()),
        ioctl::SIOCGIFTXQLEN => put(&QUEUE.to_le_bytes()),
        _ => return Err(Errno::ENOTTY),
    }
    Ok(())
}

/// Returns the entries of `SIOCGIFCONF`: a `struct ifreq` for each interface with its address.
pub fn list() -> [[u8; REQUEST_SIZE]; 1] {
    let mut entry = [0; REQUEST_SIZE];
    entry[..LO.len()].copy_from_slice(LO);
    entry[NAME..NAME + 16].copy_from_slice(&socket_address(ADDRESS));
    [entry]
}

/// Returns a `struct sockaddr_in` without a port.
fn socket_address(address: [u8; 4]) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..2].copy_from_slice(&(net::AF_INET as u16).to_le_bytes());
    bytes[4..8].copy_from_slice(&address);
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(request: u32, name: &[u8]) -> Result<[u8; REQUEST_SIZE], Errno> {
        let mut bytes = [0; REQUEST_SIZE];
        bytes[..name.len()].copy_from_slice(name);
        answer(request, &mut bytes).map(|()| bytes)
    }

    #[test]
    fn the_loopback_interface_is_described() {
        assert_eq!(asked(ioctl::SIOCGIFADDR, b"lo").unwrap()[20..24], [127, 0, 0, 1]);
        assert_eq!(asked(ioctl::SIOCGIFNETMASK, b"lo").unwrap()[20..24], [255, 0, 0, 0]);
        assert_eq!(asked(ioctl::SIOCGIFFLAGS, b"lo").unwrap()[16..18], [0x49, 0]);
        assert_eq!(asked(ioctl::SIOCGIFINDEX, b"lo").unwrap()[16..20], [1, 0, 0, 0]);
        assert_eq!(asked(ioctl::SIOCGIFHWADDR, b"lo").unwrap()[16..18], 772u16.to_le_bytes());
    }

    #[test]
    fn an_interface_is_found_by_name_or_number() {
        let mut bytes = [0; REQUEST_SIZE];
        assert_eq!(answer(ioctl::SIOCGIFNAME, &mut bytes), Err(Errno::ENODEV));
        bytes[16] = 1;
        assert_eq!(answer(ioctl::SIOCGIFNAME, &mut bytes), Ok(()));
        assert_eq!(bytes[..3], *b"lo\0");
        for name in [&b"eth0"[..], b"lo:1", b"l", b"lo0", b"", &[b'l'; 16]] {
            assert_eq!(asked(ioctl::SIOCGIFFLAGS, name), Err(Errno::ENODEV));
        }
        assert_eq!(list().len(), 1);
        assert_eq!(list()[0][..24], asked(ioctl::SIOCGIFADDR, b"lo").unwrap()[..24]);
    }
}
