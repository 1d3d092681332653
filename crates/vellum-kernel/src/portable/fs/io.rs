//! Bytes that come and go. On the other side is mostly user memory, which may end half way; what
//! was done until then counts.

use crate::errno::Errno;

/// Where a read puts its bytes.
pub trait Sink: Send {
    /// How many bytes it still takes.
    fn room(&self) -> usize;

    /// Take bytes, as many as there is room for; how many. Fewer if memory ends among them: then
    /// the next call fails.
    ///
    /// # Errors
    /// `EFAULT`: not one byte could be taken, though there is room.
    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno>;
}

/// Where a write gets its bytes.
pub trait Source: Send {
    /// How many bytes there still are.
    fn left(&self) -> usize;

    /// Give bytes, as many as there are and `to` has room for; how many. Fewer if memory ends among
    /// them: then the next call fails.
    ///
    /// # Errors
    /// `EFAULT`: not one byte could be given, though there are some.
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

/// The first bytes of a sink or a source.
pub(crate) struct Part<'a, T: ?Sized>(pub &'a mut T, pub usize);

impl Sink for Part<'_, dyn Sink + '_> {
    fn room(&self) -> usize {
        self.0.room().min(self.1)
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        let count = self.0.put(&bytes[..bytes.len().min(self.1)])?;
        self.1 -= count;
        Ok(count)
    }
}

impl Source for Part<'_, dyn Source + '_> {
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

/// Do a transfer piece by piece: `piece` says how many bytes it has moved and whether to go on.
/// What was moved before an error counts, and the error is forgotten.
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

    /// User memory that ends after some bytes.
    pub struct Ends<T>(pub T, pub usize);

    impl<T: Sink> Sink for Ends<T> {
        fn room(&self) -> usize {
            self.0.room()
        }

        fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
            let count = self.0.put(&bytes[..bytes.len().min(self.1)])?;
            self.1 -= count;
            if count == 0 && !bytes.is_empty() { Err(Errno::EFAULT) } else { Ok(count) }
        }
    }

    impl<T: Source> Source for Ends<T> {
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
