//! A disk to swap to.

use crate::mem::block::disk::Disk;
use crate::mem::block::{BlockDevice, Direction, Transfer};
use crate::mem::platform::Host;
use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::frame::Frames;
use vellum::platform::Trace;
use vellum::swap::{ReadError, Slots, SwapDevice, Unreadable, WriteError};

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

    /// Transfers contiguous slots from or to contiguous frames as one request. Returns whether the
    /// device succeeded.
    ///
    /// # Safety
    ///
    /// The contract of [`SwapDevice`] for the direction holds: of a read, that no other code uses
    /// the frames; of a write, that they are not changed.
    unsafe fn request(&self, frames: &Frames<'_, Host>, direction: Direction, slots: Slots, first: Pfn) -> bool {
        let (at, memory) = (u64::from(slots.first) * FRAME_SIZE, frames.at(first.addr()).as_ptr());
        let len = slots.count as usize * FRAME_SIZE as usize;
        // SAFETY: the frames are the machine's, and stay so during the call (this contract).
        unsafe { self.disk.transfer(Transfer { direction, at, memory, len }) }
    }
}

impl SwapDevice<Host> for SwapDisk {
    unsafe fn write(&self, frames: &Frames<'_, Host>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: the engine keeps the frames unchanged (the contract of [`SwapDevice::write`]).
        let written = unsafe { self.request(frames, Direction::Write, slots, from) };
        if written { Ok(()) } else { Err(WriteError::Failed) }
    }

    unsafe fn read(&self, frames: &Frames<'_, Host>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        // SAFETY: this function's contract is that of `request`.
        if unsafe { self.request(frames, Direction::Read, slots, to) } {
            return Ok(());
        }
        // The device does not report which sector failed: find it slot by slot.
        let each = (0..slots.count).map(|i| (Slots { first: slots.first + i, count: 1 }, to.add(i)));
        for (slot, to) in each {
            // SAFETY: as above.
            if !unsafe { self.request(frames, Direction::Read, slot, to) } {
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
