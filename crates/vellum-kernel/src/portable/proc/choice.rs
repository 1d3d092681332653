//! Settings that are one of some words, as `/sys` shows them: all words, and the one that selected in
//! brackets.

use super::Text;
use core::fmt::{self, Write};

/// The words, of which one selected.
///
/// # Errors
/// No memory for the text.
pub fn show(text: &mut Text, words: &[&str], selected: usize) -> fmt::Result {
    for (number, word) in words.iter().enumerate() {
        let separator = if number > 0 { " " } else { "" };
        let [open, close] = if number == selected { ["[", "]"] } else { [""; 2] };
        write!(text, "{separator}{open}{word}{close}")?;
    }
    writeln!(text)
}

/// Which word was written, perhaps with a newline.
pub fn find(words: &[&str], written: &[u8]) -> Option<usize> {
    let written = written.strip_suffix(b"\n").unwrap_or(written);
    words.iter().position(|word| word.as_bytes() == written)
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
    }
}
