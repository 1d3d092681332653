//! A byte queue in allocations of one page, as a pipe's buffer.
//!
//! No allocation is larger than a page, so that a program's writes do not depend on free memory in
//! large blocks.

use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// The size of an allocation in bytes.
const PAGE: usize = 4096;

/// Returns a copy of `bytes`.
///
/// # Errors
/// `ENOMEM`.
pub fn copy_of(bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut copy = Vec::new();
    copy.try_reserve_exact(bytes.len())?;
    copy.extend_from_slice(bytes);
    Ok(copy)
}

/// A first-in, first-out queue of bytes.
#[derive(Default)]
pub struct Bytes {
    /// The first page begins with consumed bytes; the last may end with free room.
    pages: VecDeque<Box<[u8]>>,
    /// The number of consumed bytes in the first page.
    consumed: usize,
    len: usize,
}

impl Bytes {
    /// Returns the number of bytes in the queue.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the first bytes, as many as lie in one page.
    pub fn first(&self) -> &[u8] {
        let end = PAGE.min(self.consumed + self.len);
        self.pages.front().map_or(&[], |page| &page[self.consumed..end])
    }

    /// Returns the bytes from the index `from` on, in pieces that each lie in one page.
    pub fn pieces(&self, from: usize) -> impl Iterator<Item = &[u8]> {
        let (start, end) = (self.consumed + from.min(self.len), self.consumed + self.len);
        let pages = self.pages.iter().enumerate().skip(start / PAGE);
        pages.map_while(move |(index, page)| {
            let before = index * PAGE;
            (before < end).then(|| &page[start.saturating_sub(before)..PAGE.min(end - before)])
        })
    }

    /// Removes `count` of the bytes that [`Bytes::first`] returns.
    pub fn drop_first(&mut self, count: usize) {
        self.consumed += count;
        self.len -= count;
        if self.consumed == PAGE || self.len == 0 {
            self.pages.pop_front();
            self.consumed = 0;
        }
    }

    /// Removes the last bytes, so that at most `len` are left.
    pub fn truncate(&mut self, len: usize) {
        if len == 0 {
            *self = Self::default();
        } else if len < self.len {
            self.len = len;
            self.pages.truncate((self.consumed + len).div_ceil(PAGE));
        }
    }

    /// Returns free room behind the last byte: at least one byte, at most a page. The caller fills
    /// the beginning, and then calls [`Bytes::add`].
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn room(&mut self) -> Result<&mut [u8], Errno> {
        let end = self.consumed + self.len;
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

    /// Appends the first `count` bytes of the [room](Bytes::room).
    pub fn add(&mut self, count: usize) {
        self.len += count;
        if self.len == 0 {
            // The queue is empty, and `count` is 0: free the page that [`Bytes::room`] allocated.
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn truncation_keeps_the_first_bytes_and_their_pages_alone() {
        let mut bytes = Bytes::default();
        for _ in 0..3 {
            let room = bytes.room().unwrap();
            room.fill(7);
            let count = room.len();
            bytes.add(count);
        }
        bytes.drop_first(1000);
        bytes.truncate(20_000);
        assert_eq!((bytes.len(), bytes.pages.len()), (3 * PAGE - 1000, 3));
        bytes.truncate(PAGE - 1000);
        assert_eq!((bytes.len(), bytes.pages.len(), bytes.first().len()), (PAGE - 1000, 1, PAGE - 1000));
        bytes.room().unwrap()[0] = 9;
        bytes.add(1);
        bytes.drop_first(PAGE - 1000);
        assert_eq!(bytes.first(), [9]);
        bytes.truncate(0);
        assert_eq!((bytes.len(), bytes.pages.len()), (0, 0));
    }

    #[test]
    fn bytes_come_out_in_the_order_of_their_coming() {
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
            assert!(bytes.pages.len() <= bytes.len().div_ceil(PAGE) + 1, "more pages than the bytes need");
            assert_eq!(bytes.first().is_empty(), model.is_empty());
            // A comparison of all bytes takes longer than the rest.
            if step % 200 == 0 {
                let from = random.rand_range(0..bytes.len() as u32 + 1) as usize;
                let pieces: Vec<u8> = bytes.pieces(from).flatten().copied().collect();
                assert!(pieces.iter().eq(model.iter().skip(from)));
            }
        }
    }
}
