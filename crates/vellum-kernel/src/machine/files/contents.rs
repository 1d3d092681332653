//! Backs files with the engine's page-cache objects, so that programs can map them: files in
//! memory, and files whose contents a store has.

use super::direct::Direct;
use crate::mem::payer::Shared;
use crate::mem::spaces::All;
use crate::mem::storage::{self, Filling, Store};
use crate::mem::thread::{self, BlockedOn};
use crate::mem::{self, Object, machine, payer};
use crate::task::executor;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::sync::{Arc, Weak};
use core::any::Any;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Mutex;
use vellum::addr::FRAME_SIZE;
use vellum::frame::policy::ShmemFolios;
use vellum::memcg::{MemcgId, Refused};
use vellum::page_cache::{
    Changes, Expected, ObjectError, Overwrite, PageCounts, Readahead, WriteErrors, Writeback, drop_clean, move_from,
};
use vellum::space;
use vellum::stats::Counter;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::io::{PageBytes, in_pieces};
use vellum_kernel::fs::pages::Shift;
use vellum_kernel::fs::{Pages, Sink, Source};

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

/// The page cache's state for one opener of a file with a store: its readahead, and the failed
/// writes that it has seen.
pub struct Opener {
    readahead: Mutex<Readahead>,
    errors: Mutex<WriteErrors>,
}

impl Opener {
    fn of(object: &Object) -> Self {
        Opener { readahead: Mutex::new(Readahead::new(READAHEAD)), errors: Mutex::new(WriteErrors::of(object)) }
    }
}

const PAGE: u64 = FRAME_SIZE;
/// The most pages that are read ahead of a program's reads: 512 KiB.
const READAHEAD: u32 = 128;

