//! A byte queue in allocations of one page, as a pipe's buffer.
//!
//! No allocation is larger than a page, so that a program's writes do not depend on free memory in
//! large blocks.

use super::io::in_pieces;
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

    /// Moves up to `most` bytes from the front of `from` to the end, and returns their number. A
    /// page of them moves without a copy where it can stand behind the last page as it is.
    ///
    /// # Errors
    /// `ENOMEM`: no byte was moved.
    pub fn move_from(&mut self, from: &mut Bytes, most: usize) -> Result<usize, Errno> {
        let mut done = 0;
        in_pieces(|| {
            let count = from.first().len().min(most - done);
            if count == 0 {
                return Ok((0, false));
            }
            let moved = if self.accepts_page_of(from, count) {
                self.pages.try_reserve(1)?;
                self.consumed = if self.len == 0 { from.consumed } else { self.consumed };
                self.len += count;
                from.len -= count;
                from.consumed = 0;
                self.pages.extend(from.pages.pop_front());
                count
            } else {
                let room = self.room()?;
                let count = count.min(room.len());
                room[..count].copy_from_slice(&from.first()[..count]);
                self.add(count);
                from.drop_first(count);
                count
            };
            done += moved;
            Ok((moved, true))
        })
    }

    /// Returns true if the first page of `from`, of which `count` bytes are wanted, has no others,
    /// and the queue can have the page behind its last.
    fn accepts_page_of(&self, from: &Bytes, count: usize) -> bool {
        let is_whole = count == from.first().len();
        is_whole && (self.len == 0 || from.consumed == 0 && self.consumed + self.len == self.pages.len() * PAGE)
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

    /// Appends `count` bytes, which continue the sequence of `next`.
    fn fill(bytes: &mut Bytes, next: &mut u8, mut count: usize) {
        while count > 0 {
            let room = bytes.room().unwrap();
            let part = count.min(room.len());
            for byte in &mut room[..part] {
                *next = next.wrapping_add(1);
                *byte = *next;
            }
            bytes.add(part);
            count -= part;
        }
    }

    #[test]
    fn whole_pages_move_without_a_copy() {
        let (mut from, mut to, mut next) = (Bytes::default(), Bytes::default(), 0);
        fill(&mut from, &mut next, 3 * PAGE);
        from.drop_first(100);
        let pages: Vec<_> = from.pages.iter().map(|page| page.as_ptr()).collect();
        assert_eq!(to.move_from(&mut from, 2 * PAGE - 100), Ok(2 * PAGE - 100));
        assert_eq!((to.pages[0].as_ptr(), to.pages[1].as_ptr()), (pages[0], pages[1]));
        assert_eq!((from.len(), from.pages[0].as_ptr(), from.first().len()), (PAGE, pages[2], PAGE));
        assert_eq!(to.move_from(&mut from, 1), Ok(1));
        assert_ne!(to.pages[2].as_ptr(), pages[2], "a part of a page is copied");
        assert_eq!((to.move_from(&mut from, 0), to.move_from(&mut Bytes::default(), 9)), (Ok(0), Ok(0)));
    }

    #[test]
    fn bytes_move_from_queue_to_queue_in_order() {
        let mut random = oorandom::Rand32::new(7);
        let (mut from, mut to, mut next, mut expected) = (Bytes::default(), Bytes::default(), 0, 0u8);
        for _ in 0..5_000 {
            fill(&mut from, &mut next, random.rand_range(0..5_000) as usize);
            let most = random.rand_range(0..9_000) as usize;
            let before = (from.len(), to.len());
            let moved = to.move_from(&mut from, most).unwrap();
            assert_eq!((from.len() + moved, to.len()), (before.0, before.1 + moved));
            assert_eq!(moved, most.min(before.0));
            for _ in 0..random.rand_range(0..4) {
                let count = (random.rand_range(0..6_000) as usize).min(to.first().len());
                for byte in &to.first()[..count] {
                    expected = expected.wrapping_add(1);
                    assert_eq!(*byte, expected);
                }
                to.drop_first(count);
            }
            assert!(to.pages.len() <= to.len().div_ceil(PAGE) + 1, "more pages than the bytes need");
        }
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
