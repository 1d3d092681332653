//! The settings of a terminal (`struct termios`), in the layouts of `TCGETS` and `TCGETS2`, which
//! are the same on x86-64 and AArch64.

use linux_raw_sys::general::{
    B38400, BOTHER, CBAUD, CBAUDEX, CREAD, CS8, CSIZE, ECHO, ECHOCTL, ECHOE, ECHOK, ECHOKE, ICANON, ICRNL, IEXTEN,
    ISIG, IXON, ONLCR, OPOST, PARENB, VDISCARD, VEOF, VEOL, VEOL2, VERASE, VINTR, VKILL, VLNEXT, VMIN, VQUIT, VREPRINT,
    VSTART, VSTOP, VSUSP, VTIME, VWERASE,
};

/// The number of special characters.
const NCCS: usize = 19;
/// The size of `struct termios` as the kernel has it.
pub const SIZE: usize = 36;
/// The size of `struct termios2`: with both speeds.
pub const SIZE2: usize = 44;

/// The speeds of `B50` to `B38400`, in bit/s, by the value of `CBAUD`.
const SLOW: [u32; 16] = [0, 50, 75, 110, 134, 150, 200, 300, 600, 1200, 1800, 2400, 4800, 9600, 19200, 38400];
/// The speeds of `B57600` to `B4000000`.
const FAST: [u32; 15] = [
    57600, 115_200, 230_400, 460_800, 500_000, 576_000, 921_600, 1_000_000, 1_152_000, 1_500_000, 2_000_000, 2_500_000,
    3_000_000, 3_500_000, 4_000_000,
];

/// The settings of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Termios {
    pub iflag: u32,
    pub oflag: u32,
    pub cflag: u32,
    pub lflag: u32,
    /// The number of the line discipline. There is only `N_TTY`, so it has no effect.
    pub line: u8,
    pub cc: [u8; NCCS],
    /// The speeds of input and output in bit/s, which have no effect.
    pub speeds: [u32; 2],
}

impl Default for Termios {
    /// Returns Linux's settings of a new pseudoterminal.
    fn default() -> Self {
        let mut cc = [0; NCCS];
        for (index, value) in [
            (VINTR, 3),
            (VQUIT, 28),
            (VERASE, 127),
            (VKILL, 21),
            (VEOF, 4),
            (VTIME, 0),
            (VMIN, 1),
            (VSTART, 17),
            (VSTOP, 19),
            (VSUSP, 26),
            (VREPRINT, 18),
            (VDISCARD, 15),
            (VWERASE, 23),
            (VLNEXT, 22),
        ] {
            cc[index as usize] = value;
        }
        Termios {
            iflag: ICRNL | IXON,
            oflag: OPOST | ONLCR,
            cflag: B38400 | CS8 | CREAD,
            lflag: ISIG | ICANON | ECHO | ECHOE | ECHOK | ECHOCTL | ECHOKE | IEXTEN,
            line: 0,
            cc,
            speeds: [38400; 2],
        }
    }
}

impl Termios {
    /// Returns the bytes of `struct termios2`, which begin with those of `struct termios`.
    pub fn bytes(&self) -> [u8; SIZE2] {
        let mut bytes = [0; SIZE2];
        let flags = [self.iflag, self.oflag, self.cflag, self.lflag];
        for (place, flags) in bytes.chunks_exact_mut(4).zip(flags) {
            place.copy_from_slice(&flags.to_le_bytes());
        }
        bytes[16] = self.line;
        bytes[17..SIZE].copy_from_slice(&self.cc);
        for (place, speed) in bytes[SIZE..].chunks_exact_mut(4).zip(self.speeds) {
            place.copy_from_slice(&speed.to_le_bytes());
        }
        bytes
    }

