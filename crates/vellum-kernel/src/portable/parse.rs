//! Parses what programs write to files in `/proc` and `/sys`, mount options, and boot options.

use crate::errno::Errno;
use alloc::vec::Vec;
use core::str::FromStr;

/// Parses a decimal number, with optional white space around it.
///
/// # Errors
/// `EINVAL`: the text is not a number, or the number does not fit `T`.
pub fn number<T: FromStr>(text: &[u8]) -> Result<T, Errno> {
    core::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok()).ok_or(Errno::EINVAL)
}

/// Parses a bit mask: hexadecimal after `0x`, or else decimal.
///
/// # Errors
/// `EINVAL`.
pub fn bits(text: &[u8]) -> Result<u32, Errno> {
    match text.trim_ascii().strip_prefix(b"0x") {
        Some(digits) => radix(digits, 16),
        None => number(text),
    }
}

/// Returns the value of an option of `mount` (`NAME=`), if there is one.
pub fn mount_option<'a>(options: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let value = |option: &'a [u8]| option.strip_prefix(name)?.strip_prefix(b"=");
    options.split(|byte| *byte == b',').find_map(value)
}

/// Returns the root directory's mode in the options of `mount` (`mode=`), if there is one.
///
/// # Errors
/// `EINVAL`: it is not an octal number.
pub fn mount_mode(options: &[u8]) -> Result<Option<u32>, Errno> {
    mount_option(options, b"mode").map(|mode| radix(mode, 8).map(|mode| mode & 0o7777)).transpose()
}

fn radix(digits: &[u8], radix: u32) -> Result<u32, Errno> {
    let digits = core::str::from_utf8(digits).map_err(|_| Errno::EINVAL)?;
    u32::from_str_radix(digits, radix).map_err(|_| Errno::EINVAL)
}

/// Parses the name of a numeric directory of `/proc`. Accepts a number only as `/proc` lists it:
/// without a sign or leading zeros.
pub fn numeric_name(name: &[u8]) -> Option<u32> {
    let number = core::str::from_utf8(name).ok()?.parse().ok();
    number.filter(|_| name == b"0" || !name.starts_with(b"0") && !name.starts_with(b"+"))
}

/// A boot option from the host: a line of `.vellum/options`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BootOption {
    /// `swap=BYTES`: a swap device of that size in compressed memory.
    Swap(u64),
    /// `swap-disk=` or `swap-disk=checked`: the disk at PCI slot [`SWAP_DISK`] is a swap device.
    SwapDisk {
        /// True if the swap device has checksums.
        checked: bool,
    },
    /// `disk=`: the disk at PCI slot [`DISK`] is a block device of the programs.
    Disk,
    /// `ram-disk=BYTES`: a block device of that size in memory.
    RamDisk(u64),
    /// `time=NANOSECONDS`: the wall clock, since 1970.
    Time(u64),
    /// `root=folder` or `root=disk`: the root file system is at PCI slot [`ROOT`].
    Root(Root),
    /// `terminal=ROWS,COLUMNS`: the first program's standard streams are a terminal of this size,
    /// which the host shows.
    Terminal {
        /// The rows of its window.
        rows: u16,
        /// The columns of its window.
        columns: u16,
    },
}

/// The host's form of the root file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// A folder that QEMU shares.
    Folder,
    /// A disk with an ext4 file system.
    Disk,
}

/// The slot of the disk to swap to on the first PCI bus.
pub const SWAP_DISK: u8 = 3;
/// The slot of the programs' disk on the first PCI bus.
pub const DISK: u8 = 4;
/// The slot of the root file system's device on the first PCI bus.
pub const ROOT: u8 = 6;

/// A slot's interrupt line is its number modulo 4, and an edge on a line that two devices share
/// could be missed. AArch64's stdio channel is at slot 1.
const _: () = {
    let [channel, swap, disk, root] = [1, SWAP_DISK % 4, DISK % 4, ROOT % 4];
    assert!(channel != swap && channel != disk && channel != root && swap != disk && swap != root && disk != root);
};

