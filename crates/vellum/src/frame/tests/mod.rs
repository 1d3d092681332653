//! The allocator against what it promises, on memory with holes.

mod node;

use std::vec::Vec;

use super::policy::{Advice, FolioPolicy, Knob};
use super::*;
use crate::testing::{Dice, Host};

/// First frame and count of each region, as far as descriptors tell: everything that is free.
fn all_free(frames: &Frames<'_, Host>) -> u64 {
    frames.drain();
    frames.free_frames()
}

fn is_zero(frames: &Frames<'_, Host>, pfn: Pfn, count: u32) -> bool {
    // SAFETY: the test allocated these frames and is alone with them.
    let bytes =
        unsafe { std::slice::from_raw_parts(frames.at(pfn.addr()).as_ptr(), count as usize * FRAME_SIZE as usize) };
    bytes.iter().all(|b| *b == 0)
}

fn dirty(frames: &Frames<'_, Host>, pfn: Pfn, count: u32) {
    // SAFETY: as above.
    unsafe { frames.at(pfn.addr()).as_ptr().write_bytes(0x5a, count as usize * FRAME_SIZE as usize) }
}

/// How many frames lie in free blocks, by what the blocks say.
fn told_free(frames: &Frames<'_, Host>) -> u64 {
    let free = |pfn: &u32| {
        let block = frames.block(Pfn(*pfn));
        block.is_some_and(|(.., state)| matches!(state.kind(), FrameKind::Free | FrameKind::Cached))
    };
    (0..100_000).filter(free).count() as u64
}

/// What is kept for the host is the host's alone, and all that it can ever get.
#[test]
fn the_last_frames_are_kept() {
    const KEPT: u64 = 100;
    let host = Host::new(&[(16, 3000, true)], 2);
    let frames = Frames::boot(&host, BootOptions { kept: KEPT, ..Default::default() }).unwrap();
    let total = all_free(&frames);
    for usage in [Use::Folio, Use::Kernel] {
        for order in [0, 3] {
            let held: Vec<Pfn> = core::iter::from_fn(|| frames.alloc(order, false, usage).ok()).collect();
            let left = all_free(&frames);
            assert!((KEPT..KEPT + (1 << order)).contains(&left), "{left} left of order {order}");
            let kept: Vec<Pfn> = core::iter::from_fn(|| frames.alloc_kept(0, usage).ok()).collect();
            assert_eq!(kept.len() as u64, left);
            assert_eq!(all_free(&frames), 0);
            // SAFETY: from the allocator, and nobody else's.
            kept.iter().for_each(|pfn| unsafe { frames.free_kept(*pfn, 0, usage) });
            assert!(frames.alloc(order, false, usage).is_err(), "what was kept is not kept again");
            // SAFETY: as above.
            held.iter().for_each(|pfn| unsafe { frames.free(*pfn, 1 << order, false, usage) });
            assert_eq!(all_free(&frames), total);
        }
    }
}

/// The host hears of a shortage from below the low watermark until the high one, and at no other time.
#[test]
fn a_shortage_lasts_until_enough_is_free() {
    const STEP: u64 = 700;
    let host = Host::new(&[(16, 8000, true)], 1);
    let frames = Frames::boot(&host, BootOptions { kept: 100, watermarks: STEP, ..Default::default() }).unwrap();
    let marks = frames.watermarks_on(0);
    assert_eq!(marks, Watermarks { min: 100, low: 100 + STEP, high: 100 + 2 * STEP });
    let mut held = Vec::new();
    while frames.shortage() == 0 {
        held.push(frames.alloc(0, false, Use::Kernel).unwrap());
    }
    // A CPU has no more than a 32nd of all at hand.
    assert!((marks.low - 1..marks.low + 8000 / 32).contains(&frames.free_frames()));
    let mut free = || {
        // SAFETY: from the allocator, and nobody else's.
        unsafe { frames.free(held.pop().unwrap(), 1, false, Use::Kernel) };
        frames.free_frames()
    };
    assert_eq!(frames.shortage(), marks.high - frames.free_frames());
    while free() < marks.high {
        assert_eq!(frames.shortage(), marks.high - frames.free_frames());
    }
    (0..3).for_each(|_| assert_eq!(frames.shortage(), 0));
    let _ = frames.alloc(0, false, Use::Kernel);
    assert_eq!(frames.shortage(), 0, "a little less than much is no shortage");
}

