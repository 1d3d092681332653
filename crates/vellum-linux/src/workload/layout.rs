//! What a process has mapped, as something to measure on: VMAs, and what is in them.
//!
//! Addresses begin at 0, which stands for any multiple of 1 GiB. What shared a page table shares
//! one here, and what was far apart is only as far apart as that takes.

use std::collections::BTreeSet;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::case::{PAGE, TABLE_SPAN};

/// VMAs, in the order of addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Them.
    #[serde(rename = "areas")]
    pub vmas: Vec<Vma>,
}

/// One mapped VMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vma {
    /// The first byte.
    pub start: u64,
    /// The first byte behind it.
    pub end: u64,
    /// What stands behind it.
    pub backing: Backing,
    /// What is there, in the order of addresses.
    pub runs: Vec<Run>,
}

/// What stands behind a VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Nothing.
    Anonymous,
    /// A file, or shared memory; what is written stays here.
    Private,
    /// The same, and what is written is written there.
    Shared,
}

/// Pages in a row that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The first byte.
    pub start: u64,
    /// The first byte behind it.
    pub end: u64,
    /// What they are.
    pub what: What,
}

/// What a page may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum What {
    /// Anonymous memory, in folios of so many KiB, each page with an entry of its own.
    Folios(u32),
    /// Anonymous memory, mapped by entries of upper tables.
    Huge,
    /// The page of zeros.
    Zero,
    /// A page of what stands behind the VMA.
    File,
    /// Nothing; but a table is there for it.
    Table,
}

/// Which folios anonymous memory is to be in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folios {
    /// Those that it is in.
    AsIs,
    /// Those of one size, in KiB; 2048 is mapped huge.
    Of(u32),
}

/// What is done to the whole layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Deed {
    /// The process ends.
    Exit,
    /// Each VMA is unmapped.
    Munmap,
    /// The process makes a child.
    Fork,
    /// Anonymous memory is written to swap, in compressed memory (`MADV_PAGEOUT`).
    Out,
    /// Anonymous memory is said to be of no use any more (`MADV_FREE`), and is taken back: the
    /// taking back.
    Reclaim,
}

impl Deed {
    /// All of them.
    pub const ALL: [Deed; 5] = [Deed::Exit, Deed::Munmap, Deed::Fork, Deed::Out, Deed::Reclaim];

    /// In a list of arguments.
    pub fn word(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// As it is called.
    pub fn name(self) -> &'static str {
        match self {
            Deed::Exit => "exit",
            Deed::Munmap => "munmap",
            Deed::Fork => "fork",
            Deed::Out => "swap out",
            Deed::Reclaim => "lazyfree reclaim",
        }
    }
}

/// What came of a deed, on a copy of a layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Nanoseconds of it.
    pub ns: u64,
    /// Bytes that the copy had in memory before.
    pub resident: u64,
    /// Bytes of page tables that it had.
    pub tables: u64,
}

impl Run {
    /// Whether it is in anonymous memory.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.what, What::Folios(_) | What::Huge)
    }
}

impl Vma {
    /// The size of folios, in KiB, that a run of it is made of: 0 for what no setting is needed
    /// for. Copies of a file's pages are single ones.
    pub fn folio(&self, run: &Run, folios: Folios) -> u32 {
        match (run.what, folios) {
            (What::Zero | What::File | What::Table, _) => 0,
            _ if self.backing != Backing::Anonymous => 4,
            (_, Folios::Of(kib)) => kib,
            (What::Folios(kib), Folios::AsIs) => kib,
            (What::Huge, Folios::AsIs) => 2048,
        }
    }

    /// Whether entries of upper tables map it.
    pub fn is_huge(&self, run: &Run, folios: Folios) -> bool {
        self.folio(run, folios) == 2048 && (folios == Folios::Of(2048) || run.what == What::Huge)
    }
}

impl Layout {
    /// The first byte behind all of it.
    pub fn end(&self) -> u64 {
        self.vmas.last().map_or(0, |vma| vma.end)
    }

    /// All that is in it, by VMA.
    pub fn runs(&self) -> impl Iterator<Item = (&Vma, &Run)> {
        self.vmas.iter().flat_map(|vma| vma.runs.iter().map(move |run| (vma, run)))
    }

    /// Bytes of files behind it.
    pub fn files(&self) -> u64 {
        self.vmas.iter().filter(|vma| vma.backing != Backing::Anonymous).map(|vma| vma.end - vma.start).sum()
    }

    /// The sizes of folios, in KiB, that it is made of one after the other, the largest first: what
    /// is smaller goes where room is left.
    pub fn sizes(&self, folios: Folios) -> Vec<u32> {
        let sizes: BTreeSet<u32> = self.runs().map(|(vma, run)| vma.folio(run, folios)).collect();
        sizes.into_iter().rev().collect()
    }

    /// Bytes of memory that it takes with these folios: a fault brings a whole one, if it lies in
    /// the VMA, and that is anonymous.
    pub fn bytes(&self, folios: Folios) -> u64 {
        let mut bytes = 0;
        for vma in &self.vmas {
            let mut taken = vma.start;
            for run in vma.runs.iter().filter(|run| !matches!(run.what, What::Table | What::Zero)) {
                let size = (u64::from(vma.folio(run, folios)) << 10).max(PAGE);
                let mut at = run.start.max(taken);
                while at < run.end {
                    let block = at / size * size;
                    let whole = vma.backing == Backing::Anonymous && vma.start <= block && block + size <= vma.end;
                    let (start, end) = if whole { (block, block + size) } else { (at, run.end.min(block + size)) };
                    bytes += end - start.max(taken);
                    (at, taken) = (end, end);
                }
            }
        }
        bytes
    }

    /// Page tables that it has, of all levels but the highest, where there are four; with one put
    /// by for each that is huge.
    pub fn tables(&self) -> u64 {
        let mut levels = [const { BTreeSet::new() }; 3];
        for (_, run) in self.runs() {
            for table in run.start / TABLE_SPAN..run.end.div_ceil(TABLE_SPAN) {
                levels[0].insert(table);
                levels[1].insert(table / 512);
                levels[2].insert(table / 512 / 512);
            }
        }
        levels.iter().map(|level| level.len() as u64).sum()
    }
}

/// The whole tables' spans that lie in a range.
pub fn tables_in(start: u64, end: u64) -> impl Iterator<Item = u64> {
    (start.next_multiple_of(TABLE_SPAN)..end / TABLE_SPAN * TABLE_SPAN).step_by(TABLE_SPAN as usize)
}
