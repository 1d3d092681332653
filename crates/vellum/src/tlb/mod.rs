//! What must be flushed before it is freed.
//!
//! # Guarantee
//! Frames and tables taken out of a space go back to the allocator only after every CPU that could hold a translation of
//! them has dropped it, and tables also only after every lockless walker that could stand in one has left (INV-1).
//!
//! # Mechanism
//! What leaves a page table is an owned value, [`Removed`] or [`DeadTable`], that only a [`Gather`] takes. The gather frees
//! by a function that wants a [`Flushed`], and that is made in one place: at the end of [`Shootdown::invalidate`].
//!
//! | file | story |
//! |---|---|
//! | `shootdown` | which CPUs use a space; invalidation |
//! | `gather` | collect, flush, free |

mod gather;
mod shootdown;

pub(crate) use gather::{DeadTable, Gather, Removed, free_unmapped};
pub(crate) use shootdown::{Flushed, Shootdown};
