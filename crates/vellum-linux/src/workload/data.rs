//! Contents of pages that are swapped or reclaimed: the same for all contenders, and checked
//! afterwards. Also the pages that are written or read in between.

use std::ops::Range;

use bytemuck::Zeroable;
use clap::ValueEnum;

use super::case::{Case, PAGE, TABLE_SPAN};
use crate::Skip;

/// Words in a page.
pub const WORDS: usize = PAGE as usize / size_of::<u64>();

/// The contents of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Zeroable)]
#[repr(C, align(4096))]
pub struct Page(pub [u64; WORDS]);

impl Page {
    /// Returns the page as bytes.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.0)
    }

    /// Returns the page as mutable bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::bytes_of_mut(&mut self.0)
    }
}

/// Patterns of page contents, as in `programs/pageout.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// One word repeated, a different one in each page.
    SameFilled,
    /// A third noise and two thirds text: lz4 halves it.
    Compressible,
}

impl Data {
    /// Returns the name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Data::SameFilled => "same-filled",
            Data::Compressible => "compressible",
        }
    }

    /// Returns the contents of the page with this number.
    pub fn page(self, number: u64) -> Page {
        let mut words = [0; WORDS];
        match self {
            Data::SameFilled => words.fill(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(number + 1)),
            Data::Compressible => {
                let mut noise = number + 1;
                for (at, word) in words.iter_mut().enumerate() {
                    // xorshift
                    noise ^= noise << 13;
                    noise ^= noise >> 7;
                    noise ^= noise << 17;
                    *word = if at % 3 == 0 { noise } else { u64::from_le_bytes(*b" a text ") };
                }
            }
        }
        Page(words)
    }

    /// Returns the most bytes that a compressed store takes for `pages` pages.
    pub fn most_stored(self, pages: u64) -> u64 {
        match self {
            Data::SameFilled => 0,
            Data::Compressible => pages * PAGE,
        }
    }

    /// Checks the contents of `pages` pages; `read` reads the page with a number.
    ///
    /// # Errors
    /// [`Skip::Lost`] if contents differ, or the error of `read`.
    pub fn check(self, pages: u64, mut read: impl FnMut(u64, &mut Page) -> Result<(), Skip>) -> Result<(), Skip> {
        let mut page = Page([0; WORDS]);
        let mut lost = 0;
        for number in 0..pages {
            read(number, &mut page)?;
            lost += u64::from(page != self.page(number));
        }
        if lost == 0 { Ok(()) } else { Err(Skip::Lost(lost)) }
    }
}

/// The pages that are written again after `MADV_FREE`, as in `programs/lazyfree.c`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewrites {
    /// No page.
    None,
    /// One 2 MiB range in ten.
    EveryTenth,
}

impl Rewrites {
    /// Returns the name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Rewrites::None => "none",
            Rewrites::EveryTenth => "every tenth",
        }
    }

    /// Returns whether the page with this number is written again.
    pub fn includes(self, page: u64) -> bool {
        self == Rewrites::EveryTenth && page * PAGE / TABLE_SPAN % 10 == 3
    }

    /// Returns how many of `pages` pages are written again.
    pub fn pages(self, pages: u64) -> u64 {
        (0..pages).filter(|&page| self.includes(page)).count() as u64
    }

    /// Returns the ranges of a region of `bytes` whose pages are not written again.
    pub fn ranges_left_out(self, bytes: u64) -> Vec<Range<u64>> {
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for start in (0..bytes).step_by(TABLE_SPAN as usize).filter(|start| !self.includes(start / PAGE)) {
            let end = bytes.min(start + TABLE_SPAN);
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        ranges
    }

    /// Returns the word that is written to the start of a page.
    pub fn word(page: u64) -> u64 {
        page + 2
    }

    /// Checks that exactly the rewritten ones of `pages` pages are kept. `kept` of them are in
    /// memory; `read` reads the first word of a page, which was 1 before the rewrite.
    ///
    /// # Errors
    /// [`Skip::NotReclaimed`], [`Skip::Lost`], or the error of `read`.
    pub fn check(self, pages: u64, kept: u64, mut read: impl FnMut(u64) -> Result<u64, Skip>) -> Result<(), Skip> {
        let wanted = self.pages(pages);
        let mut lost = 0;
        for page in 0..pages {
            let word = read(page)?;
            lost += u64::from(if self.includes(page) { word != Rewrites::word(page) } else { word > 1 });
        }
        match kept.checked_sub(wanted) {
            _ if lost > 0 => Err(Skip::Lost(lost)),
            Some(0) => Ok(()),
            more => Err(Skip::NotReclaimed(more.unwrap_or(0))),
        }
    }
}

/// The bytes of a region that the parent writes after a fork, or that are read after a swap-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Steps {
    /// One byte in each page of 4 KiB.
    EveryPage,
    /// One byte in each 64 KiB.
    #[value(name = "every-64k")]
    Every64Kib,
    /// One byte in each 2 MiB.
    #[value(name = "every-2m")]
    Every2Mib,
}

