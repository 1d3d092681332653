//! Checks the allocator on memory maps with holes.

mod node;
mod pageblock;

use std::vec::Vec;

use super::policy::{Advice, FolioPolicy, Knob};
use super::*;
use crate::addr::FRAME_SIZE;
use crate::testing::{Dice, Host};

/// Returns the number of free frames after draining the per-CPU caches.
fn all_free(frames: &Frames<'_, Host>) -> u64 {
    frames.drain();
    frames.free_frames()
}

/// Returns whether every byte of `count` frames is zero.
fn is_zero(frames: &Frames<'_, Host>, pfn: Pfn, count: u32) -> bool {
    // SAFETY: the test allocated these frames, and no other code uses them.
    let bytes =
        unsafe { std::slice::from_raw_parts(frames.at(pfn.addr()).as_ptr(), count as usize * FRAME_SIZE as usize) };
    bytes.iter().all(|b| *b == 0)
}

/// Writes to every byte of `count` frames, so that none is zero.
fn dirty(frames: &Frames<'_, Host>, pfn: Pfn, count: u32) {
    // SAFETY: the test allocated these frames, and no other code uses them.
    unsafe { frames.at(pfn.addr()).as_ptr().write_bytes(0x5a, count as usize * FRAME_SIZE as usize) }
}

/// Counts the frames in free blocks by the blocks' descriptors.
fn frames_in_free_blocks(frames: &Frames<'_, Host>) -> u64 {
    let free = |pfn: &u32| {
        let block = frames.block(Pfn(*pfn));
        block.is_some_and(|(.., state)| matches!(state.kind(), FrameKind::Free | FrameKind::Cached))
    };
    (0..100_000).filter(free).count() as u64
}

/// Only `alloc_reserve` allocates frames of the reserve below the min watermark, and it allocates
/// all of them.
#[test]
fn only_alloc_reserve_allocates_below_the_min_watermark() {
    const MIN_FREE: u64 = 100;
    let host = Host::new(&[(16, 3000, true)], 2);
    let frames = Frames::boot(&host, BootOptions { min_free: MIN_FREE, ..Default::default() }).unwrap();
    let total = all_free(&frames);
    for usage in [Use::Folio, Use::Kernel] {
        for order in [0, 3] {
            let held: Vec<Pfn> = core::iter::from_fn(|| frames.alloc(order, false, usage).ok()).collect();
            let left = all_free(&frames);
            assert!((MIN_FREE..MIN_FREE + (1 << order)).contains(&left), "{left} left of order {order}");
            let reserve: Vec<Pfn> = core::iter::from_fn(|| frames.alloc_reserve(0, usage).ok()).collect();
            assert_eq!(reserve.len() as u64, left);
            assert_eq!(all_free(&frames), 0);
            // SAFETY: allocated above, and in no other use.
            reserve.iter().for_each(|pfn| unsafe { frames.free_reserve(*pfn, 0, usage) });
            assert!(frames.alloc(order, false, usage).is_err(), "frames freed to the reserve were allocated again");
            // SAFETY: this test allocated the blocks, and no other code uses them.
            held.iter().for_each(|pfn| unsafe { frames.free(*pfn, 1 << order, false, usage) });
            assert_eq!(all_free(&frames), total);
        }
    }
}

/// `shortage` returns a number above 0 from the moment when free memory falls to the low watermark
/// until it reaches the high watermark again, and at no other time.
#[test]
fn a_shortage_lasts_from_the_low_to_the_high_watermark() {
    const STEP: u64 = 700;
    let host = Host::new(&[(16, 8000, true)], 1);
    let frames = Frames::boot(&host, BootOptions { min_free: 100, watermarks: STEP, ..Default::default() }).unwrap();
    let marks = frames.watermarks_on(0);
    assert_eq!(marks, Watermarks { min: 100, low: 100 + STEP, high: 100 + 2 * STEP });
    let mut held = Vec::new();
    while frames.shortage() == 0 {
        held.push(frames.alloc(0, false, Use::Kernel).unwrap());
    }
    // A CPU's cache holds at most a 32nd of all frames.
    assert!((marks.low - 1..marks.low + 8000 / 32).contains(&frames.free_frames()));
    let mut free = || {
        // SAFETY: allocated above, and in no other use.
        unsafe { frames.free(held.pop().unwrap(), 1, false, Use::Kernel) };
        frames.free_frames()
    };
    assert_eq!(frames.shortage(), marks.high - frames.free_frames());
    while free() < marks.high {
        assert_eq!(frames.shortage(), marks.high - frames.free_frames());
    }
    (0..3).for_each(|_| assert_eq!(frames.shortage(), 0));
    let _ = frames.alloc(0, false, Use::Kernel);
    assert_eq!(frames.shortage(), 0, "a shortage began above the low watermark");
}

