//! Backs files with the engine's page-cache objects, so that programs can map them: files in
//! memory, and files whose contents a store has.
//!
//! | module | subject |
//! |---|---|
//! | `opened` | what an opener has of its own |
//! | `write` | writes to pages in memory |
//! | `direct` | reads and writes past the page cache |
//! | `filling` | pages that the kernel fills itself |
//! | `huge` | contents in huge pages of the pool |
//! | `hold` | pages on hold while their bytes move |
//! | `cut` | truncation, in the order in which the storage learns of it |
//! | `sync` | writes of dirty pages to the store |

mod cut;
mod direct;
mod filling;
mod hold;
mod huge;
mod opened;
mod sync;
mod write;

use crate::mem::payer::Shared;
use crate::mem::spaces::All;
use crate::mem::storage;
use crate::mem::store::Store;
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{self, Object, machine, now_ns, payer};
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum::frame::policy::ShmemFolios;
use vellum::memcg::Refused;
use vellum::page_cache::{Changes, ObjectError, PageCounts, drop_clean, move_from, take_mapped_write};
use vellum::space;
use vellum::stats::Counter;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::io::in_pieces;
use vellum_kernel::fs::pages::Shift;
use vellum_kernel::fs::{Pages, Sink, Source};

pub use hold::Held;
pub use huge::{HUGE_PAGE, HugeContents};
pub use opened::{OpenedContents, Opener};

use direct::Direct;
use sync::not_on_disk;

/// A file's contents in a page-cache object.
pub struct ObjectContents {
    /// The page-cache object.
    pub object: Object,
    /// Serializes changes of the object's size.
    sizing: Mutex<()>,
    /// Where the contents come from and go; `None` for a file in memory.
    store: Option<Arc<dyn Store>>,
    /// The opener that stands for all mappings: it has the failed writes that `msync` reported.
    mapped: Opener,
    /// The page from which the flusher goes on when it has written some pages.
    flushed: AtomicU64,
    this: Weak<ObjectContents>,
}

/// The stores of a file system's files, by the inodes' numbers.
pub type StoreOf = Box<dyn Fn(u64) -> Arc<dyn Store> + Send + Sync>;

/// The contents that a store has, by the tags of their objects.
static STORED: Shared<BTreeMap<u64, Weak<ObjectContents>>> = Shared::new(BTreeMap::new());

/// Returns the contents that a store has, by the tag of their object.
pub fn find_stored(tag: u64) -> Option<Arc<ObjectContents>> {
    STORED.lock().get(&tag)?.upgrade()
}

/// Iterates over all contents that a store has, but for those that come or go meanwhile.
pub fn all_stored() -> impl Iterator<Item = Arc<ObjectContents>> {
    let mut next = 0;
    core::iter::from_fn(move || {
        loop {
            let stored = STORED.lock();
            let (tag, contents) = stored.range(next..).next()?;
            next = tag + 1;
            let contents = contents.upgrade();
            drop(stored);
            if contents.is_some() {
                return contents;
            }
        }
    })
}

const PAGE: u64 = FRAME_SIZE;
/// Converts an engine error. If the thread has to wait for memory or for a page, it is marked as
/// blocked, so that the call is tried again after the wait.
fn errno(error: ObjectError) -> Errno {
    let shortage = match error {
        ObjectError::TooLarge => return Errno::EFBIG,
        ObjectError::Busy => return Errno::EBUSY,
        ObjectError::Lost | ObjectError::NotWritten => return Errno::EIO,
        ObjectError::TooManyReferences => return Errno::ENOMEM,
        ObjectError::NoHugePage => return Errno::ENOSPC,
        ObjectError::InUse => return Errno::EAGAIN,
        ObjectError::Pending(page) => {
            thread::current(|thread| thread.block(BlockedOn::Pending(page)));
            return Errno::EIO;
        }
        // Files in memory can't grow once nothing can be reclaimed for them.
        ObjectError::NoMemory(Refused::OutOfMemory)
            if !machine().swaps().has_room(machine().platform()) && machine().counter(Counter::FilePages) == 0 =>
        {
            return Errno::ENOSPC;
        }
        ObjectError::NoMemory(why) => why,
    };
    thread::current(|thread| thread.block(BlockedOn::Shortage(shortage)));
    Errno::ENOMEM
}

/// Returns an unused tag for an object.
fn new_tag() -> u64 {
    static TAGS: AtomicU64 = AtomicU64::new(1);
    TAGS.fetch_add(1, Ordering::Relaxed)
}

/// Returns the pages that have these bytes, at least in part.
fn pages_of(bytes: Range<u64>) -> Range<u64> {
    bytes.start / PAGE..bytes.end.div_ceil(PAGE)
}

