//! A spin lock with tickets: the bare word that lives in a table's descriptor, and the usual
//! wrapper.
//!
//! **First come, first served.** A CPU that wants the lock draws a ticket, and has the lock when
//! its ticket is served; the holder serves the next one as it leaves. So a CPU waits for those that
//! drew before it and for no others, whatever the moments at which it looks (INV-18). An
//! uncontended lock costs one atomic read-modify-write, as one that is taken by luck does.
//!
//! To draw and to wait are two calls, because a walk may do the first and not the second
//! ([`Walkers`](super::Walkers)): a walker draws a ticket of the lock of a table that it has come
//! to, leaves its walk, and waits then. The ticket keeps the table: what frees it calls
//! [`RawSpin::drain`] first.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::atomic::{AtomicU16, Ordering};
use crate::platform::Cpus;

/// A lock without what it protects. Zero is unlocked, so a zeroed descriptor is one.
///
/// Tickets wrap around. Preemption is disabled from the draw on, so there are never more out than
/// there are CPUs, [`MAX_CPUS`](crate::platform::MAX_CPUS).
#[derive(Debug, Default)]
#[repr(C)]
pub struct RawSpin {
    /// The number of the next ticket.
    next: AtomicU16,
    /// The number of the ticket that is served: its holder's is the lock. If it is `next`, none is
    /// out.
    serving: AtomicU16,
}

/// A place in the queue of a lock. Exactly one [`RawSpin::unlock`] follows each, after
/// [`RawSpin::wait`].
#[must_use = "all that draw later wait until it was served"]
#[derive(Debug)]
pub struct Ticket(u16);

impl RawSpin {
    /// Unlocked.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        RawSpin { next: AtomicU16::new(0), serving: AtomicU16::new(0) }
    }

    /// Unlocked.
    #[cfg(loom)]
    pub fn new() -> Self {
        RawSpin { next: AtomicU16::new(0), serving: AtomicU16::new(0) }
    }

    /// Takes the lock, with preemption disabled until [`RawSpin::unlock`].
    #[inline]
    pub fn lock<C: Cpus>(&self, cpus: &C) {
        let ticket = self.draw(cpus);
        self.wait(cpus, ticket);
    }

    /// Gets in line, with preemption disabled until [`RawSpin::unlock`]. Waits for nothing.
    #[inline]
    pub fn draw<C: Cpus>(&self, cpus: &C) -> Ticket {
        cpus.preempt_disable();
        Ticket(self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Waits until a ticket of this lock is served: then the caller has the lock.
    #[inline]
    pub fn wait<C: Cpus>(&self, cpus: &C, ticket: Ticket) {
        while self.serving.load(Ordering::Acquire) != ticket.0 {
            cpus.relax();
        }
    }

    /// Gives the lock back, to whatever drew the next ticket. Only its holder may: a lock given
    /// back by another protects nothing, but breaks no memory by itself.
    #[inline]
    pub fn unlock<C: Cpus>(&self, cpus: &C) {
        debug_assert!(self.is_locked(), "unlock of a lock that nobody holds");
        // Only the holder writes it.
        let mine = self.serving.load(Ordering::Relaxed);
        self.serving.store(mine.wrapping_add(1), Ordering::Release);
        cpus.preempt_enable();
    }

    /// Waits until all tickets that were drawn have been served, and their holders have given the
    /// lock back. The caller sees to it that none is drawn any more, and has none itself.
    #[inline]
    pub fn drain<C: Cpus>(&self, cpus: &C) {
        while self.serving.load(Ordering::Acquire) != self.next.load(Ordering::Relaxed) {
            cpus.relax();
        }
    }

    /// Returns whether the lock is held, for assertions.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.serving.load(Ordering::Relaxed) != self.next.load(Ordering::Relaxed)
    }
}

/// A value behind a [`RawSpin`].
#[derive(Debug, Default)]
pub struct SpinLock<T> {
    raw: RawSpin,
    value: UnsafeCell<T>,
}

// SAFETY: the value is reached only through a guard, one guard exists at a time, and taking the lock acquires what the
// last holder released; so it moves between CPUs like a sent `T`.
unsafe impl<T: Send> Sync for SpinLock<T> {}

impl<T> SpinLock<T> {
    /// Around `value`, unlocked.
    #[cfg(not(loom))]
    pub const fn new(value: T) -> Self {
        SpinLock { raw: RawSpin::new(), value: UnsafeCell::new(value) }
    }

    /// Around `value`, unlocked.
    #[cfg(loom)]
    pub fn new(value: T) -> Self {
        SpinLock { raw: RawSpin::new(), value: UnsafeCell::new(value) }
    }

    /// For data that no interrupt handler touches.
    #[inline]
    pub fn lock<'a, C: Cpus>(&'a self, cpus: &'a C) -> SpinGuard<'a, T, C> {
        self.raw.lock(cpus);
        SpinGuard { lock: self, cpus, irq: None }
    }

    /// For data that an interrupt handler may touch: interrupts stay masked until the guard is dropped.
    #[inline]
    pub fn lock_irq<'a, C: Cpus>(&'a self, cpus: &'a C) -> SpinGuard<'a, T, C> {
        let irq = cpus.irq_disable();
        self.raw.lock(cpus);
        SpinGuard { lock: self, cpus, irq: Some(irq) }
    }

    /// The value, when nobody else can have the lock.
    pub fn get_mut(&mut self) -> &mut T {
        self.value.get_mut()
    }
}

/// Access to a [`SpinLock`]'s value; unlocks when dropped.
pub struct SpinGuard<'a, T, C: Cpus> {
    lock: &'a SpinLock<T>,
    cpus: &'a C,
    irq: Option<bool>,
}

impl<T, C: Cpus> Deref for SpinGuard<'_, T, C> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the guard exists, so its owner holds the lock, and no other guard does.
        unsafe { &*self.lock.value.get() }
    }
}

impl<T, C: Cpus> DerefMut for SpinGuard<'_, T, C> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`, and `&mut self` is the only borrow of the only guard.
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
