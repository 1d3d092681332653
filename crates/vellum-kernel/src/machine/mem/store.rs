//! The storage of a file, as its page cache uses it.

use crate::mem::block::BlockDevice;
use alloc::sync::Arc;
use core::ops::Range;
use vellum::page_cache::Changes;
use vellum::platform::ReadRequest;
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::ext4::contents::Place;
use vellum_kernel::fs::pages::Shift;

/// Where the pages of a file come from, and where they go.
pub trait Store: Send + Sync {
    /// Returns the block device that has the file's bytes, where [`Store::place`] says; `None` if
    /// the store reads by itself ([`Store::read`]).
    fn device(&self) -> Option<&Arc<dyn BlockDevice>> {
        None
    }

    /// Returns the first part of some bytes, and its place on the device, to read it.
    ///
    /// # Errors
    /// Those of [`Store::set_size`].
    fn place(&self, _bytes: Range<u64>) -> Result<(Place, Range<u64>), Errno> {
        Err(Errno::EIO)
    }

    /// Finds room for some bytes. Returns the offset on the device to which the first part is to be
    /// written, and that part, which may reach behind the bytes: with zeros. It begins with them,
    /// at a multiple of the size of a page.
    ///
    /// # Errors
    /// Those of [`Store::set_size`].
    fn room_for(&self, _bytes: Range<u64>) -> Result<(u64, Range<u64>), Errno> {
        Err(Errno::EROFS)
    }

    /// Learns that the bytes before the offset `reached` were written to where [`Store::room_for`]
    /// said.
    ///
    /// # Errors
    /// Those of [`Store::set_size`]: they are not the file's.
    fn written(&self, _bytes: Range<u64>, _reached: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// Reads the pages of a request, if no device has them. Returns the number of those before the
    /// first that can't be read.
    fn read(&self, _request: &ReadRequest) -> u64 {
        0
    }

    /// Returns the offset from which on the file reads as zeros, whatever the storage has there.
    fn end(&self) -> u64 {
        u64::MAX
    }

    /// Has what was written survive a loss of power. Returns whether it succeeded.
    fn flush(&self) -> bool;

    /// Learns the size of a file all of whose dirty pages were written. Those that gave it this
    /// size may have been truncated before. Returns whether it succeeded.
    fn keep_size(&self, _size: u64) -> bool {
        true
    }

    /// Returns where the changes of the file go.
    fn changes(&self) -> Changes {
        Changes::ToStore
    }

    /// Returns true if transfers take no longer than copying memory does.
    fn is_memory(&self) -> bool {
        self.device().is_some_and(|device| device.is_memory())
    }

    /// Returns true if the store carries out writes like reads: at once, if it is memory. Else the
    /// storage task does.
    fn writes_at_once(&self) -> bool {
        true
    }

    /// Sets the file's size. No request for pages behind it is under way.
    ///
    /// # Errors
    /// `EINVAL`: the size is fixed. `ENOSPC`, `EFBIG`, `EROFS`, `EIO`.
    fn set_size(&self, _size: u64) -> Result<(), Errno> {
        Err(Errno::EINVAL)
    }

    /// Reserves room for the holes of a range of bytes. The size stays.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; those of [`Store::set_size`].
    fn allocate(&self, _bytes: Range<u64>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the first of `bytes` that the storage has; with `hole` the first that it does not
    /// have, and that reads as zero. Bytes that the page cache has yet to write count as missing.
    fn next_place(&self, bytes: Range<u64>, hole: bool) -> Option<u64> {
        (!hole).then_some(bytes.start)
    }

    /// Returns whether there is room on the storage for bytes that a program writes now, and the
    /// page cache later, beside the dirty pages that are written before them, which are at most
    /// `later` bytes. If not, all dirty pages are written first ([`Store::all_written`]).
    fn has_room(&self, _bytes: Range<u64>, _later: u64) -> bool {
        true
    }

    /// Learns that all pages were written that were dirty before.
    fn all_written(&self) {}

    /// Sees to it that the storage has room for bytes that a program is about to write, beside the
    /// dirty pages that are written before them, which are at most `later` bytes.
    ///
    /// # Errors
    /// Those of [`Store::set_size`].
    fn reserve(&self, _bytes: Range<u64>, _later: u64) -> Result<(), Errno> {
        Ok(())
    }

    /// Has whole pages read as zeros. No write of them is under way.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; those of [`Store::set_size`].
    fn punch(&self, _bytes: Range<u64>) -> Result<(), Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the alignment in bytes of direct transfers; `None` if the file has none.
    fn direct_alignment(&self) -> Option<u64> {
        None
    }

    /// Reads bytes past the page cache: those behind the end of the file are zeros. Returns the
    /// number of bytes before the first that can't be read.
    fn read_direct(&self, _at: u64, _to: &mut [u8]) -> usize {
        0
    }

    /// Writes the first of these bytes, and as many as one transfer takes, past the page cache,
    /// which has none of their pages, and makes the file so large that it has them. Returns the
    /// number of bytes written; 0 if the first can't be written.
    ///
    /// # Errors
    /// Those of [`Store::set_size`].
    fn write_direct(&self, _at: u64, _from: &[u8]) -> Result<usize, Errno> {
        Err(Errno::EINVAL)
    }

    /// Returns the unit in bytes of [`Store::shift`]; `None`: the file can't do it.
    fn shift_unit(&self) -> Option<u64> {
        None
    }

    /// Moves the bytes behind the start of a range by its length. While nothing can be read from
    /// the file, asks `is_unused` before the move whether the page cache has none of the bytes that
    /// move, and calls `moved` after it. Returns false, with nothing changed, if `is_unused` does.
    ///
    /// # Errors
    /// `EOPNOTSUPP`; those of [`Store::set_size`].
    fn shift(
        &self,
        _bytes: Range<u64>,
        _shift: Shift,
        _is_unused: &mut dyn FnMut() -> bool,
        _moved: &mut dyn FnMut(),
    ) -> Result<bool, Errno> {
        Err(Errno::EOPNOTSUPP)
    }

    /// Returns the bytes of storage that the file uses.
    fn used(&self) -> u64 {
        0
    }
}
