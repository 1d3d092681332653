//! Sinks and sources of bytes, for reads and writes (Linux: `iov_iter`). Most of them copy to or
//! from user memory, where a copy may fault half way; the bytes copied until then count.

use crate::errno::Errno;
use crate::wait::yield_now;
use core::future::Future;
use vellum::platform::bytes::{self as page_bytes, PageBytes};

/// Waits on behalf of the task that reads or writes, where a transfer stops because memory is short
/// or because a page is being read from a disk.
pub trait Waits: Sync {
    /// Waits until the reason has passed for which the last step of a transfer stopped early, and
    /// returns true. Returns false if it had no such reason, or if another try can't succeed.
    fn wait(&self) -> impl Future<Output = bool> + Send;

    /// Lets other tasks run between two steps of a transfer, if it is their turn.
    fn pause(&self) -> impl Future<Output = ()> + Send;
}

/// A task that never waits: a transfer that stops early fails, or is short.
pub struct NeverWaits;

impl Waits for NeverWaits {
    async fn wait(&self) -> bool {
        false
    }

    async fn pause(&self) {
        yield_now().await;
    }
}

/// The size in bytes of the buffer on the stack for copies between a page and kernel memory.
const PIECE: usize = 256;

/// The destination of a read.
pub trait Sink: Send {
    /// Returns the number of bytes that still fit.
    fn room(&self) -> usize;

    /// Copies bytes into the sink, as many as fit, and returns their number. It is smaller if user
    /// memory ends among them; the next call then fails.
    ///
    /// # Errors
    /// `EFAULT`: not one byte could be copied, though there is room.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno>;

    /// Returns true if the memory that is left, each buffer of it, begins and ends at a multiple of
    /// `alignment` (Linux: `iov_iter_alignment`).
    fn is_aligned(&self, _alignment: u64) -> bool {
        true
    }

    /// Copies bytes of a page into the sink, as [`Sink::put`] does.
    ///
    /// # Errors
    /// Those of [`Sink::put`].
    fn put_page(&mut self, bytes: &PageBytes) -> Result<usize, Errno> {
        let mut parts = bytes.chunks(PIECE);
        in_pieces(|| {
            let (mut piece, part) = ([0; PIECE], parts.next().unwrap_or_default());
            page_bytes::load(part, &mut piece);
            self.put(&piece[..part.len()]).map(|put| (put, put == PIECE))
        })
    }
}

/// The bytes of a write.
pub trait Source: Send {
    /// Returns the number of bytes not taken yet.
    fn left(&self) -> usize;

    /// Copies the next bytes to `to`, as many as are left and fit, and returns their number. It is
    /// smaller if user memory ends among them; the next call then fails.
    ///
    /// # Errors
    /// `EFAULT`: not one byte could be copied, though some are left.
    fn take(&mut self, to: &mut [u8]) -> Result<usize, Errno>;

    /// Faults in the next `count` bytes, as far as there are so many, and returns whether all of
    /// them can be taken now (Linux: `fault_in_iov_iter_readable`).
    fn fault_in(&mut self, _count: usize) -> bool {
        true
    }

    /// Takes back the last `count` bytes that were taken, which are the next again. Called only
    /// after the source faulted, or by a direct write: kernel memory needs no implementation.
    fn give_back(&mut self, _count: usize) {}

    /// Returns true if the memory that is left, each buffer of it, begins and ends at a multiple of
    /// `alignment` (Linux: `iov_iter_alignment`).
    fn is_aligned(&self, _alignment: u64) -> bool {
        true
    }

    /// Copies the next bytes to a page, as [`Source::take`] does.
    ///
    /// # Errors
    /// Those of [`Source::take`].
    fn take_page(&mut self, to: &PageBytes) -> Result<usize, Errno> {
        let mut parts = to.chunks(PIECE);
        in_pieces(|| {
            let (mut piece, part) = ([0; PIECE], parts.next().unwrap_or_default());
            let taken = self.take(&mut piece[..part.len()])?;
            page_bytes::store(part, &piece[..taken]);
            Ok((taken, taken == PIECE))
        })
    }
}

impl Sink for &mut [u8] {
    fn room(&self) -> usize {
        self.len()
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let count = bytes.len().min(self.len());
        let (now, later) = core::mem::take(self).split_at_mut(count);
        now.copy_from_slice(&bytes[..count]);
        *self = later;
        Ok(count)
    }

    fn put_page(&mut self, bytes: &PageBytes) -> Result<usize, Errno> {
        let count = page_bytes::load(bytes, self);
        *self = &mut core::mem::take(self)[count..];
        Ok(count)
    }
}

