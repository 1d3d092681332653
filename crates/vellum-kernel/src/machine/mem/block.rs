//! Block devices: disks, and a disk in memory (Linux: brd), with the stores by which the page cache
//! reads and writes them.

use crate::mem::disk::Disk;
use crate::mem::storage::{self, Store};
use alloc::boxed::Box;
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::AtomicU8;
use spin::Once;
use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::platform::{ReadRequest, WriteRequest};
use vellum_kernel::errno::Errno;

/// A block device. Offsets and lengths are multiples of the page size.
pub trait BlockDevice: Send + Sync {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Reads bytes from `at` on. Returns whether it succeeded.
    fn read(&self, at: u64, to: &[AtomicU8]) -> bool;

    /// Writes bytes from `at` on. Returns whether it succeeded.
    fn write(&self, at: u64, from: &[AtomicU8]) -> bool;

    /// Has what was written survive a loss of power. Returns whether it succeeded.
    fn flush(&self) -> bool;

    /// Returns true if transfers take no longer than copying memory does.
    fn is_memory(&self) -> bool;
}

impl BlockDevice for Disk {
    fn size(&self) -> u64 {
        Disk::size(self) / FRAME_SIZE * FRAME_SIZE
    }

    fn read(&self, at: u64, to: &[AtomicU8]) -> bool {
        Disk::read(self, at, to)
    }

    fn write(&self, at: u64, from: &[AtomicU8]) -> bool {
        Disk::write(self, at, from)
    }

    fn flush(&self) -> bool {
        Disk::flush(self)
    }

    fn is_memory(&self) -> bool {
        false
    }
}

/// The store of a block device's own file: page n of the file is page n of the device.
pub struct WholeDevice(pub Box<dyn BlockDevice>);

/// Transfers the pages of a request, in their order on the device, by one `transfer` for each folio
/// or part, and page by page where that fails. Returns the number of pages before the first that
/// can't be transferred.
fn transfer(
    pages: Range<u64>,
    frames: impl Iterator<Item = (Pfn, u32)>,
    transfer: impl Fn(u64, &[AtomicU8]) -> bool,
) -> u64 {
    let mut page = pages.start;
    for (first, count) in frames {
        // SAFETY: the caller's request keeps the frames.
        let bytes = unsafe { storage::bytes(first, count) };
        if !transfer(page * FRAME_SIZE, bytes) {
            // The device does not report which page failed.
            let mut each = (page..).zip(bytes.chunks(FRAME_SIZE as usize));
            let failed = each.find(|(page, bytes)| !transfer(page * FRAME_SIZE, bytes));
            if let Some((page, _)) = failed {
                return page - pages.start;
            }
        }
        page += u64::from(count);
    }
    page - pages.start
}

impl Store for WholeDevice {
    fn read(&self, request: &ReadRequest) -> u64 {
        transfer(request.pages(), request.frames(), |at, to| self.0.read(at, to))
    }

    fn write(&self, request: &WriteRequest) -> u64 {
        transfer(request.pages(), request.frames(), |at, from| self.0.write(at, from))
    }

    fn flush(&self) -> bool {
        self.0.flush()
    }

    fn is_memory(&self) -> bool {
        self.0.is_memory()
    }
}

/// The bytes of a block of a [`RamDisk`].
const BLOCK: usize = FRAME_SIZE as usize;

/// A block of a [`RamDisk`].
type Block = Box<[AtomicU8; BLOCK]>;

/// A disk in memory. It has memory for the blocks that were written; all others are zeros.
pub struct RamDisk(Vec<Once<Block>>);

impl RamDisk {
    /// Creates a disk of this many bytes.
    ///
    /// # Errors
    ///
    /// `ENOMEM`.
    pub fn new(bytes: u64) -> Result<Self, Errno> {
        let count = usize::try_from(bytes).map_err(|_| Errno::ENOMEM)? / BLOCK;
        let mut blocks = Vec::new();
        blocks.try_reserve_exact(count)?;
        blocks.resize_with(count, Once::new);
        Ok(RamDisk(blocks))
    }

    /// Returns the blocks of `len` bytes from `at` on; `None` if they lie beyond the end.
    fn blocks(&self, at: u64, len: usize) -> Option<&[Once<Block>]> {
        let first = at as usize / BLOCK;
        self.0.get(first..first.checked_add(len / BLOCK)?)
    }
}

impl BlockDevice for RamDisk {
    fn size(&self) -> u64 {
        (self.0.len() * BLOCK) as u64
    }

    fn read(&self, at: u64, to: &[AtomicU8]) -> bool {
        let Some(blocks) = self.blocks(at, to.len()) else { return false };
        for (to, block) in to.chunks(BLOCK).zip(blocks) {
            match block.get() {
                Some(block) => copy(to, &block[..]),
                None => zero(to),
            }
        }
        true
    }

    fn write(&self, at: u64, from: &[AtomicU8]) -> bool {
        let Some(blocks) = self.blocks(at, from.len()) else { return false };
        from.chunks(BLOCK).zip(blocks).all(|(from, block)| {
            let block = block.try_call_once(new_block);
            block.map(|block| copy(&block[..], from)).is_ok()
        })
    }

    fn flush(&self) -> bool {
        true
    }

    fn is_memory(&self) -> bool {
        true
    }
}

/// Allocates a block.
///
/// # Errors
///
/// `ENOMEM`.
fn new_block() -> Result<Block, Errno> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(BLOCK)?;
    bytes.resize_with(BLOCK, || AtomicU8::new(0));
    bytes.into_boxed_slice().try_into().map_err(|_| Errno::ENOMEM)
}

/// Copies `from` to `to`, of the same length, both of whose bytes others may change meanwhile.
fn copy(to: &[AtomicU8], from: &[AtomicU8]) {
    debug_assert_eq!(to.len(), from.len());
    // SAFETY: both are valid and do not overlap, as one belongs to the disk alone. A device would
    // copy as well while programs write: what it reads then is undefined only in its value, and
    // nothing is concluded from it.
    unsafe { core::ptr::copy_nonoverlapping(from.as_ptr().cast::<u8>(), to.as_ptr().cast::<u8>().cast_mut(), to.len()) }
}

/// Zeroes bytes.
fn zero(to: &[AtomicU8]) {
    // SAFETY: as for `copy`.
    unsafe { to.as_ptr().cast::<u8>().cast_mut().write_bytes(0, to.len()) }
}
