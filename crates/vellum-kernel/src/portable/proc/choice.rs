//! Settings with a fixed set of values, as `/sys` shows them: all values, and the selected one in
//! brackets.

use super::Text;
use core::fmt::{self, Write};

/// Writes all words, with the word number `selected` in brackets.
///
/// # Errors
/// Fails if there is no memory for the text.
pub fn show(text: &mut Text, words: &[&str], selected: usize) -> fmt::Result {
    for (number, word) in words.iter().enumerate() {
        let separator = if number > 0 { " " } else { "" };
        let [open, close] = if number == selected { ["[", "]"] } else { [""; 2] };
        write!(text, "{separator}{open}{word}{close}")?;
    }
    writeln!(text)
}

/// Returns the index of the word that a program wrote, with an optional newline.
pub fn find(words: &[&str], written: &[u8]) -> Option<usize> {
    let written = written.strip_suffix(b"\n").unwrap_or(written);
    words.iter().position(|word| word.as_bytes() == written)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORDS: [&str; 3] = ["always", "madvise", "never"];

    #[test]
    fn words_are_shown_and_found() {
        assert_eq!(Text::of(|text| show(text, &WORDS, 1)).unwrap(), b"always [madvise] never\n");
        assert_eq!((find(&WORDS, b"never\n"), find(&WORDS, b"always")), (Some(2), Some(0)));
        assert_eq!((find(&WORDS, b"nev"), find(&WORDS, b"never\n\n"), find(&WORDS, b"")), (None, None, None));
    }
}
