//! Scratch buffers: memory for the list of frames that an unmap collects, and as much again, with
//! which [`Scratch::sort`] sorts the list by frame number. So the descriptors of an unmap are
//! visited in the order in which they lie in memory, and frames that are neighbours are freed
//! together, wherever they were mapped.
//!
//! Each CPU has a buffer that was allocated at boot, because an unmap must not depend on free
//! memory (INV-8). Where an unmap fills it, its frames go to a [`FrameSet`](super::FrameSet), if
//! there is memory for that: the more of a region's frames are freed together, the more neighbours
//! meet.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::frame::Zeroable;
use crate::platform::Platform;

use super::Machine;
use super::bits::{RANGES_PER_WORD, WORD_BITS, push_ranges, set_bits};

/// A range of frames. It has the size and the alignment of a word of a bitmap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(8))]
pub(crate) struct FrameRange {
    /// The number of the first frame.
    pub(crate) pfn: u32,
    /// The number of frames.
    pub(crate) frames: u32,
}

/// The number of ranges in each list of a CPU's buffer. With the flag `leased` they fill 16 KiB.
const CPU_RANGES: usize = 1020;
/// The number of ranges in the buffer on the stack.
const STACK_RANGES: usize = RANGES_PER_WORD;
/// The number of ranges that are sorted by comparison before `resched` is called (INV-11).
const RANGES_PER_SORT: usize = 512;
/// The number of ranges from which on a bitmap sorts them faster than comparison does.
const MANY: usize = 64;

/// A CPU's scratch buffer. Zeroed memory is a valid, free buffer.
#[repr(C, align(64))]
pub(crate) struct ScratchBuffer {
    /// Set while an operation has leased the buffer.
    leased: AtomicBool,
    ranges: UnsafeCell<[[FrameRange; CPU_RANGES]; 2]>,
}

// SAFETY: only the `Scratch` that has set `leased` reaches the ranges.
unsafe impl Sync for ScratchBuffer {}
// SAFETY: the type has an atomic and integers, of which zeros are a valid value, and its alignment
// of 64 bytes is less than a frame's.
unsafe impl Zeroable for ScratchBuffer {}

/// A leased scratch buffer: that of the CPU on which the operation began, or, if another task has
/// leased that one, a small one on the stack. Getting a buffer never waits and never allocates.
pub(crate) struct Scratch<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// The CPU's buffer; `None` if `small` is the list.
    cpu: Option<&'m ScratchBuffer>,
    small: [FrameRange; STACK_RANGES],
}

impl<'m, P: Platform> Scratch<'m, P> {
    /// Leases a buffer. The caller may be migrated to another CPU afterwards.
    pub(crate) fn lease(machine: &'m Machine<'m, P>) -> Self {
        let cpu = &machine.scratch_buffers[machine.platform().current()];
        let leased = cpu.leased.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        Scratch { machine, cpu: leased.then_some(cpu), small: [FrameRange::default(); STACK_RANGES] }
    }

    /// Sorts the first `used` ranges by frame number. Joins neighbours, which leaves fewer ranges
    /// at the start of the list, and returns their number. May call `resched`, so the caller holds
    /// no lock.
    ///
    /// Where the frames lie close together, a bitmap of them is sorted by nature: each range costs
    /// one access to a few KiB. Few ranges, ranges that lie far apart, and those with a frame that
    /// is in the list twice are sorted by comparison, in pieces; the last ones stay in pieces.
    pub(crate) fn sort(&mut self, used: usize) -> usize {
        let platform = self.machine.platform();
        let (list, other) = self.lists();
        let Some(frames) = unsorted(&list[..used]) else { return used };
        let words = frames.len().div_ceil(WORD_BITS as usize);
        if used <= MANY || words > other.len() {
            sort_pieces(platform, &mut list[..used]);
            merge_pieces(&mut list[..used], other);
            return used;
        }
        let bitmap = words_of(&mut other[..words]);
        let twice = fill(bitmap, &mut list[..used], frames.start);
        platform.resched();
        sort_pieces(platform, &mut list[..twice]);
        let sorted = push_ranges(bitmap, frames.start, list, twice);
        platform.resched();
        sorted
    }

