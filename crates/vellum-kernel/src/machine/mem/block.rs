//! Block devices: disks, and a disk in memory (Linux: brd), with the store by which the page cache
//! reads and writes one of them as a whole.

use crate::mem::disk::Disk;
use crate::mem::storage::{self, Store};
use alloc::boxed::Box;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::ptr::{copy_nonoverlapping, write_bytes};
use core::sync::atomic::AtomicU8;
use spin::Once;
use vellum::addr::FRAME_SIZE;
use vellum::platform::{ReadRequest, WriteRequest};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::ext4::{self, BlockDevice as _};

/// A block device. Offsets and lengths are multiples of 512 bytes.
pub trait BlockDevice: Send + Sync {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Reads `len` bytes from `at` on. Returns whether it succeeded.
    ///
    /// # Safety
    ///
    /// `to` is valid for `len` bytes of the kernel half. They are written as a device
    /// writes them: what other code reads there meanwhile is not defined.
    unsafe fn read(&self, at: u64, to: *mut u8, len: usize) -> bool;

    /// Writes `len` bytes from `at` on. Returns whether it succeeded.
    ///
    /// # Safety
    ///
    /// `from` is valid for `len` bytes of the kernel half. They are read as a device
    /// reads them: what other code writes there meanwhile may be read or not.
    unsafe fn write(&self, at: u64, from: *const u8, len: usize) -> bool;

    /// Has what was written survive a loss of power. Returns whether it succeeded.
    fn flush(&self) -> bool;

    /// Returns true if transfers take no longer than copying memory does.
    fn is_memory(&self) -> bool;
}

/// Reads pages, which programs and other CPUs may access meanwhile. Returns whether it succeeded.
pub fn read_pages(device: &dyn BlockDevice, at: u64, to: &[AtomicU8]) -> bool {
    // SAFETY: the bytes are valid, and are accessed by atomics.
    unsafe { device.read(at, to.as_ptr().cast::<u8>().cast_mut(), to.len()) }
}

/// Writes pages, which programs and other CPUs may access meanwhile. Returns whether it succeeded.
pub fn write_pages(device: &dyn BlockDevice, at: u64, from: &[AtomicU8]) -> bool {
    // SAFETY: as in `read_pages`.
    unsafe { device.write(at, from.as_ptr().cast::<u8>(), from.len()) }
}

impl BlockDevice for Disk {
    fn size(&self) -> u64 {
        Disk::size(self) / FRAME_SIZE * FRAME_SIZE
    }

    unsafe fn read(&self, at: u64, to: *mut u8, len: usize) -> bool {
        // SAFETY: this function's contract is the same.
        unsafe { Disk::read(self, at, to, len) }
    }

    unsafe fn write(&self, at: u64, from: *const u8, len: usize) -> bool {
        // SAFETY: this function's contract is the same.
        unsafe { Disk::write(self, at, from, len) }
    }

    fn flush(&self) -> bool {
        Disk::flush(self)
    }

    fn is_memory(&self) -> bool {
        false
    }
}

/// A block device as a file system sees it.
pub struct Sectors(pub Arc<dyn BlockDevice>);

impl ext4::BlockDevice for Sectors {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        // SAFETY: the bytes are the caller's, on the heap or a stack.
        unsafe { self.0.read(at, to.as_mut_ptr(), to.len()) }
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        // SAFETY: as in `read`, and nothing changes them.
        unsafe { self.0.write(at, from.as_ptr(), from.len()) }
    }

    fn flush(&self) -> bool {
        self.0.flush()
    }
}

/// The store of a block device's own file: page n of the file is page n of the device.
pub struct WholeDevice(pub Arc<dyn BlockDevice>);

