//! What comes back is what went out, or else an error: a checksum of what each slot of a device holds.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::paged::Paged;
use super::{ReadError, Slots, Unreadable};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;

/// CRC-32: it tells pages apart that differ in up to three bits, or in up to 32 in a row; others but for one in four billion.
struct Sum(AtomicU32);

// SAFETY: an atomic number.
unsafe impl Zeroable for Sum {}

/// Four bytes a slot. They are written by who writes the slot, and ordered as its contents are.
#[must_use]
pub(super) struct Checksums(Paged<Sum>);

impl Checksums {
    /// # Errors
    /// There is not enough memory; nothing of it is taken then.
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>, slots: u32) -> Result<Self, OutOfMemory> {
        Ok(Checksums(Paged::new(frames, slots)?))
    }

    /// Give the memory back.
    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.0.free(frames);
    }

    /// What these frames hold went to these slots.
    ///
    /// # Safety
    /// The frames are the machine's, and nobody writes to them meanwhile.
    pub(super) unsafe fn keep<P: Platform>(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) {
        for i in 0..slots.count {
            // SAFETY: by contract.
            let sum = unsafe { sum(frames, from.add(i)) };
            self.0.get(slots.first + i).0.store(sum, Relaxed);
        }
    }

    /// Whether what these frames hold is what went to these slots.
    ///
    /// # Errors
    /// The first slot of which it is not.
    ///
    /// # Safety
    /// As of [`Checksums::keep`].
    pub(super) unsafe fn compare<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        slots: Slots,
        to: Pfn,
    ) -> Result<(), ReadError> {
        // SAFETY: by contract.
        let same = |i: &u32| unsafe { sum(frames, to.add(*i)) } == self.0.get(slots.first + i).0.load(Relaxed);
        match (0..slots.count).find(|i| !same(i)) {
            None => Ok(()),
            Some(i) => Err(ReadError { slot: slots.first + i, reason: Unreadable::Damaged }),
        }
    }
}

/// # Safety
/// The frame is the machine's, and nobody writes to it meanwhile.
unsafe fn sum<P: Platform>(frames: &Frames<'_, P>, frame: Pfn) -> u32 {
    // SAFETY: by contract; any bytes are valid ones.
    crc32fast::hash(unsafe { frames.at(frame.addr()).cast::<[u8; FRAME_SIZE as usize]>().as_ref() })
}
