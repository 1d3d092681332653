//! Ticket spin locks: the bare lock word of a page table's descriptor, and a lock that contains its
//! data.
//!
//! **First come, first served.** A CPU draws a ticket and owns the lock when that ticket is served;
//! the owner serves the next ticket when it unlocks. So a CPU waits only for CPUs that drew a
//! ticket before it, whatever the timing (INV-18). An uncontended lock costs one atomic
//! read-modify-write, like a test-and-set lock.
//!
//! Drawing and waiting are two calls, because a lockless page-table walk may draw but must not wait
//! ([`Walkers`](super::Walkers)). A walker draws a ticket of the lock of the page table that it has
//! reached, ends its walk, and only then waits. The ticket keeps the page table allocated: the CPU
//! that frees a page table first calls [`RawSpin::drain`] (INV-1).

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::atomic::{AtomicU16, Ordering};
use crate::platform::Cpus;

/// A ticket lock without data. A lock of zeros is unlocked, so a zeroed descriptor contains an
/// unlocked lock.
///
/// Tickets wrap around. Preemption is disabled from the drawing of a ticket to the unlock, so each
/// CPU has at most one ticket of a lock at a time, far fewer than 2^16 together
/// ([`MAX_CPUS`](crate::platform::MAX_CPUS)).
#[derive(Debug, Default)]
#[repr(C)]
pub struct RawSpin {
    /// The number of the next ticket.
    next: AtomicU16,
    /// The number of the ticket that is served: its holder owns the lock. If it equals `next`, the
    /// lock is free.
    serving: AtomicU16,
}

/// A place in the queue of a lock. [`RawSpin::wait`] consumes it; exactly one [`RawSpin::unlock`]
/// must follow.
#[must_use = "CPUs that draw later wait until this ticket is served and the lock released"]
#[derive(Debug)]
pub struct Ticket(u16);

impl RawSpin {
    /// Returns an unlocked lock.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        RawSpin { next: AtomicU16::new(0), serving: AtomicU16::new(0) }
    }

    /// Returns an unlocked lock.
    #[cfg(loom)]
    pub fn new() -> Self {
        RawSpin { next: AtomicU16::new(0), serving: AtomicU16::new(0) }
    }

    /// Takes the lock. Disables preemption until [`RawSpin::unlock`].
    #[inline]
    pub fn lock<C: Cpus>(&self, cpus: &C) {
        let ticket = self.draw(cpus);
        self.wait(cpus, ticket);
    }

    /// Draws a ticket without waiting. Disables preemption until [`RawSpin::unlock`].
    #[inline]
    pub fn draw<C: Cpus>(&self, cpus: &C) -> Ticket {
        cpus.preempt_disable();
        Ticket(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Spins until `ticket`, which is of this lock, is served. The caller owns the lock then.
    #[inline]
    pub fn wait<C: Cpus>(&self, cpus: &C, ticket: Ticket) {
        while self.serving.load(Ordering::Acquire) != ticket.0 {
            cpus.relax();
        }
    }

    /// Releases the lock, and serves the next ticket. Only the lock's owner may call this. A call
    /// by another CPU breaks mutual exclusion, but does not by itself break memory safety, so this
    /// function is not `unsafe`.
    #[inline]
    pub fn unlock<C: Cpus>(&self, cpus: &C) {
        debug_assert!(self.is_locked(), "unlock of a spin lock that is not locked");
        // Only the owner writes `serving`, so the load needs no ordering.
        let mine = self.serving.load(Ordering::Relaxed);
        self.serving.store(mine.wrapping_add(1), Ordering::Release);
        cpus.preempt_enable();
    }

    /// Spins until every ticket drawn so far has been served and its holder has released the lock.
    /// The caller guarantees that no new ticket is drawn, and holds none itself.
    #[inline]
    pub fn drain<C: Cpus>(&self, cpus: &C) {
        while self.serving.load(Ordering::Acquire) != self.next.load(Ordering::Relaxed) {
            cpus.relax();
        }
    }

    /// Returns true if the lock is owned by any CPU. For assertions.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.serving.load(Ordering::Relaxed) != self.next.load(Ordering::Relaxed)
    }
}

/// A value protected by a [`RawSpin`].
#[derive(Debug, Default)]
pub struct SpinLock<T> {
    raw: RawSpin,
    value: UnsafeCell<T>,
}

// SAFETY: the value is accessed only through a guard, and one guard exists at a time. Taking the
// lock acquires what the last owner released, so the value moves between CPUs like a sent `T`.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Returns an unlocked lock around `value`.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        SpinLock { raw: RawSpin::new(), value: UnsafeCell::new(value) }
    }

    /// Returns an unlocked lock around `value`.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        SpinLock { raw: RawSpin::new(), value: UnsafeCell::new(value) }
    }

    /// Takes the lock, for data that no interrupt handler accesses.
    #[inline]
    pub fn lock<'a, C: Cpus>(&'a self, cpus: &'a C) -> SpinGuard<'a, T, C> {
        self.raw.lock(cpus);
        SpinGuard { lock: self, cpus, irq: None }
    }

    /// Takes the lock with interrupts masked until the guard is dropped, for data that an interrupt
    /// handler accesses too.
    #[inline]
    pub fn lock_irq<'a, C: Cpus>(&'a self, cpus: &'a C) -> SpinGuard<'a, T, C> {
        let irq = cpus.irq_disable();
        self.raw.lock(cpus);
        SpinGuard { lock: self, cpus, irq: Some(irq) }
    }

    /// Returns the value. `&mut self` proves that no guard exists.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// A guard that gives exclusive access to the value of a [`SpinLock`]. Dropping it unlocks.
pub struct SpinGuard<'a, T, C: Cpus> {
    lock: &'a SpinLock<T>,
    cpus: &'a C,
    /// The interrupt state to restore, if `lock_irq` took the lock.
    irq: Option<bool>,
}

impl<T, C: Cpus> Deref for SpinGuard<'_, T, C> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: this guard owns the lock, and no other guard exists.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, C: Cpus> DerefMut for SpinGuard<'_, T, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard owns the lock, no other guard exists, and `&mut self` is its only
        // borrow.
        unsafe { &mut *self.lock.value.get() }
    }
}

impl<T, C: Cpus> Drop for SpinGuard<'_, T, C> {
    #[inline]
    fn drop(&mut self) {
        self.lock.raw.unlock(self.cpus);
        if let Some(was_enabled) = self.irq {
            self.cpus.irq_restore(was_enabled);
        }
    }
}
