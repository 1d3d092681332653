//! Errors of slot allocation and of attaching and detaching swap devices.

use super::MAX_SWAP_DEVICES;

/// The reason why no block of slots was allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlots {
    /// All slots are in use, or no device is attached.
    Full,
    /// There are free slots, but no free block of this size. A smaller block may be available.
    Scattered,
}

impl core::fmt::Display for NoSlots {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            NoSlots::Full => "no free swap slot: all are in use, or no swap device is attached",
            NoSlots::Scattered => "no free block of swap slots is large enough: try a smaller block",
        })
    }
}

impl core::error::Error for NoSlots {}

/// The reason why a device was not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// [`MAX_SWAP_DEVICES`] devices are attached already.
    TooMany,
    /// There is not enough memory for the state of the device's slots.
    OutOfMemory,
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AttachError::TooMany => {
                write!(f, "{MAX_SWAP_DEVICES} swap devices are attached already, the maximum: detach one first")
            }
            AttachError::OutOfMemory => write!(f, "not enough memory for the state of the swap device's slots"),
        }
    }
}

impl core::error::Error for AttachError {}

/// The reason why a device was not detached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachError {
    /// No device has this number.
    Unknown(u8),
    /// The device was not closed.
    Open,
    /// This number of slots is in use.
    InUse(u32),
}

impl core::fmt::Display for DetachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DetachError::Unknown(id) => write!(f, "swap device {id} is not attached"),
            DetachError::Open => write!(f, "the swap device is open: close it before detaching it"),
            DetachError::InUse(slots) => {
                write!(f, "{slots} slots of the swap device are in use: swap them in before detaching it")
            }
        }
    }
}

impl core::error::Error for DetachError {}

/// The error of a slot whose reference count is at its maximum, 2^31. No program gets there: each
/// reference comes from a different address space, and each space needs at least two page-table
/// pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saturated {
    /// The slot.
    pub slot: u32,
}

impl core::fmt::Display for Saturated {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "swap slot {} has 2^31 references, the maximum", self.slot)
    }
}

impl core::error::Error for Saturated {}