/// INV-10, and that no frame is given out twice: random blocks of all sizes, on several CPUs, zero or not.
#[test]
fn blocks_are_disjoint_and_zero_blocks_are_zero() {
    for zero_on_free in [false, true] {
        let host = Host::new(&[(16, 3000, true), (9000, 5000, false), (30000, 700, true)], 3);
        let frames = Frames::boot(&host, BootOptions { zero_on_free, ..Default::default() }).unwrap();
        let total = all_free(&frames);
        assert_eq!(total, frames.total());
        let mut held: Vec<(Pfn, u8, Use, bool)> = Vec::new();
        let mut dice = Dice(7);
        for round in 0..5_000 {
            if round % 500 == 0 {
                assert_eq!(told_free(&frames), frames.free_frames());
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
                    assert!(!held.is_empty(), "no memory, although nothing is held");
                    continue;
                };
                assert!(pfn.is_aligned(order));
                let apart = |(other, o, ..): &(Pfn, u8, Use, bool)| {
                    other.0 + (1 << o) <= pfn.0 || pfn.0 + (1 << order) <= other.0
                };
                assert!(held.iter().all(apart), "{pfn:?} of order {order} was given out twice");
                assert!(!zero || is_zero(&frames, pfn, 1 << order), "{pfn:?} is not zero");
                // Some zero blocks stay zero and are freed as such, so that both kinds meet when they merge.
                let clean = zero && dice.roll(2) == 0;
                if !clean {
                    dirty(&frames, pfn, 1 << order);
                }
                held.push((pfn, order, usage, clean));
            } else if !held.is_empty() {
                let (pfn, order, usage, clean) = held.swap_remove(dice.roll(held.len() as u64) as usize);
                // SAFETY: held by this test alone, and as zero as it says.
                unsafe { frames.free(pfn, 1 << order, clean, usage) };
            }
        }
        for (pfn, order, usage, _) in held {
            // SAFETY: held by this test alone.
            unsafe { frames.free(pfn, 1 << order, false, usage) };
        }
        assert_eq!(all_free(&frames), total, "every frame came back");
    }
}

