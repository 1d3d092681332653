//! Direct reads and writes (`O_DIRECT`): between a program's memory and the storage, past the page
//! cache, by a buffer of [`AT_ONCE`] bytes on the heap.
//!
//! A direct read has the dirty pages of its bytes written first. A direct write has them written,
//! and takes the pages out of memory ([`invalidate`]). Then it takes their place in the page cache
//! ([`Overwrite`]) until the bytes are on the device: an access to one of the pages waits, and
//! reads from the device what was written. So a mapping or a buffered read never sees older bytes
//! after the write, and no writeback of an older page comes after it.
//!
//! A page that is dirty again, or that can't be taken out of memory, is read or written through the
//! page cache instead (Linux: as for a page that `invalidate_inode_pages2_range` can't free). The
//! system call waits once for the dirty pages before it begins (`sys::sync::write_range`), so that
//! this is rare, and no program that keeps a page dirty can hold a direct read or write up. Where
//! memory is short, the call waits until some was reclaimed, and needs single frames then.

use super::filling::Filling;
use super::{ObjectContents, errno, pages_of};
use crate::mem::payer;
use crate::mem::platform::Host;
use crate::mem::spaces::All;
use crate::mem::store::Store;
use crate::mem::thread::{self, BlockedOn};
use alloc::vec::Vec;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::Refused;
use vellum::page_cache::{Overwrite, Writeback};
use vellum::space::{self, invalidate};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::io::{Limited, in_pieces};
use vellum_kernel::fs::{Pages, Sink, Source};

/// The most bytes of one step.
const AT_ONCE: u64 = 64 << 10;

/// Has the system call restarted once memory was reclaimed, if this error is that it was short and
/// no other reason to wait is noted. Returns the error.
fn wait_for_memory(error: Errno) -> Errno {
    if error == Errno::ENOMEM {
        thread::current(|thread| thread.try_block(BlockedOn::Shortage(Refused::OutOfMemory)));
    }
    error
}

/// Direct reads and writes of contents that a store with this alignment has.
pub struct Direct<'a> {
    contents: &'a ObjectContents,
    store: &'a dyn Store,
    alignment: u64,
}

impl<'a> Direct<'a> {
    /// Returns the direct reads and writes of contents; `None` if they have none.
    pub fn of(contents: &'a ObjectContents) -> Option<Self> {
        let store = contents.store()?;
        Some(Direct { contents, store, alignment: store.direct_alignment()? })
    }

    /// Returns the alignment in bytes of memory, offsets and lengths.
    pub fn alignment(&self) -> u64 {
        self.alignment
    }

    /// Implements a step of [`Pages::read_direct`], of up to [`AT_ONCE`] bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Pages::read_direct`].
    pub fn read(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        if at >= self.contents.size() || to.room() == 0 {
            return Ok(0);
        }
        if !(at | to.room() as u64).is_multiple_of(self.alignment) || !to.is_aligned(self.alignment) {
            return Err(Errno::EINVAL);
        }
        let to = &mut Limited(to, AT_ONCE as usize);
        let mut done = 0;
        in_pieces(|| {
            let count = self.read_piece(at + done, to)?;
            done += count as u64;
            Ok((count, count > 0 && to.room() > 0))
        })
    }

    /// Reads the first of the bytes for which there is room, past the page cache if it can. Returns
    /// their number.
    fn read_piece(&self, at: u64, to: &mut dyn Sink) -> Result<usize, Errno> {
        let len = (to.room() as u64).min(self.contents.size().saturating_sub(at));
        if len == 0 {
            return Ok(0);
        }
        if !self.are_clean(at, len) {
            return self.contents.read(at, to);
        }
        let mut bytes = self.buffer(len as usize)?;
        match self.store.read_direct(at, &mut bytes).min(len as usize) {
            0 => Err(Errno::EIO),
            read => to.put(&bytes[..read]),
        }
    }

