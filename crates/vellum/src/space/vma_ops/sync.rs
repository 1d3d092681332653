//! `msync`. What is written to shared memory is in its object at once, so there is nothing to do
//! but to look.

use crate::addr::VirtRange;
use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::platform::Platform;
use crate::vma::VmaFlags;

use super::VmaOps;

/// Why a range can't be synchronized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// Not all of the range is mapped, or it ends beyond the last address.
    NotMapped,
    /// Other mappings' data were to be invalidated, and this is locked.
    Locked(VirtRange),
}

impl SyncError {
    /// What Linux's `msync` answers.
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
            SyncError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            SyncError::NotMapped => f.write_str("not all of the range is mapped"),
            SyncError::Locked(range) => write!(f, "{range:?} is locked"),
        }
    }
}

impl core::error::Error for SyncError {}

impl<'s, P: Platform, A: Arch> VmaOps<'s, '_, P, A> {
    /// Implements [`AddressSpace::sync`].
    pub(super) fn sync(self, addr: u64, len: u64, invalidate: bool) -> Result<(), SyncError> {
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => SyncError::Unaligned(addr),
            BadRange::Overflow | BadRange::Beyond(_) => SyncError::NotMapped,
        })?;
        let vmas = self.space.read();
        let locked = |vma: &&crate::vma::Vma| vma.flags.contains(VmaFlags::LOCKED);
        if invalidate && let Some(vma) = vmas.overlapping(self.platform(), range).find(locked) {
            return Err(SyncError::Locked(*vma.range));
        }
        if range.is_empty() || vmas.covers(self.platform(), range) { Ok(()) } else { Err(SyncError::NotMapped) }
    }
}
