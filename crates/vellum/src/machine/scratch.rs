//! Scratch buffers: memory for the list of frames that an unmap collects, and as much again, with
//! which [`Scratch::sort`] sorts the list by frame number. So the descriptors of an unmap are
//! visited in the order in which they lie in memory, and frames that are neighbours are freed
//! together, wherever they were mapped.
//!
//! Each CPU has a buffer that was allocated at boot, because an unmap must not depend on free
//! memory (INV-8). An unmap that fills it may borrow a larger one ([`Scratch::grow`]): the more of
//! a region's frames are in one list, the more neighbours meet.

use core::cell::UnsafeCell;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::Zeroable;
use crate::memcg::MemcgId;
use crate::platform::Platform;

use super::Machine;

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
const STACK_RANGES: usize = 31;
/// The largest number of ranges in each list of a borrowed buffer, which has 16 MiB then: the
/// frames of 4 GiB in pieces of 4 KiB.
const MAX_RANGES: usize = 1 << 20;
/// The number of ranges up to which they are sorted by insertion.
const FEW: usize = 64;
/// The number of bits in a word of a bitmap.
const WORD_BITS: u32 = u64::BITS;
/// log2 of the number of buckets into which one pass sorts.
const DIGIT_BITS: u32 = 9;
/// The bits of a digit.
const DIGIT_MASK: u32 = (1 << DIGIT_BITS) - 1;
/// The number of ranges that a pass handles before it calls `resched` (INV-11).
const RANGES_PER_PIECE: usize = 2048;

/// A CPU's scratch buffer. Zeroed memory is a valid, free buffer.
#[repr(C, align(64))]
pub(crate) struct ScratchBuffer {
    /// Set while an operation has leased the buffer.
    leased: AtomicBool,
    ranges: UnsafeCell<[FrameRange; 2 * CPU_RANGES]>,
}

// SAFETY: only the `Scratch` that has set `leased` reaches the ranges.
unsafe impl Sync for ScratchBuffer {}
// SAFETY: the type has an atomic and integers, of which zeros are a valid value, and its alignment
// of 64 bytes is less than a frame's.
unsafe impl Zeroable for ScratchBuffer {}

/// A leased scratch buffer: that of the CPU on which the operation began, or, if another task has
/// leased that one, a small one on the stack. With a small buffer the operation flushes more often.
/// Getting a buffer never waits and never allocates.
pub(crate) struct Scratch<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    buffer: Buffer<'m>,
    small: [FrameRange; STACK_RANGES],
}

/// The memory of a [`Scratch`].
enum Buffer<'m> {
    /// The memory on the stack: one list.
    Stack,
    /// A CPU's buffer.
    Cpu(&'m ScratchBuffer),
    /// A block of `1 << order` frames from `pfn` on, charged to a memcg.
    Borrowed { pfn: Pfn, order: u8, first: NonNull<FrameRange>, ranges: usize },
}

impl<'m, P: Platform> Scratch<'m, P> {
    /// Leases a buffer. The caller may be migrated to another CPU afterwards.
    pub(crate) fn lease(machine: &'m Machine<'m, P>) -> Self {
        let cpu = &machine.scratch_buffers[machine.platform().current()];
        let leased = cpu.leased.compare_exchange(false, true, Acquire, Relaxed).is_ok();
        let buffer = if leased { Buffer::Cpu(cpu) } else { Buffer::Stack };
        Scratch { machine, buffer, small: [FrameRange::default(); STACK_RANGES] }
    }

