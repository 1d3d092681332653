//! Decides which pages around a missing one a fault reads with it (Linux:
//! `do_sync_mmap_readahead`).
//!
//! A fault reads a naturally aligned block of 64 KiB. A page at the edge of its block continues a
//! stream if the pages on the other side of the edge are in memory. Then the block is twice as
//! large as what is there, of which a few pages are looked up. So a stream through a mapping is
//! read in larger pieces as it goes on, as a stream of calls is, and needs no state. Programs jump
//! about in their text, and use most of it, so that it is read in the largest blocks at once.

use core::ops::Range;

use crate::frame::policy::Advice;
use crate::platform::MAX_REQUEST_FOLIOS;
use crate::vma::{Expected, Prot, Vma};

/// log2 of the number of pages that a fault reads together at least, if they are missing.
const LEAST: u32 = 4;
/// log2 of the number of pages that a fault reads together at most, where nothing else is advised
/// (512 KiB in pages of 4 KiB).
const MOST: u32 = 7;

const _: () = assert!(1 << LEAST <= MAX_REQUEST_FOLIOS);

/// The advice that a program gave about the VMA for which pages are looked up.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hints {
    /// The folios to use.
    pub(crate) folios: Advice,
    /// The reads to expect.
    pub(crate) reads: Expected,
    /// True if programs execute the pages.
    pub(crate) is_text: bool,
}

impl Hints {
    /// Returns the advice about a VMA.
    pub(crate) fn of(vma: &Vma) -> Self {
        Hints { folios: vma.advice, reads: vma.expected(), is_text: vma.prot.contains(Prot::EXEC) }
    }
}

/// Returns the naturally aligned block of 2^`order` pages around a page.
pub(super) fn block_around(page: u64, order: u32) -> Range<u64> {
    let first = page >> order << order;
    first..first + (1 << order)
}

/// Returns the pages to read with `page`, as far as they are missing, for a VMA with these hints.
/// `exists` returns whether a page is in memory or being read.
pub(super) fn around(page: u64, hints: Hints, exists: impl Fn(u64) -> bool) -> Range<u64> {
    match hints.reads {
        Expected::Random => return page..page + 1,
        Expected::Sequential => return page..block_around(page, MOST).end,
        Expected::Unknown if hints.is_text => return block_around(page, MOST),
        Expected::Unknown => {}
    }
    let least = block_around(page, LEAST);
    let (is_first, is_last) = (page == least.start, page + 1 == least.end);
    // Returns whether the page exists that lies so far from this one, outside its block.
    let is_there = |distance| match (is_first, is_last) {
        (true, _) => page.checked_sub(distance).is_some_and(&exists),
        (_, true) => exists(page + distance),
        _ => false,
    };
    if !is_there(1) {
        return least;
    }
    let order = (LEAST..MOST).find(|order| !is_there(1 << order)).unwrap_or(MOST);
    let block = block_around(page, order);
    if is_first { page..block.end } else { block.start..page + 1 }
}
