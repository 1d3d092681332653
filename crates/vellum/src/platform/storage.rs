//! The host's storage of files: page-cache objects get their pages from its reads.
//!
//! The engine asks and is told. It hands the host a [`ReadRequest`] and goes on; the host reads in
//! its own time, several requests at once and in any order, and ends each request by
//! [`Object::finish_read`](crate::page_cache::Object::finish_read). An operation that needs a page
//! meanwhile returns a [`PendingPage`]. The host makes the task wait until the request with that
//! page has ended, and then tries the operation again, or reports the error of the read to that
//! task: the engine does not keep such errors.

use core::ops::Range;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn};

/// The maximum number of folios of a [`ReadRequest`].
pub(crate) const MAX_REQUEST_FOLIOS: usize = 32;

/// The part of a host that reads files.
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
}

/// Consecutive pages of a file that the host is to read into frames of the engine. It holds a
/// reference to the object and one to each folio, which
/// [`Object::finish_read`](crate::page_cache::Object::finish_read) drops.
#[must_use = "its pages can't be used, and its memory leaks, until `Object::finish_read` ends it"]
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

/// A page for which an operation has to wait, since the host is reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PendingPage {
    /// The object's number: [`Object::serial`](crate::page_cache::Object::serial).
    pub object: u64,
    /// The page's number in the object.
    pub page: u64,
}

impl core::fmt::Display for PendingPage {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "page {} of object {} is being read: try again once its request has ended", self.page, self.object)
    }
}