    /// Returns the list, and the list with whose memory it is sorted; the latter is empty if the
    /// buffer is on the stack.
    #[inline]
    fn lists(&mut self) -> (&mut [FrameRange], &mut [FrameRange]) {
        let Some(cpu) = self.cpu else { return (&mut self.small, &mut []) };
        // SAFETY: this scratch alone reaches the ranges, as it has set the flag `leased`, and `&mut
        // self` is the only borrow of them.
        let [list, other] = unsafe { &mut *cpu.ranges.get() };
        (list, other)
    }
}

/// Returns `None` if the ranges are sorted by frame number, and otherwise the smallest range of
/// frames that contains them all.
fn unsorted(list: &[FrameRange]) -> Option<core::ops::Range<u32>> {
    let (mut last, mut sorted) = (0, true);
    let (mut start, mut end) = (u32::MAX, 0);
    for range in list {
        sorted &= range.pfn >= last;
        last = range.pfn;
        start = start.min(range.pfn);
        end = end.max(range.pfn + range.frames);
    }
    (!sorted).then_some(start..end)
}

/// Returns the memory of ranges as words.
fn words_of(ranges: &mut [FrameRange]) -> &mut [u64] {
    const { assert!(size_of::<FrameRange>() == size_of::<u64>() && align_of::<FrameRange>() >= align_of::<u64>()) };
    // SAFETY: both types have the same size, the alignment is sufficient, and all bits are valid
    // values of both.
    unsafe { core::slice::from_raw_parts_mut(ranges.as_mut_ptr().cast(), ranges.len()) }
}

/// Fills a bitmap, which begins with the frame `base`, with the ranges of a list. Moves the ranges
/// that have a frame which an earlier range has too to the start of the list, and returns their
/// number.
fn fill(bitmap: &mut [u64], list: &mut [FrameRange], base: u32) -> usize {
    bitmap.fill(0);
    let mut twice = 0;
    for at in 0..list.len() {
        let range = list[at];
        if !set_bits(bitmap, range.pfn - base, range.frames) {
            list[twice] = range;
            twice += 1;
        }
    }
    twice
}

/// Sorts each piece of [`RANGES_PER_SORT`] ranges by frame number.
fn sort_pieces<P: Platform>(platform: &P, list: &mut [FrameRange]) {
    for piece in list.chunks_mut(RANGES_PER_SORT) {
        piece.sort_unstable_by_key(|range| range.pfn);
        platform.resched();
    }
}

/// Merges the sorted pieces of a list, of which there are two at most, by way of `other`.
fn merge_pieces(list: &mut [FrameRange], other: &mut [FrameRange]) {
    const { assert!(CPU_RANGES <= 2 * RANGES_PER_SORT && STACK_RANGES <= RANGES_PER_SORT) };
    let Some((mut first, mut second)) = list.split_at_checked(RANGES_PER_SORT) else { return };
    let merged = &mut other[..list.len()];
    for to in &mut *merged {
        let from = match (first, second) {
            ([one, ..], [two, ..]) if two.pfn < one.pfn => &mut second,
            ([], _) => &mut second,
            _ => &mut first,
        };
        if let Some(next) = from.split_off_first() {
            *to = *next;
        }
    }
    list.copy_from_slice(merged);
}

impl<P: Platform> Deref for Scratch<'_, P> {
    type Target = [FrameRange];
    #[inline]
    fn deref(&self) -> &[FrameRange] {
        let Some(cpu) = self.cpu else { return &self.small };
        // SAFETY: this scratch alone reaches the ranges, as it has set the flag `leased`, and no
        // `&mut` borrow of them lives as long as `&self`.
        let [list, _] = unsafe { &*cpu.ranges.get() };
        list
    }
}

