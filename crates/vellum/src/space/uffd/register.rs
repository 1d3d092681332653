//! Registration of VMAs with a userfaultfd.

use crate::addr::VirtRange;
use crate::arch::{BadRange, UserRange};
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache::{Inserts, Object};
use crate::platform::Platform;
use crate::vma::{UffdId, Vma, VmaFlags};

use super::Uffd;
use crate::space::ground::{Change, Zap};
use crate::space::vma_ops::{ProtectError, VmaOps};

/// The reason why a registration, or a change of write protection, failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UffdError {
    /// This range is empty, or its start or end is not a multiple of the page size.
    Unaligned(VirtRange),
    /// This range reaches beyond the addresses of user mode.
    OutOfRange(VirtRange),
    /// No mode is given, or [`VmaFlags::UFFD_WP_ASYNC`] without [`VmaFlags::UFFD_WP`].
    NoModes,
    /// VMAs don't cover all of the range.
    NotMapped,
    /// The VMA with this range doesn't support the modes: anonymous memory has no minor faults, and
    /// a VMA of an object with a store supports only asynchronous write protection.
    Unsupported(VirtRange),
    /// The VMA with this range may never be made writable, because its object was opened for
    /// reading only.
    ReadOnly(VirtRange),
    /// The VMA with this range is registered with another userfaultfd.
    Busy(VirtRange),
    /// Not all of the range is registered for write protection ([`VmaFlags::UFFD_WP`]).
    NotRegistered,
    /// VMAs would have to be split, and the space has the maximum number of VMAs.
    TooManyVmas,
    /// There is no memory to split VMAs or huge PTEs, or for page tables that hold uffd-wp markers.
    /// A part of the pages may have been write-protected.
    NoMemory(Refused),
}

impl UffdError {
    /// Returns the error number of Linux's `ioctl`s on a userfaultfd.
    pub const fn errno(&self) -> Errno {
        match self {
            UffdError::Busy(_) => Errno::EBUSY,
            UffdError::ReadOnly(_) => Errno::EPERM,
            UffdError::NotRegistered => Errno::ENOENT,
            UffdError::TooManyVmas | UffdError::NoMemory(_) => Errno::ENOMEM,
            _ => Errno::EINVAL,
        }
    }
}

impl core::fmt::Display for UffdError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            UffdError::Unaligned(range) => {
                write!(f, "{range:?} is empty or not in whole pages: align its start and end")
            }
            UffdError::OutOfRange(range) => write!(f, "{range:?} reaches beyond the addresses of user mode"),
            UffdError::NoModes => {
                f.write_str("no userfaultfd mode: pass UFFD_MISSING, UFFD_MINOR or UFFD_WP, UFFD_WP_ASYNC with UFFD_WP")
            }
            UffdError::NotMapped => f.write_str("VMAs do not cover all of the range: map it first"),
            UffdError::Unsupported(range) => {
                write!(f, "the VMA {range:?} supports other modes only: minor faults need an object without a store")
            }
            UffdError::ReadOnly(range) => {
                write!(f, "the VMA {range:?} may never be writable: open its object for writing, and map it again")
            }
            UffdError::Busy(range) => {
                write!(f, "the VMA {range:?} is registered with another userfaultfd: unregister it there first")
            }
            UffdError::NotRegistered => {
                f.write_str("not all of the range is registered for write protection: register it with UFFD_WP first")
            }
            UffdError::TooManyVmas => {
                f.write_str("the space has the maximum number of VMAs, and a VMA would have to be split: unmap some")
            }
            UffdError::NoMemory(refused) => refused.fmt(f),
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
            ProtectError::NoMemory(refused) => UffdError::NoMemory(refused),
            _ => UffdError::NoMemory(Refused::OutOfMemory),
        }
    }
}

