//! The state that each opener of a file with a store has: its readahead, and the failed writes that
//! it has seen.

use super::{ObjectContents, errno, pages_of};
use crate::mem::{Object, payer};
use alloc::sync::Arc;
use core::any::Any;
use core::ops::Range;
use spin::Mutex;
use vellum::page_cache::{Readahead, WriteErrors};
use vellum::vma::Expected;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::pages::Shift;
use vellum_kernel::fs::{Pages, Sink, Source};

/// The page cache's state for one opener of a file with a store: its readahead, and the failed
/// writes that it has seen.
pub struct Opener {
    readahead: Mutex<Readahead>,
    pub(super) errors: Mutex<WriteErrors>,
}

impl Opener {
    pub(super) fn of(object: &Object) -> Self {
        Opener { readahead: Mutex::new(Readahead::new(READAHEAD)), errors: Mutex::new(WriteErrors::of(object)) }
    }
}

/// The most pages that are read ahead of a program's reads: 512 KiB.
const READAHEAD: u32 = 128;

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
}
