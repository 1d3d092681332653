//! Checksums of the contents of a device's slots: a page that comes back damaged is an error and is
//! never mapped.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::paged::Paged;
use super::{ReadError, Slots, Unreadable};
use crate::addr::{FRAME_SIZE, Pfn};
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;

/// The CRC-32 of a page. It detects every change of up to three bits, every change within 32
/// consecutive bits, and all but one in four billion of all other changes.
struct Sum(AtomicU32);

// SAFETY: it is an atomic integer, for which 0 is valid.
unsafe impl Zeroable for Sum {}

/// The checksums of a device: four bytes for each slot. The CPU that writes a slot also writes the
/// slot's checksum, and whatever orders a later read of the slot's contents also orders the read of
/// its checksum.
#[must_use]
pub(super) struct Checksums(Paged<Sum>);

impl Checksums {
    /// Allocates the checksums of `slots` slots.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory, and none stays allocated.
    pub(super) fn new<P: Platform>(frames: &Frames<'_, P>, slots: u32) -> Result<Self, OutOfMemory> {
        Ok(Checksums(Paged::new(frames, slots)?))
    }

    /// Frees the memory.
    pub(super) fn free<P: Platform>(self, frames: &Frames<'_, P>) {
        self.0.free(frames);
    }

    /// Records the checksums of frames that were written to `slots`.
    ///
    /// # Safety
    /// The frames, from `from` on, are the machine's, and nothing writes to them during the call.
    pub(super) unsafe fn store<P: Platform>(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) {
        for i in 0..slots.count {
            // SAFETY: the frame is the machine's, and nothing writes to it during the call (this
            // contract).
            let sum = unsafe { sum(frames, from.add(i)) };
            self.0.get(slots.first + i).0.store(sum, Relaxed);
        }
    }

    /// Compares the frames that were read from `slots` with the recorded checksums.
    ///
    /// # Errors
    /// [`Unreadable::Damaged`], with the first slot whose checksum differs.
    ///
    /// # Safety
    /// As for [`Checksums::store`].
    pub(super) unsafe fn compare<P: Platform>(
        &self,
        frames: &Frames<'_, P>,
        slots: Slots,
        to: Pfn,
    ) -> Result<(), ReadError> {
        // SAFETY: the frames are the machine's, and nothing writes to them during the call (this
        // contract).
        let is_equal = |i: &u32| unsafe { sum(frames, to.add(*i)) } == self.0.get(slots.first + i).0.load(Relaxed);
        match (0..slots.count).find(|i| !is_equal(i)) {
            None => Ok(()),
            Some(i) => Err(ReadError { slot: slots.first + i, reason: Unreadable::Damaged }),
        }
    }
}

/// Returns the checksum of a frame's contents.
///
/// # Safety
/// The frame is the machine's, and nothing writes to it during the call.
unsafe fn sum<P: Platform>(frames: &Frames<'_, P>, frame: Pfn) -> u32 {
    // SAFETY: the frame is the machine's, and nothing writes to it during the call (this contract).
    // All values of bytes are valid.
    crc32fast::hash(unsafe { frames.at(frame.addr()).cast::<[u8; FRAME_SIZE as usize]>().as_ref() })
}
