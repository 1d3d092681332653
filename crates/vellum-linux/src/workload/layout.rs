//! The VMAs of a process and the pages in them, as a workload.
//!
//! Addresses of a layout begin at 0, which a copy maps at a multiple of 1 GiB. Pages that shared a
//! page table in the process share one in the layout; otherwise the gaps between VMAs are as small
//! as possible.

use std::collections::BTreeSet;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::case::{PAGE, TABLE_SPAN};

/// The VMAs in ascending order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// The VMAs.
    #[serde(rename = "areas")]
    pub vmas: Vec<Vma>,
}

/// A VMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Vma {
    /// The first address.
    pub start: u64,
    /// The end, exclusive.
    pub end: u64,
    /// The kind of backing.
    pub backing: Backing,
    /// The pages in it, in ascending order.
    pub runs: Vec<Run>,
}

/// The backing of a VMA.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backing {
    /// Anonymous memory.
    Anonymous,
    /// A private mapping of a file or of shared memory.
    Private,
    /// A shared mapping of a file or of shared memory.
    Shared,
}

/// A run of consecutive pages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// The first address.
    pub start: u64,
    /// The end, exclusive.
    pub end: u64,
    /// The kind of the pages.
    pub kind: PageKind,
}

/// The kind of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PageKind {
    /// Anonymous memory in folios of this many KiB, each page with its own PTE.
    Folios(u32),
    /// Anonymous memory mapped by huge PTEs.
    Huge,
    /// The shared zero page.
    Zero,
    /// A page of the backing file.
    File,
    /// No page, but an empty page table.
    Table,
}

/// The folio sizes of a copy's anonymous memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folios {
    /// The sizes that the process has.
    AsIs,
    /// One size in KiB; 2048 is mapped by huge PTEs.
    Of(u32),
}

/// An operation on a whole layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Operation {
    /// The process exits.
    Exit,
    /// Each VMA is unmapped.
    Munmap,
    /// The process forks.
    Fork,
    /// Anonymous memory is swapped out to compressed memory (`MADV_PAGEOUT`).
    #[value(name = "out")]
    SwapOut,
    /// Anonymous memory is made lazyfree (`MADV_FREE`) and reclaimed; the reclaim is timed.
    Reclaim,
}

impl Operation {
    /// All operations, in the order of the report.
    pub const ALL: [Operation; 5] =
        [Operation::Exit, Operation::Munmap, Operation::Fork, Operation::SwapOut, Operation::Reclaim];

    /// Returns the name as a command-line argument.
    pub fn argument(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Exit => "exit",
            Operation::Munmap => "munmap",
            Operation::Fork => "fork",
            Operation::SwapOut => "swap out",
            Operation::Reclaim => "lazyfree reclaim",
        }
    }
}

/// The result of an operation on a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Nanoseconds for which the operation ran.
    pub ns: u64,
    /// Bytes that the copy had in memory before the operation.
    pub resident: u64,
    /// Bytes of page tables that the copy had before the operation.
    pub tables: u64,
}

impl Run {
    /// Returns whether the run is anonymous memory.
    pub fn is_anonymous(&self) -> bool {
        matches!(self.kind, PageKind::Folios(_) | PageKind::Huge)
    }
}

impl Vma {
    /// Returns the folio size in KiB of a run of this VMA; 0 if its pages need no huge-page
    /// setting. Private copies of file pages are single pages.
    pub fn folio(&self, run: &Run, folios: Folios) -> u32 {
        match (run.kind, folios) {
            (PageKind::Zero | PageKind::File | PageKind::Table, _) => 0,
            _ if self.backing != Backing::Anonymous => 4,
            (_, Folios::Of(kib)) => kib,
            (PageKind::Folios(kib), Folios::AsIs) => kib,
            (PageKind::Huge, Folios::AsIs) => 2048,
        }
    }

    /// Returns whether huge PTEs map the run.
    pub fn is_huge(&self, run: &Run, folios: Folios) -> bool {
        self.folio(run, folios) == 2048 && (folios == Folios::Of(2048) || run.kind == PageKind::Huge)
    }
}

impl Layout {
    /// Returns the end of the last VMA.
    pub fn end(&self) -> u64 {
        self.vmas.last().map_or(0, |vma| vma.end)
    }

    /// Returns all runs with their VMAs.
    pub fn runs(&self) -> impl Iterator<Item = (&Vma, &Run)> {
        self.vmas.iter().flat_map(|vma| vma.runs.iter().map(move |run| (vma, run)))
    }

    /// Returns the bytes of backing files.
    pub fn files(&self) -> u64 {
        self.vmas.iter().filter(|vma| vma.backing != Backing::Anonymous).map(|vma| vma.end - vma.start).sum()
    }

    /// Returns the folio sizes in KiB, the largest first. A copy is filled in this order, because
    /// small folios still fit into the memory that large ones leave.
    pub fn sizes(&self, folios: Folios) -> Vec<u32> {
        let sizes: BTreeSet<u32> = self.runs().map(|(vma, run)| vma.folio(run, folios)).collect();
        sizes.into_iter().rev().collect()
    }

    /// Returns the bytes of memory that a copy takes with these folios: a fault on anonymous memory
    /// allocates a whole folio if that lies in the VMA.
    pub fn bytes(&self, folios: Folios) -> u64 {
        let mut bytes = 0;
        for vma in &self.vmas {
            let mut taken = vma.start;
            for run in vma.runs.iter().filter(|run| !matches!(run.kind, PageKind::Table | PageKind::Zero)) {
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

    /// Returns the number of page tables that a copy has with four-level page tables: those of the
    /// three levels below the root, and those deposited for huge PTEs.
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

/// Returns the start of each aligned 2 MiB (the span of a last-level page table) that lies entirely
/// in a range.
pub fn table_spans_in(start: u64, end: u64) -> impl Iterator<Item = u64> {
    (start.next_multiple_of(TABLE_SPAN)..end / TABLE_SPAN * TABLE_SPAN).step_by(TABLE_SPAN as usize)
}
