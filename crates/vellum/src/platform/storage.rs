//! The host's storage of files: page-cache objects get their pages from its reads, and go to its
//! writes.
//!
//! The engine asks and is told. It hands the host a [`ReadRequest`] or a [`WriteRequest`] and goes
//! on; the host reads and writes in its own time, several requests at once and in any order, and
//! ends each request by [`finish_read`](crate::page_cache::finish_read) or
//! [`finish_write`](crate::page_cache::finish_write). An operation that has to wait
//! for a page meanwhile returns a [`PendingPage`]. The host makes the task wait until the request
//! with that page has ended, and then tries the operation again.
//!
//! The error of a read concerns the task that waits for it alone: the host reports it there, and
//! the engine does not keep it. The error of a write concerns each opener of the file: the engine
//! keeps it for them ([`WriteErrors`](crate::page_cache::WriteErrors)).

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn};

/// The maximum number of folios of a [`ReadRequest`], and of parts of a [`WriteRequest`].
pub(crate) const MAX_REQUEST_FOLIOS: usize = 32;

/// The part of a host that reads and writes files.
pub trait Storage {
    /// Takes a request to read pages of a file, and returns without waiting for a device. It may
    /// sleep for memory. The caller may hold the lock of a space's VMAs for reading, and no spin
    /// lock.
    ///
    /// The engine calls this only for objects with a store
    /// ([`Object::with_store`](crate::page_cache::Object::with_store)). The default is for a host
    /// that makes no such objects: it leaves the request undone.
    fn read(&self, request: ReadRequest) {
        let _ = request;
    }

    /// Takes a request to write pages of a file, and returns without waiting for a device. It may
    /// sleep for memory. The caller holds no lock.
    ///
    /// The engine calls this only for objects with a store. The default leaves the request undone.
    fn write(&self, request: WriteRequest) {
        let _ = request;
    }

    /// Learns that the task that runs on this CPU made this number of pages of 4 KiB dirty, which
    /// are charged to the memcg. The host passes both to
    /// [`Throttle::turn`](crate::memcg::Throttle::turn) where the task may wait. The caller may
    /// hold spin locks, so the method only takes notes.
    ///
    /// The engine calls this only for objects with a store. The default does nothing: no task
    /// waits.
    fn dirtied(&self, memcg: MemcgId, pages: u64) {
        let _ = (memcg, pages);
    }

    /// Learns that the object with this tag is gone, and with it all requests and all mappings. The
    /// caller holds no lock.
    ///
    /// The engine calls this only for objects with a store. The default does nothing.
    fn forget(&self, tag: u64) {
        let _ = tag;
    }
}

/// Consecutive pages of a file that the host is to read into frames of the engine. It holds a
/// reference to the object and one to each folio, which
/// [`finish_read`](crate::page_cache::finish_read) drops.
#[must_use = "its pages can't be used, and its memory leaks, until `finish_read` ends it"]
#[derive(Debug)]
pub struct ReadRequest {
    /// The frame of the object's head.
    pub(crate) object: Pfn,
    /// The object's number: [`Object::serial`](crate::page_cache::Object::serial).
    pub(crate) serial: u64,
    /// The host's name for the object.
    pub(crate) tag: u64,
    /// The first page.
    pub(crate) first: u64,
    /// log2 of the number of frames of a page.
    pub(crate) page_order: u8,
    /// The first frame and the order of each folio, in the order of the file. The object's folios
    /// have no hole between them.
    pub(crate) folios: ArrayVec<(Pfn, u8), MAX_REQUEST_FOLIOS>,
}

impl ReadRequest {
    /// Returns the object's number ([`Object::serial`](crate::page_cache::Object::serial)).
    pub fn object(&self) -> u64 {
        self.serial
    }

    /// Returns the host's name for the object
    /// ([`Object::tag`](crate::page_cache::Object::tag)).
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the pages to read, by their numbers in the file.
    pub fn pages(&self) -> Range<u64> {
        let frames: u64 = self.folios.iter().map(|(_, order)| 1 << order).sum();
        self.first..self.first + (frames >> self.page_order)
    }

    /// Returns log2 of the size of a page in bytes.
    pub fn page_shift(&self) -> u32 {
        u32::from(self.page_order) + FRAME_SHIFT
    }