/// Converts an engine error. If the thread has to wait for memory or for a page, it is marked as
/// blocked, so that the call is tried again after the wait.
pub fn errno(error: ObjectError) -> Errno {
    let shortage = match error {
        ObjectError::TooLarge => return Errno::EFBIG,
        ObjectError::Busy => return Errno::EBUSY,
        ObjectError::Lost | ObjectError::NotWritten => return Errno::EIO,
        ObjectError::TooManyReferences => return Errno::ENOMEM,
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
pub fn pages_of(bytes: Range<u64>) -> Range<u64> {
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

    /// Reads ahead for an opener that will read these bytes next. What memory has no room for is
    /// read later.
    pub fn read_ahead(&self, opener: &Opener, bytes: Range<u64>) {
        let mut readahead = opener.readahead.lock();
        let _ = self.object.read_ahead(&mut readahead, pages_of(bytes), payer::payer());
    }

    /// Has the pages of these bytes read, without waiting for them (`POSIX_FADV_WILLNEED`,
    /// `readahead`).
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn will_need(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let bytes = bytes.start..bytes.end.min(self.size());
        if bytes.is_empty() {
            return Ok(());
        }
        let mut once = Readahead::new(0);
        self.object.read_ahead(&mut once, pages_of(bytes), payer::payer()).map_err(errno)
    }

    /// Sets what an opener expects of its reads (`posix_fadvise`).
    pub fn expect(&self, opener: &Opener, expected: Expected) {
        opener.readahead.lock().expected = expected;
    }

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
        let mut pass = Writeback::complete(0..u64::MAX);
        loop {
            match space::write_back(&All, &self.object, &mut pass) {
                Ok(()) => break,
                Err(ObjectError::Pending(page)) => drop(storage::wait(page).await),
                // Other tasks free memory meanwhile.
                Err(_) => executor::yield_now().await,
            }
        }
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

    /// Drops those of the pages that are clean and that nothing uses (`POSIX_FADV_DONTNEED`).
    pub fn drop_clean(&self, pages: Range<u64>) {
        drop_clean(&self.object, pages);
    }

    /// Overwrites whole pages that are missing, from `at` on, and returns the number of bytes
    /// written. Returns `None` if the first page has to be read first, or is in memory.
    ///
    /// # Errors
    ///
    /// Those of the source, `ENOMEM`.
    fn overwrite(&self, at: u64, from: &mut dyn Source) -> Result<Option<usize>, Errno> {
        let (size, end) = (self.size(), at.saturating_add(from.left() as u64));
        // The write must cover its first and its last page as far as the file reaches.
        let first = at / PAGE;
        let last = if end >= size { end.div_ceil(PAGE) } else { end / PAGE };
        let begins_page = at.is_multiple_of(PAGE) || first * PAGE >= size;
        if self.store.is_none() || !begins_page || first >= last {
            return Ok(None);
        }
        // Among the bytes may be those of the pages to overwrite: then these must be in memory
        // first, as an access to them would wait for the end of the overwrite.
        if !from.fault_in(PAGE as usize) {
            return Ok(None);
        }
        let over = Overwrite::begin(&self.object, first..last, payer::payer()).map_err(errno)?;
        let Some(over) = over else { return Ok(None) };
        let filling = Filling::new(over, self.object.serial())?;
        let mut skip = (at % PAGE) as usize;
        let (mut done, mut bytes, mut failed) = (0, 0, None);
        for folio in filling.folios() {
            zero(&folio[..skip]);
            let taken = match from.take_page(&folio[skip..]) {
                Ok(taken) => taken,
                Err(error) => {
                    failed = Some(error);
                    0
                }
            };
            done += taken;
            bytes += (skip + taken) as u64;
            zero(&folio[skip + taken..]);
            if skip + taken < folio.len() {
                break;
            }
            skip = 0;
        }
        // The last page counts if the write ends in it, and not if user memory does.
        let whole = if from.left() == 0 || bytes.is_multiple_of(PAGE) || first * PAGE + bytes >= size {
            bytes.div_ceil(PAGE)
        } else {
            bytes / PAGE
        };
        let kept = done.min(((first + whole) * PAGE).saturating_sub(at) as usize);
        // A page of which only a part was written is read first, by the next step.
        from.give_back(done - kept);
        let done = kept;
        filling.finish(whole, at + done as u64);
        match failed {
            Some(error) if done == 0 => Err(error),
            _ => Ok(Some(done)),
        }
    }

    /// Writes to a page that is in memory, or that is read first, with those that follow it in its
    /// folio. Returns the number of bytes written, and whether more may follow.
    fn write_pages(&self, at: u64, from: &mut dyn Source) -> Result<(usize, bool), Errno> {
        let (first, offset) = (at / PAGE, (at % PAGE) as usize);
        let end = at.saturating_add(from.left() as u64);
        if end == at {
            return Ok((0, false));
        }
        // The page is allocated before bytes are taken: bytes taken cannot be put back, and the
        // call may be retried.
        let pages = match self.object.pages(pages_of(at..end)).map_err(errno)? {
            Some(pages) => pages,
            None => self.object.page_or_new(first, payer::payer()).map_err(errno)?,
        };
        let len = pages.len().min((end - first * PAGE) as usize);
        let old = self.size();
        let grows = self.store.is_some() && first * PAGE + len as u64 > old;
        if grows {
            // Zeroes what lies behind the old end, before the bytes of the write get there.
            self.grow(first * PAGE + len as u64)?;
        }
        let taken = from.take_page(&pages.bytes()[offset..len]);
        pages.written();
        let reached = at + taken.unwrap_or(0) as u64;
        if grows && reached < first * PAGE + len as u64 {
            self.set_object_size(reached.max(old))?;
        }
        let taken = taken?;
        self.object.mark_dirty(pages_of(at..reached));
        if self.store.is_none() {
            self.grow(reached)?;
        }
        Ok((taken, taken == len - offset))
    }

    /// Makes the file at least `size` bytes large.
    ///
    /// # Errors
    ///
    /// `EFBIG`, `EIO`, `ENOMEM`.
    pub fn grow(&self, size: u64) -> Result<(), Errno> {
        if size > self.size() {
            let _sizing = self.sizing.lock();
            if size > self.size() {
                // The size only grows, so no page is truncated.
                let _ = self.object.set_size(size).map_err(errno)?;
            }
        }
        Ok(())
    }
}

/// Returns the bytes of all pages that are dirty or being written.
fn not_on_disk() -> u64 {
    let counts = machine().memcgs().counters(MemcgId::ROOT).unwrap_or_default();
    (counts.dirty + counts.writing) * PAGE
}

/// Zeroes bytes of pages.
fn zero(bytes: &PageBytes) {
    bytes.iter().for_each(|byte| byte.store(0, Ordering::Relaxed));
}

impl Drop for ObjectContents {
    fn drop(&mut self) {
        if self.store.is_some() {
            STORED.lock().remove(&self.object.tag());
        }
    }
}

/// The contents that a store has, as one opener sees them.
pub struct OpenedContents {
    contents: Arc<ObjectContents>,
    opener: Opener,
}

impl OpenedContents {
    /// Opens contents.
    pub fn new(contents: Arc<ObjectContents>) -> Self {
        OpenedContents { opener: Opener::of(&contents.object), contents }
    }

    /// Returns the contents, and the page cache's state for this opener.
    pub fn parts(&self) -> (&Arc<ObjectContents>, &Opener) {
        (&self.contents, &self.opener)
    }
}

impl Pages for OpenedContents {
    fn size(&self) -> u64 {
        self.contents.size()
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        self.contents.set_size(size)
    }

    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let end = at.saturating_add(to.room() as u64).min(self.size());
        if at < end {
            self.contents.read_ahead(&self.opener, at..end);
        }
        self.contents.read(at, to)
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.contents.write(at, from)
    }

    fn direct_alignment(&self) -> Option<u64> {
        self.contents.direct_alignment()
    }

    fn read_direct(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.contents.read_direct(at, to)
    }

    fn write_direct(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.contents.write_direct(at, from)
    }

    fn expect_write(&self, bytes: Range<u64>) {
        self.contents.expect_write(bytes);
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.contents.allocate(bytes)
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.contents.punch(bytes)
    }

    fn shift(&self, bytes: Range<u64>, shift: Shift) -> Result<bool, Errno> {
        self.contents.shift(bytes, shift)
    }

    fn next_data(&self, at: u64) -> Option<u64> {
        self.contents.next_data(at)
    }

    fn next_hole(&self, at: u64) -> u64 {
        self.contents.next_hole(at)
    }

    fn resident(&self) -> u64 {
        self.contents.resident()
    }

    fn deny_shared_write(&self) -> Result<(), Errno> {
        self.contents.deny_shared_write()
    }

    fn as_any(&self) -> &dyn Any {
        self
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

    /// Takes pages out of memory that the object has just lost.
    fn set_object_size(&self, size: u64) -> Result<(), Errno> {
        let gone = self.object.set_size(size).map_err(errno)?;
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

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        let _sizing = self.sizing.lock();
        let Some(store) = &self.store else { return self.set_object_size(size) };
        // After the wait for writes, the call is tried again with the size that it has set.
        if size <= self.size() {
            self.set_object_size(size)?;
            self.settle(size / PAGE..u64::MAX)?;
            return store.set_size(size);
        }
        // A size that can't be is refused before anything changes.
        store.set_size(size)?;
        self.set_object_size(size)
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
        // No page that may have bytes which move is in memory then, unless a program is quick. The
        // storage has them, and programs can get none before the move: a read waits for it.
        let pages = bytes.start / PAGE..u64::MAX;
        self.write_back(&mut Writeback::complete(pages.clone()))?;
        space::invalidate(&All, &self.object, pages.clone());
        if self.object.next_data(pages.start).is_some() {
            return Ok(false);
        }
        if !store.keep_size(size) {
            return Err(Errno::EIO);
        }
        let mut gone = None;
        let is_done = store.shift(bytes, shift, &mut || self.object.next_data(pages.start).is_none(), &mut || {
            gone = Some(move_from(&self.object, pages.start, new))
        })?;
        gone.inspect(|gone| space::unmap_removed(&All, &self.object, gone));
        Ok(is_done)
    }

    fn next_data(&self, at: u64) -> Option<u64> {
        let page = self.object.next_data(at / PAGE)?;
        Some((page * PAGE).max(at))
    }

    fn next_hole(&self, at: u64) -> u64 {
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
    let own = pages.as_any().downcast_ref::<ObjectContents>();
    own.or_else(|| stored(&**pages).map(|(contents, _)| &**contents)).map(|contents| &contents.object)
}

/// Returns the contents that a store has, and the opener's state, if these are such.
pub fn stored(pages: &dyn Pages) -> Option<(&Arc<ObjectContents>, &Opener)> {
    pages.as_any().downcast_ref::<OpenedContents>().map(OpenedContents::parts)
}
