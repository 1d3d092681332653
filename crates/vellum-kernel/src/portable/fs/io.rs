//! Sinks and sources of bytes, for reads and writes (Linux: `iov_iter`). Most of them copy to or
//! from user memory, where a copy may fault half way; the bytes copied until then count.

use crate::errno::Errno;

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
}

/// A sink or a source that ends after at most this number of bytes (Linux: `iov_iter_truncate`).
pub(crate) struct Limited<'a, T: ?Sized>(pub &'a mut T, pub usize);

impl Sink for Limited<'_, dyn Sink + '_> {
    fn room(&self) -> usize {
        self.0.room().min(self.1)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let count = self.0.put(&bytes[..bytes.len().min(self.1)])?;
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
}

/// Moves bytes piece by piece, and returns their number. `piece` returns the number of bytes that
/// it moved, and true to be called again. An error after the first byte ends the transfer, and is
/// not reported.
pub(crate) fn in_pieces(mut piece: impl FnMut() -> Result<(usize, bool), Errno>) -> Result<usize, Errno> {
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
