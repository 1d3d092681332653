//! Observation: what a space maps, what of it is in memory, and which pages were used or written.
//!
//! | file | contents |
//! |---|---|
//! | `stats` | a space in numbers, its VMAs, its runs of PTEs (`/proc/PID/status`, `maps`, `pagemap`) |
//! | `usage` | the memory that a range holds, by kind (`smaps`) |
//! | `mincore` | which pages are in memory |
//! | `scan` | pages by category, and write protection in the same step (`PAGEMAP_SCAN`) |
//! | `soft_dirty` | which pages were written since soft-dirty was cleared (`clear_refs`) |
//! | `accessed_dirty` | the accessed and dirty bits that hardware sets |

mod accessed_dirty;
mod mincore;
mod scan;
mod soft_dirty;
mod stats;
mod usage;

pub use mincore::MincoreError;
pub use scan::{Categories, Region, Scan, ScanError, Scanned};
pub use soft_dirty::SoftDirtyUnsupported;
pub use stats::SpaceStats;
pub use usage::{Usage, UsageSplit};

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, UserRange};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::space::ground::handle;
use crate::table::{PageTables, Run};
use crate::vma::Vma;

use super::AddressSpace;

handle! {
    /// Queries about a space.
    pub(super) struct Observe
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Returns the space in numbers. They are exact while nothing else uses the space.
    pub fn stats(&self) -> SpaceStats {
        Observe::of(self).stats()
    }

    /// Calls `visit` for each VMA from `addr` on in ascending order, until it returns false. The
    /// VMAs are locked for reading meanwhile: `visit` must be quick, and must not call a method of
    /// this space that changes VMAs.
    pub fn vmas(&self, addr: u64, visit: impl FnMut(&Vma) -> bool) {
        Observe::of(self).vmas(addr, visit)
    }

    /// Calls `visit` for each run of PTEs in `range` in ascending order. A hole is shown as a run
    /// of [`Kind::None`](crate::arch::Kind::None) at level 1. The page table of a run is locked
    /// during the call: `visit` must be quick, and must not call back into the space.
    pub fn runs(&self, range: VirtRange, visit: impl FnMut(&Run)) {
        Observe::of(self).runs(range, visit)
    }

    /// Returns the memory that `range` holds, by kind (Linux: `smaps`).
    pub fn usage(&self, range: VirtRange) -> Usage {
        Observe::of(self).usage(range)
    }

    /// Writes to `answer` for each page of the range whether it is in memory: mapped, or in the
    /// object behind the VMA (Linux: `mincore`). The result may be outdated when this returns.
    ///
    /// # Errors
    /// See [`MincoreError`].
    pub fn mincore(&self, addr: u64, len: u64, answer: &mut [bool]) -> Result<(), MincoreError> {
        Observe::of(self).mincore(addr, len, answer)
    }

    /// Visits the pages of `range` in ascending order (Linux: `PAGEMAP_SCAN`), and writes the
    /// regions that `scan` selects to `out`, if there is one, as far as it has room.
    ///
    /// # Errors
    /// See [`ScanError`].
    pub fn scan(
        &self,
        range: VirtRange,
        scan: Scan<impl Fn(Categories) -> Option<Categories>>,
        out: Option<&mut [Region]>,
    ) -> Result<Scanned, ScanError> {
        Observe::of(self).scan(range, scan, out)
    }

    /// Clears soft-dirty: from now on a page was written exactly if its PTE has
    /// [`Attrs::SOFT_DIRTY`] or its VMA lacks [`VmaFlags::SOFT_DIRTY_CLEARED`](crate::vma::VmaFlags::SOFT_DIRTY_CLEARED)
    /// (Linux: writing 4 to `clear_refs`). Writes while this runs count or don't. A forked child
    /// has the same bits.
    ///
    /// # Errors
    /// [`SoftDirtyUnsupported`]: the format has no such bit. Nothing was changed.
    pub fn clear_soft_dirty(&self) -> Result<(), SoftDirtyUnsupported> {
        Observe::of(self).clear_soft_dirty()
    }

    /// Clears the bits `what` of [`Attrs::HARDWARE`] (accessed, dirty) in the PTEs of `range`, and
    /// calls `told` with what was set, in ascending order, for pieces whose pages had the same
    /// bits. Huge PTEs that don't lie in the range entirely are left out. When this returns, CPUs
    /// set the bits anew; an access meanwhile is reported now, or by the next call.
    ///
    /// The page table of a piece is locked during the call: `told` must be quick, and must not call
    /// back into the space.
    pub fn clear_accessed_dirty(&self, range: VirtRange, what: Attrs, told: impl FnMut(VirtRange, Attrs)) {
        Observe::of(self).clear_accessed_dirty(range, what, told)
    }
}
