//! `mseal`. A sealed VMA can't be unmapped, moved, resized or replaced, and its protection can't be
//! changed. Advice (`madvise`) can't drop the contents of a sealed anonymous VMA that is not
//! writable. Each operation checks [`VmaFlags::SEALED`] itself.

use crate::arch::{BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Prot, State, VmaFlags};

use super::{AdviseError, ProtectError, VmaOps};
use crate::space::ground::Change;

/// The reason why a seal failed. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The range ends beyond the last address.
    Overflow,
    /// Not all of the range is mapped.
    NotMapped,
    /// The change splits VMAs, and the limit on their number would be exceeded.
    TooManyVmas,
    /// There is no memory to split VMAs or huge PTEs.
    NoMemory(Refused),
}

impl SealError {
    /// Returns the errno that Linux's `mseal` reports.
    pub const fn errno(&self) -> Errno {
        match self {
            SealError::Unaligned(_) | SealError::Overflow => Errno::EINVAL,
            _ => Errno::ENOMEM,
        }
    }
}

impl core::fmt::Display for SealError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            SealError::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of the page size: align it"),
            SealError::Overflow => f.write_str("the range ends beyond the last address: shorten it"),
            SealError::NotMapped => f.write_str("not all of the range is mapped: pass a mapped range"),
            SealError::TooManyVmas => f.write_str("too many VMAs: raise the limit, or unmap some"),
            SealError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for SealError {}

may_be_refused!(SealError);

impl From<ProtectError> for SealError {
    fn from(error: ProtectError) -> Self {
        match error {
            ProtectError::NotMapped => SealError::NotMapped,
            ProtectError::TooManyVmas => SealError::TooManyVmas,
            ProtectError::NoMemory(why) => SealError::NoMemory(why),
            _ => SealError::NoMemory(Refused::OutOfMemory),
        }
    }
}

impl<'s, P: Platform> VmaOps<'s, '_, P> {
    /// Implements [`AddressSpace::seal`](crate::space::AddressSpace::seal).
    pub(super) fn seal(self, addr: u64, len: u64) -> Result<(), SealError> {
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => SealError::Unaligned(addr),
            BadRange::Overflow => SealError::Overflow,
            BadRange::Beyond(_) => SealError::NotMapped,
        })?;
        if range.is_empty() {
            return Ok(());
        }
        self.set_vmas(&mut Change::begin(self.space, range), range, |v| v.flags |= VmaFlags::SEALED)?;
        Ok(())
    }

    /// Checks that advice may drop the contents of `range`: no VMA in it is sealed, anonymous and
    /// not writable. A VMA that maps an object may be sealed: its contents stay in the object.
    ///
    /// # Errors
    /// [`AdviseError::Sealed`] with the first such VMA.
    pub(super) fn check_may_drop_contents(self, range: UserRange) -> Result<(), AdviseError> {
        let vmas = self.space.read();
        let mut sealed = vmas.overlapping(self.platform(), range).filter(|v| v.flags.contains(VmaFlags::SEALED));
        let refused =
            sealed.find(|v| v.state != State::Dying && v.backing.is_anonymous() && !v.prot.contains(Prot::WRITE));
        refused.map_or(Ok(()), |vma| Err(AdviseError::Sealed(*vma.range)))
    }
}
