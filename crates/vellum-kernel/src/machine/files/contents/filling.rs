//! Pages that the kernel fills itself.

use crate::mem::platform::Host;
use crate::mem::storage::{begin, ended};
use core::ops::Range;
use core::sync::atomic::AtomicU8;
use vellum::page_cache::Overwrite;
use vellum_kernel::errno::Errno;

/// Pages that the kernel fills itself, for a write of whole pages. Tasks that need one of them wait
/// until this is dropped.
pub struct Filling(Option<(Overwrite<'static, Host>, (u64, u64, u64))>);

impl Filling {
    /// Registers the pages, so that tasks can wait for them.
    ///
    /// # Errors
    /// `ENOMEM`; the pages are missing again then.
    pub fn new(over: Overwrite<'static, Host>, object: u64) -> Result<Self, Errno> {
        let pages = (object, over.pages().start, over.pages().end);
        begin(pages)?;
        Ok(Filling(Some((over, pages))))
    }

    /// Returns the bytes to fill, a slice for each folio.
    pub fn folios(&self) -> impl Iterator<Item = &[AtomicU8]> {
        self.0.iter().flat_map(|(over, _)| over.folios())
    }

    /// Returns the pages, by their numbers.
    pub fn pages(&self) -> Range<u64> {
        self.0.as_ref().map_or(0..0, |(over, _)| over.pages())
    }

    /// Leaves the pages missing, whose bytes the storage has, and makes the file's size at least
    /// `size` bytes.
    pub fn leave(mut self, size: u64) {
        if let Some((over, pages)) = self.0.take() {
            over.leave(size);
            ended(pages, u64::MAX);
        }
    }

    /// Puts the first `filled` pages into the file, whose size is then at least `size` bytes.
    pub fn finish(mut self, filled: u64, size: u64) {
        if let Some((over, pages)) = self.0.take() {
            over.finish(filled, size);
            ended(pages, u64::MAX);
        }
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        if let Some((over, pages)) = self.0.take() {
            drop(over);
            ended(pages, u64::MAX);
        }
    }
}
