//! Fuzz targets for settings that programs write, and for the stdio channel.

use crate::fs::cgroup::{format_amount, parse_amount, parse_subtree_control};
use crate::parse::{BootOption, Root, bits, boot_options, mount_mode, number, numeric_name, strings};
use crate::proc::choice;
use crate::stdio::StdinDecoder;
use std::format;
use std::string::String;
use std::vec::Vec;

/// Runs every parser of text that programs write to `/proc`, `/sys` or a cgroup file, of mount
/// options, and of boot options.
pub fn settings(bytes: &[u8]) {
    if let Ok(amount_read) = parse_amount(bytes) {
        assert_eq!(parse_amount(&format_amount(amount_read)), Ok(amount_read), "a formatted amount is parsed back");
    }
    if let Ok(value) = number::<u64>(bytes) {
        assert_eq!(number(format!("{value}\n").as_bytes()), Ok(value));
        // A number is parsed to the same value for each integer type that it fits.
        assert_eq!(number::<i32>(bytes).ok(), i32::try_from(value).ok());
        assert_eq!(bits(bytes).ok(), u32::try_from(value).ok());
    }
    if let Ok(set) = bits(bytes) {
        assert_eq!(bits(format!("0x{set:x}").as_bytes()), Ok(set));
    }
    assert!(
        mount_mode(bytes).is_ok_and(|mode| mode.is_none_or(|mode| mode <= 0o7777))
            || bytes.starts_with(b"mode=")
            || contains(bytes, b",mode=")
    );
    assert_eq!(numeric_name(bytes), number(bytes).ok().filter(|number: &u32| format!("{number}").as_bytes() == bytes));
    const WORDS: [&str; 3] = ["always", "madvise", "never"];
    if let Some(found) = choice::find(&WORDS, bytes) {
        assert_eq!(String::from_utf8_lossy(bytes).trim_end_matches('\n'), WORDS[found]);
    }
    assert_eq!(
        parse_subtree_control(bytes, true) == Ok(true),
        parse_subtree_control(bytes, false) == Ok(true) || parse_subtree_control(bytes, true) == Ok(true)
    );
    for option in boot_options(bytes).flatten() {
        let line = match option {
            BootOption::Swap(bytes) => format!("swap={bytes}\n"),
            BootOption::RamDisk(bytes) => format!("ram-disk={bytes}\n"),
            BootOption::Time(now) => format!("time={now}\n"),
            BootOption::Disk => "disk=\n".into(),
            BootOption::Root(Root::Folder) => "root=folder\n".into(),
            BootOption::Root(Root::Disk) => "root=disk\n".into(),
            BootOption::Terminal { rows, columns } => format!("terminal={rows},{columns}"),
            BootOption::SwapDisk { checked } => format!("swap-disk={}", if checked { "checked" } else { "" }),
        };
        assert_eq!(boot_options(line.as_bytes()).collect::<Vec<_>>(), [Ok(option)]);
    }
    let mut all = strings(bytes).join(&0);
    all.push(0);
    assert!(bytes.last() != Some(&0) || all == bytes, "the joined strings are the input");
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Decodes the frames (messages) of the stdio channel byte by byte, and checks that the standard
/// input in them equals that of a decoder which reads whole frames.
pub fn stdio(bytes: &[u8]) {
    let mut input = StdinDecoder::new();
    let decoded: Vec<u8> = bytes.iter().filter_map(|byte| input.decode(*byte)).collect();
    let (mut rest, mut expected, mut ended) = (bytes, Vec::new(), false);
    while let Some(([kind, low, high], after)) = rest.split_first_chunk() {
        let len = usize::from(u16::from_le_bytes([*low, *high]));
        let payload = &after[..len.min(after.len())];
        if *kind == 0 && !ended {
            expected.extend(payload);
            ended = len == 0;
        }
        rest = &after[payload.len()..];
    }
    assert_eq!((decoded, input.is_eof()), (expected, ended));
}
