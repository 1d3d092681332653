//! Registration of VMAs with a userfaultfd.

use crate::addr::VirtRange;
use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{UffdId, Vma, VmaFlags};

use super::Uffd;
use crate::space::ground::Change;
use crate::space::vma_ops::{ProtectError, VmaOps};

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdError {
    /// The range is not in whole pages, or empty.
    Unaligned(VirtRange),
    /// The range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// Nothing is to be watched for, or writes are to go on that nobody watches for.
    NoModes,
    /// Not all of the range is mapped.
    NotMapped,
    /// This VMA can't be watched so: only private anonymous memory can, unless writes are to go on.
    Unsupported(VirtRange),
    /// Somebody else watches this VMA.
    Busy(VirtRange),
    /// Not all of the range is watched for writes.
    NotRegistered,
    /// VMAs would have to be split, and the space has as many as it may.
    TooManyVmas,
    /// No memory to split VMAs or huge mappings, or for tables of markers. Of what is to be
    /// protected, some may be.
    NoMemory(Refused),
}

impl UffdError {
    /// What Linux's requests to a `userfaultfd` answer.
    pub const fn errno(&self) -> Errno {
        match self {
            UffdError::Busy(_) => Errno::EBUSY,
            UffdError::NotRegistered => Errno::ENOENT,
            UffdError::TooManyVmas | UffdError::NoMemory(_) => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }
}

impl core::fmt::Display for UffdError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            UffdError::Unaligned(range) => write!(f, "{range:?} is empty or not in whole pages"),
            UffdError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            UffdError::NoModes => f.write_str("nothing to watch for"),
            UffdError::NotMapped => f.write_str("not all of the range is mapped"),
            UffdError::Unsupported(range) => write!(f, "{range:?} can't be watched so"),
            UffdError::Busy(range) => write!(f, "somebody else watches {range:?}"),
            UffdError::NotRegistered => f.write_str("not all of the range is watched for writes"),
            UffdError::TooManyVmas => f.write_str("too many VMAs"),
            UffdError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for UffdError {}

may_be_refused!(UffdError);

impl From<ProtectError> for UffdError {
    fn from(error: ProtectError) -> Self {
        match error {
            ProtectError::NotMapped => UffdError::NotMapped,
            ProtectError::TooManyVmas => UffdError::TooManyVmas,
            ProtectError::NoMemory(why) => UffdError::NoMemory(why),
            _ => UffdError::NoMemory(Refused::OutOfMemory),
        }
    }
}

impl<P: Platform, A: Arch> Uffd<'_, '_, P, A> {
    /// Implements [`AddressSpace::watch`].
    pub(super) fn uffd_register(self, range: VirtRange, by: UffdId, what: VmaFlags) -> Result<(), UffdError> {
        let range = self.whole_pages(range)?;
        let what = what & VmaFlags::UFFD_FLAGS;
        if what.is_empty() || what.contains(VmaFlags::UFFD_WP_ASYNC) && !what.contains(VmaFlags::UFFD_WP) {
            return Err(UffdError::NoModes);
        }
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        if !vmas.covers(self.platform(), range) {
            return Err(UffdError::NotMapped);
        }
        let waits = what.contains(VmaFlags::UFFD_MISSING) || !what.contains(VmaFlags::UFFD_WP_ASYNC);
        for vma in vmas.overlapping(self.platform(), range) {
            if waits && !vma.backing.is_anonymous() {
                return Err(UffdError::Unsupported(*vma.range));
            }
            if vma.uffd.is_some_and(|uffd| uffd != by) {
                return Err(UffdError::Busy(*vma.range));
            }
        }
        let now = |v: &Vma| (v.flags - VmaFlags::UFFD_FLAGS) | what;
        VmaOps::of(self.space).set_vmas(&mut change, range, |v| (v.uffd, v.flags) = (Some(by), now(v)))?;
        if !what.contains(VmaFlags::UFFD_WP) {
            change.unlock();
            self.clear_wp(range);
        }
        Ok(())
    }

    /// Implements [`AddressSpace::unwatch`].
    pub(super) fn uffd_unregister(self, range: VirtRange, by: UffdId) -> Result<(), UffdError> {
        let range = self.whole_pages(range)?;
        let mut change = Change::begin(self.space, range);
        let mut rest = range;
        loop {
            let vma = change.vmas().overlapping(self.platform(), rest).find(|v| v.uffd == Some(by)).copied();
            let Some(vma) = vma else { return Ok(()) };
            let part = vma.range.intersect(&rest);
            let nobody = |v: &mut Vma| (v.uffd, v.flags) = (None, v.flags - VmaFlags::UFFD_FLAGS);
            VmaOps::of(self.space).set_vmas(&mut change, part, nobody)?;
            change.unlock();
            self.clear_wp(part);
            rest = rest.tail(part.end);
        }
    }

    pub(super) fn whole_pages(self, range: VirtRange) -> Result<UserRange, UffdError> {
        match UserRange::exact(self.arch(), range) {
            Ok(exact) if !exact.is_empty() => Ok(exact),
            Err(BadRange::Beyond(_)) => Err(UffdError::OutOfRange(range)),
            _ => Err(UffdError::Unaligned(range)),
        }
    }
}