/// Allocates and frees random blocks of all sizes, zero or not, on several CPUs. No frame is
/// allocated twice, and blocks allocated as zero are zero (INV-10).
#[test]
fn allocated_blocks_are_disjoint_and_zero_blocks_are_zero() {
    for zero_on_free in [false, true] {
        let host = Host::new(&[(16, 3000, true), (9000, 5000, false), (30000, 700, true)], 3);
        let frames = Frames::boot(&host, BootOptions { zero_on_free, ..Default::default() }).unwrap();
        let total = all_free(&frames);
        assert_eq!(total, frames.total());
        let mut held: Vec<(Pfn, u8, Use, bool)> = Vec::new();
        let mut dice = Dice(7);
        for round in 0..5_000 {
            if round % 500 == 0 {
                assert_eq!(frames_in_free_blocks(&frames), frames.free_frames());
                for (pfn, order, ..) in &held {
                    let (first, _, state) = frames.block(pfn.add((1 << order) - 1)).unwrap();
                    assert_eq!((first, state.kind(), state.order()), (*pfn, FrameKind::Private, *order));
                }
            }
            host.on_cpu(dice.roll(3) as usize);
            let order = dice.roll(11) as u8;
            let usage = if dice.roll(4) == 0 { Use::Kernel } else { Use::Folio };
            if dice.roll(2) == 0 {
                let zero = dice.roll(2) == 0;
                let Ok(pfn) = frames.alloc(order, zero, usage) else {
                    assert!(!held.is_empty(), "an allocation failed although no block is allocated");
                    continue;
                };
                assert!(pfn.is_aligned(order));
                let apart = |(other, o, ..): &(Pfn, u8, Use, bool)| {
                    other.0 + (1 << o) <= pfn.0 || pfn.0 + (1 << order) <= other.0
                };
                assert!(held.iter().all(apart), "{pfn:?} of order {order} overlaps an allocated block");
                assert!(!zero || is_zero(&frames, pfn, 1 << order), "{pfn:?} is not zero");
                // Some zero blocks are freed as zero, so that zero and other blocks merge.
                let clean = zero && dice.roll(2) == 0;
                if !clean {
                    dirty(&frames, pfn, 1 << order);
                }
                held.push((pfn, order, usage, clean));
            } else if !held.is_empty() {
                let (pfn, order, usage, clean) = held.swap_remove(dice.roll(held.len() as u64) as usize);
                // SAFETY: this test allocated the block, no other code uses it, and it is zero if
                // it is freed as zero.
                unsafe { frames.free(pfn, 1 << order, clean, usage) };
            }
        }
        for (pfn, order, usage, _) in held {
            // SAFETY: this test allocated the block, and no other code uses it.
            unsafe { frames.free(pfn, 1 << order, false, usage) };
        }
        assert_eq!(all_free(&frames), total, "frames were lost");
    }
}

