//! Checks the heap's blocks of several frames while no two free frames are contiguous: each frame
//! is mapped at the next address.

use super::lab::{Checked, Lab, expect};
use crate::arch::serial::println;
use crate::arch::vmalloc::{self, virt_to_phys};
use crate::mem::payer::{self, MOST_BEYOND, MOST_UNREFUSED};
use alloc::vec::Vec;
use vellum::addr::{FRAME_SIZE, Pfn, PhysAddr};
use vellum::frame::Use;

/// Words per frame.
const WORDS: usize = FRAME_SIZE as usize / 8;

pub fn story(lab: &Lab) -> Checked {
    let frames = lab.machine.frames();
    let free = |pfn| {
        // SAFETY: the frame came from `alloc` below, and only its link uses it.
        unsafe { frames.free(pfn, 1, false, Use::Kernel) };
    };
    let mut taken = None;
    while let Ok(pfn) = frames.alloc_reserve(0, Use::Kernel) {
        link(lab, pfn, taken);
        taken = Some(pfn);
    }
    let (mut kept, mut freed) = (None, 0);
    while let Some(pfn) = taken {
        taken = next(lab, pfn);
        if pfn.0 % 2 == 0 {
            link(lab, pfn, kept);
            kept = Some(pfn);
        } else {
            free(pfn);
            freed += 1;
        }
    }
    frames.drain();
    expect("no two free frames are contiguous", frames.alloc(1, false, Use::Kernel).is_err(), true)?;
    let largest = 1 << MOST_UNREFUSED;
    [2, 4, largest, 2 * largest].into_iter().try_for_each(|count| in_pieces(lab, count))?;
    // The last of these take from the reserve.
    let blocks = freed / largest as u64 - 1;
    let mut all = Vec::with_capacity(blocks as usize);
    payer::enter_unrefused();
    for nth in 0..blocks {
        all.push(filled(largest, nth));
    }
    let larger = Vec::<u64>::new().try_reserve_exact(2 * largest * WORDS);
    payer::leave_unrefused();
    for (nth, block) in (0..).zip(&all) {
        expect_filled(block, nth)?;
    }
    expect("the reserve was used", frames.free_frames() < frames.min_free(), true)?;
    expect("a larger block is refused", larger.is_err(), true)?;
    let small = |frames: usize| Vec::<u64>::new().try_reserve_exact(frames * WORDS);
    expect("a small block is allocated", small(1 << MOST_BEYOND).is_ok(), true)?;
    expect("a block for work that can be undone is refused", small(2 << MOST_BEYOND).is_err(), true)?;
    drop(all);
    while let Some(pfn) = kept {
        kept = next(lab, pfn);
        free(pfn);
    }
    println!("  {blocks} blocks of {largest} frames from {freed} single ones and the reserve");
    Ok(())
}

/// Links a frame that this check has allocated before another.
fn link(lab: &Lab, pfn: Pfn, before: Option<Pfn>) {
    let at = lab.machine.frames().at(pfn.addr()).cast::<Option<Pfn>>();
    // SAFETY: the frame is this check's, and has room for the link.
    unsafe { at.write(before) };
}

/// Returns the frame before which a frame was linked.
fn next(lab: &Lab, pfn: Pfn) -> Option<Pfn> {
    let at = lab.machine.frames().at(pfn.addr()).cast::<Option<Pfn>>();
    // SAFETY: `link` wrote it.
    unsafe { at.read() }
}

/// Returns a block of `count` frames, each word of which has a value of its own.
fn filled(count: usize, nth: u64) -> Vec<u64> {
    let mut words = Vec::with_capacity(count * WORDS);
    words.extend((0..(count * WORDS) as u64).map(|word| nth << 32 | word));
    words
}

fn expect_filled(words: &[u64], nth: u64) -> Checked {
    let wrong = (0..).zip(words).find(|(word, had)| **had != (nth << 32 | word));
    expect("a word with another value", wrong, None)
}

/// Checks blocks of `count` frames: every page is the frame that the page tables say, also after
/// the addresses were in use for other frames.
fn in_pieces(lab: &Lab, count: usize) -> Checked {
    let first = filled(count, 0);
    let place = first.as_ptr().addr();
    expect("the block is mapped frame by frame", vmalloc::contains(place as u64), true)?;
    expect("the block is aligned to its size", place % (count * FRAME_SIZE as usize), 0)?;
    expect_filled(&first, 0)?;
    drop(first);
    // The frame that was freed last goes to another use, so that the next block has others.
    let other = lab.machine.frames().alloc(0, false, Use::Kernel);
    let words = filled(count, 1);
    expect("the addresses are used again", words.as_ptr().addr(), place)?;
    for page in 0..count {
        let frame = virt_to_phys((place + page * FRAME_SIZE as usize) as u64);
        let at = lab.machine.frames().at(PhysAddr(frame)).cast::<u64>();
        // SAFETY: the frame is the block's, and nothing writes to it meanwhile.
        let had = unsafe { at.read() };
        expect("a page's first word, by the direct map", had, 1 << 32 | (page * WORDS) as u64)?;
    }
    drop(words);
    if let Ok(pfn) = other {
        // SAFETY: allocated above, and in no use.
        unsafe { lab.machine.frames().free(pfn, 1, false, Use::Kernel) };
    }
    Ok(())
}
