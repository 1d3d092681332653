//! Scratch buffers: preallocated memory for the list of frames that an unmap collects, because an
//! unmap must not allocate (INV-8). Each CPU has one.

use core::cell::UnsafeCell;
use core::marker::PhantomData;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::frame::Zeroable;
use crate::platform::Platform;

use super::Machine;

/// A range of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameRange {
    /// The number of the first frame.
    pub(crate) pfn: u32,
    /// The number of frames.
    pub(crate) frames: u32,
}

/// The number of ranges in a CPU's buffer. With the flag `leased` they fill 16 KiB.
const BUFFER_RANGES: usize = 2047;
/// The number of ranges in the buffer on the stack.
const STACK_RANGES: usize = 31;

/// A CPU's scratch buffer. Zeroed memory is a valid, free buffer.
#[repr(C, align(64))]
pub(crate) struct ScratchBuffer {
    /// Set while an operation has leased the buffer.
    leased: AtomicBool,
    ranges: UnsafeCell<[FrameRange; BUFFER_RANGES]>,
}

// SAFETY: only the `Scratch` that has set `leased` reaches the ranges.
unsafe impl Sync for ScratchBuffer {}
// SAFETY: the type has an atomic and integers, of which zeros are a valid value, and its alignment
// of 64 bytes is less than a frame's.
unsafe impl Zeroable for ScratchBuffer {}

/// A leased scratch buffer: that of the CPU on which the operation began, or, if another task has
/// leased that one, a small one on the stack. With a small buffer the operation flushes more often.
/// Getting a buffer never waits and never allocates.
#[allow(clippy::large_enum_variant)] // It is on the stack of one call and is not moved.
pub(crate) enum Scratch<'m, P: Platform> {
    /// A CPU's buffer, until this is dropped.
    Large(&'m ScratchBuffer, PhantomData<P>),
    /// A buffer on the stack.
    Small([FrameRange; STACK_RANGES]),
}

impl<'m, P: Platform> Scratch<'m, P> {
    /// Leases a buffer. The caller may be migrated to another CPU afterwards.
    pub(crate) fn lease(machine: &'m Machine<'m, P>) -> Self {
        let platform = machine.platform();
        let buffer = &machine.scratch_buffers[platform.current()];
        match buffer.leased.compare_exchange(false, true, Acquire, Relaxed) {
            Ok(_) => Scratch::Large(buffer, PhantomData),
            Err(_) => Scratch::Small([FrameRange::default(); STACK_RANGES]),
        }
    }
}

impl<P: Platform> Deref for Scratch<'_, P> {
    type Target = [FrameRange];
    #[inline]
    fn deref(&self) -> &[FrameRange] {
        match self {
            // SAFETY: this scratch has set `leased`, so there is no other reference.
            Scratch::Large(buffer, _) => unsafe { &*buffer.ranges.get() },
            Scratch::Small(ranges) => ranges,
        }
    }
}

impl<P: Platform> DerefMut for Scratch<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [FrameRange] {
        match self {
            // SAFETY: this scratch has set `leased`, so no other scratch reaches the ranges, and
            // `&mut self` is the only borrow of this one.
            Scratch::Large(buffer, _) => unsafe { &mut *buffer.ranges.get() },
            Scratch::Small(ranges) => ranges,
        }
    }
}

impl<P: Platform> Drop for Scratch<'_, P> {
    fn drop(&mut self) {
        if let Scratch::Large(buffer, _) = self {
            buffer.leased.store(false, Release);
        }
    }
}
