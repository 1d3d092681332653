//! Contents of pages that are swapped or reclaimed: the same for all contenders, and checked
//! afterwards.

use bytemuck::Zeroable;

use super::case::{PAGE, TABLE_SPAN};
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

#[cfg(test)]
mod tests {
    use super::*;

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
