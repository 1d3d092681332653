//! The header of a packet of IP, of which programs learn by control messages, and which they may
//! change for one message (ip(7), ipv6(7)).

use super::address::INET;
use super::message::ControlWriter;
use crate::errno::Errno;
use core::net::IpAddr;
use linux_raw_sys::net;

/// The levels of the options and control messages.
pub const IP: u32 = 0;
/// That of IPv6.
pub const IPV6: u32 = 41;
/// The number of the only network interface, `lo`.
const INTERFACE: u32 = 1;

/// The fields that a program sets for one message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The time to live, or the hop limit.
    pub hops: Option<u8>,
    /// The type of service, or the traffic class.
    pub class: Option<u8>,
}

impl Wanted {
    /// Notes what a control message of `sendmsg` sets. Others have no effect.
    ///
    /// # Errors
    /// `EINVAL`: too short, or out of range.
    pub fn note(&mut self, level: u32, kind: u32, data: &[u8]) -> Result<(), Errno> {
        let number = || data.first_chunk().map(|bytes| i32::from_le_bytes(*bytes)).ok_or(Errno::EINVAL);
        let byte = |number: i32| u8::try_from(number).map_err(|_| Errno::EINVAL);
        match (level, kind) {
            (IP, net::IP_TTL) => match byte(number()?)? {
                0 => return Err(Errno::EINVAL),
                hops => self.hops = Some(hops),
            },
            (IP, net::IP_TOS) => {
                self.class = Some(if let [class] = data { *class } else { byte(number()?)? });
            }
            // −1 stands for the socket's own.
            (IPV6, net::IPV6_HOPLIMIT) => self.hops = Some(number()?).filter(|n| *n != -1).map(byte).transpose()?,
            (IPV6, net::IPV6_TCLASS) => self.class = Some(number()?).filter(|n| *n != -1).map(byte).transpose()?,
            _ => {}
        }
        Ok(())
    }
}

/// The header of a packet that has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// The address to which it was sent.
    pub to: IpAddr,
    /// The time to live, or the hop limit.
    pub hops: u8,
    /// The type of service, or the traffic class.
    pub class: u8,
}

impl Packet {
    /// Adds the control messages that a receiving socket of `domain` wants. `is_on` returns true
    /// for an option that is on.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn tell(
        &self,
        domain: u16,
        is_on: impl Fn(u32, u32) -> bool,
        control: &mut ControlWriter,
    ) -> Result<(), Errno> {
        let (hops, class) = (u32::from(self.hops).to_le_bytes(), u32::from(self.class).to_le_bytes());
        if let (INET, IpAddr::V4(to)) = (domain, self.to) {
            if is_on(IP, net::IP_PKTINFO) {
                let mut info = [0; 12];
                info[..4].copy_from_slice(&INTERFACE.to_le_bytes());
                info[4..8].copy_from_slice(&to.octets());
                info[8..].copy_from_slice(&to.octets());
                control.add_of(IP, net::IP_PKTINFO, &info)?;
            }
            if is_on(IP, net::IP_RECVTTL) {
                control.add_of(IP, net::IP_TTL, &hops)?;
            }
            if is_on(IP, net::IP_RECVTOS) {
                control.add_of(IP, net::IP_TOS, &class[..1])?;
            }
            return Ok(());
        }
        if is_on(IPV6, net::IPV6_RECVPKTINFO) {
            let to = match self.to {
                IpAddr::V4(to) => to.to_ipv6_mapped(),
                IpAddr::V6(to) => to,
            };
            let mut info = [0; 20];
            info[..16].copy_from_slice(&to.octets());
            info[16..].copy_from_slice(&INTERFACE.to_le_bytes());
            control.add_of(IPV6, net::IPV6_PKTINFO, &info)?;
        }
        if self.to.is_ipv6() {
            if is_on(IPV6, net::IPV6_RECVHOPLIMIT) {
                control.add_of(IPV6, net::IPV6_HOPLIMIT, &hops)?;
            }
            if is_on(IPV6, net::IPV6_RECVTCLASS) {
                control.add_of(IPV6, net::IPV6_TCLASS, &class)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_out_of_range_are_refused() {
        let mut wanted = Wanted::default();
        for (level, kind, value, answer) in [
            (IP, net::IP_TTL, 0i32, Err(Errno::EINVAL)),
            (IP, net::IP_TTL, 256, Err(Errno::EINVAL)),
            (IP, net::IP_TTL, 255, Ok(())),
            (IP, net::IP_TOS, 16, Ok(())),
            (IPV6, net::IPV6_HOPLIMIT, -2, Err(Errno::EINVAL)),
        ] {
            assert_eq!(wanted.note(level, kind, &value.to_le_bytes()), answer, "{level} {kind} {value}");
        }
        assert_eq!(wanted, Wanted { hops: Some(255), class: Some(16) });
        assert_eq!(wanted.note(IPV6, net::IPV6_HOPLIMIT, &(-1i32).to_le_bytes()), Ok(()));
        assert_eq!(wanted.note(IP, net::IP_TTL, &[1]), Err(Errno::EINVAL));
        assert_eq!(wanted, Wanted { hops: None, class: Some(16) });
    }
}
