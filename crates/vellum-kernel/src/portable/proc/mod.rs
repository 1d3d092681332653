//! The texts of `/proc` and `/sys`, exactly as Linux forms them: from plain structures to text, and
//! nothing else. Sizes are in bytes, where nothing else is said.
//!
//! | file | story |
//! |---|---|
//! | [`maps`] | `maps`, `smaps`, `smaps_rollup` |
//! | [`process`] | `status`, `stat`, `statm` |
//! | [`choice`] | settings that are one of some words |
//! | [`limits`] | `limits` |
//! | [`processors`] | which processors there are, and how they lie together |
//! | [`system`] | `meminfo`, `vmstat`, `stat` |

pub mod choice;
pub mod limits;
pub mod maps;
pub mod process;
pub mod processors;
pub mod system;

use crate::errno::Errno;
use alloc::vec::Vec;
use core::fmt;

/// A text that grows; that there is no memory for it is an error of the formatting.
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

    /// A text made by `write`.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn of(write: impl FnOnce(&mut Text) -> fmt::Result) -> Result<Vec<u8>, Errno> {
        let mut text = Text::default();
        write(&mut text).map_err(|_| Errno::ENOMEM)?;
        Ok(text.0)
    }
}

/// In units of 1024 bytes.
const fn kib(bytes: u64) -> u64 {
    bytes / 1024
}
