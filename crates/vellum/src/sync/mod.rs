//! Locks, built on what [`Cpus`](crate::platform::Cpus) supplies.
//!
//! | lock | protects | waiting |
//! |---|---|---|
//! | [`RawSpin`], [`SpinLock`] | short critical sections | CPUs spin, first come, first served |
//! | [`PerCpuLock`] | data with many readers and rare writers | tasks wait in order, without spinning |
//! | `Gate` | an operation that was retried too often | each operation that could disturb it, once |
//! | [`Walkers`] | page tables that lockless walkers may reach | the CPU that frees a page table; never a walker |
//!
//! The `_irq` forms of [`SpinLock`] are for data that an interrupt handler accesses too. Readers of
//! a [`PerCpuLock`] write only their own CPU's cache line.
//!
//! docs/invariants.md defines the order in which locks nest; the simulated machine checks it in
//! debug builds.
//!
//! Under `--cfg loom` the atomics come from `loom`, and the models in `tests/model_sync.rs` explore
//! all locks of this module except `Gate`.

#[cfg(not(loom))]
mod gate;
mod percpu;
mod spin;
mod walkers;

#[cfg(not(loom))]
pub(crate) use gate::{Gate, Retries};
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

/// Orders the preceding read-modify-write before later loads: one side of a Dekker handshake, in
/// which each of two CPUs writes and then reads what the other one writes. At least one of the two
/// reads the other's new value. The caller's preceding atomic operation is a `SeqCst`
/// read-modify-write.
///
/// On x86-64 such a read-modify-write is a full barrier, so this function is empty. On AArch64 it
/// is not: a later load may be ordered before its store half. And `loom` implements `SeqCst` for
/// fences only.
#[inline(always)]
pub(crate) fn after_seqcst_rmw() {
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    atomic::fence(atomic::Ordering::SeqCst);
}
