//! Observation of a space: its VMAs and PTEs, its resident memory, and the pages that were accessed
//! or written.
//!
//! | file | contents |
//! |---|---|
//! | `stats` | the counters, VMAs and runs of PTEs of a space (`status`, `maps`, `pagemap`) |
//! | `usage` | the memory that a range holds, by kind (`smaps`) |
//! | `mincore` | residency: the pages of a range that are in memory |
//! | `scan` | categories of pages, and write protection in the same step (`PAGEMAP_SCAN`) |
//! | `soft_dirty` | soft-dirty: the pages that were written since it was cleared (`clear_refs`) |
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

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Returns the counters of the space. They are exact while nothing else uses the space. Notes
    /// the resident set for [`SpaceStats::peak_rss`].
    pub fn stats(&self) -> SpaceStats {
        Observe::of(self).stats()
    }

    /// Calls `visit` for each VMA from `addr` on in ascending order, until it returns false. The
    /// VMAs are locked for reading meanwhile: `visit` must be quick, and must not call a method of
    /// this space that changes VMAs.
    pub fn vmas(&self, addr: u64, visit: impl FnMut(&Vma) -> bool) {
        Observe::of(self).vmas(addr, visit)
    }

    /// Calls `visit` for each run of PTEs in `range` in ascending order. A hole is passed as a run
    /// of [`Kind::None`](crate::arch::Kind::None) at level 1. The page table of a run is locked
    /// during the call: `visit` must be quick, and must not call back into the space.
    pub fn runs(&self, range: VirtRange, visit: impl FnMut(&Run)) {
        Observe::of(self).runs(range, visit)
    }

    /// Returns the memory that `range` holds, by kind (Linux: `smaps`).
    pub fn usage(&self, range: VirtRange) -> Usage {
        Observe::of(self).usage(range)
    }

    /// Sets the element of `resident` for each page of a range: to true if the page is mapped or
    /// the page-cache object behind the VMA has it in memory (Linux: `mincore`). The range begins
    /// at `addr` and has `len` bytes, rounded up to pages. The result may be outdated when this
    /// returns.
    ///
    /// # Errors
    /// See [`MincoreError`]; `resident` is unchanged.
    pub fn mincore(&self, addr: u64, len: u64, resident: &mut [bool]) -> Result<(), MincoreError> {
        Observe::of(self).mincore(addr, len, resident)
    }

    /// Scans the pages of `range` in ascending order (Linux: `PAGEMAP_SCAN`), and writes the
    /// regions that `scan` selects to `out`. Ends early when `out` has no room for the next region.
    /// Without `out` the selected pages are only counted and, if `scan` asks for it,
    /// write-protected.
    ///
    /// A scan that write-protects claims `range`; other changes of it wait meanwhile.
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
    /// [`Attrs::SOFT_DIRTY`] or its VMA lacks
    /// [`VmaFlags::SOFT_DIRTY_CLEARED`](crate::vma::VmaFlags::SOFT_DIRTY_CLEARED) (Linux: writing 4
    /// to `clear_refs`). A write while this runs may count or not. A forked child has the same
    /// bits. Claims the whole space, so changes of VMAs wait meanwhile.
    ///
    /// # Errors
    /// [`SoftDirtyUnsupported`]: the format has no such bit. Nothing was changed.
    pub fn clear_soft_dirty(&self) -> Result<(), SoftDirtyUnsupported> {
        Observe::of(self).clear_soft_dirty()
    }

    /// Clears `bits`, a part of [`Attrs::HARDWARE`] (accessed, dirty), in the PTEs of `range`.
    /// Calls `report` in ascending order for each range of addresses whose PTEs had the same bits
    /// set, with these bits. Huge PTEs that don't lie in `range` entirely are left out. When this
    /// returns, the TLBs are flushed, so CPUs set the bits anew; an access meanwhile is reported by
    /// this call or by the next.
    ///
    /// A page table may be locked while `report` runs: it must be quick, and must not call back
    /// into the space.
    pub fn clear_accessed_dirty(&self, range: VirtRange, bits: Attrs, report: impl FnMut(VirtRange, Attrs)) {
        Observe::of(self).clear_accessed_dirty(range, bits, report)
    }
}
