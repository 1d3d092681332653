//! userfaultfd: registration of VMAs, write protection, and filling of missing pages.
//!
//! A VMA may be registered for missing pages ([`VmaFlags::UFFD_MISSING`]) and for writes to
//! write-protected pages ([`VmaFlags::UFFD_WP`]). A fault on such a page changes nothing and returns
//! an event ([`FaultError::Watched`](super::FaultError::Watched)); the host makes the thread wait.
//! When the userfaultfd's owner has filled the page or removed the write protection, the host
//! retries the access. In asynchronous mode ([`VmaFlags::ASYNC`]) a write goes ahead at once and
//! removes the protection, and [`AddressSpace::scan`] finds the pages that were written.
//!
//! A page is write-protected by a bit of its PTE ([`Attrs::WATCHED`](crate::arch::Attrs::WATCHED)),
//! of its swap PTE, or by a marker where there is none. So write protection goes by the run,
//! survives swapping and moving, and is exact to the page: protected and unprotected pages are
//! different runs. A forked child is not registered, and has no protection.
//!
//! | file | contents |
//! |---|---|
//! | `register` | `UFFDIO_REGISTER`, `UFFDIO_UNREGISTER` |
//! | `write_protect` | `UFFDIO_WRITEPROTECT` |
//! | `fill` | `UFFDIO_COPY`, `UFFDIO_ZEROPAGE`, `UFFDIO_POISON` |
//!
//! The faults are [`fault`](super::fault)'s.

mod fill;
mod register;
mod write_protect;

pub use fill::{UffdFillError, UffdFillStopped};
pub use register::UffdError;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::space::ground::handle;
use crate::table::PageTables;
use crate::vma::{UffdId, VmaFlags};

use super::AddressSpace;

handle! {
    /// The userfaultfd operations of a space.
    struct Uffd
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Registers the VMAs of a range with the userfaultfd `by`, for the modes `what` of
    /// [`VmaFlags::UFFD_FLAGS`], in the place of the modes that it was registered for before
    /// (`UFFDIO_REGISTER`).
    ///
    /// # Errors
    /// See [`UffdError`]: nothing was changed.
    pub fn uffd_register(&self, range: VirtRange, by: UffdId, what: VmaFlags) -> Result<(), UffdError> {
        Uffd::of(self).uffd_register(range, by, what)
    }

    /// Unregisters the VMAs of a range from the userfaultfd `by`, and removes its write protection
    /// there (`UFFDIO_UNREGISTER`).
    ///
    /// # Errors
    /// See [`UffdError`]: the part before the VMA that could not be split is done. No VMA needs to
    /// be split if the range is the whole space.
    pub fn uffd_unregister(&self, range: VirtRange, by: UffdId) -> Result<(), UffdError> {
        Uffd::of(self).uffd_unregister(range, by)
    }

    /// Write-protects every page of a registered range, with `unmapped` also pages that are missing
    /// (`UFFDIO_WRITEPROTECT`). When this returns, a write there faults.
    ///
    /// # Errors
    /// See [`UffdError`].
    pub fn uffd_write_protect(&self, range: VirtRange, unmapped: bool) -> Result<(), UffdError> {
        Uffd::of(self).uffd_write_protect(range, unmapped)
    }

    /// Removes the write protection of every page of a registered range.
    ///
    /// # Errors
    /// See [`UffdError`].
    pub fn uffd_write_unprotect(&self, range: VirtRange) -> Result<(), UffdError> {
        Uffd::of(self).uffd_write_unprotect(range)
    }

    /// Fills missing or poisoned pages of a registered range with contents (`UFFDIO_COPY`). Each
    /// page appears with its contents: `contents` gets the offset of a piece in the range, and the
    /// piece to fill, of one page or more. It may use this space in any way, faults and changes
    /// included, because no lock, claim or closed gate is held during the call. It may be called
    /// for a piece more than once, with other lengths. With `protect`, the pages are
    /// write-protected ([`AddressSpace::uffd_write_protect`]).
    ///
    /// # Errors
    /// [`UffdFillStopped`]: a page is there already, the VMA is not registered, or `contents` failed.
    pub fn uffd_copy(
        &self,
        range: VirtRange,
        protect: bool,
        contents: impl FnMut(u64, &mut [u8]) -> Result<(), ()>,
    ) -> Result<(), UffdFillStopped> {
        Uffd::of(self).uffd_copy(range, protect, contents)
    }

    /// Maps the zero folio where pages of a registered range are missing (`UFFDIO_ZEROPAGE`).
    ///
    /// # Errors
    /// [`UffdFillStopped`]: a page is there already, or the VMA is not registered.
    pub fn uffd_zeropage(&self, range: VirtRange) -> Result<(), UffdFillStopped> {
        Uffd::of(self).uffd_zeropage(range)
    }

    /// Poisons missing pages of a registered range (`UFFDIO_POISON`): an access fails with
    /// [`FaultError::Poisoned`](super::FaultError::Poisoned).
    ///
    /// # Errors
    /// [`UffdFillStopped`]: a page is there already, or the VMA is not registered.
    pub fn uffd_poison(&self, range: VirtRange) -> Result<(), UffdFillStopped> {
        Uffd::of(self).uffd_poison(range)
    }
}
