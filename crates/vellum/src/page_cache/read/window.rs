//! Decides which pages around a missing one a fault reads with it (Linux:
//! `do_sync_mmap_readahead`).
//!
//! A fault reads a naturally aligned block of [`LEAST`] pages. A page at the edge of its block
//! continues a stream if the page on the other side of the edge is in memory. Then the block is
//! twice the folio of that page, so that a stream through a mapping gets larger folios as it goes
//! on, as a stream of calls does, and needs no state.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::Reads;
use crate::frame::HUGE_ORDER;
use crate::frame::policy::Advice;
use crate::page_cache::LockedState;
use crate::page_cache::index::Entry;
use crate::platform::{MAX_REQUEST_FOLIOS, Platform};
use crate::vma::{Expected, Vma};

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
}

impl Hints {
    /// Returns the advice about a VMA.
    pub(crate) fn of(vma: &Vma) -> Self {
        Hints { folios: vma.advice, reads: vma.expected() }
    }
}

/// Returns the naturally aligned block of 2^`order` pages around a page.
fn block_around(page: u64, order: u32) -> Range<u64> {
    let first = page >> order << order;
    first..first + (1 << order)
}

impl<P: Platform> Reads<'_, '_, P> {
    /// Returns the missing pages around `page` to read with it, within the object, and the number
    /// of index nodes that inserting them needs: where huge folios are advised all pages of one, if
    /// all are missing; only `page` if one of the others could not be read, so that it does not
    /// share their failure. Returns `None` if `page` exists, or lies beyond the end. Takes the
    /// object's lock.
    pub(super) fn missing_around(&self, page: u64, hints: Hints) -> Option<(Range<u64>, usize)> {
        let (state, frames) = (self.0.lock(), self.0.machine.frames());
        let is_missing =
            |page: &u64| state.index.find(frames, *page).is_none() && self.0.head().is_stored(&state, *page);
        if !is_missing(&page) {
            return None;
        }
        let nodes = state.index.missing_nodes(frames, page);
        let huge = u32::from(HUGE_ORDER.saturating_sub(self.0.page_order()));
        let block = block_around(page, huge);
        let pages = if hints.folios == Advice::Huge
            && self.0.head().is_stored(&state, block.end - 1)
            && state.index.missing_run(frames, block.clone()) == 1 << huge
        {
            block
        } else {
            let window = match hints.reads {
                Expected::Random => page..page + 1,
                Expected::Sequential => page..block_around(page, MOST).end,
                Expected::Unknown => self.window(&state, page),
            };
            let start = (window.start..page).rev().take_while(is_missing).last().unwrap_or(page);
            start..(page..window.end).take_while(is_missing).last().unwrap_or(page) + 1
        };
        let has_failed = pages.contains(&self.0.head().failed_read.load(Relaxed));
        Some((if has_failed { page..page + 1 } else { pages }, nodes))
    }

    /// Returns the pages to read with `page` where nothing is advised.
    fn window(&self, state: &LockedState, page: u64) -> Range<u64> {
        let frames = self.0.machine.frames();
        let least = block_around(page, LEAST);
        let beside = if page == least.start {
            page.checked_sub(1)
        } else if page + 1 == least.end {
            Some(least.end)
        } else {
            None
        };
        let Some(Entry::Resident(pfn)) = beside.and_then(|beside| state.index.find(frames, beside)) else {
            return least;
        };
        let order = u32::from(frames.head(pfn).1.order() - self.0.page_order()) + 1;
        let block = block_around(page, order.clamp(LEAST, MOST));
        if page == least.start { page..block.end } else { block.start..page + 1 }
    }
}
