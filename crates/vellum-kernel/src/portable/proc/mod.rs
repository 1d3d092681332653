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
