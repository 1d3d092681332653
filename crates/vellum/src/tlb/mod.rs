//! TLB invalidation, and the freeing of memory that must wait for it.
//!
//! # Guarantee
//! Frames and page tables that are taken out of a space go back to the allocator only after every
//! CPU that could hold a translation of them has dropped it; page tables go back only after every
//! lockless walker that could be in one has left, too (INV-1).
//!
//! # Mechanism
//! Frames and page tables that leave a page table are owned values, [`Removed`] and [`DeadTable`],
//! which only a [`Gather`] takes (Linux: `mmu_gather`). The gather frees by functions that need a
//! [`Flushed`], and a [`Flushed`] is made in one place: at the end of [`Shootdown::invalidate`].
//!
//! | file | contents |
//! |---|---|
//! | `shootdown` | the CPUs that use a space, and invalidation on them |
//! | `gather` | collects unmapped memory, and flushes |
//! | `free` | frees what a gather has collected |

mod free;
mod gather;
mod shootdown;

pub(crate) use free::free_unmapped;
pub(crate) use gather::{DeadTable, Gather, Removed};
pub(crate) use shootdown::{Flushed, Shootdown};
