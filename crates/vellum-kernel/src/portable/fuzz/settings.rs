//! What programs write to settings, and what comes over the wire.

use crate::fs::cgroup::{format_amount, parse_amount, parse_subtree_control};
use crate::proc::choice;
use crate::wire::Input;
use crate::written::{BootOption, bits, mode, named, number, options, words};
use std::format;
use std::string::String;
use std::vec::Vec;

/// Every reader of what a program writes to `/proc`, `/sys` or a control file, of options of
/// `mount`, and of options at boot.
pub fn settings(bytes: &[u8]) {
    if let Ok(amount_read) = parse_amount(bytes) {
        assert_eq!(parse_amount(&format_amount(amount_read)), Ok(amount_read), "an amount as it is shown");
    }
    if let Ok(value) = number::<u64>(bytes) {
        assert_eq!(number(format!("{value}\n").as_bytes()), Ok(value));
        // Small numbers of either sign are the same for every width.
        assert_eq!(number::<i32>(bytes).ok(), i32::try_from(value).ok());
        assert_eq!(bits(bytes).ok(), u32::try_from(value).ok());
    }
    if let Ok(set) = bits(bytes) {
        assert_eq!(bits(format!("0x{set:x}").as_bytes()), Ok(set));
    }
    assert!(
        mode(bytes).is_ok_and(|mode| mode.is_none_or(|mode| mode <= 0o7777))
            || bytes.starts_with(b"mode=")
            || contains(bytes, b",mode=")
    );
    assert_eq!(named(bytes), number(bytes).ok().filter(|number: &u32| format!("{number}").as_bytes() == bytes));
    const WORDS: [&str; 3] = ["always", "madvise", "never"];
    if let Some(found) = choice::find(&WORDS, bytes) {
        assert_eq!(String::from_utf8_lossy(bytes).trim_end_matches('\n'), WORDS[found]);
    }
    assert_eq!(
        parse_subtree_control(bytes, true) == Ok(true),
        parse_subtree_control(bytes, false) == Ok(true) || parse_subtree_control(bytes, true) == Ok(true)
    );
    for option in options(bytes).flatten() {
        let line = match option {
            BootOption::Swap(bytes) => format!("swap={bytes}\n"),
            BootOption::SwapDisk { checked } => format!("swap-disk={}", if checked { "checked" } else { "" }),
        };
        assert_eq!(options(line.as_bytes()).collect::<Vec<_>>(), [Ok(option)]);
    }
    let mut all = words(bytes).join(&0);
    all.push(0);
    assert!(bytes.last() != Some(&0) || all == bytes, "words in a row are the text");
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Frames from the host: byte by byte, they say what they say when they are read whole.
pub fn wire(bytes: &[u8]) {
    let mut input = Input::new();
    let taken: Vec<u8> = bytes.iter().filter_map(|byte| input.take(*byte)).collect();
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
    assert_eq!((taken, input.ended()), (expected, ended));
}
