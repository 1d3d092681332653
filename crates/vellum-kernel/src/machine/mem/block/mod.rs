//! Block devices: disks, and a disk in memory.
//!
//! A transfer is carried out at once, while the calling CPU polls, or it is begun, and the storage
//! task is told of its end by an interrupt, so that several are under way.
//!
//! | file | contents |
//! |---|---|
//! | [`disk`] | the driver of disks |
//! | [`ram`] | a disk in memory |
//! | [`whole`] | the store by which the page cache reads and writes a device as a whole |

pub mod disk;
pub mod ram;
pub mod whole;

use alloc::sync::Arc;
use core::sync::atomic::AtomicU8;
use vellum::addr::FRAME_SIZE;
use vellum_kernel::fs::ext4;

/// The direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the device to memory.
    Read,
    /// From memory to the device.
    Write,
}

/// A transfer of whole sectors between a block device and memory of the kernel half.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    /// The direction.
    pub direction: Direction,
    /// The offset on the device in bytes.
    pub at: u64,
    /// The memory.
    pub memory: *mut u8,
    /// The number of bytes, a multiple of 512.
    pub len: usize,
}

// SAFETY: the pointer is used under the contracts of [`BlockDevice`] alone, which hold on any CPU.
unsafe impl Send for Transfer {}

impl Transfer {
    /// A transfer to or from pages, which programs and other CPUs may access meanwhile.
    pub fn of_pages(direction: Direction, at: u64, pages: &[AtomicU8]) -> Self {
        Transfer { direction, at, memory: pages.as_ptr().cast::<u8>().cast_mut(), len: pages.len() }
    }
}

/// The state of a transfer that was begun.
#[derive(Debug)]
pub enum Begun {
    /// The device carries it out. [`BlockDevice::ended`] takes the ticket.
    UnderWay(Ticket),
    /// It has ended; true: it succeeded.
    Ended(bool),
}

/// Names a transfer that a device has under way.
#[derive(Debug)]
pub struct Ticket(usize);

/// A block device. Offsets and lengths are multiples of 512 bytes.
pub trait BlockDevice: Send + Sync {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Carries out a transfer. Returns whether it succeeded.
    ///
    /// # Safety
    ///
    /// The memory is valid for the transfer's bytes. They are accessed as a device accesses them:
    /// what other code reads or writes there meanwhile may be old or new bytes.
    unsafe fn transfer(&self, transfer: Transfer) -> bool;

    /// Begins a transfer whose memory is contiguous frames. `None`: as many are under way as the
    /// device takes.
    ///
    /// # Safety
    ///
    /// That of [`BlockDevice::transfer`], until the transfer has ended.
    unsafe fn begin(&self, transfer: Transfer) -> Option<Begun> {
        // SAFETY: this function's contract.
        Some(Begun::Ended(unsafe { self.transfer(transfer) }))
    }

    /// Sees which transfers have ended. The next end of one interrupts a CPU.
    fn look(&self) {}

    /// Returns whether a transfer succeeded, once it has ended; its ticket is void then.
    fn ended(&self, _: &Ticket) -> Option<bool> {
        None
    }

    /// Has what was written survive a loss of power. Returns whether it succeeded.
    fn flush(&self) -> bool;

    /// Returns true if transfers take no longer than copying memory does.
    fn is_memory(&self) -> bool;
}

/// Transfers pages at once, and one by one where that fails, as a device does not report which page
/// failed. Programs and other CPUs may access the pages meanwhile. Returns the number of bytes
/// before the first page that can't be transferred.
pub fn transfer_pages(device: &dyn BlockDevice, direction: Direction, at: u64, pages: &[AtomicU8]) -> usize {
    let transfer = |at: u64, pages: &[AtomicU8]| {
        // SAFETY: the bytes are valid, and are accessed by atomics.
        unsafe { device.transfer(Transfer::of_pages(direction, at, pages)) }
    };
    if transfer(at, pages) {
        return pages.len();
    }
    let page = FRAME_SIZE as usize;
    let each = pages.chunks(page).enumerate();
    each.take_while(|(nth, page_bytes)| transfer(at + (nth * page) as u64, page_bytes))
        .map(|(_, bytes)| bytes.len())
        .sum()
}

/// A block device as a file system sees it.
pub struct Sectors(pub Arc<dyn BlockDevice>);

impl ext4::BlockDevice for Sectors {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, at: u64, to: &mut [u8]) -> bool {
        let (memory, len) = (to.as_mut_ptr(), to.len());
        // SAFETY: the bytes are the caller's, on the heap or a stack.
        unsafe { self.0.transfer(Transfer { direction: Direction::Read, at, memory, len }) }
    }

    fn write(&self, at: u64, from: &[u8]) -> bool {
        let (memory, len) = (from.as_ptr().cast_mut(), from.len());
        // SAFETY: as in `read`. The device reads the bytes, and nothing changes them.
        unsafe { self.0.transfer(Transfer { direction: Direction::Write, at, memory, len }) }
    }

    fn flush(&self) -> bool {
        self.0.flush()
    }
}
