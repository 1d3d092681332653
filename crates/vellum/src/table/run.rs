//! The run: consecutive entries of one table that say the same thing.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind};

/// What a walk yields. A page is a run of length one; there is no other path for it.
///
/// | kind | what makes it one run |
/// |---|---|
/// | [`Kind::None`] | consecutive empty entries |
/// | [`Kind::Leaf`] | entries that map consecutive frames with the same attributes, accessed and dirty aside, which are merged; at an upper level these are huge mappings |
/// | [`Kind::Swap`] | consecutive slots of one device with the same attributes |
/// | [`Kind::Marker`] | equal markers |
///
/// Frames that follow each other make one run whether they belong to one folio or to several: who changes entries need not
/// know, and who counts references finds each folio's part from the descriptors. So even single-page folios, which mostly
/// are allocated in a row, are unmapped, protected and walked by the run. The run is bounded by its VMA and its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The address that the first entry translates.
    pub va: u64,
    /// How many entries.
    pub len: usize,
    /// The level of the table they stand in.
    pub level: u8,
    /// What they are.
    pub kind: Kind,
    /// The first entry, with the accessed and dirty bits of all of them merged in.
    pub raw: u64,
    /// Whether these are each entry's own, and hardware has none left to set: then the entries can be written without being
    /// read again.
    pub settled: bool,
    /// Which of them are joined to blocks that a TLB may hold as one translation.
    pub joined: Joined,
}

/// How much of a run is joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// Nothing; and as what may be joined is, no whole block in it may.
    None,
    /// What of it is, or may be, has to be looked up.
    Some,
    /// All of it; at its ends it may be parts of blocks.
    All,
}

impl Run {
    /// A run that nobody has read from a table.
    pub(crate) const fn new(va: u64, level: u8, kind: Kind, raw: u64, len: usize) -> Run {
        Run { va, len, level, kind, raw, settled: false, joined: Joined::Some }
    }

    /// What to add to an entry for the next one.
    #[inline]
    pub(crate) fn step<A: Arch>(&self, arch: &A) -> u64 {
        match self.kind {
            Kind::Leaf | Kind::Swap => arch.step(self.raw, self.level),
            Kind::None | Kind::Marker | Kind::Table | Kind::Busy => 0,
        }
    }

    /// `len` entries of it, without the first `skip`.
    pub(crate) fn part<A: Arch>(&self, arch: &A, skip: usize, len: usize) -> Run {
        let va = self.va + ((skip as u64) << arch.level_shift(self.level));
        Run { va, len, raw: self.raw.wrapping_add(self.step(arch).wrapping_mul(skip as u64)), ..*self }
    }

    /// The addresses.
    pub fn range<A: Arch>(&self, arch: &A) -> VirtRange {
        VirtRange { start: self.va, end: self.va + ((self.len as u64) << arch.level_shift(self.level)) }
    }

    /// How many frames (of 4 KiB) the addresses span.
    #[inline]
    pub fn frames<A: Arch>(&self, arch: &A) -> u32 {
        (self.len as u32) << (arch.level_shift(self.level) - FRAME_SHIFT)
    }

    /// The first frame of a leaf run.
    #[inline]
    pub fn pfn<A: Arch>(&self, arch: &A) -> Pfn {
        arch.leaf_pfn(self.raw, self.level)
    }

    /// What a leaf run says besides.
    pub fn attrs<A: Arch>(&self, arch: &A) -> Attrs {
        arch.attrs(self.raw, self.level)
    }
}
