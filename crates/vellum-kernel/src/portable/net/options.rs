//! The options of level `SOL_SOCKET` (socket(7)). Those that have no effect here are kept, and
//! returned as they were set.

use crate::errno::Errno;
use crate::fs::bytes::copy_of;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use linux_raw_sys::net;

/// The size of a new socket's buffers in bytes (`/proc/sys/net/core/wmem_default`), and the most
/// that a program without privilege may ask for (`wmem_max`).
pub const DEFAULT_BUFFER: u32 = 212_992;
/// The least size of a send buffer in bytes (Linux: `SOCK_MIN_SNDBUF`).
const LEAST_SEND: u32 = 4608;
/// The least size of a receive buffer in bytes (Linux: `SOCK_MIN_RCVBUF`).
const LEAST_RECEIVE: u32 = 2304;
/// The most that a privileged program may ask for, before it is doubled.
const MOST: u32 = i32::MAX as u32 / 2;
const SECOND: u64 = 1_000_000_000;

/// The options that are on or off. Each is a bit of [`Options::switches`], by its index here.
const SWITCHES: [u32; 14] = [
    net::SO_DEBUG,
    net::SO_REUSEADDR,
    net::SO_DONTROUTE,
    net::SO_BROADCAST,
    net::SO_KEEPALIVE,
    net::SO_OOBINLINE,
    net::SO_NO_CHECK,
    net::SO_REUSEPORT,
    net::SO_PASSCRED,
    net::SO_TIMESTAMP_OLD,
    net::SO_TIMESTAMPNS_OLD,
    net::SO_RXQ_OVFL,
    net::SO_ZEROCOPY,
    net::SO_SELECT_ERR_QUEUE,
];

/// A socket's options.
pub struct Options {
    switches: AtomicU32,
    send_buffer: AtomicU32,
    receive_buffer: AtomicU32,
    priority: AtomicU32,
    mark: AtomicU32,
    low_water: AtomicU32,
    /// `SO_LINGER`: on, and seconds.
    linger: [AtomicU32; 2],
    /// The time that a call waits to receive, and to send, in nanoseconds; 0: for ever.
    timeouts: [AtomicU64; 2],
}

impl Default for Options {
    /// Returns a new socket's options.
    fn default() -> Options {
        Options {
            switches: AtomicU32::new(0),
            send_buffer: AtomicU32::new(DEFAULT_BUFFER),
            receive_buffer: AtomicU32::new(DEFAULT_BUFFER),
            priority: AtomicU32::new(0),
            mark: AtomicU32::new(0),
            low_water: AtomicU32::new(1),
            linger: Default::default(),
            timeouts: Default::default(),
        }
    }
}

impl Options {
    /// Copies another socket's options, for a connection that a listening socket accepts.
    pub fn copy(&self, from: &Options) {
        let pairs = [
            (&self.switches, &from.switches),
            (&self.send_buffer, &from.send_buffer),
            (&self.receive_buffer, &from.receive_buffer),
            (&self.priority, &from.priority),
            (&self.mark, &from.mark),
            (&self.low_water, &from.low_water),
            (&self.linger[0], &from.linger[0]),
            (&self.linger[1], &from.linger[1]),
        ];
        pairs.iter().for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
        self.timeouts.iter().zip(&from.timeouts).for_each(|(to, from)| to.store(from.load(Relaxed), Relaxed));
    }

    /// Returns true if an option that is on or off is on.
    pub fn is_on(&self, name: u32) -> bool {
        let bit = SWITCHES.iter().position(|option| *option == name);
        bit.is_some_and(|bit| self.switches.load(Relaxed) >> bit & 1 != 0)
    }

    /// Sets the sizes of the buffers in bytes.
    pub fn set_buffers(&self, send: u32, receive: u32) {
        self.send_buffer.store(send, Relaxed);
        self.receive_buffer.store(receive, Relaxed);
    }

    /// Returns the size of the send buffer in bytes.
    pub fn send_buffer(&self) -> usize {
        self.send_buffer.load(Relaxed) as usize
    }

    /// Returns the size of the receive buffer in bytes.
    pub fn receive_buffer(&self) -> usize {
        self.receive_buffer.load(Relaxed) as usize
    }

    /// Returns the seconds for which `close` waits for what is not sent yet; `None`: it does not.
    pub fn linger(&self) -> Option<u32> {
        (self.linger[0].load(Relaxed) != 0).then(|| self.linger[1].load(Relaxed))
    }