    /// Moves the first `used` ranges to a larger buffer, for up to `ranges` ranges, whose memory is
    /// charged to `memcg` until this value is dropped. Where there is no free block of that size,
    /// takes the largest that has at least twice as much room as this buffer. Returns false, with
    /// nothing changed, if there is no such buffer: `ranges` is not larger than this one, memory is
    /// short or in pieces, or the memcg is at its limit. The caller holds no spin lock.
    #[cold]
    pub(crate) fn grow(&mut self, memcg: MemcgId, used: usize, ranges: usize) -> bool {
        let (machine, ranges) = (self.machine, ranges.min(MAX_RANGES));
        if ranges < 2 * self.len() {
            return false;
        }
        let order = |ranges: usize| {
            let bytes = 2 * ranges * size_of::<FrameRange>();
            bytes.div_ceil(1 << FRAME_SHIFT).next_power_of_two().ilog2() as u8
        };
        let mut orders = (order(2 * self.len())..=order(ranges)).rev();
        let block = orders.find_map(|order| {
            machine.memcgs().alloc(machine.frames(), memcg, order, false).ok().map(|(pfn, _)| (pfn, order))
        });
        let Some((pfn, order)) = block else { return false };
        let first = machine.frames().at(pfn.addr()).cast::<FrameRange>();
        let ranges = (1usize << (u32::from(order) + FRAME_SHIFT)) / size_of::<FrameRange>();
        let mut larger = Scratch {
            machine,
            buffer: Buffer::Borrowed { pfn, order, first, ranges },
            small: [FrameRange::default(); STACK_RANGES],
        };
        larger[..used].copy_from_slice(&self[..used]);
        *self = larger;
        true
    }

    /// Returns the memory of both lists; the small buffer has only one.
    #[inline]
    fn memory(&self) -> (NonNull<FrameRange>, usize) {
        match &self.buffer {
            Buffer::Stack => (NonNull::from(&self.small).cast(), STACK_RANGES),
            // SAFETY: the address of a live value is not null.
            Buffer::Cpu(buffer) => (unsafe { NonNull::new_unchecked(buffer.ranges.get()) }.cast(), 2 * CPU_RANGES),
            Buffer::Borrowed { first, ranges, .. } => (*first, *ranges),
        }
    }

    /// Sorts the first `used` ranges by frame number. Joins neighbours, which leaves fewer ranges
    /// at the start of the list, and returns their number.
    ///
    /// Where the frames lie close together, a bitmap of them is sorted by nature: each range costs
    /// one access to a few KiB. Frames that are in the list more than once, and frames that lie far
    /// apart, are sorted by radix. Few ranges are sorted by insertion.
    pub(crate) fn sort(&mut self, used: usize) -> usize {
        if used <= FEW || matches!(self.buffer, Buffer::Stack) {
            insertion_sort(&mut self[..used]);
            return used;
        }
        let platform = self.machine.platform();
        let Some(frames) = unsorted(platform, &self[..used]) else { return used };
        let (memory, ranges) = self.memory();
        // SAFETY: this scratch alone reaches the memory, which holds so many ranges, and `&mut
        // self` is the only borrow of it.
        let both = unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), ranges) };
        let (list, other) = both.split_at_mut(ranges / 2);
        let words = frames.len().div_ceil(WORD_BITS as usize);
        if words > other.len() {
            radix_sort(platform, &mut list[..used], &mut other[..used]);
            return used;
        }
        let (twice, sorted) = bitmap_sort(platform, &mut list[..used], words_of(&mut other[..words]), frames.start);
        if twice != 0 {
            radix_sort(platform, &mut list[..twice], &mut other[..twice]);
        }
        sorted
    }
}

