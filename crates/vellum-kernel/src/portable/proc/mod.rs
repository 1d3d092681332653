//! Formats the texts of `/proc` and `/sys` exactly as Linux does, from plain structures. Sizes are
//! in bytes unless stated otherwise.
//!
//! | file | contents |
//! |---|---|
//! | [`maps`] | `maps`, `smaps`, `smaps_rollup` |
//! | [`names`] | the names that programs give their memory |
//! | [`process`] | `status`, `stat`, `statm` |
//! | [`choice`] | settings with a fixed set of values |
//! | [`limits`] | `limits` |
//! | [`processors`] | lists and masks of CPUs, and the CPU topology |
//! | [`system`] | `meminfo`, `vmstat`, `swaps`, `stat` |

pub mod choice;
pub mod limits;
pub mod maps;
pub mod names;
pub mod process;
pub mod processors;
pub mod system;

use crate::errno::Errno;
use alloc::vec::Vec;
use core::fmt;

/// A growing text. A failed allocation is a formatting error.
#[derive(Default)]
pub struct Text(Vec<u8>);

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        self.put(text.as_bytes())
    }
}

impl Text {
    fn put(&mut self, bytes: &[u8]) -> fmt::Result {
        self.0.try_reserve(bytes.len()).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    /// Writes a line: the name in at least 16 columns, the number at the end of at least 8 more,
    /// and the unit. `smaps` has some 25 such lines a VMA, and programs read it often.
    ///
    /// # Errors
    /// Fails if there is no memory for it.
    fn amount(&mut self, name: &str, number: u64, unit: &str) -> fmt::Result {
        const MOST_DIGITS: usize = 20;
        let mut digits = [b' '; MOST_DIGITS];
        let (mut left, mut first) = (number, MOST_DIGITS);
        loop {
            first -= 1;
            digits[first] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        let name_columns = 16.max(name.len());
        let number = &digits[first.min(MOST_DIGITS - 8)..];
        self.0.try_reserve(name_columns + number.len() + unit.len() + 1).map_err(|_| fmt::Error)?;
        self.0.extend_from_slice(name.as_bytes());
        self.0.resize(self.0.len() + name_columns - name.len(), b' ');
        self.0.extend_from_slice(number);
        self.0.extend_from_slice(unit.as_bytes());
        self.0.push(b'\n');
        Ok(())
    }

    /// Returns the text that `write` writes.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn of(write: impl FnOnce(&mut Text) -> fmt::Result) -> Result<Vec<u8>, Errno> {
        let mut text = Text::default();
        write(&mut text).map_err(|_| Errno::ENOMEM)?;
        Ok(text.0)
    }
}

/// Converts bytes to KiB.
const fn kib(bytes: u64) -> u64 {
    bytes / 1024
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write;

    #[test]
    fn an_amount_is_a_line_as_the_formatter_writes_it() {
        for number in [0, 7, 10, 99_999_999, 100_000_000, u64::MAX] {
            for name in ["Rss:", "Private_Hugetlb:", "A name of 20 letters"] {
                let of = |write: &dyn Fn(&mut Text) -> fmt::Result| Text::of(|text| write(text)).unwrap();
                let amount = of(&|text| text.amount(name, number, " kB"));
                assert_eq!(amount, of(&|text| writeln!(text, "{name:<16}{number:>8} kB")));
            }
        }
    }
}