    /// Returns true if a task that waits for this page waits for this request.
    pub fn has(&self, page: PendingPage) -> bool {
        page.object == self.serial && self.pages().contains(&page.page)
    }

    /// Returns the frames to read into, in the order of the file: the first frame of each folio and
    /// the number of its frames. Until the request ends, the host alone reads and writes these
    /// frames, through the direct map or by a device.
    ///
    /// The host writes all of their bytes: zeros for holes, and for what lies beyond the end of the
    /// file.
    pub fn frames(&self) -> impl Iterator<Item = (Pfn, u32)> + '_ {
        self.folios.iter().map(|(pfn, order)| (*pfn, 1 << order))
    }
}

/// Consecutive pages in consecutive frames of one folio.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    /// The first page.
    pub(crate) page: u64,
    /// Its first frame.
    pub(crate) pfn: Pfn,
    /// The number of pages.
    pub(crate) pages: u32,
}

impl Part {
    /// Returns the numbers of the pages.
    pub(crate) fn range(&self) -> Range<u64> {
        self.page..self.page + u64::from(self.pages)
    }
}

/// Consecutive pages of a file that the host is to write to its storage. It holds a reference to
/// the object and one to the folio of each part, which
/// [`finish_write`](crate::page_cache::finish_write) drops.
#[must_use = "its pages count as under writeback, and its memory leaks, until `finish_write` ends it"]
#[derive(Debug)]
pub struct WriteRequest {
    /// The frame of the object's head.
    pub(crate) object: Pfn,
    /// The object's number: [`Object::serial`](crate::page_cache::Object::serial).
    pub(crate) serial: u64,
    /// The host's name for the object.
    pub(crate) tag: u64,
    /// log2 of the number of frames of a page.
    pub(crate) page_order: u8,
    /// The object's size in bytes when the request was made.
    pub(crate) size: u64,
    /// The pages, in the order of the file. The parts have no hole between them.
    pub(crate) parts: ArrayVec<Part, MAX_REQUEST_FOLIOS>,
}

impl WriteRequest {
    /// Returns the object's number ([`Object::serial`](crate::page_cache::Object::serial)).
    pub fn object(&self) -> u64 {
        self.serial
    }

    /// Returns the host's name for the object
    /// ([`Object::tag`](crate::page_cache::Object::tag)).
    pub fn tag(&self) -> u64 {
        self.tag
    }

    /// Returns the pages to write, by their numbers in the file.
    pub fn pages(&self) -> Range<u64> {
        let ends = self.parts.first().zip(self.parts.last());
        ends.map_or(0..0, |(first, last)| first.page..last.range().end)
    }

    /// Returns log2 of the size of a page in bytes.
    pub fn page_shift(&self) -> u32 {
        u32::from(self.page_order) + FRAME_SHIFT
    }

    /// Returns the bytes to write, by their offsets in the file: the pages, but not what lies
    /// beyond the end of the file.
    pub fn bytes(&self) -> Range<u64> {
        let pages = self.pages();
        let start = (pages.start << self.page_shift()).min(self.size);
        start..(pages.end << self.page_shift()).min(self.size)
    }

    /// Returns true if a task that waits for this page waits for this request.
    pub fn has(&self, page: PendingPage) -> bool {
        page.object == self.serial && self.pages().contains(&page.page)
    }

    /// Returns the frames to write, in the order of the file: the first frame of each part and the
    /// number of its frames. The host reads them through the direct map or by a device. Programs
    /// and other CPUs may write there at any time; then the page is written again by a later
    /// request. A host that needs stable contents (for a checksum) copies them first.
    pub fn frames(&self) -> impl Iterator<Item = (Pfn, u32)> + '_ {
        self.parts.iter().map(|part| (part.pfn, part.pages << self.page_order))
    }
}

/// The identifier of a memcg.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MemcgId(pub(crate) u16);

/// A page for which an operation has to wait, since the host is reading or writing it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PendingPage {
    /// The object's number: [`Object::serial`](crate::page_cache::Object::serial).
    pub object: u64,
    /// The page's number in the object.
    pub page: u64,
}

impl core::fmt::Display for PendingPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let PendingPage { object, page } = self;
        write!(f, "page {page} of object {object} is being read or written: try again once its request has ended")
    }
}
