//! A workload: a region of folios of one size, and the operation on it.

use clap::ValueEnum;

use super::arm::Arm;
use super::calls::Calls;
use super::data::{Data, Rewrites, Steps};
use super::files::FileOp;
use super::mapping::Mapping;

/// Bytes of a base page.
pub const PAGE: u64 = 4 << 10;
/// Bytes that one last-level page table spans, which is also what a huge PTE maps.
pub const TABLE_SPAN: u64 = 2 << 20;

/// A touched region of folios of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Length of the region, a multiple of [`TABLE_SPAN`].
    pub bytes: u64,
    /// Size of each folio in KiB.
    pub folio_kib: u32,
    /// True if huge PTEs map the folios; otherwise each page has its own PTE.
    pub huge: bool,
    /// The order in which they are touched.
    pub arm: Arm,
    /// The kind of the region's mapping.
    pub mapping: Mapping,
}

impl Case {
    /// Returns an anonymous region of `bytes`, touched in ascending order, in folios of this size
    /// whose pages have PTEs of their own.
    pub const fn of(bytes: u64, folio_kib: u32) -> Case {
        Case { bytes, folio_kib, huge: false, arm: Arm::Ascending, mapping: Mapping::Anonymous }
    }

    /// Returns the number of 4 KiB pages.
    pub fn pages(&self) -> u64 {
        self.bytes / PAGE
    }

    /// Returns the 4 KiB pages of a folio.
    pub fn pages_per_folio(&self) -> u64 {
        self.folio_bytes() / PAGE
    }

    /// Returns the bytes of a folio.
    pub fn folio_bytes(&self) -> u64 {
        u64::from(self.folio_kib) << 10
    }

    /// Returns the number of folios.
    pub fn folios(&self) -> u64 {
        self.pages() / self.pages_per_folio()
    }

    /// Returns the row's name in a table.
    pub fn label(&self) -> String {
        let kib = self.folio_kib;
        let size = if kib.is_multiple_of(1024) { format!("{} MiB", kib >> 10) } else { format!("{kib} KiB") };
        if self.huge { format!("{size} huge") } else { size }
    }
}

/// An operation on a whole region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Unmap the region.
    Munmap,
    /// Unmap it, or a part of it, by several calls, whose average is the figure. A benchmark of its
    /// own.
    #[value(skip)]
    Calls(Calls),
    /// Discard the pages and keep the mapping (`MADV_DONTNEED`).
    Dontneed,
    /// Exit the process that maps it.
    Exit,
    /// Make it read-only.
    Protect,
    /// Fork the process that maps it. A benchmark of its own, so not one of `--ops`.
    #[value(skip)]
    Fork,
    /// Fork the process that maps it, and then write bytes in the parent: the fork and the
    /// copy-on-write faults. A row of the benchmark of forks.
    #[value(skip)]
    ForkWrite(Steps),
    /// The copy-on-write faults of [`Op::ForkWrite`] alone.
    #[value(skip)]
    Cow(Steps),
    /// Swap out its pages (`MADV_PAGEOUT`). A benchmark of its own. The reads come afterwards, for
    /// [`Op::SwapIn`].
    #[value(skip)]
    SwapOut(Data, Steps),
    /// Swap in its pages, by reads of single bytes in ascending order, after the swap-out.
    #[value(skip)]
    SwapIn(Data, Steps),
    /// Reclaim its lazyfree pages (`MADV_FREE`, then `MADV_PAGEOUT`).
    #[value(skip)]
    Reclaim(Rewrites),
    /// An operation on a file of a disk. A benchmark of its own.
    #[value(skip)]
    File(FileOp),
    /// Write a byte in each fresh page: the page faults. Reported, not compared.
    Touch,
}

