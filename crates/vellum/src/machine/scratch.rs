//! Scratch buffers: preallocated memory for the list of frames that an unmap collects, because an
//! unmap must not allocate (INV-8). Each CPU has one.
//!
//! A buffer has room for a list and for a second one of the same length, in which
//! [`Scratch::sort`] sorts the first by frame number: the descriptors of an unmap are then visited
//! in the order in which they lie in memory, and frames that are neighbours are freed together,
//! wherever they were mapped.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;

use super::{Machine, alloc_permanent_slice};

/// A range of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct FrameRange {
    /// The number of the first frame.
    pub(crate) pfn: u32,
    /// The number of frames.
    pub(crate) frames: u32,
}

/// A word of a buffer: a [`FrameRange`] of one of the two lists.
#[repr(transparent)]
struct Slot(UnsafeCell<FrameRange>);

// SAFETY: only the `Scratch` that has leased the buffer reaches its slots.
unsafe impl Sync for Slot {}
// SAFETY: integers, of which zeros are a valid value, aligned to 4 bytes.
unsafe impl Zeroable for Slot {}

/// True while an operation has leased a CPU's buffer.
#[derive(Default)]
#[repr(C, align(64))]
struct Leased(AtomicBool);

// SAFETY: zeros are a valid value, and its alignment of 64 bytes is less than a frame's.
unsafe impl Zeroable for Leased {}

/// The least and the largest number of ranges in a list of a CPU's buffer.
const LIST: core::ops::RangeInclusive<usize> = 1024..=1 << 16;
/// The number of a CPU's frames for each range in its list: a buffer takes 1/4096 of memory.
const FRAMES_PER_RANGE: u64 = 16;
/// The number of ranges in the buffer on the stack.
const STACK_RANGES: usize = 31;
/// The number of ranges up to which they are sorted by insertion.
const FEW: usize = 64;
/// log2 of the number of buckets into which one pass sorts.
const DIGIT_BITS: u32 = 9;
/// The bits of a digit.
const DIGIT_MASK: u32 = (1 << DIGIT_BITS) - 1;
/// The number of ranges that a pass handles before it calls `resched` (INV-11).
const RANGES_PER_PIECE: usize = 4096;

/// The scratch buffers of all CPUs.
pub(super) struct ScratchBuffers<'p> {
    leased: &'p [Leased],
    slots: &'p [Slot],
    /// The number of ranges in a list; a buffer has two lists.
    list: usize,
}

impl<'p> ScratchBuffers<'p> {
    /// Allocates a buffer for each of `cpus` CPUs.
    ///
    /// # Errors
    /// There is too little memory.
    pub(super) fn new<P: Platform>(frames: &Frames<'p, P>, cpus: usize) -> Result<Self, OutOfMemory> {
        let share = (frames.total() / cpus as u64 / FRAMES_PER_RANGE) as usize;
        let list = share.clamp(*LIST.start(), *LIST.end());
        Ok(ScratchBuffers {
            leased: alloc_permanent_slice(frames, cpus)?,
            slots: alloc_permanent_slice(frames, cpus * 2 * list)?,
            list,
        })
    }
}

/// A leased scratch buffer: that of the CPU on which the operation began, or, if another task has
/// leased that one, a small one on the stack. With a small buffer the operation flushes more often.
/// Getting a buffer never waits and never allocates.
pub(crate) struct Scratch<'m> {
    /// The flag to clear and the two lists, if a CPU's buffer is leased.
    leased: Option<(&'m Leased, &'m [Slot])>,
    small: [FrameRange; STACK_RANGES],
}

impl<'m> Scratch<'m> {
    /// Leases a buffer. The caller may be migrated to another CPU afterwards.
    pub(crate) fn lease<P: Platform>(machine: &'m Machine<'m, P>) -> Self {
        let ScratchBuffers { leased, slots, list } = &machine.scratch_buffers;
        let cpu = machine.platform().current();
        let leased = leased[cpu]
            .0
            .compare_exchange(false, true, Acquire, Relaxed)
            .is_ok()
            .then(|| (&leased[cpu], &slots[cpu * 2 * list..(cpu + 1) * 2 * list]));
        Scratch { leased, small: [FrameRange::default(); STACK_RANGES] }
    }

    /// Returns both lists of the leased buffer, or the small list and an empty one.
    #[inline]
    fn lists(&mut self) -> (&mut [FrameRange], &mut [FrameRange]) {
        let Some((_, slots)) = self.leased else { return (&mut self.small, &mut []) };
        let first = slots.as_ptr().cast::<FrameRange>().cast_mut();
        // SAFETY: this scratch has set the flag of this buffer, so no other scratch reaches its
        // slots, and `&mut self` is the only borrow of this one. A slot is an `UnsafeCell` of a
        // range, with the same layout.
        let ranges = unsafe { core::slice::from_raw_parts_mut(first, slots.len()) };
        ranges.split_at_mut(slots.len() / 2)
    }

