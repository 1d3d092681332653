//! Operations on a file of a disk, by calls and through a mapping.

use clap::ValueEnum;

use super::case::{Case, PAGE, TABLE_SPAN};
use super::data::{Data, Page};
use super::shuffle::{SEED, shuffle};
use crate::Skip;

/// The most bytes that are read ahead of a program.
pub const WINDOW: u64 = 2 << 20;

/// The bytes that a call of a sequential read has.
pub const READ: u64 = 64 << 10;

/// An operation on a file of a case's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FileOp {
    /// Write the file, which is empty, by calls with the bytes of a folio each, in the order of the
    /// case's arm.
    Write,
    /// Write its dirty pages to the disk (`fsync`), after [`FileOp::Write`] in the same run.
    Fsync,
    /// Read it from the disk, from its beginning to its end, by calls with [`READ`] bytes each.
    Read,
    /// Read it once more, when it is in memory.
    ReadAgain,
    /// Read it from the disk by calls with a page each, in random order.
    ReadRandom,
    /// Read bytes through a mapping, [`FileOp::step`] bytes apart, from the disk; and, if this does
    /// not map all pages, a byte in each page.
    Map,
    /// Read the same bytes through a fresh mapping when the file is in memory.
    MapAgain,
    /// Reclaim its clean pages, which are mapped and were read.
    Pageout,
    /// Write its pages, which were written through a mapping, to the disk, and reclaim them. Each
    /// page was given the contents of the next one.
    PageoutDirty,
}

impl FileOp {
    /// Returns the name on the command line and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            FileOp::Write => "write",
            FileOp::Fsync => "fsync",
            FileOp::Read => "read",
            FileOp::ReadAgain => "read-again",
            FileOp::ReadRandom => "read-random",
            FileOp::Map => "map",
            FileOp::MapAgain => "map-again",
            FileOp::Pageout => "pageout",
            FileOp::PageoutDirty => "pageout-dirty",
        }
    }

    /// Returns the contents of the file's page with this number after the operation.
    pub fn page_after(self, number: u64) -> Page {
        let from = number + u64::from(self == FileOp::PageoutDirty);
        Data::SameFilled.page(from % (TABLE_SPAN / PAGE))
    }

    /// Returns whether the operation begins without a page of the file in memory.
    pub fn is_cold(self) -> bool {
        matches!(self, FileOp::Read | FileOp::ReadRandom | FileOp::Map)
    }

    /// Returns whether the file is in memory when the operation ends, in the folios that the calls
    /// have given it which have written it.
    pub fn keeps_written_folios(self) -> bool {
        matches!(self, FileOp::Write | FileOp::Fsync | FileOp::ReadAgain | FileOp::MapAgain)
    }

    /// Returns the distance of the bytes that are read through a mapping: each takes a fault, which
    /// maps the pages around it.
    pub fn step(self, case: &Case) -> u64 {
        if self.maps_huge(case) { TABLE_SPAN } else { 64 << 10 }
    }

    /// Returns whether huge PTEs map the file when the operation ends, or, for one that reclaims,
    /// begins. Nothing reads a file into folios of 2 MiB by itself, and the engine splits a huge
    /// PTE before a write through it.
    pub fn maps_huge(self, case: &Case) -> bool {
        case.huge && matches!(self, FileOp::MapAgain | FileOp::Pageout)
    }

    /// Returns whether the operation is one on a mapping.
    pub fn is_mapped(self) -> bool {
        matches!(self, FileOp::Map | FileOp::MapAgain | FileOp::Pageout | FileOp::PageoutDirty)
    }

    /// Returns whether the operation is measured of folios of this size: random reads of single
    /// pages make only single pages.
    pub fn is_of(self, case: &Case) -> bool {
        self != FileOp::ReadRandom || case.folio_kib == 4
    }
}

/// The contents of a file: its pages differ within [`TABLE_SPAN`] bytes, and then repeat.
pub struct Contents(Vec<u8>);

impl Default for Contents {
    fn default() -> Self {
        let pages = (0..TABLE_SPAN / PAGE).flat_map(|number| Data::SameFilled.page(number).bytes().to_vec());
        Contents(pages.collect())
    }
}

impl Contents {
    /// Returns `len` bytes from byte offset `at` on, which lie in one of the repeated parts.
    pub fn bytes(&self, at: u64, len: u64) -> &[u8] {
        let at = at % TABLE_SPAN;
        &self.0[at as usize..(at + len) as usize]
    }
}

/// Checks the contents of a file of `pages` pages after `op`; `read` reads the page with a number.
///
/// # Errors
/// [`Skip::Lost`] if contents differ, or the error of `read`.
pub fn check(pages: u64, op: FileOp, mut read: impl FnMut(u64, &mut Page) -> Result<(), Skip>) -> Result<(), Skip> {
    let mut page = op.page_after(0);
    let mut lost = 0;
    for number in 0..pages {
        read(number, &mut page)?;
        lost += u64::from(page != op.page_after(number));
    }
    if lost == 0 { Ok(()) } else { Err(Skip::Lost(lost)) }
}

/// Returns the pages of a case in the order of [`FileOp::ReadRandom`].
pub fn random_pages(case: &Case) -> Vec<u64> {
    let mut pages: Vec<u64> = (0..case.pages()).collect();
    shuffle(&mut pages, &mut SEED.clone());
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_repeat_and_a_changed_page_is_detected() {
        let contents = Contents::default();
        let right = |number: u64, page: &mut Page| {
            page.bytes_mut().copy_from_slice(contents.bytes(number * PAGE, PAGE));
            Ok(())
        };
        assert_eq!(check(1030, FileOp::Pageout, right), Ok(()));
        let shifted = |number: u64, page: &mut Page| right(number + 1, page);
        assert_eq!(check(1030, FileOp::Pageout, shifted), Err(Skip::Lost(1030)));
        assert_eq!(check(1030, FileOp::PageoutDirty, shifted), Ok(()));
        assert_eq!(check(1030, FileOp::PageoutDirty, right), Err(Skip::Lost(1030)), "a lost write");
    }

    #[test]
    fn operations_are_parsed_by_their_names() {
        for op in FileOp::value_variants() {
            assert_eq!(FileOp::from_str(op.name(), false).as_ref(), Ok(op));
        }
    }

    #[test]
    fn random_reads_have_each_page_once_and_only_single_pages() {
        let mut pages = random_pages(&Case::of(4 << 20, 4));
        assert!(!pages.is_sorted());
        pages.sort_unstable();
        assert!(pages.into_iter().eq(0..1024));
        assert!(FileOp::ReadRandom.is_of(&Case::of(4 << 20, 4)) && !FileOp::ReadRandom.is_of(&Case::of(4 << 20, 64)));
    }
}