/// Parses the lines of `.vellum/options`. Yields an error message for an invalid line.
pub fn boot_options(text: &[u8]) -> impl Iterator<Item = Result<BootOption, &'static str>> {
    let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    lines.map(|line| {
        if let Some(bytes) = line.strip_prefix(b"swap=") {
            return number(bytes)
                .map(BootOption::Swap)
                .map_err(|_| "invalid size in `swap=BYTES`: not a decimal number");
        }
        if let Some(bytes) = line.strip_prefix(b"ram-disk=") {
            return number(bytes)
                .map(BootOption::RamDisk)
                .map_err(|_| "invalid size in `ram-disk=BYTES`: not a decimal number");
        }
        if let Some(time) = line.strip_prefix(b"time=") {
            return number(time)
                .map(BootOption::Time)
                .map_err(|_| "invalid time in `time=NANOSECONDS`: not a decimal number");
        }
        if let Some(size) = line.strip_prefix(b"terminal=") {
            let mut numbers = size.split(|byte| *byte == b',').map(number::<u16>);
            return match (numbers.next(), numbers.next(), numbers.next()) {
                (Some(Ok(rows)), Some(Ok(columns)), None) => Ok(BootOption::Terminal { rows, columns }),
                _ => Err("invalid size in `terminal=ROWS,COLUMNS`: not two numbers below 65536"),
            };
        }
        match line {
            b"swap-disk=" => Ok(BootOption::SwapDisk { checked: false }),
            b"swap-disk=checked" => Ok(BootOption::SwapDisk { checked: true }),
            b"disk=" => Ok(BootOption::Disk),
            b"root=folder" => Ok(BootOption::Root(Root::Folder)),
            b"root=disk" => Ok(BootOption::Root(Root::Disk)),
            _ => Err("unknown boot option: only `swap=BYTES`, `swap-disk=`, `swap-disk=checked`, `disk=`, \
                      `ram-disk=BYTES`, `time=NANOSECONDS`, `root=folder`, `root=disk` and \
                      `terminal=ROWS,COLUMNS` are known"),
        }
    })
}

/// Splits `.vellum/argv` or `.vellum/env` into its NUL-terminated strings.
pub fn strings(bytes: &[u8]) -> Vec<Vec<u8>> {
    bytes.strip_suffix(&[0]).map_or_else(Vec::new, |all| all.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_bits_modes_and_numeric_names_are_parsed() {
        assert_eq!(
            (number(b" 12\n"), number::<i32>(b"-7"), number::<u8>(b"256")),
            (Ok(12), Ok(-7), Err(Errno::EINVAL))
        );
        assert_eq!(
            (bits(b"0x1f\n"), bits(b"33"), bits(b"0x"), bits(b"\xff")),
            (Ok(31), Ok(33), Err(Errno::EINVAL), Err(Errno::EINVAL))
        );
        assert_eq!(
            (mount_mode(b"size=5,mode=1777"), mount_mode(b"mode=8"), mount_mode(b"")),
            (Ok(Some(0o1777)), Err(Errno::EINVAL), Ok(None))
        );
        let names = [&b"0"[..], b"42", b"042", b"+42", b"42 ", b"", b"4294967296"].map(numeric_name);
        assert_eq!(names, [Some(0), Some(42), None, None, None, None, None]);
    }

    #[test]
    fn boot_options_and_strings_are_parsed() {
        let read = |text: &[u8]| boot_options(text).collect::<Vec<_>>();
        let expected = [
            Ok(BootOption::Swap(4096)),
            Ok(BootOption::SwapDisk { checked: true }),
            Ok(BootOption::Disk),
            Ok(BootOption::RamDisk(8192)),
            Ok(BootOption::Root(Root::Folder)),
            Ok(BootOption::Time(1 << 60)),
            Ok(BootOption::Terminal { rows: 24, columns: 80 }),
        ];
        let lines = b"swap=4096\nswap-disk=checked\ndisk=\nram-disk=8192\nroot=folder\ntime=1152921504606846976\n\
            terminal=24,80\n";
        assert_eq!(read(lines), expected);
        assert!(
            read(b"").is_empty()
                && read(b"swap-disk=no")[0].is_err()
                && read(b"swap=x")[0].is_err()
                && read(b"root=/")[0].is_err()
                && read(b"ram-disk=")[0].is_err()
                && read(b"time=-1")[0].is_err()
                && read(b"terminal=24")[0].is_err()
                && read(b"terminal=24,80,1")[0].is_err()
        );
        assert_eq!(strings(b"a\0\0bc\0"), [b"a".to_vec(), b"".to_vec(), b"bc".to_vec()]);
        assert!(strings(b"").is_empty() && strings(b"\0") == [b""]);
    }
}
