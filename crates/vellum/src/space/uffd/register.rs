//! Registration of VMAs with a userfaultfd.

use crate::addr::VirtRange;
use crate::arch::{Arch, BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::vma::{Vma, VmaFlags, Watcher};

use super::Uffd;
use crate::space::ground::Change;
use crate::space::vma_ops::{ProtectError, VmaOps};

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WatchError {
    /// The range is not in whole pages, or empty.
    Unaligned(VirtRange),
    /// The range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// Nothing is to be watched for, or writes are to go on that nobody watches for.
    Nothing,
    /// Not all of the range is mapped.
    NotMapped,
    /// This VMA can't be watched so: only private anonymous memory can, unless writes are to go on.
    Unwatchable(VirtRange),
    /// Somebody else watches this VMA.
    Taken(VirtRange),
    /// Not all of the range is watched for writes.
    NotWatched,
    /// VMAs would have to be split, and the space has as many as it may.
    TooManyVmas,
    /// No memory to split VMAs or huge mappings, or for tables of markers. Of what is to be protected, some may be.
    NoMemory(Refused),
}

impl WatchError {
    /// What Linux's requests to a `userfaultfd` answer.
    pub const fn errno(&self) -> Errno {
        match self {
            WatchError::Taken(_) => Errno::EBUSY,
            WatchError::NotWatched => Errno::ENOENT,
            WatchError::TooManyVmas | WatchError::NoMemory(_) => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }
}

impl core::fmt::Display for WatchError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            WatchError::Unaligned(range) => write!(f, "{range:?} is empty or not in whole pages"),
            WatchError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            WatchError::Nothing => f.write_str("nothing to watch for"),
            WatchError::NotMapped => f.write_str("not all of the range is mapped"),
            WatchError::Unwatchable(range) => write!(f, "{range:?} can't be watched so"),
            WatchError::Taken(range) => write!(f, "somebody else watches {range:?}"),
            WatchError::NotWatched => f.write_str("not all of the range is watched for writes"),
            WatchError::TooManyVmas => f.write_str("too many VMAs"),
            WatchError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for WatchError {}

may_be_refused!(WatchError);

impl From<ProtectError> for WatchError {
    fn from(error: ProtectError) -> Self {
        match error {
            ProtectError::NotMapped => WatchError::NotMapped,
            ProtectError::TooManyVmas => WatchError::TooManyVmas,
            ProtectError::NoMemory(why) => WatchError::NoMemory(why),
            _ => WatchError::NoMemory(Refused::OutOfMemory),
        }
    }
}

impl<P: Platform, A: Arch> Uffd<'_, '_, P, A> {
    /// Implements [`AddressSpace::watch`].
    pub(super) fn watch(self, range: VirtRange, by: Watcher, what: VmaFlags) -> Result<(), WatchError> {
        let range = self.whole_pages(range)?;
        let what = what & VmaFlags::WATCHES;
        if what.is_empty() || what.contains(VmaFlags::ASYNC) && !what.contains(VmaFlags::WRITES) {
            return Err(WatchError::Nothing);
        }
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        if !vmas.covers(self.platform(), range) {
            return Err(WatchError::NotMapped);
        }
        let waits = what.contains(VmaFlags::MISSING) || !what.contains(VmaFlags::ASYNC);
        for vma in vmas.overlapping(self.platform(), range) {
            if waits && !vma.backing.is_anonymous() {
                return Err(WatchError::Unwatchable(*vma.range));
            }
            if vma.watcher.is_some_and(|watcher| watcher != by) {
                return Err(WatchError::Taken(*vma.range));
            }
        }
        let now = |v: &Vma| (v.flags - VmaFlags::WATCHES) | what;
        VmaOps::of(self.space).set_vmas(&mut change, range, |v| (v.watcher, v.flags) = (Some(by), now(v)))?;
        if !what.contains(VmaFlags::WRITES) {
            change.unlock();
            self.clear_wp(range);
        }
        Ok(())
    }

    /// Implements [`AddressSpace::unwatch`].
    pub(super) fn unwatch(self, range: VirtRange, by: Watcher) -> Result<(), WatchError> {
        let range = self.whole_pages(range)?;
        let mut change = Change::begin(self.space, range);
        let mut rest = range;
        loop {
            let vma = change.vmas().overlapping(self.platform(), rest).find(|v| v.watcher == Some(by)).copied();
            let Some(vma) = vma else { return Ok(()) };
            let part = vma.range.intersect(&rest);
            let nobody = |v: &mut Vma| (v.watcher, v.flags) = (None, v.flags - VmaFlags::WATCHES);
            VmaOps::of(self.space).set_vmas(&mut change, part, nobody)?;
            change.unlock();
            self.clear_wp(part);
            rest = rest.tail(part.end);
        }
    }

    pub(super) fn whole_pages(self, range: VirtRange) -> Result<UserRange, WatchError> {
        match UserRange::exact(self.arch(), range) {
            Ok(exact) if !exact.is_empty() => Ok(exact),
            Err(BadRange::Beyond(_)) => Err(WatchError::OutOfRange(range)),
            _ => Err(WatchError::Unaligned(range)),
        }
    }
}