/// Once every frame is freed, the free blocks are the same as after boot.
#[test]
fn freed_frames_merge_into_the_original_blocks() {
    let host = Host::with_frames(20_000, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_blocks_on(0);
    let held: Vec<Pfn> = core::iter::from_fn(|| frames.alloc(0, false, Use::Folio).ok()).collect();
    assert_eq!(held.len() as u64, frames.total(), "single pages use all memory");
    // Every second frame is freed first: nothing can merge until the others follow.
    for pfn in held.iter().step_by(2).chain(held.iter().skip(1).step_by(2)) {
        // SAFETY: this test allocated the frame, and no other code uses it.
        unsafe { frames.free(*pfn, 1, false, Use::Folio) };
    }
    frames.drain();
    assert_eq!(frames.free_blocks_on(0), before);
}

/// Frames that are in a CPU's cache since an earlier refill don't keep large blocks from merging.
#[test]
fn per_cpu_caches_return_frames_from_earlier_refills() {
    let host = Host::new(&[(16, 8000, true)], 1);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let held: Vec<Pfn> = core::iter::from_fn(|| frames.alloc(0, false, Use::Folio).ok()).collect();
    // Frees scattered pairs first, then all other frames one by one.
    let is_in_pair =
        |pfn: &Pfn| pfn.0 % 128 < 2 && held.contains(&pfn.align_down(1)) && held.contains(&pfn.align_down(1).add(1));
    for pfn in held.iter().filter(|pfn| is_in_pair(pfn) && pfn.is_aligned(1)) {
        // SAFETY: allocated above, and in no other use.
        unsafe { frames.free(*pfn, 2, false, Use::Folio) };
    }
    for pfn in held.iter().filter(|pfn| !is_in_pair(pfn)) {
        // SAFETY: this test allocated the frames, and no other code uses them.
        unsafe { frames.free(*pfn, 1, false, Use::Folio) };
    }
    let cached = |pfn: &u32| frames.block(Pfn(*pfn)).is_some_and(|(.., state)| state.kind() == FrameKind::Cached);
    let cached = (0..9000).filter(cached).count();
    assert!(cached <= 64, "{cached} frames are still in the CPU's cache");
}

/// Consecutive allocations of one CPU, of any orders, are contiguous, and the two CPUs allocate in
/// separate ranges.
#[test]
fn alternating_cpus_allocate_contiguous_ranges_of_their_own() {
    let host = Host::with_frames(80_000, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let mut next: [Option<Pfn>; 2] = [None; 2];
    for order in [0, 0, 2, 4, 9, 0].into_iter().cycle().take(60) {
        for (cpu, next) in next.iter_mut().enumerate() {
            host.on_cpu(cpu);
            for _ in 0..512 >> order {
                let pfn = frames.alloc(order, false, Use::Folio).unwrap();
                let contiguous = next.is_none_or(|next| next == pfn);
                // A huge range is 16 MiB; when it is used up, the CPU goes on with the next huge
                // range.
                assert!(contiguous || pfn.is_aligned(12), "CPU {cpu}: {pfn:?} of order {order} after {next:?}");
                *next = Some(pfn.add(1 << order));
            }
            assert_eq!(
                frames_in_free_blocks(&frames),
                frames.free_frames(),
                "a CPU's huge range counts as free memory"
            );
        }
    }
}

/// A block may be freed in parts, each of any number of frames.
#[test]
fn a_range_of_any_length_can_be_freed() {
    let host = Host::with_frames(5000, 1);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_blocks_on(0);
    let block = frames.alloc(10, false, Use::Folio).unwrap();
    let mut at = 0;
    for count in [1, 2, 3, 31, 32, 33, 100, 7, 815] {
        // SAFETY: each part of the block is freed once.
        unsafe { frames.free(block.add(at), count, false, Use::Folio) };
        at += count;
    }
    assert_eq!(at, 1024);
    frames.drain();
    assert_eq!(frames.free_blocks_on(0), before);
}

/// A frame that was freed as zero is allocated as zero without being written. The test writes to
/// the frame before it frees it as zero, to find out.
#[test]
fn a_zero_block_is_not_zeroed_again() {
    let host = Host::with_frames(2000, 1);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let pfn = frames.alloc(0, true, Use::Kernel).unwrap();
    dirty(&frames, pfn, 1);
    // SAFETY: the test allocated the frame, and no other code uses it. The frame is not zero,
    // contrary to the contract of `free`, but only this test reads it.
    unsafe { frames.free(pfn, 1, true, Use::Kernel) };
    let again = frames.alloc(0, true, Use::Kernel).unwrap();
    assert_eq!(again, pfn, "the most recently freed frame is allocated first");
    assert!(!is_zero(&frames, again, 1), "a frame freed as zero was zeroed again");
}

/// Each defect of a memory map or a CPU count is reported as its own error.
#[test]
fn invalid_memory_maps_and_cpu_counts_are_boot_errors() {
    let boot = |regions: &[(u64, u64, bool)], cpus| {
        let host = Host::new(regions, cpus);
        Frames::boot(&host, BootOptions::default()).err()
    };
    assert!(
        matches!(boot(&[(16, 60, true)], 1), Some(BootError::TooSmall(_))),
        "the region has no room for descriptors"
    );
    assert!(matches!(boot(&[(16, 3000, true)], 0), Some(BootError::BadCpuCount(0))));
    assert!(matches!(boot(&[(16, 3000, true), (2000, 1100, true)], 1), Some(BootError::BadRegion(_))));
    assert_eq!(boot(&[(16, 3000, true), (20_000, 0, true), (20_000, 1, false)], 1), None);
}

/// The settings of `FolioPolicy` have the meaning that they have in Linux.
#[test]
fn folio_orders_follow_the_thp_settings() {
    let policy = FolioPolicy::default();
    assert_eq!(policy.orders(Advice::None), 0, "by default huge pages need MADV_HUGEPAGE");
    assert_eq!(policy.orders(Advice::Huge), 1 << 9);
    policy.set(4, Knob::Always);
    policy.set(2, Knob::Madvise);
    policy.set(3, Knob::Never);
    assert_eq!(policy.orders(Advice::None), 1 << 4);
    assert_eq!(policy.orders(Advice::Huge), 1 << 9 | 1 << 4 | 1 << 2);
    assert_eq!(policy.orders(Advice::NoHuge), 0, "MADV_NOHUGEPAGE overrides every setting");
    policy.set_global(Knob::Always);
    assert_eq!(policy.orders(Advice::None), 1 << 9 | 1 << 4);
    policy.set(0, Knob::Always);
    policy.set(LARGEST_FOLIO + 1, Knob::Always);
    assert_eq!(policy.orders(Advice::None), 1 << 9 | 1 << 4, "order 0 and orders above the largest have no setting");
    policy.set(LARGEST_FOLIO, Knob::Madvise);
    assert_eq!(policy.orders(Advice::None), 1 << 9 | 1 << 4);
    assert_eq!(
        policy.orders(Advice::Huge),
        1 << LARGEST_FOLIO | 1 << 9 | 1 << 4 | 1 << 2,
        "orders above 2 MiB are used with MADV_HUGEPAGE"
    );
}