impl Source for &[u8] {
    fn left(&self) -> usize {
        self.len()
    }

    fn take(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        let count = to.len().min(self.len());
        let (now, later) = self.split_at(count);
        to[..count].copy_from_slice(now);
        *self = later;
        Ok(count)
    }

    fn take_page(&mut self, to: &PageBytes) -> Result<usize, Errno> {
        let count = page_bytes::store(to, self);
        *self = &self[count..];
        Ok(count)
    }
}

/// A sink or a source that ends after at most this number of bytes (Linux: `iov_iter_truncate`).
pub struct Limited<'a, T: ?Sized>(pub &'a mut T, pub usize);

impl Sink for Limited<'_, dyn Sink + '_> {
    fn room(&self) -> usize {
        self.0.room().min(self.1)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let count = self.0.put(&bytes[..bytes.len().min(self.1)])?;
        self.1 -= count;
        Ok(count)
    }

    fn is_aligned(&self, alignment: u64) -> bool {
        self.0.is_aligned(alignment)
    }

    fn put_page(&mut self, bytes: &PageBytes) -> Result<usize, Errno> {
        let count = self.0.put_page(&bytes[..bytes.len().min(self.1)])?;
        self.1 -= count;
        Ok(count)
    }
}

impl Source for Limited<'_, dyn Source + '_> {
    fn left(&self) -> usize {
        self.0.left().min(self.1)
    }

    fn take(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        let most = to.len().min(self.1);
        let count = self.0.take(&mut to[..most])?;
        self.1 -= count;
        Ok(count)
    }

    fn fault_in(&mut self, count: usize) -> bool {
        self.0.fault_in(count.min(self.1))
    }

    fn is_aligned(&self, alignment: u64) -> bool {
        self.0.is_aligned(alignment)
    }

    fn give_back(&mut self, count: usize) {
        self.0.give_back(count);
        self.1 += count;
    }

    fn take_page(&mut self, to: &PageBytes) -> Result<usize, Errno> {
        let count = self.0.take_page(&to[..to.len().min(self.1)])?;
        self.1 -= count;
        Ok(count)
    }
}

/// Moves bytes piece by piece, and returns their number. `piece` returns the number of bytes that
/// it moved, and true to be called again. An error after the first byte ends the transfer, and is
/// not reported.
pub fn in_pieces(mut piece: impl FnMut() -> Result<(usize, bool), Errno>) -> Result<usize, Errno> {
    let mut done = 0;
    loop {
        match piece() {
            Ok((count, true)) => done += count,
            Ok((count, false)) => return Ok(done + count),
            Err(_) if done > 0 => return Ok(done),
            Err(error) => return Err(error),
        }
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;

    /// User memory that faults after this number of bytes.
    pub struct FaultsAfter<T>(pub T, pub usize);

    impl<T: Sink> Sink for FaultsAfter<T> {
        fn room(&self) -> usize {
            self.0.room()
        }

        fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
            let count = self.0.put(&bytes[..bytes.len().min(self.1)])?;
            self.1 -= count;
            if count == 0 && !bytes.is_empty() { Err(Errno::EFAULT) } else { Ok(count) }
        }
    }

    impl<T: Source> Source for FaultsAfter<T> {
        fn left(&self) -> usize {
            self.0.left()
        }

        fn take(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
            let most = to.len().min(self.1);
            let count = self.0.take(&mut to[..most])?;
            self.1 -= count;
            if count == 0 && !to.is_empty() { Err(Errno::EFAULT) } else { Ok(count) }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::FaultsAfter;
    use super::*;
    use core::sync::atomic::AtomicU8;
    use std::vec;

    /// Bytes go to and from a page in pieces, and a fault in user memory ends the transfer with the
    /// bytes before it.
    #[test]
    fn bytes_of_pages_are_moved_until_user_memory_faults() {
        let page: vec::Vec<AtomicU8> = (0..1000).map(|_| AtomicU8::new(0)).collect();
        let bytes: vec::Vec<u8> = (0..1000).map(|i| i as u8).collect();
        assert_eq!(FaultsAfter(&bytes[..], 700).take_page(&page), Ok(700));
        assert_eq!(FaultsAfter(&bytes[..], 0).take_page(&page), Err(Errno::EFAULT));
        let mut to = vec![1; 1000];
        assert_eq!(FaultsAfter(&mut to[..], 600).put_page(&page[100..]), Ok(600));
        assert!(to[..600] == bytes[100..700] && to[600..].iter().all(|byte| *byte == 1));
        let mut short = &mut to[..10];
        assert_eq!(Limited(&mut short as &mut dyn Sink, 4).put_page(&page), Ok(4));
    }
}
