//! Scratch buffers: memory for the list of frames that an unmap collects, and for a second list of
//! the same length, in which [`Scratch::sort`] sorts the first by frame number. So the descriptors
//! of an unmap are visited in the order in which they lie in memory, and frames that are neighbours
//! are freed together, wherever they were mapped.
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

/// A range of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// charged to `memcg` until this value is dropped. Returns false, with nothing changed, if
    /// there is no such buffer: `ranges` is not larger than this one, memory is short, or the memcg
    /// is at its limit. The caller holds no spin lock.
    #[cold]
    pub(crate) fn grow(&mut self, memcg: MemcgId, used: usize, ranges: usize) -> bool {
        let (machine, ranges) = (self.machine, ranges.min(MAX_RANGES));
        if ranges < 2 * self.len() {
            return false;
        }
        let bytes = 2 * ranges * size_of::<FrameRange>();
        let order = (bytes >> FRAME_SHIFT).next_power_of_two().ilog2() as u8;
        let Ok((pfn, _)) = machine.memcgs().alloc(machine.frames(), memcg, order, false) else { return false };
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

    /// Sorts the first `used` ranges by the number of their first frame.
    ///
    /// A radix sort (LSD): each pass moves all ranges to the other list, in the order of nine bits
    /// of the frame numbers. It has a pass for no bits in which all frame numbers are equal. Few
    /// ranges are sorted by insertion.
    pub(crate) fn sort(&mut self, used: usize) {
        let platform = self.machine.platform();
        if used <= FEW || matches!(self.buffer, Buffer::Stack) {
            return insertion_sort(&mut self[..used]);
        }
        let (mut left, mut sorted) = (0, true);
        let (mut last, first) = (0, self[0].pfn);
        for piece in self[..used].chunks(RANGES_PER_PIECE) {
            for range in piece {
                left |= range.pfn ^ first;
                sorted &= range.pfn >= last;
                last = range.pfn;
            }
            platform.resched();
        }
        if sorted {
            return;
        }
        let (memory, ranges) = self.memory();
        // SAFETY: this scratch alone reaches the memory, which holds so many ranges, and `&mut
        // self` is the only borrow of it.
        let both = unsafe { core::slice::from_raw_parts_mut(memory.as_ptr(), ranges) };
        let (list, other) = both.split_at_mut(ranges / 2);
        let (list, other) = (&mut list[..used], &mut other[..used]);
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
        assert!(matches!(small.buffer, Buffer::Stack), "one buffer for each CPU");
        for (n, stride) in [(8, 1), (16, 1 << 20), (64, 3), (128, 1), (1024, 1), (1024, 1 << 21), (2048, 900)] {
            let scratch = if n <= 16 { &mut small } else { &mut scratch };
            let list = shuffled(n, stride);
            if list.len() > scratch.len() {
                assert!(scratch.grow(MemcgId::ROOT, 0, 2 * list.len()));
            }
            assert!(!list.is_sorted_by_key(|range| range.pfn));
            scratch[..list.len()].copy_from_slice(&list);
            scratch.sort(list.len());
            let mut expected = list;
            expected.sort_by_key(|range| range.pfn);
            assert_eq!(scratch[..expected.len()], expected[..], "{n} ranges, {stride} frames apart");
        }
    }

    #[test]
    fn a_memcg_pays_for_a_borrowed_list_or_the_list_stays() {
        let host = Host::new(&[(0, 1 << 16, true)], 1);
        let machine = Machine::boot(&host, Default::default()).unwrap();
        let (memcgs, frames) = (machine.memcgs(), machine.frames());
        // A list of 8,192 ranges and the one to sort into take 32 frames.
        for (limit, pays) in [(16, false), (512, true)] {
            let memcg = memcgs.create(frames, MemcgId::ROOT, limit).unwrap();
            let charged = || memcgs.usage(frames, memcg).unwrap().charged;
            let before = charged();
            let mut scratch = Scratch::lease(&machine);
            let list = shuffled(512, 3);
            scratch[..list.len()].copy_from_slice(&list);
            assert_eq!(scratch.grow(memcg, list.len(), 8192), pays);
            assert_eq!(scratch[..list.len()], list[..], "the ranges are kept");
            assert_eq!((scratch.len() >= 8192, charged() >= before + 32), (pays, pays));
            drop(scratch);
            assert!(charged() < before + 32, "the charge ends with the list");
        }
    }
}