impl<P: Platform> Uffd<'_, '_, P> {
    /// Implements [`AddressSpace::uffd_register`](crate::space::AddressSpace::uffd_register).
    pub(super) fn uffd_register(self, range: VirtRange, uffd: UffdId, modes: VmaFlags) -> Result<(), UffdError> {
        let range = self.whole_pages(range)?;
        let modes = modes & VmaFlags::UFFD_FLAGS;
        if modes.is_empty() || modes.contains(VmaFlags::UFFD_WP_ASYNC) && !modes.contains(VmaFlags::UFFD_WP) {
            return Err(UffdError::NoModes);
        }
        let mut change = Change::begin(self.space, range);
        let vmas = change.vmas();
        if !vmas.covers(self.platform(), range) {
            return Err(UffdError::NotMapped);
        }
        for vma in vmas.overlapping(self.platform(), range) {
            if !self.supports(vma, modes) {
                return Err(UffdError::Unsupported(*vma.range));
            }
            if vma.backing.is_shared() && !vma.backing.may_write() {
                return Err(UffdError::ReadOnly(*vma.range));
            }
            if vma.uffd.is_some_and(|other| other != uffd) {
                return Err(UffdError::Busy(*vma.range));
            }
        }
        let new_flags = |v: &Vma| (v.flags - VmaFlags::UFFD_FLAGS) | modes;
        let register = |v: &mut Vma| {
            (v.uffd, v.flags) = (Some(uffd), new_flags(v));
            v.note_copies();
        };
        VmaOps::of(self.space).set_vmas(&mut change, range, register)?;
        change.unlock();
        // From now on faults map the pages of objects here by small PTEs alone.
        self.space.peak.note(&self.tables().slots);
        Zap::of(self.space).huge_objects(range, &mut self.space.gather(range));
        if !modes.contains(VmaFlags::UFFD_WP) {
            self.clear_wp(range);
        }
        Ok(())
    }

    /// Implements [`AddressSpace::uffd_unregister`](crate::space::AddressSpace::uffd_unregister).
    /// Unregisters one VMA after the other, and removes the write protection of a VMA's pages only
    /// after it has unregistered the VMA. So a write that finds a page still write-protected
    /// returns no event.
    pub(super) fn uffd_unregister(self, range: VirtRange, uffd: UffdId) -> Result<(), UffdError> {
        let range = self.whole_pages(range)?;
        let mut change = Change::begin(self.space, range);
        let mut rest = range;
        loop {
            let vma = change.vmas().overlapping(self.platform(), rest).find(|v| v.uffd == Some(uffd)).copied();
            let Some(vma) = vma else { return Ok(()) };
            let part = vma.range.intersect(&rest);
            let unregister = |v: &mut Vma| (v.uffd, v.flags) = (None, v.flags - VmaFlags::UFFD_FLAGS);
            VmaOps::of(self.space).set_vmas(&mut change, part, unregister)?;
            change.unlock();
            self.clear_wp(part);
            rest = rest.tail(part.end);
        }
    }

    /// Returns whether a VMA supports the modes. The caller holds the VMA lock.
    fn supports(self, vma: &Vma, modes: VmaFlags) -> bool {
        if vma.is_hugetlb() {
            return false;
        }
        if vma.backing.is_anonymous() {
            return !modes.contains(VmaFlags::UFFD_MINOR);
        }
        // SAFETY: the VMA maps an object, and keeps its reference to it as long as the caller holds
        // the VMA lock.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        modes == VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC || Inserts(&object).are_possible()
    }

    /// Checks that `range` is not empty, in whole pages, and in the user half.
    ///
    /// # Errors
    /// [`UffdError::Unaligned`] or [`UffdError::OutOfRange`].
    pub(super) fn whole_pages(self, range: VirtRange) -> Result<UserRange, UffdError> {
        match UserRange::exact(self.arch(), range) {
            Ok(exact) if !exact.is_empty() => Ok(exact),
            Err(BadRange::Beyond(_)) => Err(UffdError::OutOfRange(range)),
            _ => Err(UffdError::Unaligned(range)),
        }
    }
}
