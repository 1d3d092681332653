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

impl FrameRange {
    /// Returns true if the range is made of whole blocks of `1 << shift` frames.
    #[inline(always)]
    fn is_whole(self, shift: u32) -> bool {
        (self.pfn | self.frames) & ((1 << shift) - 1) == 0
    }
}

/// The number of ranges in each list of a CPU's buffer. With the flag `leased` they fill 16 KiB.
const CPU_RANGES: usize = 1020;
/// The number of ranges in the buffer on the stack.
const STACK_RANGES: usize = RANGES_PER_WORD;
/// The number of ranges that are sorted by comparison before `resched` is called (INV-11).
const RANGES_PER_SORT: usize = 512;
/// The number of ranges up to which comparison sorts them faster than a bitmap does.
const FEW: usize = 64;
/// The number of words of a bitmap, for each range in it, up to which it is faster than comparison.
const WORDS_PER_RANGE: usize = 2;

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
    /// A bitmap is sorted by nature: each range costs one access to a few KiB. A bit is a frame,
    /// or, where the frames are spread too far for that, a block of as many frames as necessary.
    /// The ranges that are not made of whole blocks, those with a frame that is in the list twice,
    /// and all ranges if there are only few, are sorted by comparison.
    pub(crate) fn sort(&mut self, used: usize) -> usize {
        // One merge joins all pieces that comparison has sorted.
        const { assert!(CPU_RANGES <= 2 * RANGES_PER_SORT && STACK_RANGES <= RANGES_PER_SORT) };
        let platform = self.machine.platform();
        let (list, other) = self.lists();
        let Some(frames) = unsorted(&list[..used]) else { return used };
        let (mut apart, mut sorted) = (used, used);
        if used > FEW {
            // A word is left for the frames before the first range in its block.
            let words = frames.len().div_ceil(WORD_BITS as usize);
            let shift = words.div_ceil(other.len() - 1).next_power_of_two().ilog2();
            let base = frames.start >> shift << shift;
            let words = ((frames.end - base).div_ceil(1 << shift)).div_ceil(WORD_BITS) as usize;
            let is_whole = |range: &&FrameRange| range.is_whole(shift);
            let whole = if shift == 0 { used } else { list[..used].iter().filter(is_whole).count() };
            if words <= whole * WORDS_PER_RANGE {
                let bitmap = words_of(&mut other[..words]);
                apart = fill(bitmap, &mut list[..used], base, shift);
                platform.resched();
                sorted = push_ranges(bitmap, base, shift, list, apart);
                platform.resched();
            }
        }
        if apart != 0 {
            sort_pieces(platform, &mut list[..apart]);
            merge(&mut list[..apart], RANGES_PER_SORT, other);
            merge(&mut list[..sorted], apart, other);
        }
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

/// Fills a bitmap with the ranges of a list. A bit is `1 << shift` frames, those of the first bit
/// from `base` on. Moves the ranges that are not made of such blocks, or have a frame that an
/// earlier range has too, to the start of the list, and returns their number.
fn fill(bitmap: &mut [u64], list: &mut [FrameRange], base: u32, shift: u32) -> usize {
    bitmap.fill(0);
    let mut apart = 0;
    for at in 0..list.len() {
        let range = list[at];
        if !range.is_whole(shift) || !set_bits(bitmap, (range.pfn - base) >> shift, range.frames >> shift) {
            list[apart] = range;
            apart += 1;
        }
    }
    apart
}

/// Sorts each piece of [`RANGES_PER_SORT`] ranges by frame number.
fn sort_pieces<P: Platform>(platform: &P, list: &mut [FrameRange]) {
    for piece in list.chunks_mut(RANGES_PER_SORT) {
        piece.sort_unstable_by_key(|range| range.pfn);
        platform.resched();
    }
}

/// Merges the two pieces of a list before and from `middle`, each of which is sorted, by way of
/// `other`.
fn merge(list: &mut [FrameRange], middle: usize, other: &mut [FrameRange]) {
    let Some((mut first, mut second)) = list.split_at_checked(middle) else { return };
    if first.is_empty() || second.is_empty() {
        return;
    }
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
    fn blocks_that_are_spread_far_are_sorted_with_single_frames_among_them() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut scratch = Scratch::lease(&machine);
        for (blocks, singles) in [(1020, 0), (1000, 20), (600, 420), (300, 720), (100, 300)] {
            let block = |range: FrameRange| FrameRange { pfn: (range.pfn - 5) * 32, frames: 32 };
            let mut list: Vec<_> = shuffled(1024, 8, 1).into_iter().take(blocks).map(block).collect();
            // In the gaps between the blocks, all over the same memory.
            let single = |range: FrameRange| FrameRange { pfn: range.pfn + 28, frames: 1 };
            list.extend(shuffled(1024, 256, 1).into_iter().take(singles).map(single));
            list.rotate_left(blocks / 2);
            let left = sorted(&mut scratch, &list);
            assert!(left.is_sorted_by_key(|range| range.pfn), "{blocks} blocks, {singles} single frames");
            assert!(frames_of(&left) == frames_of(&list), "{blocks} blocks, {singles} single frames");
        }
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
        // Ranges of blocks that are spread far, each of which overlaps with its neighbours.
        let block = |range: FrameRange| FrameRange { pfn: (range.pfn - 5) * 192, frames: 256 };
        let list: Vec<_> = shuffled(512, 1, 1).into_iter().map(block).collect();
        assert!(frames_of(&sorted(&mut scratch, &list)) == frames_of(&list), "blocks that overlap");
    }
}
