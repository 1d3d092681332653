//! Swap: where memory goes that nobody has used for a while.
//!
//! | file | story |
//! |---|---|
//! | `cluster`, `files`, `slots` | the slots of a device: free blocks, references |
//! | `cache` | which frame holds what a slot holds |
//! | `device` | what a device does: write, read, forget, by the run |
//! | `checksums` | whether what comes back is what went out |
//! | `attached` | a device in use, and what is kept of its slots |
//! | `survey` | what an audit looks at |
//! | `swaps`, `errors` | the devices of a machine, by priority |
//! | `compressed` | the device that is memory: pages compressed, or known by the word that fills them |
//! | `paged` | long arrays in single frames |
//!
//! The module knows nothing of page tables: whoever takes memory out of them asks for slots, has the frames written, and
//! leaves in the entries what it got.

mod attached;
mod cache;
mod checksums;
mod cluster;
pub mod compressed;
mod device;
mod errors;
mod files;
mod paged;
mod slots;
mod survey;
mod swaps;
#[cfg(test)]
mod tests;

pub(crate) use cache::NotCached;
pub use compressed::Compressed;
pub use device::{ReadError, SwapDevice, Unreadable, WriteError};
pub use errors::{AttachError, DetachError, NoSlots};
pub use slots::SlotAllocator;
pub use swaps::{DEVICES, SwapRun, Swaps, Usage};

/// Slots in a row, of 4 KiB each, of one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// The first one.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// A slot has 2^31 references. No program gets there: each of them is another address space's,
/// which takes two page-table pages at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Saturated {
    /// The slot.
    pub slot: u32,
}

impl core::fmt::Display for Saturated {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "swap slot {} has 2^31 references", self.slot)
    }
}

impl core::error::Error for Saturated {}
