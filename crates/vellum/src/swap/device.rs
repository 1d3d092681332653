//! What a swap device does.

use super::Slots;
use crate::addr::Pfn;
use crate::frame::Frames;
use crate::platform::Platform;

/// A place for pages, by the run: slots in a row from frames in a row, or into them.
///
/// Writing and reading wait for the device, and may take long: the caller holds no lock. Forgetting waits for nothing. What a call
/// writes, later reads of the same slots see, whichever CPU they come from, if the caller orders the two.
///
/// It sees frames and slots. So where memory has more than contents (the tags of Arm's MTE or SPARC's ADI), it is the device that keeps
/// that with them, or refuses.
pub trait SwapDevice<P: Platform>: Sync {
    /// Keep the contents of `slots.count` frames from `from` on. What the slots held before is forgotten.
    ///
    /// # Errors
    /// [`WriteError`]; the slots hold nothing then.
    ///
    /// # Safety
    /// The slots are in use, and nobody else reads, writes or forgets them meanwhile. The frames are the machine's, and nobody
    /// writes to them meanwhile.
    unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError>;

    /// Bring the contents of slots back, into `slots.count` frames from `to` on. The slots keep them too.
    ///
    /// # Errors
    /// [`ReadError`] names the first slot whose contents don't come back; what is in the frames then is unspecified.
    ///
    /// # Safety
    /// Nobody writes or forgets the slots meanwhile. The frames are the caller's alone.
    unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError>;

    /// Nobody will ask for the contents of these slots any more, whether they hold any or not.
    ///
    /// # Safety
    /// As of [`SwapDevice::write`].
    unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots);

    /// Whether a checksum of each page is kept, so that one that comes back as something else counts as lost
    /// ([`Unreadable::Damaged`]) and is nobody's contents. That costs four bytes a slot, and a pass over each page either way. Asked
    /// when the device is attached. Usually in strict mode only.
    fn checked(&self) -> bool {
        P::ENABLED
    }
}

/// Why pages stay where they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteError {
    /// The device needs memory, and there is none.
    NoMemory,
    /// The device failed, or can't keep all there is to these frames.
    Failed,
}

impl core::fmt::Display for WriteError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            WriteError::NoMemory => "no memory to keep swapped pages in",
            WriteError::Failed => "a swap device failed to write",
        })
    }
}

impl core::error::Error for WriteError {}

/// The contents of a slot are lost, at least for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadError {
    /// The slot.
    pub slot: u32,
    /// Why.
    pub reason: Unreadable,
}

/// See [`ReadError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// Nothing was written there.
    Empty,
    /// What is there is not what was written.
    Damaged,
    /// The device failed.
    Failed,
}

impl core::fmt::Display for ReadError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let why = match self.reason {
            Unreadable::Empty => "nothing was written there",
            Unreadable::Damaged => "it is damaged",
            Unreadable::Failed => "the device failed",
        };
        write!(f, "swap slot {} can't be read: {why}", self.slot)
    }
}

impl core::error::Error for ReadError {}
