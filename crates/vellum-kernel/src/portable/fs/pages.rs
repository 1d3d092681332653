//! The contents of files in memory.
//!
//! In the kernel these are the engine's page-cache objects, so that programs can map them.
//! [`OnHeap`] keeps contents on the heap instead, for tests and for files that are never mapped.

use super::io::{Sink, Source, in_pieces};
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use spin::Mutex;

/// The direction in which the bytes of a file move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shift {
    /// Those behind a range move to its start, and replace it (`FALLOC_FL_COLLAPSE_RANGE`).
    Collapse,
    /// Those from the start of a range on move to its end, and the range becomes a hole
    /// (`FALLOC_FL_INSERT_RANGE`).
    Insert,
}

/// A file's contents: a sparse array of pages with a size in bytes (Linux: the page cache of an
/// inode). Holes read as zeros. The file serializes writes and changes of the size; reads may come
/// at any time.
pub trait Pages: Send + Sync {
    /// Returns these pages as one opener sees them, for whose reads the page cache then reads
    /// ahead; `None` if openers do not differ.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn open(&self) -> Result<Option<Arc<dyn Pages>>, Errno> {
        Ok(None)
    }

    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Returns how many nanoseconds ago a program was last let write through a shared mapping, if
    /// it was since the last call.
    fn take_mapped_write(&self) -> Option<u64> {
        None
    }

    /// Sets the size: truncates the contents, or adds a hole at the end. Truncated bytes read as
    /// zeros if the file grows again.
    ///
    /// # Errors
    /// `EFBIG`, `ENOMEM`.
    fn set_size(&self, size: u64) -> Result<(), Errno>;

    /// Reads from `at` on, up to the end of the file or of the sink, and returns the number of
    /// bytes.
    ///
    /// # Errors
    /// Those of the sink, `EIO` or `ENOMEM`, if nothing was read.
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno>;

    /// Writes from `at` on, which may lie beyond the end, extends the file if needed, and returns
    /// the number of bytes.
    ///
    /// # Errors
    /// Those of the source, `EFBIG`, `ENOSPC` or `ENOMEM`, if nothing was written.
    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno>;

    /// Returns the alignment in bytes of direct reads and writes; `None` if the contents are in
    /// memory alone, so that there are none.
    fn direct_alignment(&self) -> Option<u64> {
        None
    }

    /// Reads as [`Pages::read`] does, from the storage and past the page cache, if the contents
    /// have a storage. Later steps read the rest of what is wanted.
    ///
    /// # Errors
    /// `EINVAL`: not aligned. Those of [`Pages::read`].
    fn read_direct(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        self.read(at, to)
    }

    /// Writes as [`Pages::write`] does, to the storage and past the page cache, if the contents
    /// have a storage. Later steps write the rest.
    ///
    /// # Errors
    /// `EINVAL`: not aligned. Those of [`Pages::write`].
    fn write_direct(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        self.write(at, from)
    }

    /// Announces that the caller is about to write all of a range, so that memory for it can be
    /// allocated at once. Does nothing by default.
    fn expect_write(&self, _bytes: Range<u64>) {}

    /// Allocates memory for the holes of a range, which may lie beyond the end. The size stays.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`.
    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno>;

    /// Punches a hole: the range reads as zeros, and its whole pages are freed.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno>;

    /// Moves all bytes behind the start of a range by its length. Returns false, with nothing
    /// changed, if a page with such bytes is in memory: the caller has it dropped, and tries again.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; `EINVAL`: the range is not whole blocks, or reaches to the end of the file or,
    /// for [`Shift::Insert`], begins there. `EFBIG`, `ENOSPC`, `EIO`, `ENOMEM`.
    fn shift(&self, _bytes: Range<u64>, _shift: Shift) -> Result<bool, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the offset of the first byte from `at` on that is not in a hole, regardless of the
    /// size.
    fn next_data(&self, at: u64) -> Option<u64>;

    /// Returns the offset of the first byte from `at` on that is in a hole, regardless of the size.
    fn next_hole(&self, at: u64) -> u64;

    /// Returns the number of bytes of memory and swap in use, for `st_blocks`.
    fn resident(&self) -> u64;

    /// Refuses shared writable mappings from now on (`F_SEAL_WRITE`).
    ///
    /// # Errors
    /// `EBUSY`: such a mapping exists.
    fn deny_shared_write(&self) -> Result<(), Errno>;

    /// Returns the implementation, so that `mmap` can find the kernel's own.
    fn as_any(&self) -> &dyn Any;
}

