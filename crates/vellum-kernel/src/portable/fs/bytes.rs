//! Bytes in the order in which they came, by the page.
//!
//! No allocation is larger than a page: what a program writes does not depend on whether memory is
//! free in large blocks.

use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Bytes in one allocation.
const PAGE: usize = 4096;

/// See the module's text.
#[derive(Default)]
pub(super) struct Bytes {
    /// The first begins with bytes that are gone, the last ends with room.
    pages: VecDeque<Box<[u8]>>,
    /// How many bytes of the first page are gone.
    gone: usize,
    len: usize,
}

impl Bytes {
    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first of them, as many as lie in one page.
    pub fn first(&self) -> &[u8] {
        let end = PAGE.min(self.gone + self.len);
        self.pages.front().map_or(&[], |page| &page[self.gone..end])
    }

    /// Drops bytes of the [first](Bytes::first).
    pub fn drop_first(&mut self, count: usize) {
        self.gone += count;
        self.len -= count;
        if self.gone == PAGE || self.len == 0 {
            self.pages.pop_front();
            self.gone = 0;
        }
    }

    /// Returns room for bytes behind the last, some but no more than a page.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn room(&mut self) -> Result<&mut [u8], Errno> {
        let end = self.gone + self.len;
        if end == self.pages.len() * PAGE {
            let mut page = Vec::new();
            page.try_reserve_exact(PAGE)?;
            page.resize(PAGE, 0);
            self.pages.try_reserve(1)?;
            self.pages.push_back(page.into_boxed_slice());
        }
        let last = self.pages.len() - 1;
        Ok(&mut self.pages[last][end - last * PAGE..])
    }

    /// Adds bytes that were put into the [room](Bytes::room).
    pub fn add(&mut self, count: usize) {
        self.len += count;
        if self.len == 0 {
            // The room was made for nothing.
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn as_a_queue() {
        let mut random = oorandom::Rand32::new(5);
        let (mut bytes, mut model) = (Bytes::default(), VecDeque::new());
        let mut next = 0u8;
        for step in 0..20_000 {
            // Fills and empties in turns.
            if random.rand_range(0..10) < if step / 2_000 % 2 == 0 { 7 } else { 3 } {
                let wanted = random.rand_range(0..6_000) as usize;
                let room = bytes.room().unwrap();
                assert!(!room.is_empty() && room.len() <= PAGE);
                let count = wanted.min(room.len());
                for byte in &mut room[..count] {
                    next = next.wrapping_add(1);
                    *byte = next;
                    model.push_back(next);
                }
                bytes.add(count);
            } else if !bytes.is_empty() {
                let count = (random.rand_range(1..6_000) as usize).min(bytes.first().len());
                let expected: Vec<u8> = model.drain(..count).collect();
                assert_eq!(bytes.first()[..count], expected);
                bytes.drop_first(count);
            }
            assert_eq!((bytes.len(), bytes.is_empty()), (model.len(), model.is_empty()));
            assert!(bytes.pages.len() <= bytes.len().div_ceil(PAGE) + 1, "a page too many");
            assert_eq!(bytes.first().is_empty(), model.is_empty());
        }
    }
}
