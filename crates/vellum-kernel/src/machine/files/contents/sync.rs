//! Writes dirty pages to the store, and has it keep them.

use super::{ObjectContents, Opener, PAGE, errno};
use crate::mem::spaces::All;
use crate::mem::{Object, machine, storage};
use crate::task::executor;
use core::ops::Range;
use core::sync::atomic::Ordering;
use vellum::memcg::MemcgId;
use vellum::page_cache::{ObjectError, Writeback};
use vellum::space;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Pages;

/// Has dirty pages of an object written, and waits for these writes.
pub(super) async fn complete(object: &Object, pages: Range<u64>) {
    let mut pass = Writeback::complete(pages);
    loop {
        match space::write_back(&All, object, &mut pass) {
            Ok(()) => return,
            Err(ObjectError::Pending(page)) => drop(storage::wait_for_request(page).await),
            // Other tasks free memory meanwhile.
            Err(_) => executor::yield_now().await,
        }
    }
}

impl ObjectContents {
    /// Has dirty pages written ([`Writeback`]), and goes on where an earlier call of the same pass
    /// stopped.
    ///
    /// # Errors
    ///
    /// `EIO`, with the thread marked as blocked: it has to wait for a page. `ENOMEM`.
    pub fn write_back(&self, pass: &mut Writeback) -> Result<(), Errno> {
        space::write_back(&All, &self.object, pass).map_err(errno)
    }

    /// Has about `pages` dirty pages written that are charged to `memcg` or its descendants, from
    /// where the last call stopped. Waits for none. Returns whether a write began.
    pub fn write_some(&self, memcg: MemcgId, pages: u64) -> bool {
        let from = self.flushed.load(Ordering::Relaxed);
        let before = self.object.page_counts();
        if before.dirty == 0 {
            return false;
        }
        let mut pass = Writeback::start(from..u64::MAX).limited(memcg, pages);
        // The pages for which memory is short are written later.
        let _ = self.write_back(&mut pass);
        self.flushed.store(pass.rest().unwrap_or(0), Ordering::Relaxed);
        // A pass that began within the file leaves pages before that to the next call.
        from > 0 || self.object.page_counts().dirty < before.dirty
    }

    /// Returns whether all dirty pages are to be written ([`ObjectContents::all_written`]) before
    /// these bytes are: the storage may be full by then.
    pub fn lacks_room(&self, bytes: Range<u64>) -> bool {
        self.store.as_ref().is_some_and(|store| !store.has_room(bytes, not_on_disk()))
    }

    /// Notes that all pages were written that were dirty before.
    pub fn all_written(&self) {
        if let Some(store) = &self.store {
            store.all_written();
        }
    }

    /// Has the store keep the size of a file whose dirty pages were written. Returns whether it
    /// succeeded.
    pub fn keep_size(&self) -> bool {
        self.store.as_ref().is_none_or(|store| store.keep_size(self.size()))
    }

    /// Has all dirty pages written, and waits. It is for tasks of the kernel, which no signal
    /// interrupts.
    pub async fn write_all(&self) {
        complete(&self.object, 0..u64::MAX).await;
        // Only `fsync` reports errors.
        let _ = self.keep_size();
    }

    /// Ends a synchronisation, after the pages were written: has the store keep them, and reports
    /// writes that failed since the opener last asked.
    ///
    /// # Errors
    ///
    /// `EIO`.
    pub fn flush(&self, opener: &Opener) -> Result<(), Errno> {
        let flushed = self.flush_store();
        let written = opener.errors.lock().check(&self.object);
        if flushed && written.is_ok() { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Has the store keep what was written. Returns whether it succeeded.
    pub fn flush_store(&self) -> bool {
        self.keep_size() && self.store.as_ref().is_none_or(|store| store.flush())
    }

    /// Ends a synchronisation as [`ObjectContents::flush`] does, for all mappings, which report a
    /// failed write once together.
    ///
    /// # Errors
    ///
    /// `EIO`.
    pub fn flush_mapped(&self) -> Result<(), Errno> {
        self.flush(&self.mapped)
    }
}

/// Returns the bytes of all pages that are dirty or being written.
pub(super) fn not_on_disk() -> u64 {
    let counts = machine().memcgs().counters(MemcgId::ROOT).unwrap_or_default();
    (counts.dirty + counts.writing) * PAGE
}
