//! What is in memory, where that matters: the same on all sides, and known afterwards.

use bytemuck::Zeroable;

use super::case::PAGE;
use super::contender::Skip;

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

#[cfg(test)]
mod tests {
    use super::*;

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
