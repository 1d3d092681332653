//! Lockless walkers, and how to outwait them.
//!
//! A walker steps down from the root through tables that it has not locked, so a table may be unhooked under its feet. It
//! notices when it has locked the table it arrived at (the table says that it is dead) — if the frame is still a table.
//! Hence the rule (INV-1): a frame that was a table goes back to the allocator only after every walker that was under way
//! when it was unhooked has left. (And after every walker's turn at the table's lock that drew a
//! ticket before it left: [`RawSpin::drain`](super::RawSpin::drain).)
//!
//! A walk is a handful of loads with preemption disabled, so outwaiting one is cheap, and needs no deferred work: each CPU
//! has a slot whose low bit says "walking" and whose rest counts walks. Whoever waits looks at each slot once, and again
//! only while the same walk goes on there.

use super::after_seqcst_rmw;
use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// One CPU's slot, alone on its cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Slot(AtomicU32);

/// Where the lockless walkers of a machine are counted. Zeroed memory is a valid array of slots.
#[derive(Debug)]
pub struct Walkers<'m> {
    slots: &'m [Slot],
}

impl<'m> Walkers<'m> {
    /// Bytes of zeroed memory, aligned to a frame, that `cpus` CPUs need.
    pub const fn bytes(cpus: usize) -> usize {
        cpus * size_of::<Slot>()
    }

    /// Over memory that the caller gives for good.
    ///
    /// # Safety
    /// `at` must be [`Walkers::bytes`]`(cpus)` zero bytes, aligned to 64, for nobody else for `'m`.
    #[cfg(not(loom))]
    pub unsafe fn new(at: *mut u8, cpus: usize) -> Self {
        // SAFETY: the caller vouches for the memory; a zeroed `Slot` is a valid one.
        Walkers { slots: unsafe { core::slice::from_raw_parts(at.cast::<Slot>(), cpus) } }
    }

    /// On the heap, for models.
    #[cfg(loom)]
    pub fn leaked(cpus: usize) -> Walkers<'static> {
        extern crate std;
        let slots: std::vec::Vec<Slot> = (0..cpus).map(|_| Slot::default()).collect();
        Walkers { slots: std::boxed::Box::leak(slots.into_boxed_slice()) }
    }

    /// Begin a walk. Must be short: no lock is waited for, nothing sleeps, until the guard is
    /// dropped. (A ticket may be drawn.)
    ///
    /// Walks of one CPU don't nest; preemption stays disabled meanwhile, so no other task of this CPU can begin one.
    #[inline]
    pub fn enter<'a, C: Cpus>(&'a self, cpus: &'a C) -> WalkGuard<'a, C> {
        cpus.preempt_disable();
        let slot = &self.slots[cpus.current()].0;
        let was = slot.fetch_add(1, Ordering::SeqCst);
        debug_assert!(was & 1 == 0, "a walk inside a walk");
        after_seqcst_rmw();
        WalkGuard { slot, cpus }
    }

    /// Wait until every walk that is under way has ended. What was unhooked before the call can't be reached by any walk
    /// afterwards. The caller must not be in a walk.
    pub fn outwait<C: Cpus>(&self, cpus: &C) {
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

/// A walk under way.
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
