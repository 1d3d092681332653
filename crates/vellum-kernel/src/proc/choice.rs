//! Settings that are one of some words, as `/sys` shows them: all words, and the one that holds in brackets.

use super::Text;
use core::fmt::{self, Write};

/// The words, of which one holds.
///
/// # Errors
/// No memory for the text.
pub fn show(text: &mut Text, words: &[&str], holds: usize) -> fmt::Result {
    for (number, word) in words.iter().enumerate() {
        let gap = if number > 0 { " " } else { "" };
        let [open, close] = if number == holds { ["[", "]"] } else { [""; 2] };
        write!(text, "{gap}{open}{word}{close}")?;
    }
    writeln!(text)
}

/// Which word was written, perhaps with a newline.
pub fn find(words: &[&str], written: &[u8]) -> Option<usize> {
    let written = written.strip_suffix(b"\n").unwrap_or(written);
    words.iter().position(|word| word.as_bytes() == written)
}

/// Numbers from zero up to one short of `end`, as lists of CPUs and nodes say it.
///
/// # Errors
/// No memory for the text.
pub fn range(text: &mut Text, end: usize) -> fmt::Result {
    match end {
        0 => writeln!(text),
        1 => writeln!(text, "0"),
        _ => writeln!(text, "0-{}", end - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 3] = ["always", "madvise", "never"];

    #[test]
    fn words() {
        assert_eq!(Text::of(|text| show(text, &WORDS, 1)).unwrap(), b"always [madvise] never\n");
        assert_eq!((find(&WORDS, b"never\n"), find(&WORDS, b"always")), (Some(2), Some(0)));
        assert_eq!((find(&WORDS, b"nev"), find(&WORDS, b"never\n\n"), find(&WORDS, b"")), (None, None, None));
        assert_eq!(
            (Text::of(|text| range(text, 1)).unwrap(), Text::of(|text| range(text, 4)).unwrap()),
            (b"0\n".to_vec(), b"0-3\n".to_vec())
        );
    }
}