    /// Returns the time that a call waits, in nanoseconds, to send or to receive; `None`: for ever.
    pub fn timeout(&self, sends: bool) -> Option<u64> {
        Some(self.timeouts[usize::from(sends)].load(Relaxed)).filter(|timeout| *timeout != 0)
    }

    /// Returns the value of an option.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: not known. `ENOMEM`.
    pub fn get(&self, name: u32) -> Result<Vec<u8>, Errno> {
        let number = match name {
            net::SO_SNDBUF => self.send_buffer.load(Relaxed),
            net::SO_RCVBUF => self.receive_buffer.load(Relaxed),
            net::SO_PRIORITY => self.priority.load(Relaxed),
            net::SO_MARK => self.mark.load(Relaxed),
            net::SO_RCVLOWAT => self.low_water.load(Relaxed),
            net::SO_SNDLOWAT => 1,
            net::SO_INCOMING_CPU | net::SO_BSDCOMPAT | net::SO_BUSY_POLL => 0,
            net::SO_LINGER => {
                let [on, seconds] = &self.linger;
                let both = u64::from(on.load(Relaxed)) | u64::from(seconds.load(Relaxed)) << 32;
                return copy_of(&both.to_le_bytes());
            }
            net::SO_RCVTIMEO_OLD | net::SO_RCVTIMEO_NEW => return time(&self.timeouts[0]),
            net::SO_SNDTIMEO_OLD | net::SO_SNDTIMEO_NEW => return time(&self.timeouts[1]),
            _ if SWITCHES.contains(&name) => self.is_on(name).into(),
            _ => return Err(Errno::ENOPROTOOPT),
        };
        copy_of(&number.to_le_bytes())
    }

    /// Sets an option. `privileged`: the caller has `CAP_NET_ADMIN`.
    ///
    /// # Errors
    /// `ENOPROTOOPT`: not known, or not to be set. `EINVAL`: too short. `EPERM`; `EDOM`: a time
    /// with a wrong number of microseconds.
    pub fn set(&self, name: u32, value: &[u8], privileged: bool) -> Result<(), Errno> {
        let number = word(value, 0).ok_or(Errno::EINVAL)?;
        let sized = |most: u32, least: u32| ((number as i32).max(0) as u32).min(most).saturating_mul(2).max(least);
        match name {
            net::SO_SNDBUF => self.send_buffer.store(sized(DEFAULT_BUFFER, LEAST_SEND), Relaxed),
            net::SO_RCVBUF => self.receive_buffer.store(sized(DEFAULT_BUFFER, LEAST_RECEIVE), Relaxed),
            net::SO_SNDBUFFORCE | net::SO_RCVBUFFORCE | net::SO_MARK if !privileged => return Err(Errno::EPERM),
            net::SO_SNDBUFFORCE => self.send_buffer.store(sized(MOST, LEAST_SEND), Relaxed),
            net::SO_RCVBUFFORCE => self.receive_buffer.store(sized(MOST, LEAST_RECEIVE), Relaxed),
            net::SO_MARK => self.mark.store(number, Relaxed),
            net::SO_PRIORITY if number > 6 && !privileged => return Err(Errno::EPERM),
            net::SO_PRIORITY => self.priority.store(number, Relaxed),
            net::SO_RCVLOWAT => self.low_water.store((number as i32).max(1) as u32, Relaxed),
            net::SO_BUSY_POLL | net::SO_BINDTODEVICE | net::SO_INCOMING_CPU => {}
            net::SO_LINGER => {
                let seconds = word(value, 1).ok_or(Errno::EINVAL)?;
                self.linger[1].store(seconds, Relaxed);
                self.linger[0].store(u32::from(number != 0), Relaxed);
            }
            net::SO_RCVTIMEO_OLD | net::SO_RCVTIMEO_NEW => self.timeouts[0].store(nanoseconds(value)?, Relaxed),
            net::SO_SNDTIMEO_OLD | net::SO_SNDTIMEO_NEW => self.timeouts[1].store(nanoseconds(value)?, Relaxed),
            _ => {
                let bit = SWITCHES.iter().position(|option| *option == name).ok_or(Errno::ENOPROTOOPT)?;
                match number {
                    0 => self.switches.fetch_and(!(1 << bit), Relaxed),
                    _ => self.switches.fetch_or(1 << bit, Relaxed),
                };
            }
        }
        Ok(())
    }
}

