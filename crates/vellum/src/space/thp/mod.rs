//! Transparent huge pages: small folios become a large one (collapse), and a partially mapped large
//! folio becomes small ones (split).
//!
//! | file | contents |
//! |---|---|
//! | `collapse` | `MADV_COLLAPSE`, and the scan of a host that has time (Linux: khugepaged) |
//! | `objects` | the blocks of objects' pages that a range maps |
//! | `split` | splits partially mapped folios for reclaim |

mod collapse;
mod objects;
mod split;

pub use collapse::{CollapseError, CollapseLimits, Collapsed};

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::machine::Machine;
use crate::page_cache::{Object, ObjectError};
use crate::platform::Platform;
use crate::space::ground::handle;
use crate::table::PageTables;

use super::AddressSpace;

handle! {
    /// Collapses and splits folios of a space.
    pub(crate) struct Thp
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Scans about `pages` pages of 4 KiB from the address `from` on, and collapses the blocks
    /// (aligned ranges of a large folio's size) for which the folio policy wants a large folio and
    /// which `limits` allow. Calls `collapse` for those of shared memory, as
    /// [`AddressSpace::collapse_next`] does. Faults may run at the same time. A host calls this
    /// when it has time (Linux: khugepaged).
    ///
    /// # Errors
    /// There is no memory for a folio, or the memcg is at its limit: the host should wait before it
    /// scans on. Blocks before the one that failed stay collapsed.
    pub fn collapse_some(
        &self,
        from: u64,
        pages: u64,
        limits: &CollapseLimits,
        collapse: impl FnMut(&Object<'m, P>, u64) -> Result<bool, ObjectError>,
    ) -> Result<Collapsed, CollapseError> {
        Thp::of(self).collapse_some(from, pages, limits, collapse)
    }

    /// Collapses the first block of an object's pages that lies in `rest`, and removes it from
    /// `rest` with all before it (`MADV_COLLAPSE`, which leaves objects to this call). Calls
    /// `collapse` with the object and a page of the block; `collapse` must call
    /// [`collapse_object`](crate::space::collapse_object) for all spaces, this one too. No lock is
    /// held during the call. Empties `rest` if it has no such block.
    ///
    /// # Errors
    /// [`CollapseError`]: the block, or all of a VMA, can't be collapsed. `rest` has what comes
    /// after it; after [`CollapseError::NoMemory`] also the block.
    pub fn collapse_next(
        &self,
        rest: &mut VirtRange,
        collapse: impl FnMut(&Object<'m, P>, u64) -> Result<bool, ObjectError>,
    ) -> Result<(), CollapseError> {
        Thp::of(self).collapse_next(rest, collapse)
    }
}