    /// Sorts the first `used` ranges by the number of their first frame.
    ///
    /// A radix sort (LSD): each pass moves all ranges to the other list, in the order of nine bits
    /// of the frame numbers. It has a pass for no bits in which all frame numbers are equal. Few
    /// ranges are sorted by insertion.
    pub(crate) fn sort<P: Platform>(&mut self, platform: &P, used: usize) {
        let (list, other) = self.lists();
        let list = &mut list[..used];
        if list.is_sorted_by_key(|range| range.pfn) {
            return;
        }
        if other.is_empty() || used <= FEW {
            return insertion_sort(list);
        }
        let first = list[0].pfn;
        let mut left = list.iter().fold(0, |differing, range| differing | range.pfn ^ first);
        let (mut from, mut to, mut passes) = (list, &mut other[..used], 0);
        while left != 0 {
            let shift = left.trailing_zeros();
            pass(platform, from, to, shift);
            (from, to) = (to, from);
            passes += 1;
            left &= !(DIGIT_MASK << shift);
        }
        if passes % 2 == 1 {
            to.copy_from_slice(from);
        }
    }
}

/// Moves `from` to `to` in the order of the digit of the frame numbers that begins at bit `shift`.
/// Ranges with equal digits keep their order.
fn pass<P: Platform>(platform: &P, from: &[FrameRange], to: &mut [FrameRange], shift: u32) {
    let digit = |range: &FrameRange| (range.pfn >> shift & DIGIT_MASK) as usize;
    let mut starts = [0u32; 1 << DIGIT_BITS];
    for piece in from.chunks(RANGES_PER_PIECE) {
        piece.iter().for_each(|range| starts[digit(range)] += 1);
        platform.resched();
    }
    let mut next = 0;
    starts.iter_mut().for_each(|start| next += core::mem::replace(start, next));
    for piece in from.chunks(RANGES_PER_PIECE) {
        for range in piece {
            let start = &mut starts[digit(range)];
            to[*start as usize] = *range;
            *start += 1;
        }
        platform.resched();
    }
}

/// Sorts a few ranges by frame number.
fn insertion_sort(list: &mut [FrameRange]) {
    for end in 1..list.len() {
        let mut at = end;
        while at > 0 && list[at - 1].pfn > list[at].pfn {
            list.swap(at - 1, at);
            at -= 1;
        }
    }
}

impl Deref for Scratch<'_> {
    type Target = [FrameRange];
    #[inline]
    fn deref(&self) -> &[FrameRange] {
        match self.leased {
            // SAFETY: this scratch has set the flag of this buffer, so there is no other reference
            // to its slots than those borrowed from this scratch.
            Some((_, slots)) => unsafe {
                core::slice::from_raw_parts(slots.as_ptr().cast::<FrameRange>(), slots.len() / 2)
            },
            None => &self.small,
        }
    }
}

impl DerefMut for Scratch<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [FrameRange] {
        self.lists().0
    }
}

impl Drop for Scratch<'_> {
    fn drop(&mut self) {
        if let Some((Leased(leased), _)) = self.leased {
            leased.store(false, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::vec::Vec;

    use super::*;
    use crate::testing::Host;

    /// Returns `n` ranges of distinct frames, `stride` apart, in an order without a pattern. `n` is
    /// a power of two.
    fn shuffled(n: u32, stride: u32) -> Vec<FrameRange> {
        // A linear congruential sequence of full period (Hull and Dobell, JACM 1962).
        let mut at = n / 3;
        let step = |_| {
            at = (at.wrapping_mul(5).wrapping_add(7)) & (n - 1);
            FrameRange { pfn: 5 + at * stride, frames: at + 1 }
        };
        (0..n).map(step).collect()
    }

    #[test]
    fn ranges_are_sorted_by_frame_number_and_none_is_lost() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut scratch = Scratch::lease(&machine);
        let mut small = Scratch::lease(&machine);
        assert!(scratch.leased.is_some() && small.leased.is_none(), "one buffer for each CPU");
        for (n, stride) in [(8, 1), (16, 1 << 20), (64, 3), (128, 1), (1024, 1), (1024, 1 << 21), (2048, 900)] {
            let scratch = if n <= 16 { &mut small } else { &mut scratch };
            let list = shuffled(n, stride);
            assert!(!list.is_sorted_by_key(|range| range.pfn));
            scratch[..list.len()].copy_from_slice(&list);
            scratch.sort(&host, list.len());
            let mut expected = list;
            expected.sort_by_key(|range| range.pfn);
            assert_eq!(scratch[..expected.len()], expected[..], "{n} ranges, {stride} frames apart");
        }
    }
}