const PAGE: u64 = 4096;

/// Contents on the kernel's heap. They can't be mapped.
#[derive(Default)]
pub struct OnHeap(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    size: u64,
    /// Page numbers, ascending, with the pages' bytes.
    pages: Vec<(u64, Box<[u8]>)>,
}

impl Contents {
    /// Returns the index of a page, or the index at which to insert it.
    fn find(&self, page: u64) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&page, |&(number, _)| number)
    }

    fn page_or_new(&mut self, page: u64) -> Result<&mut [u8], Errno> {
        let index = match self.find(page) {
            Ok(index) => index,
            Err(index) => {
                let mut bytes = Vec::new();
                bytes.try_reserve_exact(PAGE as usize)?;
                bytes.resize(PAGE as usize, 0);
                self.pages.try_reserve(1)?;
                self.pages.insert(index, (page, bytes.into_boxed_slice()));
                index
            }
        };
        Ok(&mut self.pages[index].1)
    }

    /// Zeroes a range that lies in one page.
    fn zero(&mut self, bytes: Range<u64>) {
        if let Ok(index) = self.find(bytes.start / PAGE) {
            let from = (bytes.start % PAGE) as usize;
            self.pages[index].1[from..from + (bytes.end - bytes.start) as usize].fill(0);
        }
    }

    /// Zeroes a range, and frees the whole pages in it.
    fn clear(&mut self, bytes: Range<u64>) {
        let whole = bytes.start.div_ceil(PAGE)..bytes.end / PAGE;
        if whole.start > whole.end {
            return self.zero(bytes);
        }
        self.zero(bytes.start..whole.start * PAGE);
        self.zero(whole.end * PAGE..bytes.end);
        self.pages.retain(|(page, _)| !whole.contains(page));
    }
}

impl Pages for OnHeap {
    fn size(&self) -> u64 {
        self.0.lock().size
    }

