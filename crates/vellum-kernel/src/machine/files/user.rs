//! Describes the user memory of a read or write: one buffer or several.

use crate::mem::{UserSpace, payer, uaccess};
use crate::task::Thread;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::slice;
use vellum::addr::FRAME_SIZE;
use vellum::platform::bytes::PageBytes;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::{Sink, Source};

/// `UIO_MAXIOV`: the most buffers that `readv` and its like accept.
const MOST_PIECES: u64 = 1024;
/// `MAX_RW_COUNT`: the most bytes that one call moves, as on Linux.
pub const MOST: u64 = 0x7fff_f000;

/// The user buffers of a call, consumed from the front.
pub struct UserBytes {
    memory: Arc<UserSpace>,
    /// The address and length of the only buffer, if `many` is empty.
    one: (u64, u64),
    /// Addresses and lengths.
    many: Vec<(u64, u64)>,
    /// The buffer in which the next byte is.
    at: usize,
    /// The number of bytes of that buffer before the next one.
    consumed: u64,
    /// The number of bytes that are left in all buffers.
    left: usize,
}

impl UserBytes {
    /// Describes one buffer.
    pub fn one(thread: &Thread, address: u64, len: u64) -> Self {
        let len = len.min(MOST);
        let memory = thread.memory();
        Self { memory, one: (address, len), many: Vec::new(), at: 0, consumed: 0, left: len as usize }
    }

    /// Reads an array of `struct iovec`.
    ///
    /// # Errors
    ///
    /// `EINVAL`: too many buffers, or their total length is too large. `EFAULT`.
    pub fn many(thread: &Thread, array: u64, count: u64) -> Result<Self, Errno> {
        if count > MOST_PIECES {
            return Err(Errno::EINVAL);
        }
        let memory = thread.memory();
        let mut bytes = payer::zeros(count as usize * 16)?;
        uaccess::read(&memory, array, &mut bytes)?;
        let word = |bytes: &[u8]| bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let mut many = Vec::new();
        many.try_reserve_exact(count as usize)?;
        many.extend(bytes.chunks_exact(16).map(|p| (word(&p[..8]), word(&p[8..]))));
        let mut left = MOST;
        for (_, len) in &mut many {
            if *len > i64::MAX as u64 {
                return Err(Errno::EINVAL);
            }
            *len = (*len).min(left);
            left -= *len;
        }
        Ok(Self { memory, one: (0, 0), many, at: 0, consumed: 0, left: (MOST - left) as usize })
    }

    /// Returns the buffers as address and length.
    pub fn pieces(&self) -> &[(u64, u64)] {
        if self.many.is_empty() { slice::from_ref(&self.one) } else { &self.many }
    }

    /// Returns whether the buffers that are left all begin and end at a multiple of `alignment`.
    fn are_left_aligned(&self, alignment: u64) -> bool {
        let is_multiple = |value: u64| value.is_multiple_of(alignment);
        is_multiple(self.consumed) && self.pieces()[self.at..].iter().all(|(address, len)| is_multiple(*address | *len))
    }

    /// Moves up to `most` bytes, buffer by buffer. `copy` returns the number of bytes it could copy
    /// at an address.
    fn walk(
        &mut self,
        most: usize,
        mut copy: impl FnMut(&Arc<UserSpace>, u64, usize, usize) -> usize,
    ) -> Result<usize, Errno> {
        let mut done = 0;
        while done < most
            && let Some(&(address, len)) = self.pieces().get(self.at)
        {
            let wanted = ((len - self.consumed) as usize).min(most - done);
            let copied = copy(&self.memory, address.wrapping_add(self.consumed), done, wanted);
            self.consumed += copied as u64;
            self.left -= copied;
            done += copied;
            if copied < wanted {
                return if done > 0 { Ok(done) } else { Err(Errno::EFAULT) };
            }
            if self.consumed == len {
                (self.at, self.consumed) = (self.at + 1, 0);
            }
        }
        Ok(done)
    }
}

impl Sink for UserBytes {
    fn room(&self) -> usize {
        self.left
    }

    fn put(&mut self, bytes: &[u8]) -> Result<usize, Errno> {
        self.walk(bytes.len(), |memory, address, from, len| {
            uaccess::write_some(memory, address, &bytes[from..from + len])
        })
    }

    fn is_aligned(&self, alignment: u64) -> bool {
        self.are_left_aligned(alignment)
    }

    fn put_page(&mut self, bytes: &PageBytes) -> Result<usize, Errno> {
        self.walk(bytes.len(), |memory, address, from, len| {
            uaccess::write_page(memory, address, &bytes[from..from + len])
        })
    }
}

impl Source for UserBytes {
    fn left(&self) -> usize {
        self.left
    }

    fn take(&mut self, to: &mut [u8]) -> Result<usize, Errno> {
        self.walk(to.len(), |memory, address, at, len| uaccess::read_some(memory, address, &mut to[at..at + len]))
    }

    fn fault_in(&mut self, count: usize) -> bool {
        let (at, consumed, left) = (self.at, self.consumed, self.left);
        let touched = self.walk(count, |memory, address, _, len| {
            let end = address.wrapping_add(len as u64);
            let next = (address | (FRAME_SIZE - 1)).wrapping_add(1);
            let pages = (next..end).step_by(FRAME_SIZE as usize);
            let is_there = |address| uaccess::read_some(memory, address, &mut [0]) == 1;
            if len == 0 || core::iter::once(address).chain(pages).all(is_there) { len } else { 0 }
        });
        (self.at, self.consumed, self.left) = (at, consumed, left);
        touched.is_ok_and(|touched| touched == count.min(left))
    }

    fn is_aligned(&self, alignment: u64) -> bool {
        self.are_left_aligned(alignment)
    }

    fn give_back(&mut self, count: usize) {
        let mut left = count as u64;
        while left > self.consumed && self.at > 0 {
            left -= self.consumed;
            self.at -= 1;
            self.consumed = self.pieces()[self.at].1;
        }
        let back = left.min(self.consumed);
        self.consumed -= back;
        self.left += count - (left - back) as usize;
    }

    fn take_page(&mut self, to: &PageBytes) -> Result<usize, Errno> {
        self.walk(to.len(), |memory, address, at, len| uaccess::read_page(memory, address, &to[at..at + len]))
    }
}