impl<P: Platform> DerefMut for Scratch<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [FrameRange] {
        self.lists().0
    }
}

impl<P: Platform> Drop for Scratch<'_, P> {
    fn drop(&mut self) {
        if let Some(cpu) = self.cpu {
            cpu.leased.store(false, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::format;
    use std::vec::Vec;

    use super::*;
    use crate::testing::Host;

    /// Returns `n` ranges of `frames` frames, whose first frames are `stride` apart, in an order
    /// without a pattern. `n` is a power of two.
    fn shuffled(n: u32, stride: u32, frames: u32) -> Vec<FrameRange> {
        // A linear congruential sequence of full period (Hull and Dobell, JACM 1962).
        let mut at = n / 3;
        let step = |_| {
            at = (at.wrapping_mul(5).wrapping_add(7)) & (n - 1);
            FrameRange { pfn: 5 + at * stride, frames }
        };
        (0..n).map(step).collect()
    }

    /// Sorts a list by a scratch, and returns the ranges that it leaves.
    fn sorted(scratch: &mut Scratch<'_, Host>, list: &[FrameRange]) -> Vec<FrameRange> {
        scratch[..list.len()].copy_from_slice(list);
        let left = scratch.sort(list.len());
        scratch[..left].to_vec()
    }

    /// Returns the frames of a list, each as often as it is in it, in ascending order.
    fn frames_of(list: &[FrameRange]) -> Vec<u32> {
        let mut frames: Vec<u32> = list.iter().flat_map(|range| range.pfn..range.pfn + range.frames).collect();
        frames.sort_unstable();
        frames
    }

    #[test]
    fn ranges_are_sorted_by_frame_number_and_none_is_lost() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut scratch = Scratch::lease(&machine);
        let mut small = Scratch::lease(&machine);
        assert!(small.cpu.is_none(), "one buffer for each CPU");
        let cases = [(8, 1, 1), (16, 1 << 20, 9), (64, 3, 2), (128, 1, 1), (512, 7, 5), (512, 64, 64), (512, 130, 129)];
        let far = [(128, 1 << 12, 1), (1024, 1 << 20, 1), (512, 9000, 1), (1024, 1 << 16, 700)];
        for (n, stride, frames) in cases.into_iter().chain(far) {
            let scratch = if n <= 16 { &mut small } else { &mut scratch };
            let mut list = shuffled(n, stride, frames);
            list.truncate(CPU_RANGES);
            assert!(!list.is_sorted_by_key(|range| range.pfn));
            let left = sorted(scratch, &list);
            let case = format!("{n} ranges of {frames} frames, {stride} frames apart");
            assert!(left.is_sorted_by_key(|range| range.pfn), "{case}");
            assert_eq!(frames_of(&left), frames_of(&list), "{case}");
        }
    }

    #[test]
    fn neighbours_are_joined_where_frames_lie_close_together() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut scratch = Scratch::lease(&machine);
        assert_eq!(sorted(&mut scratch, &shuffled(512, 1, 1)), [FrameRange { pfn: 5, frames: 512 }]);
        assert_eq!(sorted(&mut scratch, &shuffled(512, 64, 64)), [FrameRange { pfn: 5, frames: 1 << 15 }]);
        let mut list = shuffled(512, 1, 1);
        list.retain(|range| range.pfn % 256 != 4);
        let joined = [5, 261].map(|pfn| FrameRange { pfn, frames: 255 });
        assert_eq!(sorted(&mut scratch, &list), joined);
    }

    #[test]
    fn frames_that_are_twice_in_a_list_stay_so() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut scratch = Scratch::lease(&machine);
        // Each range overlaps with its neighbours, and one frame is in the list 500 times.
        let mut list = shuffled(512, 2, 3);
        list.extend([FrameRange { pfn: 99, frames: 1 }; 500]);
        assert_eq!(frames_of(&sorted(&mut scratch, &list)), frames_of(&list));
    }
}