/// Returns the 32-bit word at an index.
fn word(value: &[u8], index: usize) -> Option<u32> {
    value.get(index * 4..index * 4 + 4)?.try_into().ok().map(u32::from_le_bytes)
}

/// Returns a timeout as a `struct timeval`.
fn time(timeout: &AtomicU64) -> Result<Vec<u8>, Errno> {
    let timeout = timeout.load(Relaxed);
    let pair = u128::from(timeout / SECOND) | u128::from(timeout % SECOND / 1000) << 64;
    copy_of(&pair.to_le_bytes())
}

/// Returns a `struct timeval` in nanoseconds; 0, for ever, also for what is too long.
fn nanoseconds(value: &[u8]) -> Result<u64, Errno> {
    let bytes: [u8; 16] = value.get(..16).and_then(|bytes| bytes.try_into().ok()).ok_or(Errno::EINVAL)?;
    let pair = u128::from_le_bytes(bytes);
    let (seconds, micro) = (pair as i64, (pair >> 64) as i64);
    if !(0..1_000_000).contains(&micro) {
        return Err(Errno::EDOM);
    }
    // A negative time has passed already: the shortest that is not "for ever".
    let Ok(seconds) = u64::try_from(seconds) else { return Ok(1) };
    Ok(seconds.checked_mul(SECOND).and_then(|time| time.checked_add(micro as u64 * 1000)).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(options: &Options, name: u32) -> Result<u32, Errno> {
        options.get(name).map(|value| u32::from_le_bytes(value.try_into().unwrap()))
    }

    #[test]
    fn buffers_are_doubled_within_their_limits() {
        let options = Options::default();
        assert_eq!(number(&options, net::SO_SNDBUF), Ok(DEFAULT_BUFFER));
        for (asked, privileged, expected) in [(10_000u32, false, 20_000), (1, false, 4608), (1 << 30, false, 425_984)] {
            options.set(net::SO_SNDBUF, &asked.to_le_bytes(), privileged).unwrap();
            assert_eq!(number(&options, net::SO_SNDBUF), Ok(expected));
        }
        assert_eq!(options.set(net::SO_RCVBUFFORCE, &[0; 4], false), Err(Errno::EPERM));
        options.set(net::SO_RCVBUFFORCE, &(1u32 << 20).to_le_bytes(), true).unwrap();
        assert_eq!(options.receive_buffer(), 2 << 20);
    }

    #[test]
    fn timeouts_are_times_and_zero_is_for_ever() {
        let options = Options::default();
        let time = |seconds: i64, micro: i64| [seconds.to_le_bytes(), micro.to_le_bytes()].concat();
        assert_eq!(options.timeout(false), None);
        options.set(net::SO_RCVTIMEO_OLD, &time(2, 500_000), false).unwrap();
        assert_eq!((options.timeout(false), options.timeout(true)), (Some(2_500_000_000), None));
        assert_eq!(options.get(net::SO_RCVTIMEO_NEW), Ok(time(2, 500_000)));
        assert_eq!(options.set(net::SO_SNDTIMEO_OLD, &time(0, 1_000_000), false), Err(Errno::EDOM));
        assert_eq!(options.set(net::SO_SNDTIMEO_OLD, &[0; 8], false), Err(Errno::EINVAL));
        options.set(net::SO_RCVTIMEO_OLD, &time(i64::MAX, 0), false).unwrap();
        assert_eq!(options.timeout(false), None);
    }

    #[test]
    fn switches_are_kept_and_others_are_not_known() {
        let options = Options::default();
        assert!(!options.is_on(net::SO_REUSEADDR));
        options.set(net::SO_REUSEADDR, &7u32.to_le_bytes(), false).unwrap();
        assert_eq!((number(&options, net::SO_REUSEADDR), options.is_on(net::SO_PASSCRED)), (Ok(1), false));
        assert_eq!(options.set(12345, &[0; 4], true), Err(Errno::ENOPROTOOPT));
        assert_eq!(options.get(12345), Err(Errno::ENOPROTOOPT));
        let copy = Options::default();
        copy.copy(&options);
        assert!(copy.is_on(net::SO_REUSEADDR));
    }
}
