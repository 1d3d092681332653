//! The information that comes with a signal, in the layouts in which programs see it: `siginfo_t`,
//! and `struct signalfd_siginfo`.

use linux_raw_sys::general as abi;

/// The size in bytes of `struct signalfd_siginfo`.
pub const SIGNALFD_SIZE: usize = 128;

/// The largest `si_code` of signals from the kernel about polled files (`NSIGPOLL`).
const LAST_POLL: i32 = 6;

/// A signal's information: the first 48 bytes of Linux's `siginfo_t`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// The signal's number.
    pub signal: u32,
    /// The error (`si_errno`).
    pub errno: i32,
    /// The reason (`si_code`).
    pub code: i32,
    /// The fields that depend on the kind of signal: the bytes after the first 16.
    pub fields: [u64; 4],
}

/// The kinds of fields that a signal's information has (Linux: `enum siginfo_layout`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// The sender.
    Kill,
    /// A timer, and the program's value.
    Timer,
    /// A file, and its events.
    Poll,
    /// The address of an access.
    Fault,
    /// A child, and its usage of time.
    Child,
    /// The sender, and the program's value.
    RealTime,
    /// A refused system call.
    Sys,
}

impl Info {
    /// Returns the information of a signal raised by an access to `address`.
    pub fn fault(signal: u32, code: u32, address: u64) -> Self {
        Self { signal, errno: 0, code: code as i32, fields: [address, 0, 0, 0] }
    }

    /// Returns whether `si_code` is one that only the kernel may set.
    pub fn is_from_kernel(&self) -> bool {
        self.code >= 0 || self.code == abi::SI_TKILL
    }

    /// Returns the bytes of `siginfo_t`.
    pub fn bytes(&self) -> [u8; 128] {
        let mut bytes = [0; 128];
        bytes[0..4].copy_from_slice(&self.signal.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.errno.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.code.to_le_bytes());
        for (place, field) in bytes[16..48].chunks_exact_mut(8).zip(self.fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Returns the information that the first bytes of a `siginfo_t` have.
    pub fn from_bytes(bytes: &[u8; 128]) -> Self {
        let half = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let word = |at: usize| u64::from(half(at)) | u64::from(half(at + 4)) << 32;
        let fields = core::array::from_fn(|index| word(16 + 8 * index));
        Self { signal: half(0), errno: half(4) as i32, code: half(8) as i32, fields }
    }

    /// Returns the fields that the signal and its code imply.
    fn layout(&self) -> Layout {
        const SI_TIMER: i32 = -2;
        const SI_SIGIO: i32 = -5;
        let (own, last) = match self.signal {
            abi::SIGILL => (Layout::Fault, 11),
            abi::SIGFPE => (Layout::Fault, 15),
            abi::SIGSEGV => (Layout::Fault, 10),
            abi::SIGBUS => (Layout::Fault, 5),
            abi::SIGTRAP => (Layout::Fault, 6),
            abi::SIGCHLD => (Layout::Child, 6),
            abi::SIGIO => (Layout::Poll, LAST_POLL),
            abi::SIGSYS => (Layout::Sys, 2),
            _ => (Layout::Kill, 0),
        };
        match self.code {
            code if 0 < code && code <= last => own,
            code if 0 < code && code <= LAST_POLL => Layout::Poll,
            SI_TIMER => Layout::Timer,
            SI_SIGIO => Layout::Poll,
            code if code < 0 => Layout::RealTime,
            _ => Layout::Kill,
        }
    }

    /// Returns the bytes of `struct signalfd_siginfo`, as a read of a signalfd returns them.
    pub fn signalfd_bytes(&self) -> [u8; SIGNALFD_SIZE] {
        const PID: usize = 12;
        const UID: usize = 16;
        const FD: usize = 20;
        const TID: usize = 24;
        const BAND: usize = 28;
        const OVERRUN: usize = 32;
        const STATUS: usize = 40;
        const INT: usize = 44;
        const PTR: usize = 48;
        const UTIME: usize = 56;
        const STIME: usize = 64;
        const ADDR: usize = 72;
        const ADDR_LSB: usize = 80;
        const SYSCALL: usize = 84;
        const CALL_ADDR: usize = 88;
        const ARCH: usize = 96;
        let mut bytes = [0; SIGNALFD_SIZE];
        let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
        put(0, &self.signal.to_le_bytes());
        put(4, &self.errno.to_le_bytes());
        put(8, &self.code.to_le_bytes());
        let [first, second, third, fourth] = self.fields.map(u64::to_le_bytes);
        let (low, high) = (&first[..4], &first[4..]);
        match self.layout() {
            Layout::Kill => {
                put(PID, low);
                put(UID, high);
            }
            Layout::Timer => {
                put(TID, low);
                put(OVERRUN, high);
                put(INT, &second[..4]);
                put(PTR, &second);
            }
            Layout::Poll => {
                put(BAND, low);
                put(FD, &second[..4]);
            }
            Layout::Fault => {
                put(ADDR, &first);
                if self.signal == abi::SIGBUS && matches!(self.code as u32, abi::BUS_MCEERR_AR | abi::BUS_MCEERR_AO) {
                    put(ADDR_LSB, &second[..2]);
                }
            }
            Layout::Child => {
                put(PID, low);
                put(UID, high);
                put(STATUS, &second[..4]);
                put(UTIME, &third);
                put(STIME, &fourth);
            }
            Layout::RealTime => {
                put(PID, low);
                put(UID, high);
                put(INT, &second[..4]);
                put(PTR, &second);
            }
            Layout::Sys => {
                put(CALL_ADDR, &first);
                put(SYSCALL, &second[..4]);
                put(ARCH, &second[4..]);
            }
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]))
    }