    /// Returns the settings in the bytes of `struct termios2`, or of `struct termios`, whose flags
    /// name the speeds. A pseudoterminal always has eight bits, and receives.
    pub fn of(bytes: &[u8; SIZE2], has_speeds: bool) -> Self {
        let word = |at: usize| u32::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        let cflag = word(8) & !(CSIZE | PARENB) | CS8 | CREAD;
        let speed = match named_speed(cflag) {
            Some(speed) => [speed; 2],
            None if has_speeds => [word(SIZE), word(SIZE + 4)],
            None => [0; 2],
        };
        Termios {
            iflag: word(0),
            oflag: word(4),
            cflag,
            lflag: word(12),
            line: bytes[16],
            cc: core::array::from_fn(|i| bytes[17 + i]),
            speeds: speed,
        }
    }

    /// Returns true if the input flags have `flag`.
    pub fn input(&self, flag: u32) -> bool {
        self.iflag & flag != 0
    }

    /// Returns true if the output flags have `flag`.
    pub fn output(&self, flag: u32) -> bool {
        self.oflag & flag != 0
    }

    /// Returns true if the local flags have `flag`.
    pub fn local(&self, flag: u32) -> bool {
        self.lflag & flag != 0
    }

    /// Returns true if `byte` is the special character with this index (`VINTR` and others). A
    /// special character of 0 is disabled.
    pub fn is(&self, byte: u8, index: u32) -> bool {
        byte != 0 && self.cc[index as usize] == byte
    }

    /// Returns true if `byte` ends a line besides newline and `VEOF`.
    pub fn is_other_end(&self, byte: u8) -> bool {
        self.is(byte, VEOL) || self.is(byte, VEOL2) && self.local(IEXTEN)
    }

    /// Returns true if `byte` is `VEOF`.
    pub fn is_eof(&self, byte: u8) -> bool {
        self.is(byte, VEOF)
    }

    /// Returns true if the terminal stops and starts its output by ^S and ^Q.
    pub fn has_usual_flow(&self) -> bool {
        self.input(IXON) && self.cc[VSTOP as usize] == 19 && self.cc[VSTART as usize] == 17
    }

    /// Returns the least number of bytes and the time in nanoseconds that decide when a read in raw
    /// mode returns (`VMIN`, `VTIME`).
    pub fn timing(&self) -> (usize, u64) {
        const TENTH: u64 = 100_000_000;
        (self.cc[VMIN as usize].into(), u64::from(self.cc[VTIME as usize]) * TENTH)
    }
}

/// Returns the speed that `CBAUD` names; `None` for `BOTHER`.
fn named_speed(cflag: u32) -> Option<u32> {
    let code = cflag & CBAUD;
    match code {
        BOTHER => None,
        _ if code & CBAUDEX == 0 => SLOW.get(code as usize).copied(),
        _ => FAST.get((code & !CBAUDEX) as usize - 1).copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use linux_raw_sys::general::{B115200, CS7};

    #[test]
    fn settings_survive_the_layouts_of_ioctl() {
        let usual = Termios::default();
        assert_eq!(usual.bytes()[..4], [0, 5, 0, 0], "as Linux has it");
        assert_eq!(usual.bytes()[8..10], [0xbf, 0]);
        assert_eq!(usual.bytes()[12..14], [0x3b, 0x8a]);
        assert_eq!(Termios::of(&usual.bytes(), true), usual);
        assert_eq!(Termios::of(&usual.bytes(), false), usual);
    }

    #[test]
    fn speeds_are_named_or_given_and_characters_always_have_eight_bits() {
        let mut other = Termios { cflag: B115200 | CS7 | PARENB, ..Termios::default() };
        assert_eq!(Termios::of(&other.bytes(), false).speeds, [115_200; 2]);
        assert_eq!(Termios::of(&other.bytes(), false).cflag, B115200 | CS8 | CREAD);
        other = Termios { cflag: BOTHER | CS8 | CREAD, speeds: [7, 9], ..other };
        assert_eq!(Termios::of(&other.bytes(), true), other);
        assert_eq!(Termios::of(&other.bytes(), false).speeds, [0; 2]);
        // Each value that a program may give has an answer.
        for cflag in 0..=CBAUD {
            let _ = named_speed(cflag);
        }
    }

    #[test]
    fn a_special_character_of_zero_is_disabled() {
        let usual = Termios::default();
        assert!(usual.is(3, VINTR) && !usual.is(0, VEOL) && !usual.is_other_end(0));
    }
}
