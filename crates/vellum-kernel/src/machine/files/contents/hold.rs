//! Pages on hold while their bytes move in the file.

use crate::mem::Object;
use crate::mem::platform::Host;
use crate::mem::storage::{begin, ended};
use core::ops::Range;
use vellum::page_cache;
use vellum_kernel::errno::Errno;

/// The pages of a file from some page on, for which tasks wait until this is dropped.
pub struct Held {
    held: Option<page_cache::Held<'static, Host>>,
    pages: (u64, u64, u64),
}

impl Held {
    /// Puts the pages from `page` on on hold. The caller holds the file's write lock.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn new(object: &Object, page: u64) -> Result<Self, Errno> {
        let held = page_cache::Held::begin(object, page);
        // A task that has found a page on hold before this looks again at once.
        let first = held.as_ref().map_or(u64::MAX, |held| held.pages().start);
        let pages = (object.serial(), first, u64::MAX);
        begin(pages)?;
        Ok(Held { held, pages })
    }
}

/// Returns the pages of an object that are on hold, by their numbers.
pub fn held(object: &Object) -> Range<u64> {
    page_cache::Held::of(object)
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held = None;
        ended(self.pages, u64::MAX);
    }
}
