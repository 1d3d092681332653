//! Swap devices, swap slots and the swap cache.
//!
//! | file | contents |
//! |---|---|
//! | `cluster`, `cluster_lists`, `slots` | a device's slots: free blocks and reference counts |
//! | `cache` | the swap cache: the page in memory that has the contents of a slot |
//! | `device` | ranges of slots, and the interface of a device: write, read and forget them |
//! | `checksums` | detection of pages that come back damaged |
//! | `swap_info` | an attached device with its slots and checksums (Linux: `swap_info_struct`) |
//! | `survey` | enumeration of slots for the audit |
//! | `swaps`, `errors` | the devices of a machine, by priority |
//! | `compressed` | a device in memory: compressed and same-filled pages (Linux: zram) |
//! | `paged` | arrays of any length that are stored in single frames |
//!
//! This module does not access page tables. Its caller unmaps a folio, allocates slots, has the
//! frames written, and stores the slots in swap PTEs.

mod cache;
mod checksums;
mod cluster;
mod cluster_lists;
pub mod compressed;
mod device;
mod errors;
mod paged;
mod slots;
mod survey;
mod swap_info;
mod swaps;
#[cfg(test)]
mod tests;

pub(crate) use cache::{CachedPages, NotCached};
pub use compressed::Compressed;
pub use device::{ReadError, Slots, SwapDevice, Unreadable, WriteError};
pub use errors::{AttachError, DetachError, NoSlots, Saturated};
pub use slots::SlotAllocator;
pub use swaps::{MAX_SWAP_DEVICES, SwapRun, Swaps, Usage};
