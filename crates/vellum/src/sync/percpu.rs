//! A read-mostly lock: readers on different CPUs write no common cache line, and everything that
//! has to wait queues in order (Linux: `percpu_rw_semaphore`).
//!
//! Every CPU has a slot, a counter of the readers that entered there. A reader increments its CPU's
//! slot, then checks whether a ticket of the queue is out (drawn, and its turn is not over); a
//! writer draws a ticket, then waits until every slot is zero. Each side writes before it checks,
//! so at least one of them sees the other. The guard stores the slot: a reader that migrates to
//! another CPU, or sleeps, still decrements the slot in which it was counted.
//!
//! **First come, first served (INV-18).** A reader that finds a ticket out decrements its slot
//! again and draws a ticket as well. Tickets are served in order, one at a time: a writer's turn
//! lasts until it leaves, a reader's turn only until it is counted in its slot, so that readers
//! that are neighbours in the queue are inside together. So nothing overtakes a waiter, and a
//! reader or a writer waits only for readers and writers that came before it.
//!
//! A task inside the lock may be preempted, so waiters do not spin: all waiting is by
//! [`Cpus::wait`].

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::after_seqcst_rmw;
use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// A per-CPU reader-writer lock around `T`; see the module's text. The caller supplies the slots,
/// so that a slot can share a cache line with other data of its CPU. Every call for one lock must
/// pass the same slots.
#[derive(Debug, Default)]
pub struct PerCpuLock<T> {
    /// The number of the next ticket. The number wraps around, which is safe: a thread has one
    /// ticket at most, so far fewer than 2^32 are out.
    next: AtomicU32,
    /// The number of the ticket that is served. If it equals `next`, the queue is empty: no task
    /// waits or holds the lock as writer.
    serving: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: readers share `&T` (so `T: Sync`); a writer has the only `&mut T` and may move the value
// out (so `T: Send`). The protocol in the module's text keeps readers and writers apart, with
// acquire and release at each change of owner.
unsafe impl<T: Send + Sync> Sync for PerCpuLock<T> {}

impl<T> PerCpuLock<T> {
    /// Returns an unlocked lock around `value`.
    pub fn new(value: T) -> Self {
        PerCpuLock { next: AtomicU32::new(0), serving: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Locks for reading, and counts the reader in `slot`. A writer of this lock must be given a
    /// set of slots that includes `slot`. If no CPU waits, this is one read-modify-write on the
    /// slot and two loads. The reader may sleep while it has the lock.
    #[inline]
    pub fn read<'a, C: Cpus>(&'a self, cpus: &C, slot: &'a AtomicU32) -> ReadGuard<'a, T> {
        slot.fetch_add(1, Ordering::SeqCst);
        after_seqcst_rmw();
        // `next` is loaded before `serving`. A ticket drawn between the two loads may be missed:
        // then its holder sees this CPU's slot. If the turn of such a ticket also ends between the
        // loads, `serving` is beyond `next`: then this reader queues needlessly, but safely.
        let next = self.next.load(Ordering::SeqCst);
        if self.serving.load(Ordering::Acquire) != next {
            self.queue(cpus, slot);
        }
        ReadGuard { value: self.value.get(), slot }
    }

    /// Queues a reader that found a writer or another reader in the queue: decrements the reader's
    /// slot, draws a ticket for the reader, waits until it is served, and increments the slot
    /// again.
    #[cold]
    fn queue<C: Cpus>(&self, cpus: &C, slot: &AtomicU32) {
        slot.fetch_sub(1, Ordering::Release);
        let turn = self.wait_for_turn(cpus);
        // Relaxed is enough: the next writer loads the slots only after it has acquired `serving`,
        // which is stored with release below.
        slot.fetch_add(1, Ordering::Relaxed);
        self.serving.store(turn.wrapping_add(1), Ordering::Release);
    }

    /// Draws a ticket and waits until it is served. Returns its number.
    #[inline]
    fn wait_for_turn<C: Cpus>(&self, cpus: &C) -> u32 {
        let turn = self.next.fetch_add(1, Ordering::SeqCst);
        while self.serving.load(Ordering::Acquire) != turn {
            cpus.wait();
        }
        turn
    }

    /// Enters as the only writer: waits for its turn, then until every reader in `slots` has left.
    /// The caller must not be a reader itself. Readers that arrive after this writer has drawn its
    /// ticket queue behind it.
    pub fn write<'a, C: Cpus>(&'a self, cpus: &C, slots: impl Iterator<Item = &'a AtomicU32>) -> WriteGuard<'a, T> {
        let turn = self.wait_for_turn(cpus);
        after_seqcst_rmw();
        for slot in slots {
            while slot.load(Ordering::SeqCst) != 0 {
                cpus.wait();
            }
        }
        // The last reader decremented its slot with release order: everything that it did happens
        // before this writer's section.
        super::atomic::fence(Ordering::Acquire);
        WriteGuard { lock: self, turn }
    }

    /// Returns the value. `&mut self` proves that no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// A guard that gives shared access to the value of a [`PerCpuLock`]. Dropping it releases the
/// lock.
pub struct ReadGuard<'a, T> {
    /// The value of the lock, for `deref`.
    value: *const T,
    /// The slot in which this reader is counted.
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

/// A guard that gives exclusive access to the value of a [`PerCpuLock`]. Dropping it serves the
/// next ticket.
pub struct WriteGuard<'a, T> {
    lock: &'a PerCpuLock<T>,
    /// The writer's ticket.
    turn: u32,
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: one ticket is served at a time, new readers and writers queue behind this
        // writer's, and this writer entered only when every slot was zero.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T> DerefMut for WriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no reader and no other writer is inside, as `deref` explains, and `&mut self` is
        // the only borrow of the only guard.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T> Drop for WriteGuard<'_, T> {
    fn drop(&mut self) {
        self.lock.serving.store(self.turn.wrapping_add(1), Ordering::Release);
    }
}