impl Op {
    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Op::Munmap => "munmap",
            Op::Calls(calls) => calls.name(),
            Op::Dontneed => "dontneed",
            Op::Exit => "exit",
            Op::Protect => "protect",
            Op::Fork => "fork",
            Op::ForkWrite(_) => "fork-write",
            Op::Cow(_) => "cow",
            Op::SwapOut(..) => "out",
            Op::SwapIn(..) => "in",
            Op::Reclaim(_) => "reclaim",
            Op::File(file) => file.name(),
            Op::Touch => "touch",
        }
    }

    /// Returns the page contents for swap-out and swap-in; `None` for other operations.
    pub fn data(self) -> Option<Data> {
        match self {
            Op::SwapOut(data, _) | Op::SwapIn(data, _) => Some(data),
            _ => None,
        }
    }

    /// Returns the pages that are written again before a reclaim; `None` for other operations.
    pub fn rewrites(self) -> Option<Rewrites> {
        if let Op::Reclaim(rewrites) = self { Some(rewrites) } else { None }
    }

    /// Returns the bytes that are written after a fork; `None` for other operations.
    pub fn writes(self) -> Option<Steps> {
        match self {
            Op::ForkWrite(writes) | Op::Cow(writes) => Some(writes),
            _ => None,
        }
    }

    /// Returns the bytes that are read after a swap-out; `None` for other operations.
    pub fn reads(self) -> Option<Steps> {
        match self {
            Op::SwapOut(_, reads) | Op::SwapIn(_, reads) => Some(reads),
            _ => None,
        }
    }

    /// Returns the bytes whose distance names the operation's rows, if that is not a page. The
    /// reads after a swap-out don't change it.
    pub fn sparse(self) -> Option<&'static str> {
        let steps = if let Op::SwapOut(..) = self { None } else { self.writes().or(self.reads()) };
        steps.and_then(Steps::name)
    }

    /// Returns whether the operation is measured of regions like this. All but those of files of a
    /// disk are of anonymous memory.
    pub fn is_of(self, case: &Case) -> bool {
        match self.file() {
            Some(op) => op.is_of(case),
            None => !case.mapping.is_file() || matches!(self, Op::Munmap | Op::Fork | Op::Touch),
        }
    }

    /// Returns the operation on a file of a disk, if it is one.
    pub fn file(self) -> Option<FileOp> {
        if let Op::File(file) = self { Some(file) } else { None }
    }

    /// Returns the calls of an operation that is several; `None` for other operations.
    pub fn calls(self) -> Option<Calls> {
        if let Op::Calls(calls) = self { Some(calls) } else { None }
    }

    /// Returns the operation that comes after this one in the same run and is timed by itself, or
    /// `None` if there is none.
    pub fn back(self) -> Option<Op> {
        match self {
            Op::SwapOut(data, reads) => Some(Op::SwapIn(data, reads)),
            Op::ForkWrite(writes) => Some(Op::Cow(writes)),
            Op::File(FileOp::Write) => Some(Op::File(FileOp::Fsync)),
            _ => None,
        }
    }

    /// Returns the operation whose runs have this one as their [`back`](Self::back), or `None` if
    /// there is none.
    pub fn front(self) -> Option<Op> {
        match self {
            Op::SwapIn(data, reads) => Some(Op::SwapOut(data, reads)),
            Op::Cow(writes) => Some(Op::ForkWrite(writes)),
            Op::File(FileOp::Fsync) => Some(Op::File(FileOp::Write)),
            _ => None,
        }
    }

    /// Returns whether the operation is a part of the runs of another one.
    pub fn is_beside(self) -> bool {
        self == Op::Touch || self.front().is_some()
    }

    /// Returns the name in tables.
    pub fn title(self) -> String {
        if let Op::Calls(calls) = self {
            return calls.title();
        }
        let mut title = self.name().to_owned();
        title.extend(self.data().map(|data| format!(", {}", data.name())));
        title.extend(self.rewrites().map(|rewrites| format!(", {} written again", rewrites.name())));
        title.extend(self.sparse().map(|steps| format!(", a byte in {steps}")));
        title
    }
}

/// Parses a folio size in KiB: a power of two from a page to the span of a page table.
///
/// # Errors
/// The text is not such a size.
pub fn parse_folio(text: &str) -> Result<u32, String> {
    let kib: u32 = text.trim().parse().map_err(|_| "a folio size must be a whole number of KiB".to_owned())?;
    if kib.is_power_of_two() && (4..=2048).contains(&kib) {
        Ok(kib)
    } else {
        Err("a folio size must be 4, 8, 16, … 1024 or 2048 KiB".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_consists_of_its_folios_pages() {
        for folio_kib in [4, 16, 64, 2048] {
            let case = Case::of(64 << 20, folio_kib);
            assert_eq!(case.folios() * case.pages_per_folio(), case.pages());
            assert_eq!(case.pages() * PAGE, case.bytes);
        }
    }

    #[test]
    fn an_operation_in_the_runs_of_another_has_no_runs() {
        for op in [Op::ForkWrite(Steps::Every64Kib), Op::SwapOut(Data::SameFilled, Steps::EveryPage)] {
            let back = op.back().filter(|back| back.is_beside() && back.back().is_none() && op.front().is_none());
            assert!(!op.is_beside() && back.and_then(Op::front) == Some(op));
        }
    }

    #[test]
    fn titles_have_the_distance_of_reads_at_swap_in_only() {
        let (data, reads) = (Data::Compressible, Steps::Every2Mib);
        let title = |op: fn(Data, Steps) -> Op, reads| op(data, reads).title();
        assert_eq!(title(Op::SwapOut, reads), "out, compressible");
        assert_eq!(title(Op::SwapIn, reads), "in, compressible, a byte in every 2 MiB");
        assert_eq!(title(Op::SwapIn, Steps::EveryPage), "in, compressible");
    }

    #[test]
    fn folio_sizes_are_powers_of_two_from_a_page_to_a_page_table() {
        assert_eq!(parse_folio("64"), Ok(64));
        for wrong in ["0", "2", "5", "4096", "64k", ""] {
            assert!(parse_folio(wrong).is_err(), "{wrong}");
        }
    }
}
