//! Locks, built on what the platform supplies.
//!
//! | lock | for | who waits |
//! |---|---|---|
//! | [`RawSpin`], [`SpinLock`] | short sections on shared structures; the `_irq` forms where an interrupt handler may enter | in the order in which they come |
//! | [`PerCpuLock`] | a structure with many readers, each writing only its own CPU's line, and rare writers | readers for a writer, a writer for all |
//! | `Gate` | operations that have begun again too often | what might disturb them, once |
//! | [`Walkers`] | lockless walkers of page tables, and whoever must outwait them before freeing a table | never the walkers |
//!
//! The order in which locks nest is written down in ARCHITECTURE.md and checked in debug builds by the simulated machine.
//!
//! Under `--cfg loom` the atomics come from `loom`, and the models in `tests/model_sync.rs` explore these three files.

#[cfg(not(loom))]
mod gate;
mod percpu;
mod spin;
mod walkers;

#[cfg(not(loom))]
pub(crate) use gate::{Gate, Patience};
pub use percpu::{PerCpuLock, ReadGuard, WriteGuard};
pub use spin::{RawSpin, SpinGuard, SpinLock, Ticket};
pub use walkers::{WalkGuard, Walkers};

#[cfg(not(loom))]
pub(crate) mod atomic {
    pub use core::sync::atomic::*;
}

#[cfg(loom)]
pub(crate) mod atomic {
    pub use core::sync::atomic::Ordering;
    pub use loom::sync::atomic::*;
}

/// The store-then-look half of a Dekker handshake: what was written before is visible to whoever writes before looking
/// back here. Only ever called right after a read-modify-write with `SeqCst`.
///
/// On x86-64 that instruction is a full barrier already. On AArch64 it is not (a later load may overtake its store half),
/// and `loom` knows `SeqCst` for fences only.
#[inline(always)]
pub(crate) fn after_seqcst_rmw() {
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    atomic::fence(atomic::Ordering::SeqCst);
}
