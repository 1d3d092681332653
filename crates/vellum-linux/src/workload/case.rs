//! What is measured: a region backed by folios of one size, and an operation on all of it.

use clap::ValueEnum;

use super::data::{Data, Written};

/// Bytes of a page: the smallest thing a page-table entry maps.
pub const PAGE: u64 = 4 << 10;
/// Bytes that one page table maps, and that one huge mapping maps.
pub const TABLE_SPAN: u64 = 2 << 20;

/// A region backed by folios of one size, all of it touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Length of the region, a multiple of [`TABLE_SPAN`].
    pub bytes: u64,
    /// Size of each folio in KiB.
    pub folio_kib: u32,
    /// The folios are mapped by upper-level entries; otherwise each page has an entry of its own.
    pub huge: bool,
}

impl Case {
    /// Pages of 4 KiB in the region.
    pub fn pages(&self) -> u64 {
        self.bytes / PAGE
    }

    /// Pages of 4 KiB in one folio.
    pub fn pages_per_folio(&self) -> u64 {
        u64::from(self.folio_kib) << 10 >> 12
    }

    /// Folios in the region.
    pub fn folios(&self) -> u64 {
        self.pages() / self.pages_per_folio()
    }

    /// The row's name in a table.
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
    /// Discard its memory and keep the region (`MADV_DONTNEED`).
    Dontneed,
    /// End the address space that holds it.
    Exit,
    /// Make it read-only.
    Protect,
    /// Make a child of the address space that holds it. A benchmark of its own, so none of `--ops`.
    #[value(skip)]
    Fork,
    /// Have what is in it written to swap (`MADV_PAGEOUT`). A benchmark of its own.
    #[value(skip)]
    Out(Data),
    /// Read one byte in each page of it, after that.
    #[value(skip)]
    In(Data),
    /// Have its memory taken back by its group, after its owner said that the contents may go
    /// (`MADV_FREE`).
    #[value(skip)]
    Reclaim(Written),
    /// Write one byte in each page of it, fresh: the page faults. Reported, not compared.
    Touch,
}

impl Op {
    /// The name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Op::Munmap => "munmap",
            Op::Dontneed => "dontneed",
            Op::Exit => "exit",
            Op::Protect => "protect",
            Op::Fork => "fork",
            Op::Out(_) => "out",
            Op::In(_) => "in",
            Op::Reclaim(_) => "reclaim",
            Op::Touch => "touch",
        }
    }

    /// What is in the region, where that matters.
    pub fn data(self) -> Option<Data> {
        match self {
            Op::Out(data) | Op::In(data) => Some(data),
            _ => None,
        }
    }

    /// What was written to it once more, where that matters.
    pub fn written(self) -> Option<Written> {
        if let Op::Reclaim(written) = self { Some(written) } else { None }
    }

    /// What brings back what it took away.
    pub fn back(self) -> Option<Op> {
        if let Op::Out(data) = self { Some(Op::In(data)) } else { None }
    }

    /// The name in tables.
    pub fn title(self) -> String {
        match (self.data(), self.written()) {
            (Some(data), _) => format!("{}, {}", self.name(), data.name()),
            (_, Some(written)) => format!("{}, {} written again", self.name(), written.name()),
            _ => self.name().to_owned(),
        }
    }
}

/// Reads a folio size in KiB: a power of two from one page to one table's span.
pub fn parse_folio(text: &str) -> Result<u32, String> {
    let kib: u32 = text.trim().parse().map_err(|_| "a folio size is a whole number of KiB".to_owned())?;
    if kib.is_power_of_two() && (4..=2048).contains(&kib) {
        Ok(kib)
    } else {
        Err("a folio is 4, 8, 16, … 1024 or 2048 KiB".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_its_folios_times_their_pages() {
        for folio_kib in [4, 16, 64, 2048] {
            let case = Case { bytes: 64 << 20, folio_kib, huge: false };
            assert_eq!(case.folios() * case.pages_per_folio(), case.pages());
            assert_eq!(case.pages() * PAGE, case.bytes);
        }
    }

    #[test]
    fn only_powers_of_two_from_a_page_to_a_table_are_folios() {
        assert_eq!(parse_folio("64"), Ok(64));
        for wrong in ["0", "2", "5", "4096", "64k", ""] {
            assert!(parse_folio(wrong).is_err(), "{wrong}");
        }
    }
}
