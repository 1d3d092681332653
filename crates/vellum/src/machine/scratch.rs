//! Room to work in, for work that must not allocate: each CPU has a sheet for the list of frames that an unmap gathers.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::frame::Zeroable;
use crate::platform::Platform;

use super::Machine;

/// Frames in a row: the first, and how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stretch {
    pub(crate) pfn: u32,
    pub(crate) frames: u32,
}

/// Stretches on a sheet: 16 KiB of them with the lock.
const SHEET: usize = 2047;
/// Stretches in the emergency sheet, on the stack.
const SMALL: usize = 31;

/// A CPU's sheet. Zeroed memory is a valid one.
#[repr(C, align(64))]
pub(crate) struct Sheet {
    taken: AtomicBool,
    stretches: UnsafeCell<[Stretch; SHEET]>,
}

// SAFETY: the stretches are reached only by whoever holds `taken`.
unsafe impl Sync for Sheet {}
// SAFETY: an atomic and integers; 64-byte alignment.
unsafe impl Zeroable for Sheet {}

/// The sheet of the CPU where the work began, or, if another task is using that, a small one of its own: more flushes, but
/// never a wait and never an allocation.
#[allow(clippy::large_enum_variant)] // It lives on the stack of one call and is never moved about.
pub(crate) enum Scratch<'m, P: Platform> {
    Large(&'m Sheet, PhantomData<P>),
    Small([Stretch; SMALL]),
}

impl<'m, P: Platform> Scratch<'m, P> {
    pub(crate) fn lease(machine: &'m Machine<'m, P>) -> Self {
        let platform = machine.platform();
        let sheet = &machine.sheets[platform.current()];
        match sheet.taken.compare_exchange(false, true, Acquire, Relaxed) {
            Ok(_) => Scratch::Large(sheet, PhantomData),
            Err(_) => Scratch::Small([Stretch::default(); SMALL]),
        }
    }
}

impl<P: Platform> Deref for Scratch<'_, P> {
    type Target = [Stretch];
    #[inline]
    fn deref(&self) -> &[Stretch] {
        match self {
            // SAFETY: this scratch holds `taken`, so nobody else has a reference.
            Scratch::Large(sheet, _) => unsafe { &*sheet.stretches.get() },
            Scratch::Small(stretches) => stretches,
        }
    }
}

impl<P: Platform> DerefMut for Scratch<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Stretch] {
        match self {
            // SAFETY: as in `deref`; `&mut self` is the only borrow.
            Scratch::Large(sheet, _) => unsafe { &mut *sheet.stretches.get() },
            Scratch::Small(stretches) => stretches,
        }
    }
}

impl<P: Platform> Drop for Scratch<'_, P> {
    fn drop(&mut self) {
        if let Scratch::Large(sheet, _) = self {
            sheet.taken.store(false, Release);
        }
    }
}
