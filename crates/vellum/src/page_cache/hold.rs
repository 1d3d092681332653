//! Pages that nothing gets while the host moves their bytes (Linux: `filemap_invalidate_lock`).

use core::ops::Range;

use super::{Collapses, LockedState, Object, ObjectError};
use crate::platform::{PendingPage, Platform};

/// The pages of an object from a first one on, which are on hold until this value is dropped: an
/// operation that needs one of them fails with [`ObjectError::Pending`], and none begins to be
/// read. What has mapped, referenced or begun to read one before goes on. So once the host has
/// [invalidated](crate::space::invalidate) all, had the dirty ones
/// [written](crate::space::write_back), and invalidated all again, none is left in memory, even if
/// programs store to them without a pause; but the host may have to repeat that for an access that
/// was under way.
#[must_use = "the pages are on hold until it is dropped"]
pub struct Held<'m, P: Platform> {
    object: Object<'m, P>,
    first: u64,
}

impl<'m, P: Platform> Held<'m, P> {
    /// Puts a page and all behind it on hold, and those before it that can share a folio with it:
    /// the use of one page of a folio keeps all others in memory. Returns `None` if pages of the
    /// object are on hold already, or the object has no store. Takes the object's lock.
    pub fn begin(object: &Object<'m, P>, page: u64) -> Option<Self> {
        let first = Collapses(object).block(page).start;
        let mut state = object.lock();
        if object.head().store.is_none() || state.held_from != u64::MAX {
            return None;
        }
        state.held_from = first;
        drop(state);
        Some(Held { object: object.clone(), first })
    }

    /// Returns the pages, by their numbers.
    pub fn pages(&self) -> Range<u64> {
        self.first..u64::MAX
    }

    /// Returns true if a task that waits for this page waits for this value.
    pub fn has(&self, page: PendingPage) -> bool {
        page.object == self.object.serial() && self.pages().contains(&page.page)
    }
}

impl<P: Platform> Drop for Held<'_, P> {
    fn drop(&mut self) {
        self.object.lock().held_from = u64::MAX;
    }
}

impl LockedState {
    /// Checks that a page of this object is not on hold.
    ///
    /// # Errors
    /// [`ObjectError::Pending`].
    #[inline]
    pub(super) fn check_hold<P: Platform>(&self, object: &Object<'_, P>, page: u64) -> Result<(), ObjectError> {
        if page < self.held_from { Ok(()) } else { Err(ObjectError::pending(object, page)) }
    }
}
