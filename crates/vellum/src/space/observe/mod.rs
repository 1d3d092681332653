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
pub use stats::{SpaceStats, peak_rss};
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
    /// A reference to an address space that has the queries about it as methods.
    pub(super) struct Observe
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Returns the counters of the space. They are exact while nothing else uses the space. Also
    /// updates [`SpaceStats::peak_rss`] with the present resident set.
    pub fn stats(&self) -> SpaceStats {
        Observe::of(self).stats()
    }

    /// Calls `visit` for each VMA from `addr` on in ascending order, until it returns false. The
    /// VMAs are locked for reading during the calls: `visit` must be quick, and must not call a
    /// method of this space that changes VMAs.
    pub fn vmas(&self, addr: u64, visit: impl FnMut(&Vma) -> bool) {
        Observe::of(self).vmas(addr, visit)
    }

    /// Calls `visit` for each run of PTEs ([`Run`]) in `range` in ascending order. Addresses
    /// without a page table are passed as a run of [`Kind::None`](crate::arch::Kind::None) at
    /// level 1. The page table of a run is locked during the call: `visit` must be quick, and must
    /// not call back into the space.
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
    /// regions that [`Scan::select`] selects to `out`. Ends early when `out` has no room for the
    /// next region. Without `out` the selected pages are only counted and, with
    /// [`Scan::write_protect`], write-protected.
    ///
    /// A scan that write-protects claims `range`: other operations that change its VMAs, and other
    /// such scans, wait until the scan ends.
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

    /// Clears soft-dirty, the record of written pages (Linux: writing 4 to `clear_refs`).
    /// Afterwards a page counts as written if its PTE has [`Attrs::SOFT_DIRTY`], which the first
    /// write sets, or if its VMA lacks
    /// [`VmaFlags::SOFT_DIRTY_CLEARED`](crate::vma::VmaFlags::SOFT_DIRTY_CLEARED), because it was
    /// mapped or moved afterwards. A write by another CPU while this runs may be recorded or not. A
    /// forked child gets the same record. Claims the whole space, so operations that change VMAs
    /// wait until this ends.
    ///
    /// # Errors
    /// [`SoftDirtyUnsupported`]: the page-table format has no soft-dirty bit. Nothing was changed.
    pub fn clear_soft_dirty(&self) -> Result<(), SoftDirtyUnsupported> {
        Observe::of(self).clear_soft_dirty()
    }

    /// Clears `bits`, a part of [`Attrs::HARDWARE`] (accessed, dirty), in the PTEs of `range`.
    /// Calls `report` in ascending order for each range of addresses whose PTEs had the same bits
    /// set, with these bits. Huge PTEs that don't lie in `range` entirely are left out. When this
    /// returns, the TLBs are flushed, so a later access sets the bits again. An access while this
    /// runs is reported by this call or by the next.
    ///
    /// A page table may be locked while `report` runs: it must be quick, and must not call back
    /// into the space.
    pub fn clear_accessed_dirty(&self, range: VirtRange, bits: Attrs, report: impl FnMut(VirtRange, Attrs)) {
        Observe::of(self).clear_accessed_dirty(range, bits, report)
    }
}
