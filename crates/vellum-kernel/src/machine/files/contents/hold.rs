//! Pages on hold while their bytes move in the file.

use super::sync::complete;
use crate::mem::Object;
use crate::mem::platform::Host;
use crate::mem::spaces::All;
use crate::mem::storage::{begin, ended};
use crate::task::executor;
use vellum::{page_cache, space};
use vellum_kernel::errno::Errno;

/// The pages of a file from some page on, for which tasks wait until this is dropped.
pub struct Held {
    object: Object,
    held: Option<page_cache::Held<'static, Host>>,
    pages: (u64, u64, u64),
}

impl Held {
    /// Puts a page and all behind it on hold. The caller holds the file's write lock.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP`: the file has no store. `ENOMEM`.
    pub fn new(object: &Object, page: u64) -> Result<Self, Errno> {
        let held = page_cache::Held::begin(object, page).ok_or(Errno::EOPNOTSUPP)?;
        // A task that has found a page on hold before this looks again at once.
        let pages = (object.serial(), held.pages().start, held.pages().end);
        begin(pages)?;
        Ok(Held { object: object.clone(), held: Some(held), pages })
    }

    /// Gets the pages out of memory, but for those that an access uses which was under way when the
    /// hold began: unmaps them, so that they stay clean once they are written, and drops them.
    pub async fn empty(&self) {
        // Such an access ends.
        executor::yield_now().await;
        let pages = self.pages.1..self.pages.2;
        space::invalidate(&All, &self.object, pages.clone());
        complete(&self.object, pages.clone()).await;
        space::invalidate(&All, &self.object, pages);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.held = None;
        ended(self.pages, u64::MAX);
    }
}