impl ObjectContents {
    /// Creates the contents of an empty file in memory, with folios by these settings.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(folios: ShmemFolios) -> Result<Self, Errno> {
        let object = mem::new_object(payer::payer(), new_tag()).map_err(|_| Errno::ENOMEM)?;
        object.set_folios(folios);
        Ok(Self::of(object, None, Weak::new()))
    }

    /// Creates the contents of a file of `size` bytes that a store has.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn stored(store: Arc<dyn Store>, size: u64) -> Result<Arc<Self>, Errno> {
        let object =
            mem::new_stored_object(payer::payer(), new_tag(), size, store.changes()).map_err(|_| Errno::ENOMEM)?;
        let tag = object.tag();
        storage::add(tag, store.clone());
        let contents = Arc::new_cyclic(|this| Self::of(object, Some(store), this.clone()));
        STORED.lock().insert(tag, Arc::downgrade(&contents));
        Ok(contents)
    }

    fn of(object: Object, store: Option<Arc<dyn Store>>, this: Weak<ObjectContents>) -> Self {
        let (mapped, flushed) = (Opener::of(&object), AtomicU64::new(0));
        Self { mapped, object, sizing: Mutex::new(()), store, flushed, this }
    }

    /// Returns where the contents come from and go; `None` for a file in memory.
    pub fn store(&self) -> Option<&dyn Store> {
        self.store.as_deref()
    }

    /// Drops those of the pages that are clean and that nothing uses (`POSIX_FADV_DONTNEED`).
    pub fn drop_clean(&self, pages: Range<u64>) {
        drop_clean(&self.object, pages);
    }
}

impl Drop for ObjectContents {
    fn drop(&mut self) {
        if self.store.is_some() {
            STORED.lock().remove(&self.object.tag());
        }
    }
}

impl ObjectContents {
    /// Waits until no write of pages from `pages` is under way: their storage is about to be taken
    /// from the file.
    ///
    /// # Errors
    ///
    /// `EIO`, with the thread marked as blocked.
    fn settle(&self, pages: Range<u64>) -> Result<(), Errno> {
        let under_way = storage::being_written(self.object.serial(), pages);
        under_way.map_or(Ok(()), |page| Err(errno(ObjectError::Pending(page))))
    }

    /// Sets the object's size, and takes pages that it has lost out of memory.
    fn set_object_size(&self, size: u64) -> Result<(), ObjectError> {
        let gone = self.object.set_size(size)?;
        space::unmap_removed(&All, &self.object, &gone);
        Ok(())
    }

    fn punch_object(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let gone = self.object.punch_hole(bytes).map_err(errno)?;
        space::unmap_removed(&All, &self.object, &gone);
        Ok(())
    }
}

impl Pages for ObjectContents {
    fn open(&self) -> Result<Option<Arc<dyn Pages>>, Errno> {
        let own = self.this.upgrade().filter(|_| self.store.is_some());
        Ok(own.map(|contents| Arc::new(OpenedContents::new(contents)) as Arc<dyn Pages>))
    }

    fn size(&self) -> u64 {
        self.object.size()
    }

