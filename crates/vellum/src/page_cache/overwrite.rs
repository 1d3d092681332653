//! Writes of whole pages by the host, which are not read from the storage first (Linux:
//! `iomap_write_begin` of a whole folio).

use core::ops::Range;
use core::sync::atomic::AtomicU8;

use super::{MAX_SIZE, Object, ObjectError, read};
use crate::addr::FRAME_SIZE;
use crate::machine::Machine;
use crate::memcg::MemcgId;
use crate::platform::{PendingPage, Platform, ReadRequest};

/// Missing pages of an object with a store that the host fills itself. Until it has, they count as
/// being read, so that no other CPU sees them half filled: an operation that needs one of them
/// fails with [`ObjectError::Pending`]. Dropping this value leaves the pages missing.
#[must_use = "its pages can't be used until it is finished or dropped"]
pub struct Overwrite<'m, P: Platform> {
    object: Object<'m, P>,
    request: Option<ReadRequest>,
}

impl<'m, P: Platform> Overwrite<'m, P> {
    /// Inserts the first of `pages` that are missing from an object with a store, in folios that
    /// are charged to `memcg`, as large as policy permits. They may lie beyond the end of the
    /// object. Returns `None` if the first page exists, or if the object has no store. The caller
    /// serialises this with changes of the object's size (Linux: the inode lock), and no lock of
    /// the engine is held.
    ///
    /// # Errors
    /// [`ObjectError::TooLarge`]: the pages lie beyond [`MAX_SIZE`]. There is no memory for the
    /// first page, or `memcg` is at its limit.
    pub fn begin(object: &Object<'m, P>, pages: Range<u64>, memcg: MemcgId) -> Result<Option<Self>, ObjectError> {
        if object.head().store.is_none() || pages.is_empty() {
            return Ok(None);
        }
        if !object.is_inside(MAX_SIZE, pages.end - 1) {
            return Err(ObjectError::TooLarge);
        }
        let _pinned = object.pin_memcg(memcg)?;
        let request = read::Reads(object).begin(pages, memcg)?;
        Ok(request.map(|request| Overwrite { object: object.clone(), request: Some(request) }))
    }

    /// Returns the pages, by their numbers.
    pub fn pages(&self) -> Range<u64> {
        self.request.as_ref().map_or(0..0, ReadRequest::pages)
    }

    /// Returns the bytes to fill, in the order of the file, a slice for each folio. What the host
    /// does not write has old contents of the memory.
    pub fn folios(&self) -> impl Iterator<Item = &[AtomicU8]> {
        let frames = self.object.machine.frames();
        let folios = self.request.iter().flat_map(ReadRequest::frames);
        folios.map(move |(first, count)| {
            let len = count as usize * FRAME_SIZE as usize;
            // SAFETY: the request keeps the folio, which the direct map contains, and its bytes are
            // accessed as atomics.
            unsafe { core::slice::from_raw_parts(frames.at(first.addr()).as_ptr().cast(), len) }
        })
    }

    /// Returns true if a task that waits for this page waits for this value.
    pub fn has(&self, page: PendingPage) -> bool {
        self.request.as_ref().is_some_and(|request| request.has(page))
    }

    /// Puts the first `filled` pages, all of whose bytes the host has written, in memory as dirty
    /// ones, and leaves the others missing. The object's size becomes at least `size` bytes.
    pub fn finish(mut self, filled: u64, size: u64) {
        if filled > 0 && self.object.size() < size {
            // The size is there before the pages are dirty: what a request writes ends with it.
            self.object.lock().size = size.min(MAX_SIZE);
        }
        self.end(filled);
    }

    /// Leaves the pages missing, after the host has written their bytes to the storage itself, past
    /// the page cache. The object's size becomes at least `size` bytes before a task that waits for
    /// one of the pages reads it.
    pub fn leave(self, size: u64) {
        let mut state = self.object.lock();
        state.size = state.size.max(size.min(MAX_SIZE));
    }

    /// Ends the request, if it has not ended.
    fn end(&mut self, filled: u64) {
        let machine: &'m Machine<'m, P> = self.object.machine;
        if let Some(request) = self.request.take() {
            read::end(machine, request, filled, true);
        }
    }
}

impl<P: Platform> Drop for Overwrite<'_, P> {
    /// Leaves the pages missing, unless [`Overwrite::finish`] has ended them.
    fn drop(&mut self) {
        self.end(0);
    }
}
