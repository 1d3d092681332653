//! `msync`. Writes to shared memory are in its page-cache object at once, so the operation only
//! checks its range.

use crate::addr::VirtRange;
use crate::arch::{BadRange, UserRange};
use crate::errno::Errno;
use crate::platform::Platform;
use crate::vma::VmaFlags;

use super::VmaOps;

/// The reason why a range can't be synchronized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// Not all of the range is mapped, or it ends beyond the last address.
    NotMapped,
    /// `MS_INVALIDATE` was passed, and this VMA is locked.
    Locked(VirtRange),
}

impl SyncError {
    /// Returns the errno that Linux's `msync` reports.
    pub const fn errno(&self) -> Errno {
        match self {
            SyncError::Unaligned(_) => Errno::EINVAL,
            SyncError::NotMapped => Errno::ENOMEM,
            SyncError::Locked(_) => Errno::EBUSY,
        }
    }
}

impl core::fmt::Display for SyncError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SyncError::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of the page size: align it"),
            SyncError::NotMapped => f.write_str("not all of the range is mapped: pass a mapped range"),
            SyncError::Locked(range) => {
                write!(f, "the VMA {range:?} is locked: unlock it, or do without MS_INVALIDATE")
            }
        }
    }
}

impl core::error::Error for SyncError {}

impl<'s, P: Platform> VmaOps<'s, '_, P> {
    /// Implements [`AddressSpace::sync`](crate::space::AddressSpace::sync).
    pub(super) fn sync(self, addr: u64, len: u64, invalidate: bool) -> Result<(), SyncError> {
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => SyncError::Unaligned(addr),
            BadRange::Overflow | BadRange::Beyond(_) => SyncError::NotMapped,
        })?;
        let vmas = self.space.read();
        let is_locked = |vma: &&crate::vma::Vma| vma.flags.contains(VmaFlags::LOCKED);
        if invalidate && let Some(vma) = vmas.overlapping(self.platform(), range).find(is_locked) {
            return Err(SyncError::Locked(*vma.range));
        }
        if range.is_empty() || vmas.covers(self.platform(), range) { Ok(()) } else { Err(SyncError::NotMapped) }
    }
}
