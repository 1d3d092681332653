//! The interface of a swap device.

use crate::addr::Pfn;
use crate::frame::Frames;
use crate::platform::Platform;

/// A range of consecutive slots, of 4 KiB each, of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The first slot.
    pub first: u32,
    /// The number of slots.
    pub count: u32,
}

/// A device that stores pages in numbered slots. Each call transfers a range of consecutive slots
/// from or to consecutive frames.
///
/// Writes and reads wait for the device and may sleep, so the caller holds no lock.
/// [`SwapDevice::forget`] does not wait. A read returns what the last write to the same slots
/// stored, if the caller has ordered the write before the read, on whichever CPUs the two ran.
///
/// The device gets frames and slots only. If memory has more than contents (tags of Arm's MTE or
/// SPARC's ADI), the device either stores the tags with the contents or refuses the write.
pub trait SwapDevice<P: Platform>: Sync {
    /// Stores the contents of `slots.count` frames from `from` on. The previous contents of the
    /// slots are dropped.
    ///
    /// # Errors
    /// [`WriteError`]; the slots then have no contents, and stay in use.
    ///
    /// # Safety
    /// The slots are in use, and nothing else reads, writes or forgets them during the call. The
    /// frames are the machine's, and nothing writes to them during the call.
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError>;

    /// Copies the contents of slots into `slots.count` frames from `to` on. The slots keep their
    /// contents.
    ///
    /// # Errors
    /// [`ReadError`] names the first slot that cannot be read. The contents of the frames are
    /// unspecified then.
    ///
    /// # Safety
    /// Nothing writes or forgets the slots during the call. The caller has exclusive access to the
    /// frames.
    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError>;

    /// Drops the contents of slots, some of which may be empty (Linux: `swap_slot_free_notify`).
    /// The slots are not read before they are written again. Does not wait for the device.
    ///
    /// # Safety
    /// Nothing else reads, writes or forgets the slots during the call.
    unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots);

    /// Returns true if the engine keeps a checksum of each page, so that a page that comes back
    /// changed is reported as [`Unreadable::Damaged`] and not used. That costs four bytes per slot
    /// and a pass over each page on write and on read. Called once, when the device is attached.
    /// The default is true only on a host that traces the engine
    /// ([`Trace::ENABLED`](crate::platform::Trace::ENABLED)), such as the strict simulated machine.
    fn has_checksums(&self) -> bool {
        P::ENABLED
    }
}

/// The reason why pages were not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The device needs memory, and there is none.
    NoMemory,
    /// The device failed, or cannot store everything that belongs to these frames (such as memory
    /// tags).
    Failed,
}

impl core::fmt::Display for WriteError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            WriteError::NoMemory => {
                "the swap device has no memory for the pages: free memory, or attach another device"
            }
            WriteError::Failed => "the swap device failed to write, or cannot store these pages",
        })
    }
}

impl core::error::Error for WriteError {}

/// A slot whose contents cannot be read, at least for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The first slot of the range that cannot be read.
    pub slot: u32,
    /// The reason.
    pub reason: Unreadable,
}

/// The reason why a slot cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The slot was never written, or was forgotten.
    Empty,
    /// The contents differ from what was written.
    Damaged,
    /// The device failed.
    Failed,
}

impl core::fmt::Display for ReadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let reason = match self.reason {
            Unreadable::Empty => "it was never written",
            Unreadable::Damaged => "its contents differ from what was written",
            Unreadable::Failed => "the device failed",
        };
        write!(f, "cannot read swap slot {}: {reason}", self.slot)
    }
}

impl core::error::Error for ReadError {}
