//! Driver of disks: virtio's block device on PCI (`virtio-blk-pci`), through the crate
//! `virtio-drivers`.
//!
//! One request transfers any number of contiguous sectors to or from contiguous frames. The calling
//! CPU polls for completion with the driver's lock held, so one CPU at a time has a request of a
//! disk under way. A request allocates nothing on the heap: pageout must not wait for memory.

use crate::arch::serial::println;
use crate::mem::platform::Host;
use crate::mem::virtio::{self, Dma};
use crate::mem::vmalloc;
use core::ops::Range;
use core::slice;
use spin::Mutex;
use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::frame::Frames;
use vellum::platform::Trace;
use vellum::swap::{ReadError, Slots, SwapDevice, Unreadable, WriteError};
use vellum_kernel::sectors::{Part, SECTOR, parts};
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::PciTransport;

const _: () = assert!(SECTOR == SECTOR_SIZE);

/// The number of sectors per slot.
const SECTORS: usize = FRAME_SIZE as usize / SECTOR_SIZE;

/// A disk.
pub struct Disk(Mutex<VirtIOBlk<Dma, PciTransport>>);

impl Disk {
    /// Returns the disk at a slot of the machine's first PCI bus.
    pub fn find(slot: u8) -> Option<Self> {
        let transport = virtio::find(slot, DeviceType::Block)?;
        let mut driver = VirtIOBlk::new(transport)
            .inspect_err(|error| println!("disk {slot}: the driver cannot be set up: {error}"))
            .ok()?;
        // Requests are polled for completion.
        driver.disable_interrupts();
        Some(Disk(Mutex::new(driver)))
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        self.0.lock().capacity().saturating_mul(SECTOR_SIZE as u64)
    }

    /// Reads bytes from `at` on. Returns whether the device succeeded.
    ///
    /// # Safety
    ///
    /// `to` is valid for `len` bytes, which the device may write.
    pub unsafe fn read(&self, at: u64, to: *mut u8, len: usize) -> bool {
        parts(len, |from| vmalloc::contiguous(to.wrapping_add(from))).all(|part| match part {
            Part::Whole(part) => {
                // SAFETY: the bytes are valid (this function's contract). The driver passes their
                // address on, and does not access them.
                let to = unsafe { slice::from_raw_parts_mut(to.add(part.start), part.len()) };
                self.0.lock().read_blocks(sector(at, &part), to).is_ok()
            }
            Part::InPieces(part) => {
                let mut bytes = [0; SECTOR_SIZE];
                let read = self.0.lock().read_blocks(sector(at, &part), &mut bytes).is_ok();
                // SAFETY: the part's bytes are among those that `to` is valid for (this function's
                // contract), and no other code knows the copy on the stack.
                unsafe { to.add(part.start).copy_from_nonoverlapping(bytes.as_ptr(), SECTOR_SIZE) };
                read
            }
        })
    }

    /// Writes bytes from `at` on. Returns whether the device succeeded.
    ///
    /// # Safety
    ///
    /// `from` is valid for `len` bytes.
    pub unsafe fn write(&self, at: u64, from: *const u8, len: usize) -> bool {
        parts(len, |start| vmalloc::contiguous(from.wrapping_add(start))).all(|part| match part {
            Part::Whole(part) => {
                // SAFETY: as in `read`; the device reads the bytes.
                let from = unsafe { slice::from_raw_parts(from.add(part.start), part.len()) };
                self.0.lock().write_blocks(sector(at, &part), from).is_ok()
            }
            Part::InPieces(part) => {
                let mut bytes = [0; SECTOR_SIZE];
                // SAFETY: as in `read`, in the other direction.
                unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(from.add(part.start), SECTOR_SIZE) };
                self.0.lock().write_blocks(sector(at, &part), &bytes).is_ok()
            }
        })
    }

    /// Has the device keep what was written through a loss of power. Returns whether it succeeded.
    pub fn flush(&self) -> bool {
        self.0.lock().flush().is_ok()
    }
}

/// Returns the number of the sector at an offset that a part of a transfer at `at` has.
fn sector(at: u64, part: &Range<usize>) -> usize {
    (at as usize + part.start) / SECTOR_SIZE
}

/// A disk to swap to.
pub struct SwapDisk {
    disk: Disk,
    /// The engine keeps a checksum of each page on the disk.
    checked: bool,
}

impl SwapDisk {
    /// Returns the swap disk at a slot of the PCI bus, and its number of slots of swap. With
    /// `checked`, the engine keeps a checksum of each page on the disk.
    pub fn find(slot: u8, checked: bool) -> Option<(Self, u32)> {
        let disk = Disk::find(slot)?;
        let slots = u32::try_from(disk.size() / FRAME_SIZE).unwrap_or(u32::MAX);
        Some((SwapDisk { disk, checked }, slots))
    }

    /// Reads contiguous slots into contiguous frames as one request. Returns whether the device
    /// succeeded.
    ///
    /// # Safety
    ///
    /// The contract of [`SwapDevice::read`] holds: no other code uses the frames.
    unsafe fn request(&self, frames: &Frames<'_, Host>, slots: Slots, to: Pfn) -> bool {
        // SAFETY: no other code uses the frames (this function's contract).
        let bytes = unsafe { slice::from_raw_parts_mut(frames.at(to.addr()).as_ptr(), bytes(slots)) };
        self.disk.0.lock().read_blocks(slots.first as usize * SECTORS, bytes).is_ok()
    }
}

/// Returns the bytes of some slots.
fn bytes(slots: Slots) -> usize {
    slots.count as usize * FRAME_SIZE as usize
}

impl SwapDevice<Host> for SwapDisk {
    unsafe fn write(&self, frames: &Frames<'_, Host>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: the frames are the machine's, and the engine keeps them unchanged during the call
        // (the contract of [`SwapDevice::write`]).
        let bytes = unsafe { slice::from_raw_parts(frames.at(from.addr()).as_ptr(), bytes(slots)) };
        self.disk.0.lock().write_blocks(slots.first as usize * SECTORS, bytes).map_err(|_| WriteError::Failed)
    }

    unsafe fn read(&self, frames: &Frames<'_, Host>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        // SAFETY: this function's contract is that of `request`.
        if unsafe { self.request(frames, slots, to) } {
            return Ok(());
        }
        // The device does not report which sector failed: find it slot by slot.
        let each = (0..slots.count).map(|i| (Slots { first: slots.first + i, count: 1 }, to.add(i)));
        for (slot, to) in each {
            // SAFETY: this function's contract is that of `request`.
            if !unsafe { self.request(frames, slot, to) } {
                return Err(ReadError { slot: slot.first, reason: Unreadable::Failed });
            }
        }
        Ok(())
    }

    unsafe fn forget(&self, _: &Frames<'_, Host>, _: Slots) {}

    fn has_checksums(&self) -> bool {
        self.checked || Host::ENABLED
    }
}
