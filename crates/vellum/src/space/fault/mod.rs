//! Page faults: the steps that make an access succeed.
//!
//! A fault locks the VMAs for reading, reads the PTE, and dispatches ([`Fault::try_fault`]) to the
//! step that fits; each step decides under the lock of the one page table where its PTEs are. A
//! step that finds that another CPU was faster returns [`Outcome::Again`]; the fault tries again,
//! after some tries with its addresses claimed and the gate closed ([`Retry`], INV-21).
//!
//! | file | step |
//! |---|---|
//! | `resolve` | the fault path: read the PTE, dispatch, try again |
//! | `retry` | bounded tries: for faults, pinning, and userfaultfd fills |
//! | `error` | accesses, errors, userfaultfd events |
//! | `zeros` | a read of untouched anonymous memory maps the zero folio; a write replaces it |
//! | `object` | nothing is mapped, and the VMA maps a page-cache object |
//! | `cow` | a write to a page that is shared: reuse or copy |
//! | `swap_in` | the PTE names a swap slot |
//! | `uffd` | the VMA is registered with a userfaultfd |
//! | `soft_dirty` | the first write since soft-dirty was cleared |
//! | `spurious` | the PTE allows the access already: the CPU's TLB must see that (INV-20) |
//! | `stack` | no VMA, but a stack above that may grow |
//! | `pin` | a page is faulted in and kept for the host |
//!
//! New anonymous memory is [`anon`](super::anon)'s.

mod cow;
mod error;
mod object;
mod pin;
mod resolve;
mod retry;
mod soft_dirty;
mod spurious;
mod stack;
mod swap_in;
mod uffd;
mod zeros;

pub use error::{Access, FaultError, Resolved, UffdEvent, UffdMode};
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
    /// Page faults of a space.
    pub(super) struct Fault
}

handle! {
    /// Swap-in: brings swapped-out pages of a space back.
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

    /// Pins the page at `addr`, faulted in for `access`; for a write it is made exclusive to the
    /// space first. The page is not freed before the result is dropped, and has one more reference
    /// until then (Linux: `pin_user_pages`).
    ///
    /// The space sees what the host writes to the page, and a child that is forked meanwhile
    /// doesn't, until the space unmaps or discards the page. For a write the page counts as dirty
    /// from now on.
    ///
    /// # Errors
    /// See [`FaultError`].
    pub fn pin(&self, addr: u64, access: Access) -> Result<ObjectPage<'m, P>, FaultError> {
        Fault::of(self).pin(addr, access)
    }

    /// Swaps in everything that the space has on a device, in folios as faults would (Linux:
    /// `swapoff`). The host does this for each space before it detaches the device, after
    /// [`Swaps::close`](crate::swap::Swaps::close): pages that are being written to the device
    /// while this runs, or that a later fork shares, stay there, and detaching fails. Faults go on
    /// meanwhile; changes of VMAs wait.
    ///
    /// # Errors
    /// [`FaultError::NoMemory`]: there is no memory; the rest is still on the device.
    /// [`FaultError::Poisoned`]: the device could not read the page at this address, the first such
    /// page; all others are swapped in.
    pub fn swap_off(&self, device: u8) -> Result<(), FaultError> {
        SwapIn::of(self).swap_off(device)
    }
}
