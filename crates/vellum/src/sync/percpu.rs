//! A lock for one structure with many readers on many CPUs, none of which writes a line that
//! another writes, and with a queue for everything that has to wait.
//!
//! Every CPU has a slot, a counter of the readers that entered there. A reader adds one to its
//! CPU's slot, then looks whether a ticket of the queue is out; a writer draws a ticket, then waits
//! until every slot is zero. Each side writes before it looks, so at least one of them sees the
//! other. The guard remembers the slot: a reader that moves to another CPU, or sleeps, still leaves
//! by the slot in which it is counted.
//!
//! **First come, first served.** A reader that finds a ticket out counts itself out again, and
//! draws one as well. Tickets are served in order, one at a time: a writer's turn lasts until it
//! leaves; a reader's turn only until it is counted in its slot, so that readers that stand next to
//! each other in the queue are inside together. So nothing overtakes what waits, and a reader or a
//! writer waits for those that came before it and for no others.
//!
//! What is inside may be preempted, so the queue does not spin: all waiting is by [`Cpus::wait`].

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::after_seqcst_rmw;
use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// The lock around `T`; see the module's text. The slots are the caller's, so that each can share a line with whatever
/// else is that CPU's: every call must pass the same slots.
#[derive(Debug, Default)]
pub struct PerCpuLock<T> {
    /// The number of the next ticket. Tickets wrap around: no more than there are threads are out.
    next: AtomicU32,
    /// The number of the ticket that is served; if it is `next`, none is out.
    serving: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: readers share `&T` (so `T: Sync`); a writer is alone with `&mut T` and may move it out (so `T: Send`); the
// protocol above keeps the two apart, with acquire and release at each change of hands.
unsafe impl<T: Send + Sync> Sync for PerCpuLock<T> {}

impl<T> PerCpuLock<T> {
    /// Around `value`, unlocked.
    pub fn new(value: T) -> Self {
        PerCpuLock { next: AtomicU32::new(0), serving: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Enters as a reader through `slot`, which must be one of the slots that writers pass.
    #[inline]
    pub fn read<'a, C: Cpus>(&'a self, cpus: &C, slot: &'a AtomicU32) -> ReadGuard<'a, T> {
        slot.fetch_add(1, Ordering::SeqCst);
        after_seqcst_rmw();
        // In this order: a ticket that was drawn in between may be missed, and its holder then sees
        // the slot; one that was served in between looks as if it were out, and this reader queues
        // for nothing.
        let next = self.next.load(Ordering::SeqCst);
        if self.serving.load(Ordering::Acquire) != next {
            self.queue(cpus, slot);
        }
        ReadGuard { value: self.value.get(), slot }
    }

    /// Counts a reader out of its slot that met a ticket, and in again when its own is served.
    #[cold]
    fn queue<C: Cpus>(&self, cpus: &C, slot: &AtomicU32) {
        slot.fetch_sub(1, Ordering::Release);
        let turn = self.wait_for_turn(cpus);
        // The writer whose turn comes next looks at the slots after it has seen its turn come.
        slot.fetch_add(1, Ordering::Relaxed);
        self.serving.store(turn.wrapping_add(1), Ordering::Release);
    }

    /// Draws a ticket, and waits until it is served; returns its number.
    #[inline]
    fn wait_for_turn<C: Cpus>(&self, cpus: &C) -> u32 {
        let turn = self.next.fetch_add(1, Ordering::SeqCst);
        while self.serving.load(Ordering::Acquire) != turn {
            cpus.wait();
        }
        turn
    }

    /// Enters as the only writer, when its turn has come and every reader of `slots` has left. The
    /// caller must not be one of them.
    pub fn write<'a, C: Cpus>(&'a self, cpus: &C, slots: impl Iterator<Item = &'a AtomicU32>) -> WriteGuard<'a, T> {
        let turn = self.wait_for_turn(cpus);
        after_seqcst_rmw();
        for slot in slots {
            while slot.load(Ordering::SeqCst) != 0 {
                cpus.wait();
            }
        }
        // The last reader left with a release; what it did happens before what the writer does.
        super::atomic::fence(Ordering::Acquire);
        WriteGuard { lock: self, turn }
    }

    /// The value, when nobody else can have the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// A reader's access.
pub struct ReadGuard<'a, T> {
    value: *const T,
    slot: &'a AtomicU32,
}

impl<T> Deref for ReadGuard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the slot counts this reader: no writer has entered since, and none will until the
        // guard is dropped.
        unsafe { &*self.value }
    }
}

impl<T> Drop for ReadGuard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.slot.fetch_sub(1, Ordering::Release);
    }
}

/// The writer's access.
pub struct WriteGuard<'a, T> {
    lock: &'a PerCpuLock<T>,
    turn: u32,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: one ticket is served at a time, newcomers queue behind it, and this writer
        // entered only when every slot was empty.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` is the only borrow of the only guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.serving.store(self.turn.wrapping_add(1), Ordering::Release);
    }
}
