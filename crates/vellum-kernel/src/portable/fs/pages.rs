//! The contents of a file in memory.
//!
//! In the kernel they are the engine's memory objects, so that programs can map them. [`OnHeap`]
//! keeps them on the heap instead, for tests and for what is never mapped.

use super::io::{Sink, Source, in_pieces};
use crate::errno::Errno;
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::any::Any;
use core::ops::Range;
use spin::Mutex;

/// A sparse row of pages with a size in bytes. Holes read as zeros. The file sees to it that sizes
/// are set, and bytes written, by one caller at a time; reads may come at any time.
pub trait Pages: Send + Sync {
    /// In bytes.
    fn size(&self) -> u64;

    /// Cut it off, or add a hole at its end. What lies beyond the end reads as zeros if it grows
    /// again.
    ///
    /// # Errors
    /// `EFBIG`, `ENOMEM`.
    fn set_size(&self, size: u64) -> Result<(), Errno>;

    /// Read from `at` on, up to the end of the file or of the sink; how many bytes.
    ///
    /// # Errors
    /// The sink's, `EIO` or `ENOMEM`, if nothing was read.
    fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno>;

    /// Write from `at` on, which may be beyond the end; the file grows. How many bytes.
    ///
    /// # Errors
    /// The source's, `ENOSPC` or `ENOMEM`, if nothing was written.
    fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno>;

    /// All of a range is about to be written. It may be as well to get memory for it together.
    fn expect(&self, _bytes: Range<u64>) {}

    /// Have memory for a range, which may be beyond the end; the size stays.
    ///
    /// # Errors
    /// `ENOSPC`, `ENOMEM`.
    fn allocate(&self, bytes: Range<u64>) -> Result<(), Errno>;

    /// Make a range read as zeros, and give its whole pages back.
    ///
    /// # Errors
    /// `ENOMEM`.
    fn punch(&self, bytes: Range<u64>) -> Result<(), Errno>;

    /// The first byte from `at` on that is not in a hole, wherever the file ends.
    fn next_data(&self, at: u64) -> Option<u64>;

    /// The first byte from `at` on that is in a hole, wherever the file ends.
    fn next_hole(&self, at: u64) -> u64;

    /// How many bytes of memory and swap it has, for `st_blocks`.
    fn resident(&self) -> u64;

    /// From now on nobody may map it shared and writable (`F_SEAL_WRITE`).
    ///
    /// # Errors
    /// `EBUSY`: somebody has.
    fn deny_shared_write(&self) -> Result<(), Errno>;

    /// For `mmap`: what the kernel's own implementation is.
    fn as_any(&self) -> &dyn Any;
}

const PAGE: u64 = 4096;

/// Contents on the kernel's heap: they can't be mapped.
#[derive(Default)]
pub struct OnHeap(Mutex<Contents>);

#[derive(Default)]
struct Contents {
    size: u64,
    /// Pages by number, ascending.
    pages: Vec<(u64, Box<[u8]>)>,
}

impl Contents {
    fn at(&self, page: u64) -> Result<usize, usize> {
        self.pages.binary_search_by_key(&page, |&(number, _)| number)
    }

    fn page_or_new(&mut self, page: u64) -> Result<&mut [u8], Errno> {
        let index = match self.at(page) {
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

    /// Overwrite a range that lies in one page.
    fn zero(&mut self, bytes: Range<u64>) {
        if let Ok(index) = self.at(bytes.start / PAGE) {
            let from = (bytes.start % PAGE) as usize;
            self.pages[index].1[from..from + (bytes.end - bytes.start) as usize].fill(0);
        }
    }

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
            let put = match contents.at(at / PAGE) {
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
        let index = contents.at(at / PAGE).unwrap_or_else(|index| index);
        contents.pages.get(index).map(|(page, _)| at.max(page * PAGE))
    }

    fn next_hole(&self, at: u64) -> u64 {
        let contents = self.0.lock();
        let mut page = at / PAGE;
        while contents.at(page).is_ok() {
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
    use super::super::io::testing::Ends;
    use super::*;
    use std::vec;

    /// Random operations against a plain vector.
    #[test]
    fn as_a_vector() {
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
    fn memory_that_ends() {
        let pages = OnHeap::default();
        let bytes = vec![7; 10_000];
        assert_eq!(pages.write(0, &mut Ends(&bytes[..], 5_000)), Ok(5_000));
        assert_eq!(pages.size(), 5_000);
        assert_eq!(pages.write(0, &mut Ends(&bytes[..], 0)), Err(Errno::EFAULT));
        let mut to = vec![0; 10_000];
        assert_eq!(pages.read(0, &mut Ends(&mut to[..], 4_097)), Ok(4_097));
        assert_eq!(pages.read(0, &mut Ends(&mut to[..], 0)), Err(Errno::EFAULT));
        assert_eq!(pages.read(5_000, &mut Ends(&mut to[..], 0)), Ok(0), "at the end nothing is touched");
    }

    #[test]
    fn holes_and_data() {
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