    fn take_mapped_write(&self) -> Option<u64> {
        take_mapped_write(&self.object).map(|at| now_ns().saturating_sub(at))
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        let _sizing = self.sizing.lock();
        let Some(store) = &self.store else { return self.set_object_size(size).map_err(errno) };
        // After the wait for writes, the call is tried again with the size that it has set.
        if size <= self.size() {
            self.set_object_size(size).map_err(errno)?;
            self.settle(size / PAGE..u64::MAX)?;
            return store.set_size(size);
        }
        // A size that can't be is refused before anything changes.
        store.set_size(size)?;
        self.set_object_size(size).map_err(errno)
    }

    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let mut at = at;
        in_pieces(|| {
            let end = self.size().min(at.saturating_add(to.room() as u64));
            if at >= end {
                return Ok((0, false));
            }
            let (first, offset) = (at / PAGE, (at % PAGE) as usize);
            let wanted = (end - first * PAGE) as usize;
            let (put, len) = match self.object.pages(pages_of(at..end)).map_err(errno)? {
                Some(pages) => {
                    let len = pages.len().min(wanted);
                    (to.put_page(&pages.bytes()[offset..len])?, len)
                }
                None => {
                    let len = wanted.min(PAGE as usize);
                    (to.put(&[0; PAGE as usize][offset..len])?, len)
                }
            };
            at += put as u64;
            Ok((put, put == len - offset))
        })
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let mut at = at;
        if let Some(store) = &self.store {
            store.reserve(at..at.saturating_add(from.left() as u64), not_on_disk())?;
            if at > self.size() {
                if !from.fault_in(1) {
                    return Err(Errno::EFAULT);
                }
                self.grow(at)?;
            }
        }
        in_pieces(|| {
            let (written, goes_on) = match self.overwrite(at, from)? {
                Some(written) => (written, from.left() > 0 && written > 0),
                None => self.write_pages(at, from)?,
            };
            at += written as u64;
            Ok((written, goes_on))
        })
    }

    fn direct_alignment(&self) -> Option<u64> {
        Direct::of(self).map(|direct| direct.alignment())
    }

    fn read_direct(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        match Direct::of(self) {
            Some(direct) => direct.read(at, to),
            None => self.read(at, to),
        }
    }

    fn write_direct(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        match Direct::of(self) {
            Some(direct) => direct.write(at, from),
            None => self.write(at, from),
        }
    }

    fn expect_write(&self, bytes: Range<u64>) {
        // Where pages have a store, whole ones are overwritten without being read.
        if self.store.is_some() {
            return;
        }
        // A failure is ignored: the write allocates page by page what is missing here.
        let _ = self.object.allocate(bytes, payer::payer());
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        match &self.store {
            Some(store) => store.allocate(bytes),
            None => self.object.allocate(bytes, payer::payer()).map_err(errno),
        }
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let whole = bytes.start.next_multiple_of(PAGE)..bytes.end / PAGE * PAGE;
        let store = self.store.as_ref().filter(|_| whole.start < whole.end);
        let Some(store) = store else { return self.punch_object(bytes) };
        if store.changes() == Changes::InMemory {
            // No write reaches this store, so it is asked first: it may refuse, and the pages in
            // memory are all that has the changes.
            store.punch(whole)?;
            return self.punch_object(bytes);
        }
        self.punch_object(bytes)?;
        self.settle(pages_of(whole.clone()))?;
        store.punch(whole.clone())?;
        // Pages that were read meanwhile have what the storage had before.
        self.punch_object(whole)
    }

    fn shift(&self, bytes: Range<u64>, shift: Shift) -> Result<bool, Errno> {
        let store = self.store.as_ref().filter(|store| store.changes() == Changes::ToStore);
        let (store, unit) = store.and_then(|store| Some((store, store.shift_unit()?))).ok_or(Errno::EOPNOTSUPP)?;
        let (size, len) = (self.size(), bytes.end - bytes.start);
        let to_move = if shift == Shift::Collapse { bytes.end } else { bytes.start };
        if !(bytes.start | len).is_multiple_of(unit) || to_move >= size {
            return Err(Errno::EINVAL);
        }
        let new = if shift == Shift::Collapse { size - len } else { size.saturating_add(len) };
        if new > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        // No page with bytes that move may be in memory, or be being read.
        let first = bytes.start / PAGE;
        let is_unused = || self.object.next_data(first).is_none();
        if !is_unused() {
            return Ok(false);
        }
        if !store.keep_size(size) {
            return Err(Errno::EIO);
        }
        let mut gone = None;
        let is_done =
            store.shift(bytes, shift, &mut &is_unused, &mut || gone = Some(move_from(&self.object, first, new)))?;
        gone.inspect(|gone| space::unmap_removed(&All, &self.object, gone));
        Ok(is_done)
    }

    fn next_data(&self, at: u64) -> Option<u64> {
        if let Some(store) = &self.store {
            return store.next_place(at..self.size(), false);
        }
        let page = self.object.next_data(at / PAGE)?;
        Some((page * PAGE).max(at))
    }

    fn next_hole(&self, at: u64) -> u64 {
        if let Some(store) = &self.store {
            return store.next_place(at..self.size(), true).unwrap_or(u64::MAX);
        }
        (self.object.next_hole(at / PAGE) * PAGE).max(at)
    }

    fn resident(&self) -> u64 {
        if let Some(store) = &self.store {
            return store.used();
        }
        let PageCounts { resident, swapped, .. } = self.object.page_counts();
        (resident + swapped) * PAGE
    }

    fn deny_shared_write(&self) -> Result<(), Errno> {
        self.object.deny_shared_write().map_err(errno)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// Returns the page-cache object behind a file's contents.
pub fn object_of(pages: &Arc<dyn Pages>) -> Option<&Object> {
    if let Some(huge) = pages.as_any().downcast_ref::<HugeContents>() {
        return Some(&huge.object);
    }
    let own = pages.as_any().downcast_ref::<ObjectContents>();
    own.or_else(|| stored(&**pages).map(|(contents, _)| &**contents)).map(|contents| &contents.object)
}

/// Returns the contents that a store has, and the opener's state, if these are such.
pub fn stored(pages: &dyn Pages) -> Option<(&Arc<ObjectContents>, &Opener)> {
    pages.as_any().downcast_ref::<OpenedContents>().map(OpenedContents::parts)
}
