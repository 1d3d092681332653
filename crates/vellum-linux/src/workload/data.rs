//! What is in memory, where that matters: the same on all sides, and known afterwards.

use bytemuck::Zeroable;

use super::case::{PAGE, TABLE_SPAN};
use crate::Skip;

/// Words of a page.
pub const WORDS: usize = PAGE as usize / size_of::<u64>();

/// The contents of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Zeroable)]
#[repr(C, align(4096))]
pub struct Page(pub [u64; WORDS]);

impl Page {
    /// As bytes.
    pub fn bytes(&self) -> &[u8] {
        bytemuck::bytes_of(&self.0)
    }

    /// As bytes.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        bytemuck::bytes_of_mut(&mut self.0)
    }
}

/// Contents of pages, as `programs/pageout.c` has them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Data {
    /// One word over and over, another in each page.
    SameFilled,
    /// A third of noise and two thirds of text: lz4 makes about half of it.
    Compressible,
}

impl Data {
    /// The name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Data::SameFilled => "same-filled",
            Data::Compressible => "compressible",
        }
    }

    /// What is in the page of this number.
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

    /// Whether so many pages hold what they should; `read` brings the one of a number.
    ///
    /// # Errors
    /// [`Skip::Lost`], or what `read` says.
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

/// What is written to once more after its contents were said to be of no use, as
/// `programs/lazyfree.c` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Nothing.
    None,
    /// One stretch of 2 MiB in ten.
    EveryTenth,
}

impl Written {
    /// The name in tables and in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Written::None => "none",
            Written::EveryTenth => "every tenth",
        }
    }

    /// Whether the page of this number is.
    pub fn again(self, page: u64) -> bool {
        self == Written::EveryTenth && page * PAGE / TABLE_SPAN % 10 == 3
    }

    /// How many of so many pages are.
    pub fn pages(self, pages: u64) -> u64 {
        (0..pages).filter(|&page| self.again(page)).count() as u64
    }

    /// The word that is written then, at the beginning of a page.
    pub fn word(page: u64) -> u64 {
        page + 2
    }

    /// Whether exactly those of so many pages are there that should be: `kept` of them are, and
    /// `read` brings the first word, which was 1 before.
    ///
    /// # Errors
    /// [`Skip::Kept`], [`Skip::Lost`], or what `read` says.
    pub fn check(self, pages: u64, kept: u64, mut read: impl FnMut(u64) -> Result<u64, Skip>) -> Result<(), Skip> {
        let wanted = self.pages(pages);
        let mut lost = 0;
        for page in 0..pages {
            let word = read(page)?;
            lost += u64::from(if self.again(page) { word != Written::word(page) } else { word > 1 });
        }
        match kept.checked_sub(wanted) {
            _ if lost > 0 => Err(Skip::Lost(lost)),
            Some(0) => Ok(()),
            more => Err(Skip::Kept(more.unwrap_or(0))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_again_stays_and_all_else_goes() {
        let pages = 10 * TABLE_SPAN / PAGE;
        let written = Written::EveryTenth;
        assert_eq!((Written::None.pages(pages), written.pages(pages)), (0, TABLE_SPAN / PAGE));
        let right = |page: u64| Ok(if written.again(page) { Written::word(page) } else { 0 });
        assert_eq!(written.check(pages, 512, right), Ok(()));
        assert_eq!(written.check(pages, 513, right), Err(Skip::Kept(1)));
        assert_eq!(written.check(pages, 512, |page| right(page.max(3 * 512 + 1))), Err(Skip::Lost(3 * 512 + 1)));
        assert_eq!(Written::None.check(pages, 0, right), Err(Skip::Lost(512)));
        assert_eq!(Written::None.check(pages, pages, |_| Ok(1)), Err(Skip::Kept(pages)));
    }

    #[test]
    fn no_two_pages_are_the_same_and_one_that_is_not_what_it_was_is_noticed() {
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