impl Steps {
    /// Returns the name on the command line.
    pub fn argument(self) -> &'static str {
        match self {
            Steps::EveryPage => "every-page",
            Steps::Every64Kib => "every-64k",
            Steps::Every2Mib => "every-2m",
        }
    }

    /// Returns the name in tables and in JSON; `None` for each page, which has none.
    pub fn name(self) -> Option<&'static str> {
        match self {
            Steps::EveryPage => None,
            Steps::Every64Kib => Some("every 64 KiB"),
            Steps::Every2Mib => Some("every 2 MiB"),
        }
    }

    /// Returns the distance in bytes from one of the bytes to the next.
    pub fn step(self) -> u64 {
        match self {
            Steps::EveryPage => PAGE,
            Steps::Every64Kib => 64 << 10,
            Steps::Every2Mib => TABLE_SPAN,
        }
    }

    /// Returns the most bytes that are copied if each of the bytes is written in a region of
    /// `bytes`: a page for each.
    pub fn copied_pages(self, bytes: u64) -> u64 {
        bytes.div_ceil(self.step()) * PAGE
    }

    /// Returns, for each folio of a case that has such a byte, the range from the first one to the
    /// folio's end, in the order of the case's arm.
    pub fn ranges(self, case: &Case) -> Vec<Range<u64>> {
        let folio = case.folio_bytes();
        let ranges = case.arm.order(case.folios()).into_iter().map(|n| {
            let start = n * folio;
            start.next_multiple_of(self.step())..start + folio
        });
        ranges.filter(|range| !range.is_empty()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::arm::Arm;
    use super::*;

    #[test]
    fn each_step_of_a_region_has_one_byte_written() {
        for folio_kib in [4, 64, 2048] {
            for writes in [Steps::EveryPage, Steps::Every64Kib, Steps::Every2Mib] {
                let case = Case { arm: Arm::Random, ..Case::of(8 << 20, folio_kib) };
                let step = writes.step();
                let mut written: Vec<u64> =
                    writes.ranges(&case).into_iter().flat_map(|range| range.step_by(step as usize)).collect();
                written.sort_unstable();
                let expected: Vec<u64> = (0..case.bytes).step_by(step as usize).collect();
                assert_eq!(written, expected, "{folio_kib} KiB, {writes:?}");
            }
        }
    }

    #[test]
    fn writes_are_parsed_by_the_name_that_a_helper_gets() {
        for writes in Steps::value_variants() {
            assert_eq!(Steps::from_str(writes.argument(), false).as_ref(), Ok(writes));
        }
    }

    #[test]
    fn ranges_left_out_are_all_pages_that_are_not_written_again() {
        let bytes = 25 * TABLE_SPAN;
        for rewrites in [Rewrites::None, Rewrites::EveryTenth] {
            let ranges = rewrites.ranges_left_out(bytes);
            for page in 0..bytes / PAGE {
                let left_out = ranges.iter().any(|range| range.contains(&(page * PAGE)));
                assert_eq!(left_out, !rewrites.includes(page), "{rewrites:?}, page {page}");
            }
        }
        assert_eq!(Rewrites::None.ranges_left_out(bytes).len(), 1, "adjacent ranges are one");
    }

    #[test]
    fn rewritten_pages_stay_and_all_others_are_reclaimed() {
        let pages = 10 * TABLE_SPAN / PAGE;
        let written = Rewrites::EveryTenth;
        assert_eq!((Rewrites::None.pages(pages), written.pages(pages)), (0, TABLE_SPAN / PAGE));
        let right = |page: u64| Ok(if written.includes(page) { Rewrites::word(page) } else { 0 });
        assert_eq!(written.check(pages, 512, right), Ok(()));
        assert_eq!(written.check(pages, 513, right), Err(Skip::NotReclaimed(1)));
        assert_eq!(written.check(pages, 512, |page| right(page.max(3 * 512 + 1))), Err(Skip::Lost(3 * 512 + 1)));
        assert_eq!(Rewrites::None.check(pages, 0, right), Err(Skip::Lost(512)));
        assert_eq!(Rewrites::None.check(pages, pages, |_| Ok(1)), Err(Skip::NotReclaimed(pages)));
    }

    #[test]
    fn pages_differ_and_changed_contents_are_detected() {
        for data in [Data::SameFilled, Data::Compressible] {
            let right = |number, page: &mut Page| {
                *page = data.page(number);
                Ok(())
            };
            assert_eq!(data.check(3, right), Ok(()));
            let moved = |number: u64, page: &mut Page| right(number.min(1), page);
            assert_eq!(data.check(3, moved), Err(Skip::Lost(1)));
            let bent = |number, page: &mut Page| {
                *page = data.page(number);
                page.0[WORDS - 1] ^= 1;
                Ok(())
            };
            assert_eq!(data.check(3, bent), Err(Skip::Lost(3)));
        }
    }
}
