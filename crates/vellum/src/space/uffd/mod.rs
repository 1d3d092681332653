//! userfaultfd (uffd): registration of VMAs, write protection, and filling of missing pages.
//!
//! A VMA may be registered for missing pages ([`VmaFlags::UFFD_MISSING`]) and for writes to
//! write-protected pages ([`VmaFlags::UFFD_WP`]). A fault on such a page changes nothing and
//! returns an event ([`FaultError::Uffd`](super::FaultError::Uffd)); the host makes the thread
//! wait. When the userfaultfd's owner has filled the page or removed the write protection, the host
//! retries the access. In asynchronous mode ([`VmaFlags::UFFD_WP_ASYNC`]) a write removes the
//! protection at once and goes on, and [`AddressSpace::scan`] finds the pages that were written.
//!
//! A page is write-protected by a bit of its PTE or swap PTE
//! ([`Attrs::UFFD_WP`](crate::arch::Attrs::UFFD_WP)), or by a marker PTE if the page is missing. So
//! write protection survives swapping and `mremap`. It is exact to the page: a page with the bit
//! and a page without never share a huge PTE or a cont block (PTEs that a TLB may cache as one
//! translation). A forked child is not registered, and its pages are not write-protected.
//!
//! | file | contents |
//! |---|---|
//! | `register` | `UFFDIO_REGISTER`, `UFFDIO_UNREGISTER` |
//! | `write_protect` | `UFFDIO_WRITEPROTECT` |
//! | `fill` | `UFFDIO_COPY`, `UFFDIO_ZEROPAGE`, `UFFDIO_POISON` |
//! | `object` | the same in shared memory; `UFFDIO_CONTINUE` |
//! | `relocate` | `UFFDIO_MOVE` |
//!
//! [`fault`](super::fault) handles the faults in registered VMAs.

mod fill;
mod object;
mod register;
mod relocate;
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
    /// A reference to an address space that has the userfaultfd operations as methods.
    struct Uffd
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Registers the VMAs of a range with the userfaultfd `uffd` (`UFFDIO_REGISTER`). `modes` is a
    /// part of [`VmaFlags::UFFD_FLAGS`], and replaces the modes of an earlier registration. Without
    /// [`VmaFlags::UFFD_WP`] the pages lose their write protection.
    ///
    /// # Errors
    /// See [`UffdError`]: nothing was changed.
    pub fn uffd_register(&self, range: VirtRange, uffd: UffdId, modes: VmaFlags) -> Result<(), UffdError> {
        Uffd::of(self).uffd_register(range, uffd, modes)
    }

    /// Unregisters those VMAs of a range that are registered with the userfaultfd `uffd`, and
    /// removes the write protection of their pages (`UFFDIO_UNREGISTER`).
    ///
    /// # Errors
    /// See [`UffdError`]: the VMAs before the one that could not be split are unregistered. No VMA
    /// needs to be split if the range is the whole space.
    pub fn uffd_unregister(&self, range: VirtRange, uffd: UffdId) -> Result<(), UffdError> {
        Uffd::of(self).uffd_unregister(range, uffd)
    }

    /// Write-protects every page of a registered range, with `unmapped` also pages that are missing
    /// (`UFFDIO_WRITEPROTECT`). When this returns, a write to any of these pages faults. Claims the
    /// range: other operations that change its VMAs wait until this ends.
    ///
    /// # Errors
    /// See [`UffdError`]. After [`UffdError::NoMemory`] a part of the pages is write-protected.
    pub fn uffd_write_protect(&self, range: VirtRange, unmapped: bool) -> Result<(), UffdError> {
        Uffd::of(self).uffd_write_protect(range, unmapped)
    }

    /// Removes the write protection of every page of a registered range (`UFFDIO_WRITEPROTECT`
    /// without `UFFDIO_WRITEPROTECT_MODE_WP`). The host then wakes the threads whose writes to
    /// these pages wait.
    ///
    /// # Errors
    /// See [`UffdError`]: the write protection is unchanged.
    pub fn uffd_write_unprotect(&self, range: VirtRange) -> Result<(), UffdError> {
        Uffd::of(self).uffd_write_unprotect(range)
    }

    /// Fills missing or poisoned pages of a registered range with contents (`UFFDIO_COPY`). A page
    /// is mapped only once it has its contents. With `protect`, the pages are write-protected
    /// ([`AddressSpace::uffd_write_protect`]).
    ///
    /// `contents` fills a piece of one page or more; its first argument is the offset of the piece
    /// in the range, in bytes. `contents` may use this space in any way: it may cause faults and
    /// call operations that change VMAs, because during the call the engine holds no lock and keeps
    /// no operation on the space waiting. It may be called more than once for a piece, with another
    /// length.
    ///
    /// # Errors
    /// [`UffdFillStopped`]: a page exists already, the VMA is not registered, `contents` failed, or
    /// there is no memory.
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
    /// [`UffdFillStopped`]: a page exists already, the VMA is not registered, or there is no
    /// memory.
    pub fn uffd_zeropage(&self, range: VirtRange) -> Result<(), UffdFillStopped> {
        Uffd::of(self).uffd_zeropage(range)
    }

    /// Poisons missing pages of a registered range (`UFFDIO_POISON`): an access fails with
    /// [`FaultError::Poisoned`](super::FaultError::Poisoned).
    ///
    /// # Errors
    /// [`UffdFillStopped`]: a page exists already, the VMA is not registered, or there is no
    /// memory.
    pub fn uffd_poison(&self, range: VirtRange) -> Result<(), UffdFillStopped> {
        Uffd::of(self).uffd_poison(range)
    }
}

/// Maps pages of a registered range of `space` that the object behind their VMA has, and that no
/// PTE maps (`UFFDIO_CONTINUE`). With `protect`, the pages are write-protected.
///
/// # Errors
/// [`UffdFillStopped`]: the object does not have a page, a PTE maps it, the VMA is not registered
/// or has no object, or there is no memory.
pub fn uffd_continue<P: Platform>(
    space: &AddressSpace<'_, P>,
    range: VirtRange,
    protect: bool,
) -> Result<(), UffdFillStopped> {
    Uffd::of(space).uffd_continue(range, protect)
}

/// Moves the pages of `from` to the missing pages of `to`, both ranges of `space` of the same
/// length (`UFFDIO_MOVE`). `to` is registered with `uffd`. No memory is copied where whole folios
/// move. With `holes`, a page that is missing in `from` stays missing in `to`.
///
/// # Errors
/// [`UffdFillStopped`]: a page of `from` is missing, shared or pinned; one of `to` is not missing;
/// the VMAs are not anonymous memory, writable, and alike; or there is no memory. The pages before
/// that one are moved.
pub fn uffd_move<P: Platform>(
    space: &AddressSpace<'_, P>,
    uffd: UffdId,
    [to, from]: [VirtRange; 2],
    holes: bool,
) -> Result<(), UffdFillStopped> {
    Uffd::of(space).uffd_move(uffd, to, from, holes)
}