    fn set_size(&self, size: u64) -> Result<(), Errno> {
        if size > i64::MAX as u64 {
            return Err(Errno::EFBIG);
        }
        let mut contents = self.0.lock();
        if size < contents.size {
            contents.clear(size..i64::MAX as u64 & !(PAGE - 1));
        }
        contents.size = size;
        Ok(())
    }

    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let contents = self.0.lock();
        let mut at = at;
        in_pieces(|| {
            let end = (at / PAGE * PAGE + PAGE).min(contents.size);
            let count = end.saturating_sub(at).min(to.room() as u64) as usize;
            if count == 0 {
                return Ok((0, false));
            }
            let from = (at % PAGE) as usize;
            let put = match contents.find(at / PAGE) {
                Ok(index) => to.put(&contents.pages[index].1[from..from + count])?,
                Err(_) => to.put(&[0; PAGE as usize][..count])?,
            };
            at += put as u64;
            Ok((put, true))
        })
    }

    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        let mut contents = self.0.lock();
        let mut at = at;
        in_pieces(|| {
            let start = (at % PAGE) as usize;
            let count = (PAGE as usize - start).min(from.left()).min((i64::MAX as u64).saturating_sub(at) as usize);
            if count == 0 {
                return if from.left() == 0 { Ok((0, false)) } else { Err(Errno::EFBIG) };
            }
            let page = contents.page_or_new(at / PAGE)?;
            let taken = from.take(&mut page[start..start + count])?;
            at += taken as u64;
            contents.size = contents.size.max(at);
            Ok((taken, true))
        })
    }

    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno> {
        let mut contents = self.0.lock();
        for page in bytes.start / PAGE..bytes.end.div_ceil(PAGE) {
            contents.page_or_new(page)?;
        }
        Ok(())
    }

    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno> {
        self.0.lock().clear(bytes);
        Ok(())
    }

    fn next_data(&self, at: u64) -> Option<u64> {
        let contents = self.0.lock();
        let index = contents.find(at / PAGE).unwrap_or_else(|index| index);
        contents.pages.get(index).map(|(page, _)| at.max(page * PAGE))
    }

    fn next_hole(&self, at: u64) -> u64 {
        let contents = self.0.lock();
        let mut page = at / PAGE;
        while contents.find(page).is_ok() {
            page += 1;
        }
        at.max(page * PAGE)
    }

    fn resident(&self) -> u64 {
        self.0.lock().pages.len() as u64 * PAGE
    }

    fn deny_shared_write(&self) -> Result<(), Errno> {
        Ok(())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::super::io::testing::FaultsAfter;
    use super::*;
    use std::vec;

    /// Compares random operations with a vector.
    #[test]
    fn contents_equal_a_vectors() {
        let mut random = oorandom::Rand64::new(7);
        let pages = OnHeap::default();
        let mut model: vec::Vec<u8> = vec![];
        for _ in 0..20_000 {
            let at = random.rand_range(0..40_000);
            let len = random.rand_range(0..9_000);
            let end = (at + len) as usize;
            match random.rand_range(0..5) {
                0 => {
                    let bytes: vec::Vec<u8> = (0..len).map(|_| random.rand_u64() as u8).collect();
                    assert_eq!(pages.write(at, &mut &bytes[..]), Ok(len as usize));
                    if len > 0 {
                        model.resize(model.len().max(end), 0);
                        model[at as usize..end].copy_from_slice(&bytes);
                    }
                }
                1 => {
                    pages.set_size(at).unwrap();
                    model.resize(at as usize, 0);
                }
                2 => {
                    pages.punch(at..at + len).unwrap();
                    let size = model.len();
                    model[(at as usize).min(size)..end.min(size)].fill(0);
                }
                3 => pages.allocate(at..at + len).unwrap(),
                _ => {
                    let mut bytes = vec![1; len as usize];
                    let count = pages.read(at, &mut &mut bytes[..]).unwrap();
                    assert_eq!(bytes[..count], model[(at as usize).min(model.len())..end.min(model.len())]);
                }
            }
            assert_eq!(pages.size(), model.len() as u64);
        }
    }

    #[test]
    fn a_fault_in_user_memory_ends_a_transfer_early() {
        let pages = OnHeap::default();
        let bytes = vec![7; 10_000];
        assert_eq!(pages.write(0, &mut FaultsAfter(&bytes[..], 5_000)), Ok(5_000));
        assert_eq!(pages.size(), 5_000);
        assert_eq!(pages.write(0, &mut FaultsAfter(&bytes[..], 0)), Err(Errno::EFAULT));
        let mut to = vec![0; 10_000];
        assert_eq!(pages.read(0, &mut FaultsAfter(&mut to[..], 4_097)), Ok(4_097));
        assert_eq!(pages.read(0, &mut FaultsAfter(&mut to[..], 0)), Err(Errno::EFAULT));
        assert_eq!(
            pages.read(5_000, &mut FaultsAfter(&mut to[..], 0)),
            Ok(0),
            "at the end of the file no user memory is touched"
        );
    }

    #[test]
    fn holes_data_and_the_largest_size() {
        let pages = OnHeap::default();
        pages.write(3 * PAGE + 5, &mut &[1; 10][..]).unwrap();
        pages.set_size(100 * PAGE).unwrap();
        assert_eq!((pages.next_data(0), pages.next_hole(0)), (Some(3 * PAGE), 0));
        assert_eq!((pages.next_data(3 * PAGE + 9), pages.next_hole(3 * PAGE + 9)), (Some(3 * PAGE + 9), 4 * PAGE));
        assert_eq!((pages.next_data(4 * PAGE), pages.resident()), (None, PAGE));
        assert_eq!(pages.set_size(1 << 63), Err(Errno::EFBIG));
        assert_eq!(pages.write(i64::MAX as u64, &mut &[1][..]), Err(Errno::EFBIG));
    }
}
