//! VMAs that stay as they are: `mseal`. A sealed VMA can't be unmapped, moved, resized or replaced,
//! and what may be done with it doesn't change; nor may what it holds be forgotten by who could not
//! write to it. What the VMA forbids, the operations that it is about look at themselves.

use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Prot, State, VmaFlags};

use super::{AdviseError, ProtectError, VmaOps};
use crate::space::ground::Change;

/// Why nothing was sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SealError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The end is beyond the last address.
    Overflow,
    /// Not all of the range is mapped.
    NotMapped,
    /// VMAs would have to be split, and the space has as many as it may.
    TooManyVmas,
    /// VMAs or huge mappings would have to be split, and there is no memory for that.
    NoMemory(Refused),
}

impl SealError {
    /// What Linux's `mseal` answers.
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
            SealError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            SealError::Overflow => f.write_str("beyond the last address"),
            SealError::NotMapped => f.write_str("not all of the range is mapped"),
            SealError::TooManyVmas => f.write_str("too many VMAs"),
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

impl<'s, P: Platform, A: Arch> VmaOps<'s, '_, P, A> {
    /// Implements [`AddressSpace::seal`].
    pub(super) fn seal(self, addr: u64, len: u64) -> Result<(), SealError> {
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => SealError::Unaligned(addr),
            BadRange::Overflow => SealError::Overflow,
            BadRange::Beyond(_) => SealError::NotMapped,
        })?;
        if range.is_empty() {
            return Ok(());
        }
        let sealed = VmaFlags::SEALED;
        self.set_vmas(&mut Change::begin(self.space, range), range, |v| v.flags |= sealed)?;
        Ok(())
    }

    /// Whether what a range holds may be forgotten: not what is sealed and can't be written, where
    /// no object has it.
    pub(super) fn check_sealed(self, range: UserRange) -> Result<(), AdviseError> {
        let vmas = self.space.read();
        let mut sealed = vmas.overlapping(self.platform(), range).filter(|v| v.flags.contains(VmaFlags::SEALED));
        let forbids =
            sealed.find(|v| v.state != State::Dying && v.backing.is_anonymous() && !v.prot.contains(Prot::WRITE));
        forbids.map_or(Ok(()), |vma| Err(AdviseError::Sealed(*vma.range)))
    }
}
