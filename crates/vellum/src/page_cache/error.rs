//! Errors of operations on page-cache objects.

use super::{MAX_SIZE, Object};
use crate::errno::Errno;
use crate::frame::TooManyReferences;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::{PendingPage, Platform};

/// The reason why an operation on an object failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectError {
    /// The machine is out of memory, or a memcg is at its limit.
    NoMemory(Refused),
    /// A size, offset or page lies beyond [`MAX_SIZE`].
    TooLarge,
    /// Writable shared VMAs map the object.
    Busy,
    /// Pages are pinned, or other CPUs use them all the time.
    InUse,
    /// A swap device can't return the contents of a swapped-out page.
    Lost,
    /// The host is reading or writing this page. The caller waits until the request with the page
    /// has ended ([`ReadRequest::has`](crate::platform::ReadRequest::has),
    /// [`WriteRequest::has`](crate::platform::WriteRequest::has)), and then tries again.
    Pending(PendingPage),
    /// The host could not write pages to its storage.
    NotWritten,
    /// The pool of huge pages has none that is not reserved.
    NoHugePage,
    /// The folio already has [`Counts::MAX_REFS`](crate::frame::Counts::MAX_REFS) references.
    TooManyReferences,
}

impl ObjectError {
    /// Returns the error of an operation that waits for a page.
    pub(super) fn pending<P: Platform>(object: &Object<'_, P>, page: u64) -> Self {
        ObjectError::Pending(PendingPage { object: object.serial(), page })
    }

    /// Returns the error number that Linux's system calls on a shmem file return for the same
    /// failure.
    pub const fn errno(&self) -> Errno {
        match self {
            ObjectError::NoMemory(_) => Errno::ENOMEM,
            ObjectError::NoHugePage => Errno::ENOSPC,
            ObjectError::TooLarge => Errno::EFBIG,
            ObjectError::Busy => Errno::EBUSY,
            ObjectError::Lost | ObjectError::NotWritten => Errno::EIO,
            ObjectError::TooManyReferences => Errno::ENOMEM,
            ObjectError::Pending(_) | ObjectError::InUse => Errno::EAGAIN,
        }
    }
}

impl core::fmt::Display for ObjectError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ObjectError::NoMemory(why) => why.fmt(f),
            ObjectError::TooLarge => {
                write!(f, "size or offset too large: a page-cache object holds at most {MAX_SIZE} bytes")
            }
            ObjectError::Busy => f.write_str("the object is mapped by writable shared VMAs: unmap them first"),
            ObjectError::InUse => f.write_str("pages are pinned, or in use all the time: try again later"),
            ObjectError::Lost => f.write_str("a swapped-out page is lost: its swap device can't be read"),
            ObjectError::NotWritten => {
                f.write_str("pages could not be written: the storage may have their old contents")
            }
            ObjectError::NoHugePage => f.write_str("the pool of huge pages is too small: raise vm.nr_hugepages"),
            ObjectError::TooManyReferences => TooManyReferences.fmt(f),
            ObjectError::Pending(page) => page.fmt(f),
        }
    }
}

impl core::error::Error for ObjectError {}

impl From<TooManyReferences> for ObjectError {
    fn from(_: TooManyReferences) -> Self {
        ObjectError::TooManyReferences
    }
}

may_be_refused!(ObjectError);
