//! Page faults: the steps that make an access succeed.
//!
//! A fault locks the VMAs for reading, reads the PTE without the page table's lock, and calls the
//! step that fits ([`Fault::try_fault`]). The step reads the PTE again under the lock of its page
//! table. If another CPU has changed the PTE in between, the step returns [`Outcome::Again`], and
//! the fault tries again. After some tries the fault claims its addresses, which keeps changes of
//! the VMAs away, and closes a gate, at which new operations wait ([`Retry`], INV-21).
//!
//! | file | step |
//! |---|---|
//! | `resolve` | the fault path: read the PTE, dispatch, try again |
//! | `retry` | bounds the tries of faults, pins and userfaultfd fills |
//! | `error` | accesses, errors, userfaultfd events |
//! | `zeros` | a read of untouched anonymous memory maps the zero folio; a write replaces it |
//! | `object` | nothing is mapped, and the VMA maps a page-cache object |
//! | `cow` | a write to a page that is shared: reuse or copy |
//! | `swap_in` | the PTE names a swap slot |
//! | `uffd` | the VMA is registered with a userfaultfd |
//! | `soft_dirty` | the first write since soft-dirty was cleared |
//! | `store` | the first write to a page of a file since it was written to the storage |
//! | `spurious` | the PTE allows the access already, but the CPU's TLB has an older PTE (INV-20) |
//! | `stack` | no VMA has the address, but a stack above may grow down to it |
//! | `pin` | a page is faulted in and kept for the host |
//!
//! The folder [`anon`](super::anon) allocates and maps new anonymous folios.

mod cow;
mod error;
mod hugetlb;
mod object;
mod pin;
mod resolve;
mod retry;
mod soft_dirty;
mod spurious;
mod stack;
mod store;
mod swap_in;
mod uffd;
mod zeros;

pub use error::{Access, FaultError, Resolved, UffdEvent, UffdMode};
pub(super) use object::ToMap;
pub(super) use resolve::{Outcome, Touch};
pub(super) use retry::Retry;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::page_cache::ObjectPage;
use crate::platform::Platform;
use crate::space::ground::handle;
use crate::table::PageTables;

use super::AddressSpace;

handle! {
    /// A reference to a space, with the methods that resolve its page faults.
    pub(super) struct Fault
}

handle! {
    /// A reference to a space, with the methods that swap its pages in.
    pub(super) struct SwapIn
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Resolves a page fault of user mode at `addr`. When it returns `Ok`, the access may be tried
    /// again.
    ///
    /// # Errors
    /// See [`FaultError`]; nothing was changed.
    #[inline]
    pub fn fault(&self, addr: u64, access: Access) -> Result<Resolved, FaultError> {
        Fault::of(self).fault(addr, access)
    }

    /// Faults in the page at `addr` for `access` and pins it (Linux: `pin_user_pages`). For a write
    /// the page is first made exclusive to the space. The result holds a reference to the page, so
    /// that the page is not freed before the result is dropped.
    ///
    /// Until the space unmaps or discards the page, the space sees what the host writes to it, and
    /// a child that is forked while the page is pinned does not. With [`Access::Write`] the page
    /// counts as dirty from now on. Writeback ends that for a page of a file with a store
    /// ([`write_back`](crate::space::write_back)), so the host marks such a page again
    /// ([`Object::mark_dirty`](crate::page_cache::Object::mark_dirty)) after its last write, before
    /// it drops the result.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn pin(&self, addr: u64, access: Access) -> Result<ObjectPage<'m, P>, FaultError> {
        Fault::of(self).pin(addr, access)
    }

    /// Swaps in all pages of the space that are on the swap device `device`, in folios as faults do
    /// (Linux: `swapoff`). Before the host detaches a device, it closes the device
    /// ([`Swaps::close`](crate::swap::Swaps::close)), and then calls this for each space. A page
    /// stays on the device if it is being written there while this runs, or if a later fork shares
    /// it with a child; then detaching fails. While this runs, faults of the space go on, and
    /// changes of its VMAs wait.
    ///
    /// # Errors
    /// [`FaultError::NoMemory`]: there is no memory, and some pages are still on the device.
    /// [`FaultError::Poisoned`]: the device could not read some pages, of which the first has this
    /// address; all other pages are swapped in.
    pub fn swap_off(&self, device: u8) -> Result<(), FaultError> {
        SwapIn::of(self).swap_off(device)
    }
}
