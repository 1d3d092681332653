//! Lockless page-table walkers, and the grace period that waits for them.
//!
//! A walker descends from the root through page tables without locking them, so another CPU may
//! unhook a page table (clear the pointer to it) that the walker is reading. The unhooking CPU
//! marks the page table's descriptor, and the walker checks the mark once it has locked the page
//! table at which it arrived. The check works only while the frame is still a page table. Hence
//! INV-1: a page-table page returns to the allocator only after every walker that was under way at
//! the unhooking has left, and after every ticket of the page table's lock that such a walker drew
//! has been served ([`RawSpin::drain`](super::RawSpin::drain)).
//!
//! A walk is a handful of loads with preemption disabled, so a grace period is short and needs no
//! deferred work (Linux defers with RCU or flushes with an IPI: `tlb_remove_table`). Each CPU has a
//! slot: bit 0 is set during a walk, the other bits count walks. A CPU that waits for the walkers
//! reads each slot once, and again only while the same walk is under way there.

use super::after_seqcst_rmw;
use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// The slot of one CPU, which counts its walks. It is alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(AtomicU32);

/// The per-CPU slots that count a machine's lockless walkers. Zeroed memory is a valid array of
/// slots.
#[derive(Debug)]
pub struct Walkers<'m> {
    slots: &'m [Slot],
}

impl<'m> Walkers<'m> {
    /// Returns the size in bytes of the slots of `cpus` CPUs.
    pub const fn bytes(cpus: usize) -> usize {
        cpus * size_of::<Slot>()
    }

    /// Makes the slots in memory that the caller gives up for `'m`.
    ///
    /// # Safety
    /// `at` must point to [`Walkers::bytes`]`(cpus)` zero bytes, aligned to 64, which nothing else
    /// accesses for `'m`.
    #[cfg(not(loom))]
    pub unsafe fn new(at: *mut u8, cpus: usize) -> Self {
        // SAFETY: the caller guarantees the memory; a zeroed `Slot` is a valid one.
        Walkers { slots: unsafe { core::slice::from_raw_parts(at.cast::<Slot>(), cpus) } }
    }

    /// Makes the slots on the heap, for the loom models.
    #[cfg(loom)]
    pub fn leaked(cpus: usize) -> Walkers<'static> {
        extern crate std;
        let slots: std::vec::Vec<Slot> = (0..cpus).map(|_| Slot::default()).collect();
        Walkers { slots: std::boxed::Box::leak(slots.into_boxed_slice()) }
    }

    /// Begins a walk on this CPU, with preemption disabled until the guard is dropped. The walk
    /// must be short: it waits for no lock and does not sleep, but it may draw a ticket.
    ///
    /// Walks do not nest. No other task of this CPU can begin one, because preemption stays
    /// disabled.
    #[inline]
    pub fn enter<'a, C: Cpus>(&'a self, cpus: &'a C) -> WalkGuard<'a, C> {
        cpus.preempt_disable();
        let slot = &self.slots[cpus.current()].0;
        let was = slot.fetch_add(1, Ordering::SeqCst);
        debug_assert!(was & 1 == 0, "nested lockless walk: a walk is already under way on this CPU");
        after_seqcst_rmw();
        WalkGuard { slot, cpus }
    }

    /// Waits for a grace period: until every walk that was under way at the call has ended. No
    /// later walk reaches a page table that was unhooked before the call. The caller must not be in
    /// a walk.
    pub fn wait_for_walkers<C: Cpus>(&self, cpus: &C) {
        super::atomic::fence(Ordering::SeqCst);
        for slot in self.slots {
            let seen = slot.0.load(Ordering::SeqCst);
            if seen & 1 == 1 {
                while slot.0.load(Ordering::Acquire) == seen {
                    cpus.relax();
                }
            }
        }
        super::atomic::fence(Ordering::Acquire);
    }
}

/// A lockless walk under way; dropping it ends the walk.
pub struct WalkGuard<'a, C: Cpus> {
    slot: &'a AtomicU32,
    cpus: &'a C,
}

impl<C: Cpus> Drop for WalkGuard<'_, C> {
    #[inline]
    fn drop(&mut self) {
        self.slot.fetch_add(1, Ordering::Release);
        self.cpus.preempt_enable();
    }
}
