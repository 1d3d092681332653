//! The run: consecutive entries of one page table that are alike. The engine reads, changes and
//! clears PTEs one run at a time.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, Marker};

/// Consecutive entries of one page table that are alike. A single page is a run of length one, and
/// is handled by the same code.
///
/// | kind | entries that form one run |
/// |---|---|
/// | [`Kind::None`] | consecutive empty entries |
/// | [`Kind::Leaf`] | leaf PTEs of consecutive frames with equal attributes (accessed and dirty bits are merged) |
/// | [`Kind::Swap`] | swap entries of consecutive slots of one device with equal attributes |
/// | [`Kind::Marker`] | equal markers |
///
/// A run may map several folios, as long as their frames are consecutive. Code that changes PTEs
/// does not look at folios; code that drops references finds the part of each folio from the
/// descriptors. So even single-page folios, which are mostly allocated from consecutive frames, are
/// unmapped, protected and walked one run at a time. A run does not cross the end of its VMA or
/// page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The address that the first entry translates.
    pub va: u64,
    /// The number of entries.
    pub len: usize,
    /// The level of the page table that holds them: 1 for pages.
    pub level: u8,
    /// The kind of all entries.
    pub kind: Kind,
    /// The first entry. A leaf PTE has the accessed and dirty bits that any PTE of the run has.
    pub raw: u64,
    /// True if hardware will set no accessed or dirty bit in the run that `raw` does not have. Such
    /// PTEs can be overwritten by others that have these bits, without being read again. In a cont
    /// block some of them may lack bits of `raw`.
    pub stable: bool,
    /// The share of the PTEs that are in cont blocks, which a TLB may hold as one translation.
    pub cont: Cont,
}

/// The share of a run's leaf PTEs that are in cont blocks (AArch64: contpte blocks; RISC-V: NAPOT
/// blocks).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cont {
    /// No PTE is in a cont block. The run contains no whole cont block that could be folded either.
    None,
    /// Some PTEs may be in cont blocks, or could be folded: the page table must be read to find
    /// out.
    Some,
    /// All PTEs are in cont blocks. The first and the last block may reach beyond the run.
    All,
}

impl Run {
    /// Returns a run that was not read from a page table.
    pub(crate) const fn new(va: u64, level: u8, kind: Kind, raw: u64, len: usize) -> Run {
        Run { va, len, level, kind, raw, stable: false, cont: Cont::Some }
    }

    /// Returns a run of uffd-wp markers for the pages from `start` to `end`, in whole pages.
    pub(crate) fn wp_markers<A: Arch>(arch: &A, start: u64, end: u64) -> Run {
        let entries = ((end - start) >> arch.page_shift()) as usize;
        Run::new(start, 1, Kind::Marker, arch.marker_pte(Marker::UffdWp), entries)
    }

    /// Returns the difference between the raw values of neighbouring entries, wrapping.
    #[inline]
    pub(crate) fn step<A: Arch>(&self, arch: &A) -> u64 {
        match self.kind {
            Kind::Leaf | Kind::Swap => arch.step(self.raw, self.level),
            Kind::None | Kind::Marker | Kind::Table | Kind::Busy => 0,
        }
    }

    /// Returns the part of the run that has `len` entries and begins after the first `skip`
    /// entries.
    pub(crate) fn part<A: Arch>(&self, arch: &A, skip: usize, len: usize) -> Run {
        let va = self.va + ((skip as u64) << arch.level_shift(self.level));
        Run { va, len, raw: self.raw.wrapping_add(self.step(arch).wrapping_mul(skip as u64)), ..*self }
    }

    /// Returns the addresses that the run translates.
    pub fn range<A: Arch>(&self, arch: &A) -> VirtRange {
        VirtRange { start: self.va, end: self.va + ((self.len as u64) << arch.level_shift(self.level)) }
    }

    /// Returns the number of 4 KiB frames that fit into the run's addresses.
    #[inline]
    pub fn frames<A: Arch>(&self, arch: &A) -> u32 {
        (self.len as u32) << (arch.level_shift(self.level) - FRAME_SHIFT)
    }

    /// Returns the first frame of a run of leaf PTEs.
    #[inline]
    pub fn pfn<A: Arch>(&self, arch: &A) -> Pfn {
        arch.leaf_pfn(self.raw, self.level)
    }

    /// Returns the attributes of a run of leaf PTEs.
    pub fn attrs<A: Arch>(&self, arch: &A) -> Attrs {
        arch.attrs(self.raw, self.level)
    }
}