/// Transfers bytes by one `transfer`, and page by page where that fails, as the device does not
/// report which page failed. Returns the number of bytes before the first page that can't be
/// transferred.
pub fn transfer(at: u64, bytes: &[AtomicU8], transfer: impl Fn(u64, &[AtomicU8]) -> bool) -> usize {
    if transfer(at, bytes) {
        return bytes.len();
    }
    let page = FRAME_SIZE as usize;
    let pages = bytes.chunks(page).enumerate();
    pages.take_while(|(nth, bytes)| transfer(at + (nth * page) as u64, bytes)).map(|(_, bytes)| bytes.len()).sum()
}

/// Transfers the pages of a request from `first` on. Returns the number of pages before the first
/// that can't be transferred.
fn transfer_all<'a>(
    first: u64,
    folios: impl Iterator<Item = &'a [AtomicU8]>,
    each: impl Fn(u64, &[AtomicU8]) -> bool,
) -> u64 {
    let mut done = 0;
    for bytes in folios {
        let moved = transfer(first * FRAME_SIZE + done, bytes, &each);
        done += moved as u64;
        if moved < bytes.len() {
            break;
        }
    }
    done / FRAME_SIZE
}

impl Store for WholeDevice {
    fn read(&self, request: &ReadRequest) -> u64 {
        transfer_all(request.pages().start, storage::to_read(request), |at, to| read_pages(&*self.0, at, to))
    }

    fn write(&self, request: &WriteRequest) -> u64 {
        transfer_all(request.pages().start, storage::to_write(request), |at, from| write_pages(&*self.0, at, from))
    }

    fn flush(&self) -> bool {
        self.0.flush()
    }

    fn is_memory(&self) -> bool {
        self.0.is_memory()
    }

    fn direct_alignment(&self) -> Option<u64> {
        Some(ext4::SECTOR)
    }

    fn read_direct(&self, at: u64, to: &mut [u8]) -> usize {
        if Sectors(self.0.clone()).read(at, to) { to.len() } else { 0 }
    }

    fn write_direct(&self, at: u64, from: &[u8]) -> Result<usize, Errno> {
        Ok(if Sectors(self.0.clone()).write(at, from) { from.len() } else { 0 })
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

    /// Calls `each` with the blocks that have bytes of the range, the offset of these in the block,
    /// their offset in the range, and their number, until it returns false. Returns whether it
    /// never did, and the range is on the disk.
    fn each(&self, at: u64, len: usize, mut each: impl FnMut(&Once<Block>, usize, usize, usize) -> bool) -> bool {
        let mut done = 0;
        while done < len {
            let at = at as usize + done;
            let part = (BLOCK - at % BLOCK).min(len - done);
            let Some(block) = self.0.get(at / BLOCK) else { return false };
            if !each(block, at % BLOCK, done, part) {
                return false;
            }
            done += part;
        }
        true
    }
}

impl BlockDevice for RamDisk {
    fn size(&self) -> u64 {
        (self.0.len() * BLOCK) as u64
    }

    unsafe fn read(&self, at: u64, to: *mut u8, len: usize) -> bool {
        self.each(at, len, |block, offset, done, part| {
            // SAFETY: `done + part` is at most `len`, for which `to` is valid, and `offset + part`
            // at most the size of a block, which belongs to the disk alone. Its bytes are copied as
            // by a device (this function's contract, and that of `write`).
            unsafe {
                match block.get() {
                    Some(block) => copy_nonoverlapping(block.as_ptr().cast::<u8>().add(offset), to.add(done), part),
                    None => write_bytes(to.add(done), 0, part),
                }
            }
            true
        })
    }

    unsafe fn write(&self, at: u64, from: *const u8, len: usize) -> bool {
        self.each(at, len, |block, offset, done, part| {
            let Ok(block) = block.try_call_once(new_block) else { return false };
            let to = block.as_ptr().cast::<u8>().cast_mut();
            // SAFETY: as in `read`. The block's bytes are atomics, so they may change.
            unsafe { copy_nonoverlapping(from.add(done), to.add(offset), part) };
            true
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