    /// Implements a step of [`Pages::write_direct`], of up to [`AT_ONCE`] bytes.
    ///
    /// # Errors
    ///
    /// Those of [`Pages::write_direct`].
    pub fn write(&self, at: u64, from: &mut dyn Source) -> Result<usize, Errno> {
        if from.left() == 0 {
            return Ok(0);
        }
        if !(at | from.left() as u64).is_multiple_of(self.alignment) || !from.is_aligned(self.alignment) {
            return Err(Errno::EINVAL);
        }
        let mut bytes = self.buffer(from.left().min(AT_ONCE as usize))?;
        let mut done = 0;
        in_pieces(|| {
            let count = self.write_from(at + done, &mut bytes, from)?;
            done += count as u64;
            Ok((count, count == bytes.len() && from.left() > 0 && done < AT_ONCE))
        })
    }

    /// Writes as many bytes of the source as the buffer holds. Returns their number.
    fn write_from(&self, at: u64, bytes: &mut [u8], from: &mut dyn Source) -> Result<usize, Errno> {
        // All of them are taken first: they may lie in a mapping of the very pages that go.
        let taken = from.take(bytes)?;
        let whole = taken - taken % self.alignment as usize;
        let mut done = 0;
        let written = in_pieces(|| {
            let count = self.write_piece(at + done as u64, &bytes[done..whole])?;
            done += count;
            Ok((count, count > 0 && done < whole))
        });
        from.give_back(taken - done);
        match written {
            Ok(0) => Err(Errno::EFAULT),
            written => written,
        }
    }

    /// Writes the first of some bytes, past the page cache if it can. Returns their number.
    fn write_piece(&self, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let (end, object) = (at + bytes.len() as u64, &self.contents.object);
        if bytes.is_empty() {
            return Ok(0);
        }
        let pages = pages_of(at..end);
        if self.are_clean(at, bytes.len() as u64) {
            if object.next_data(pages.start).is_some_and(|page| page < pages.end) {
                invalidate(&All, object, pages.clone());
            }
            if let Some(over) = Overwrite::begin(object, pages.clone(), payer::payer()).map_err(errno)? {
                return self.write_to_store(at, bytes, over);
            }
        }
        let in_page = ((at / FRAME_SIZE + 1) * FRAME_SIZE).min(end) - at;
        let written = self.contents.write(at, &mut &bytes[..in_page as usize])?;
        // It goes to the storage soon; `fsync` waits for it, and reports its error.
        let _ = space::write_back(&All, object, &mut Writeback::start(pages_of(at..at + written as u64)));
        Ok(written)
    }

    /// Writes the first of those bytes to the storage whose pages `over` has. Returns their number.
    fn write_to_store(&self, at: u64, bytes: &[u8], over: Overwrite<'static, Host>) -> Result<usize, Errno> {
        let object = &self.contents.object;
        let place = Filling::new(over, object.serial()).map_err(wait_for_memory)?;
        let pages = place.pages();
        let most = (pages.end * FRAME_SIZE).min(at + bytes.len() as u64) - at;
        let written = self.store.write_direct(at, &bytes[..most as usize]).map_err(wait_for_memory)?;
        if written == 0 {
            return Err(Errno::EIO);
        }
        // A hole is between the old end and the bytes, which begins in a page in memory unless that
        // is one of `pages`.
        if object.size() / FRAME_SIZE < pages.start {
            self.contents.grow(at)?;
        }
        place.leave(at + written as u64);
        Ok(written)
    }

    /// Returns a buffer of up to `most` bytes, but at least one, in whole units of the alignment.
    ///
    /// # Errors
    ///
    /// `ENOMEM`; the system call is restarted once memory was reclaimed.
    fn buffer(&self, most: usize) -> Result<Vec<u8>, Errno> {
        let mut len = most.next_multiple_of(self.alignment as usize);
        payer::afford(len as u64)?;
        let mut bytes = Vec::new();
        // Reclaim makes single frames, and no larger blocks.
        while bytes.try_reserve_exact(len).is_err() {
            if len <= FRAME_SIZE as usize {
                return Err(wait_for_memory(Errno::ENOMEM));
            }
            len = (len / 2).next_multiple_of(self.alignment as usize);
        }
        bytes.resize(len, 0);
        Ok(bytes)
    }

    /// Returns whether the storage has the pages of some bytes as they are in memory. If not, has
    /// them written, and does not wait.
    fn are_clean(&self, at: u64, len: u64) -> bool {
        let mut pass = Writeback::complete(pages_of(at..at + len));
        space::write_back(&All, &self.contents.object, &mut pass).is_ok()
    }
}