/// Freed memory becomes whole again: after everything is back, the free blocks are those of the beginning.
#[test]
fn blocks_merge_until_they_are_whole() {
    let host = Host::with_frames(20_000, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_blocks_on(0);
    let held: Vec<Pfn> = core::iter::from_fn(|| frames.alloc(0, false, Use::Folio).ok()).collect();
    assert_eq!(held.len() as u64, frames.total(), "single pages use all memory");
    // Every second one first: nothing can merge until the rest comes.
    for pfn in held.iter().step_by(2).chain(held.iter().skip(1).step_by(2)) {
        // SAFETY: held by this test alone.
        unsafe { frames.free(*pfn, 1, false, Use::Folio) };
    }
    frames.drain();
    assert_eq!(frames.free_blocks_on(0), before);
}

/// What a CPU keeps at hand of former times does not stand in the way of large blocks.
#[test]
fn what_is_left_over_goes_back_too() {
    let host = Host::new(&[(16, 8000, true)], 1);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let held: Vec<Pfn> = core::iter::from_fn(|| frames.alloc(0, false, Use::Folio).ok()).collect();
    // Here and there two at once, and then all others one by one.
    let two =
        |pfn: &Pfn| pfn.0 % 128 < 2 && held.contains(&pfn.align_down(1)) && held.contains(&pfn.align_down(1).add(1));
    for pfn in held.iter().filter(|pfn| two(pfn) && pfn.is_aligned(1)) {
        // SAFETY: from the allocator, and nobody else's.
        unsafe { frames.free(*pfn, 2, false, Use::Folio) };
    }
    for pfn in held.iter().filter(|pfn| !two(pfn)) {
        // SAFETY: as above.
        unsafe { frames.free(*pfn, 1, false, Use::Folio) };
    }
    let cached = |pfn: &u32| frames.block(Pfn(*pfn)).is_some_and(|(.., state)| state.kind() == FrameKind::Cached);
    let cached = (0..9000).filter(cached).count();
    assert!(cached <= 64, "{cached} frames are kept at hand");
}

/// What one CPU asks for in a row lies in a row, in whatever sizes, and far from what another one asks for meanwhile.
#[test]
fn cpus_that_take_turns_get_memory_apart() {
    let host = Host::with_frames(80_000, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let mut next: [Option<Pfn>; 2] = [None; 2];
    for order in [0, 0, 2, 4, 9, 0].into_iter().cycle().take(60) {
        for (cpu, next) in next.iter_mut().enumerate() {
            host.on_cpu(cpu);
            for _ in 0..512 >> order {
                let pfn = frames.alloc(order, false, Use::Folio).unwrap();
                let in_a_row = next.is_none_or(|next| next == pfn);
                // Each reserve is 16 MiB: from time to time the next one begins.
                assert!(in_a_row || pfn.is_aligned(12), "CPU {cpu}: {pfn:?} of order {order} after {next:?}");
                *next = Some(pfn.add(1 << order));
            }
            assert_eq!(told_free(&frames), frames.free_frames(), "a reserve is free memory");
        }
    }
}

/// A stretch may be freed at once although it was allocated in pieces.
#[test]
fn a_stretch_of_any_length_can_be_freed() {
    let host = Host::with_frames(5000, 1);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let before = frames.free_blocks_on(0);
    let block = frames.alloc(10, false, Use::Folio).unwrap();
    let mut at = 0;
    for count in [1, 2, 3, 31, 32, 33, 100, 7, 815] {
        // SAFETY: each part of the block once.
        unsafe { frames.free(block.add(at), count, false, Use::Folio) };
        at += count;
    }
    assert_eq!(at, 1024);
    frames.drain();
    assert_eq!(frames.free_blocks_on(0), before);
}

/// Zeroed memory is not zeroed twice: what was freed as zero comes back without being written. (The frame is made dirty
/// behind the allocator's back, to see whether it would be.)
#[test]
fn what_is_known_to_be_zero_is_left_alone() {
    let host = Host::with_frames(2000, 1);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let pfn = frames.alloc(0, true, Use::Kernel).unwrap();
    dirty(&frames, pfn, 1);
    // SAFETY: the test's alone. (That it is zero is a lie, which only this test could notice.)
    unsafe { frames.free(pfn, 1, true, Use::Kernel) };
    let again = frames.alloc(0, true, Use::Kernel).unwrap();
    assert_eq!(again, pfn, "the last one freed is the first one given out");
    assert!(!is_zero(&frames, again, 1), "it was zeroed a second time");
}

/// Bad memory maps and bad machines are errors, each its own.
#[test]
fn what_cannot_be_booted_is_refused() {
    let boot = |regions: &[(u64, u64, bool)], cpus| {
        let host = Host::new(regions, cpus);
        Frames::boot(&host, BootOptions::default()).err()
    };
    assert!(matches!(boot(&[(16, 60, true)], 1), Some(BootError::TooSmall(_))), "no room for descriptors");
    assert!(matches!(boot(&[(16, 3000, true)], 0), Some(BootError::BadCpuCount(0))));
    assert!(matches!(boot(&[(16, 3000, true), (2000, 1100, true)], 1), Some(BootError::BadRegion(_))));
    assert_eq!(boot(&[(16, 3000, true), (20_000, 0, true), (20_000, 1, false)], 1), None);
}

/// The knobs mean what Linux's mean.
#[test]
fn folio_sizes_follow_the_knobs() {
    let policy = FolioPolicy::default();
    assert_eq!(policy.orders(Advice::None), 0, "by default only who asks gets huge pages");
    assert_eq!(policy.orders(Advice::Huge), 1 << 9);
    policy.set(4, Knob::Always);
    policy.set(2, Knob::Madvise);
    policy.set(3, Knob::Never);
    assert_eq!(policy.orders(Advice::None), 1 << 4);
    assert_eq!(policy.orders(Advice::Huge), 1 << 9 | 1 << 4 | 1 << 2);
    assert_eq!(policy.orders(Advice::NoHuge), 0, "who asks not to gets none, whatever the knobs say");
    policy.set_global(Knob::Always);
    assert_eq!(policy.orders(Advice::None), 1 << 9 | 1 << 4);
    policy.set(0, Knob::Always);
    policy.set(LARGEST_FOLIO + 1, Knob::Always);
    assert_eq!(policy.orders(Advice::None), 1 << 9 | 1 << 4, "single pages and sizes beyond the largest have no knob");
    policy.set(LARGEST_FOLIO, Knob::Madvise);
    assert_eq!(policy.orders(Advice::None), 1 << 9 | 1 << 4);
    assert_eq!(
        policy.orders(Advice::Huge),
        1 << LARGEST_FOLIO | 1 << 9 | 1 << 4 | 1 << 2,
        "above huge ones: if asked for"
    );
}