    #[test]
    fn a_signal_is_described_by_the_fields_of_its_kind() {
        let of = |signal, code, fields| Info { signal, errno: 9, code, fields }.signalfd_bytes();
        let (two, four) = (7 | 8 << 32, 3 | 4 << 32);
        let sent = of(abi::SIGUSR1, 0, [two, four, 0, 0]);
        assert_eq!([0, 4, 8, 12, 16, 44, 48].map(|at| word(&sent, at)), [abi::SIGUSR1, 9, 0, 7, 8, 0, 0]);
        let queued = of(abi::SIGUSR1, -1, [two, four, 0, 0]);
        assert_eq!([12, 16, 44, 48, 52].map(|at| word(&queued, at)), [7, 8, 3, 3, 4]);
        let timer = of(abi::SIGUSR1, -2, [two, four, 0, 0]);
        assert_eq!([12, 24, 32, 44, 52].map(|at| word(&timer, at)), [0, 7, 8, 3, 4]);
        let child = of(abi::SIGCHLD, 1, [two, 5, 6, 9]);
        assert_eq!([12, 16, 40, 56, 64].map(|at| word(&child, at)), [7, 8, 5, 6, 9]);
        let fault = of(abi::SIGSEGV, 1, [two, four, 0, 0]);
        assert_eq!([12, 72, 76, 80].map(|at| word(&fault, at)), [0, 7, 8, 0]);
        let refused = of(abi::SIGSYS, 1, [two, four, 0, 0]);
        assert_eq!([88, 92, 84, 96].map(|at| word(&refused, at)), [7, 8, 3, 4]);
        // A code of the kernel that the signal does not have describes a file.
        assert_eq!(word(&of(abi::SIGUSR1, 1, [two, four, 0, 0]), 20), 3);
        // A signal that a program sent is described as one, whatever its number.
        assert_eq!(word(&of(abi::SIGSEGV, 0, [two, 0, 0, 0]), 12), 7);
    }

    #[test]
    fn siginfo_has_its_error_and_fields_in_their_places() {
        let bytes = Info { signal: 31, errno: 5, code: 1, fields: [2, 3, 4, 6] }.bytes();
        assert_eq!([0, 4, 8, 16, 24, 32, 40].map(|at| word(&bytes, at)), [31, 5, 1, 2, 3, 4, 6]);
    }
}
