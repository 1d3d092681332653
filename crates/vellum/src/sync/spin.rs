//! A test-and-test-and-set spin lock: the bare word that lives in a table's descriptor, and the usual wrapper.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// A lock without what it protects. Zero is unlocked, so a zeroed descriptor is one.
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct RawSpin(AtomicU32);

impl RawSpin {
    /// Unlocked.
    #[cfg(not(loom))]
    pub const fn new() -> Self {
        RawSpin(AtomicU32::new(0))
    }

    /// Unlocked.
    #[cfg(loom)]
    pub fn new() -> Self {
        RawSpin(AtomicU32::new(0))
    }

    /// Take it, with preemption disabled until [`RawSpin::unlock`].
    #[inline]
    pub fn lock<C: Cpus>(&self, cpus: &C) {
        cpus.preempt_disable();
        while !self.try_take() {
            self.wait(cpus);
        }
    }

    /// Take it if it is free.
    #[inline]
    pub fn try_lock<C: Cpus>(&self, cpus: &C) -> bool {
        cpus.preempt_disable();
        let taken = self.try_take();
        if !taken {
            cpus.preempt_enable();
        }
        taken
    }

    #[inline]
    fn try_take(&self) -> bool {
        // An exchange that fails writes nothing. (A swap would do too, but `loom` lets one read its own 1 for ever.)
        self.0.compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    #[cold]
    fn wait<C: Cpus>(&self, cpus: &C) {
        while self.0.load(Ordering::Relaxed) != 0 {
            cpus.relax();
        }
    }

    /// Give it back. Only who holds it may: a lock given back by another protects nothing, but breaks no memory by itself.
    #[inline]
    pub fn unlock<C: Cpus>(&self, cpus: &C) {
        debug_assert!(self.is_locked(), "unlock of a lock that nobody holds");
        self.0.store(0, Ordering::Release);
        cpus.preempt_enable();
    }

    /// Whether somebody holds it, for assertions.
    #[inline]
    pub fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0
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
