//! A lock for one structure with many readers on many CPUs, none of which writes a line that another writes.
//!
//! Every CPU has a slot, a counter of the readers that came in there. A reader adds one to its CPU's slot, then looks
//! whether a writer is about; a writer announces itself, then waits until every slot is zero. Each side writes before it
//! looks, so at least one of them sees the other. The slot is remembered in the guard: a reader that moves to another
//! CPU, or sleeps, still leaves through the door by which it came.
//!
//! Writers go first: a reader that meets a writer steps back and waits, so that a stream of readers can't starve it.
//!
//! Whoever is inside may be preempted, so nobody spins for it: all waiting is by [`Cpus::wait`].

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};

use super::after_seqcst_rmw;
use super::atomic::{AtomicU32, Ordering};
use crate::platform::Cpus;

/// The lock around `T`; see the module's text. The slots are the caller's, so that each can share a line with whatever
/// else is that CPU's: every call must pass the same slots.
#[derive(Debug, Default)]
pub struct PerCpuLock<T> {
    /// 1 while there is a writer, or one on its way in.
    writing: AtomicU32,
    value: UnsafeCell<T>,
}

// SAFETY: readers share `&T` (so `T: Sync`); a writer is alone with `&mut T` and may move it out (so `T: Send`); the
// protocol above keeps the two apart, with acquire and release at each change of hands.
unsafe impl<T: Send + Sync> Sync for PerCpuLock<T> {}

impl<T> PerCpuLock<T> {
    /// Around `value`, unlocked.
    pub fn new(value: T) -> Self {
        PerCpuLock { writing: AtomicU32::new(0), value: UnsafeCell::new(value) }
    }

    /// Enter as a reader through `slot`, which must be one of the slots that writers pass.
    #[inline]
    pub fn read<'a, C: Cpus>(&'a self, cpus: &C, slot: &'a AtomicU32) -> ReadGuard<'a, T> {
        loop {
            slot.fetch_add(1, Ordering::SeqCst);
            after_seqcst_rmw();
            if self.writing.load(Ordering::SeqCst) == 0 {
                return ReadGuard { value: self.value.get(), slot };
            }
            self.step_back(cpus, slot);
        }
    }

    #[cold]
    fn step_back<C: Cpus>(&self, cpus: &C, slot: &AtomicU32) {
        slot.fetch_sub(1, Ordering::Release);
        while self.writing.load(Ordering::Relaxed) != 0 {
            cpus.wait();
        }
    }

    /// Enter as the only writer, when every reader of `slots` has left. The caller must not be one of them.
    pub fn write<'a, C: Cpus>(&'a self, cpus: &C, slots: impl Iterator<Item = &'a AtomicU32>) -> WriteGuard<'a, T> {
        while self.writing.compare_exchange(0, 1, Ordering::SeqCst, Ordering::Relaxed).is_err() {
            while self.writing.load(Ordering::Relaxed) != 0 {
                cpus.wait();
            }
        }
        after_seqcst_rmw();
        for slot in slots {
            while slot.load(Ordering::SeqCst) != 0 {
                cpus.wait();
            }
        }
        // The last reader left with a release; what it did happens before what the writer does.
        super::atomic::fence(Ordering::Acquire);
        WriteGuard { lock: self }
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
        // SAFETY: the slot counts this reader, so no writer has entered since, and none will until the guard is dropped.
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
}

impl<T> Deref for WriteGuard<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: `writing` admits one writer and turns newcomers away, and it entered only when every slot was empty.
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
        self.lock.writing.store(0, Ordering::Release);
    }
}