/// Returns `None` if the ranges are sorted by frame number, and otherwise the smallest range of
/// frames that contains them all.
fn unsorted<P: Platform>(platform: &P, list: &[FrameRange]) -> Option<core::ops::Range<u32>> {
    let (mut last, mut sorted) = (0, true);
    let (mut start, mut end) = (u32::MAX, 0);
    for piece in list.chunks(RANGES_PER_PIECE) {
        for range in piece {
            sorted &= range.pfn >= last;
            last = range.pfn;
            start = start.min(range.pfn);
            end = end.max(range.pfn + range.frames);
        }
        platform.resched();
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

/// Sorts ranges by a bitmap that begins with the frame `base`, and joins neighbours. Puts the
/// ranges that have a frame which an earlier range has too at the start of the list, unsorted, and
/// the others behind them. Returns the number of the former and of all.
fn bitmap_sort<P: Platform>(platform: &P, list: &mut [FrameRange], bitmap: &mut [u64], base: u32) -> (usize, usize) {
    for piece in bitmap.chunks_mut(RANGES_PER_PIECE) {
        piece.fill(0);
        platform.resched();
    }
    let mut twice = 0;
    for from in (0..list.len()).step_by(RANGES_PER_PIECE) {
        for at in from..list.len().min(from + RANGES_PER_PIECE) {
            let range = list[at];
            if !set_bits(bitmap, range.pfn - base, range.frames) {
                list[twice] = range;
                twice += 1;
            }
        }
        platform.resched();
    }
    let (mut used, mut end) = (twice, None);
    for (piece, first) in bitmap.chunks(RANGES_PER_PIECE).zip((base..).step_by(RANGES_PER_PIECE * WORD_BITS as usize)) {
        for (word, first) in piece.iter().zip((first..).step_by(WORD_BITS as usize)) {
            let (mut bits, mut pfn) = (*word, first);
            while bits != 0 {
                let zeros = bits.trailing_zeros();
                let frames = (bits >> zeros).trailing_ones();
                pfn += zeros;
                if end == Some(pfn) {
                    list[used - 1].frames += frames;
                } else {
                    list[used] = FrameRange { pfn, frames };
                    used += 1;
                }
                pfn += frames;
                end = Some(pfn);
                // A shift by all 64 bits would not be a shift.
                bits = bits >> zeros >> (frames - 1) >> 1;
            }
        }
        platform.resched();
    }
    (twice, used)
}

/// Sets `count` bits from bit `at` on, and returns true; or changes nothing and returns false if
/// one of them is set already.
#[inline(always)]
fn set_bits(bitmap: &mut [u64], at: u32, count: u32) -> bool {
    let (index, bit) = ((at / WORD_BITS) as usize, at % WORD_BITS);
    if count > WORD_BITS - bit {
        return set_many_bits(&mut bitmap[index..], bit, count);
    }
    let mask = !0 >> (WORD_BITS - count) << bit;
    let is_new = bitmap[index] & mask == 0;
    if is_new {
        bitmap[index] |= mask;
    }
    is_new
}

/// Does the work of [`set_bits`] for bits in several words, of which the first has bit `at`.
fn set_many_bits(bitmap: &mut [u64], at: u32, count: u32) -> bool {
    let (end, words) = (at + count, &mut bitmap[..(at + count).div_ceil(WORD_BITS) as usize]);
    let mask = |index: usize| {
        let before = index as u32 * WORD_BITS;
        let (from, to) = (at.saturating_sub(before), (end - before).min(WORD_BITS));
        !0 >> (WORD_BITS - (to - from)) << from
    };
    let is_new = words.iter().enumerate().all(|(index, word)| word & mask(index) == 0);
    if is_new {
        words.iter_mut().enumerate().for_each(|(index, word)| *word |= mask(index));
    }
    is_new
}

/// Sorts ranges by the number of their first frame, with the memory of `other`, which is as long.
///
/// A radix sort (LSD): each pass moves all ranges to the other list, in the order of nine bits of
/// the frame numbers. It has a pass for no bits in which all frame numbers are equal.
#[cold]
fn radix_sort<P: Platform>(platform: &P, list: &mut [FrameRange], other: &mut [FrameRange]) {
    let (mut left, first) = (0, list[0].pfn);
    for piece in list.chunks(RANGES_PER_PIECE) {
        piece.iter().for_each(|range| left |= range.pfn ^ first);
        platform.resched();
    }
    let (mut from, mut to, mut passes) = (list, other, 0);
    while left != 0 {
        let shift = left.trailing_zeros();
        pass(platform, from, to, shift);
        (from, to) = (to, from);
        passes += 1;
        left &= !(DIGIT_MASK << shift);
    }
    if passes % 2 == 1 {
        for (to, from) in to.chunks_mut(RANGES_PER_PIECE).zip(from.chunks(RANGES_PER_PIECE)) {
            to.copy_from_slice(from);
            platform.resched();
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

impl<P: Platform> Deref for Scratch<'_, P> {
    type Target = [FrameRange];
    #[inline]
    fn deref(&self) -> &[FrameRange] {
        let (first, ranges) = self.memory();
        let list = if matches!(self.buffer, Buffer::Stack) { ranges } else { ranges / 2 };
        // SAFETY: this scratch alone reaches the memory, which holds so many ranges: it has set the
        // flag of the CPU's buffer, or has allocated the block. All bits are valid ranges.
        unsafe { core::slice::from_raw_parts(first.as_ptr(), list) }
    }
}

impl<P: Platform> DerefMut for Scratch<'_, P> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [FrameRange] {
        if matches!(self.buffer, Buffer::Stack) {
            return &mut self.small;
        }
        let (first, ranges) = self.memory();
        // SAFETY: as in `deref`, and `&mut self` is the only borrow of this scratch.
        unsafe { core::slice::from_raw_parts_mut(first.as_ptr(), ranges / 2) }
    }
}

impl<P: Platform> Drop for Scratch<'_, P> {
    fn drop(&mut self) {
        match self.buffer {
            Buffer::Stack => {}
            Buffer::Cpu(buffer) => buffer.leased.store(false, Release),
            Buffer::Borrowed { pfn, order, .. } => {
                let machine = self.machine;
                // SAFETY: `grow` allocated the block, of which only this scratch has the address.
                unsafe { machine.memcgs().free(machine.frames(), pfn, order, false) };
            }
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
        if list.len() > scratch.len() {
            assert!(scratch.grow(MemcgId::ROOT, 0, 2 * list.len()));
        }
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
        assert!(matches!(small.buffer, Buffer::Stack), "one buffer for each CPU");
        let cases =
            [(8, 1, 1), (16, 1 << 20, 9), (64, 3, 2), (128, 1, 1), (1024, 7, 5), (1024, 64, 64), (1024, 130, 129)];
        let far = [(128, 1 << 12, 1), (1024, 1 << 21, 1), (2048, 900, 1), (4096, 1 << 16, 700)];
        for (n, stride, frames) in cases.into_iter().chain(far) {
            let scratch = if n <= 16 { &mut small } else { &mut scratch };
            let list = shuffled(n, stride, frames);
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
        assert_eq!(sorted(&mut scratch, &shuffled(1024, 1, 1)), [FrameRange { pfn: 5, frames: 1024 }]);
        assert_eq!(sorted(&mut scratch, &shuffled(512, 64, 64)), [FrameRange { pfn: 5, frames: 1 << 15 }]);
        let mut list = shuffled(1024, 1, 1);
        list.retain(|range| range.pfn % 256 != 4);
        let joined = [5, 261, 517, 773].map(|pfn| FrameRange { pfn, frames: 255 });
        assert_eq!(sorted(&mut scratch, &list), joined);
    }

    #[test]
    fn frames_that_are_twice_in_a_list_stay_so() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let mut scratch = Scratch::lease(&machine);
        // Each range overlaps with its neighbours, and one frame is in the list a thousand times.
        let mut list = shuffled(1024, 2, 3);
        list.extend([FrameRange { pfn: 99, frames: 1 }; 1000]);
        assert_eq!(frames_of(&sorted(&mut scratch, &list)), frames_of(&list));
    }

    #[test]
    fn a_list_borrows_what_there_is_where_memory_lies_in_pieces() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        // Every other block of 64 frames stays allocated.
        let blocks: Vec<Pfn> =
            core::iter::from_fn(|| memcgs.alloc(frames, MemcgId::ROOT, 6, false).ok().map(|(pfn, _)| pfn)).collect();
        for pfn in blocks.iter().filter(|pfn| pfn.0 >> 6 & 1 == 0) {
            // SAFETY: the block was allocated above.
            unsafe { memcgs.free(frames, *pfn, 6, false) };
        }
        let mut scratch = Scratch::lease(&machine);
        assert!(scratch.grow(MemcgId::ROOT, 0, MAX_RANGES), "a block of 64 frames");
        assert_eq!(scratch.len(), 64 * 4096 / 2 / size_of::<FrameRange>());
        assert!(!scratch.grow(MemcgId::ROOT, 0, MAX_RANGES), "no larger block");
    }

    #[test]
    fn a_memcg_pays_for_a_borrowed_list_or_the_list_stays() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        // A list of 8,192 ranges and the one to sort into take 32 frames.
        for (limit, pays) in [(6, false), (512, true)] {
            let memcg = memcgs.create(frames, MemcgId::ROOT, limit).unwrap();
            let charged = || memcgs.usage(frames, memcg).unwrap().charged;
            let before = charged();
            let mut scratch = Scratch::lease(&machine);
            let list = shuffled(512, 3, 1);
            scratch[..list.len()].copy_from_slice(&list);
            assert_eq!(scratch.grow(memcg, list.len(), 8192), pays);
            assert_eq!(scratch[..list.len()], list[..], "the ranges are kept");
            assert_eq!((scratch.len() >= 8192, charged() >= before + 32), (pays, pays));
            drop(scratch);
            assert!(charged() < before + 32, "the charge ends with the list");
        }
    }
}
