//! Why a machine's swap devices don't do as they are told.

use super::DEVICES;

/// Why there is no block of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlots {
    /// All slots are in use, or there are none.
    Full,
    /// What is free lies scattered, or no block is as large: there may be smaller ones.
    Scattered,
}

impl core::fmt::Display for NoSlots {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            NoSlots::Full => "all swap slots are in use",
            NoSlots::Scattered => "free swap slots lie in smaller blocks",
        })
    }
}

impl core::error::Error for NoSlots {}

/// Why a device is not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// There are [`DEVICES`] already.
    TooMany,
    /// There is no memory for what is kept of its slots.
    OutOfMemory,
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AttachError::TooMany => write!(f, "there are {DEVICES} swap devices already"),
            AttachError::OutOfMemory => write!(f, "no memory for what is kept of a swap device's slots"),
        }
    }
}

impl core::error::Error for AttachError {}

/// Why a device stays attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachError {
    /// There is no such device.
    Unknown(u8),
    /// It has not been closed.
    Open,
    /// So many of its slots are in use.
    InUse(u32),
}

impl core::fmt::Display for DetachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DetachError::Unknown(id) => write!(f, "there is no swap device {id}"),
            DetachError::Open => write!(f, "the swap device is not closed"),
            DetachError::InUse(slots) => write!(f, "{slots} slots of the swap device are in use"),
        }
    }
}

impl core::error::Error for DetachError {}
