//! Memory is short: some of it goes to swap, or, where its owner said that it may, for good.

use crate::mem::spaces::All;
use crate::mem::{machine, memcgs};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::reclaim::{ReclaimScope, Reclaimed};

/// Why memory is reclaimed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Who {
    /// Little of it is free.
    Background,
    /// Somebody waits for some.
    Direct,
    /// A group has as much as it may have.
    Limit,
    /// A program asks for it.
    Asked,
}

/// Pages that were looked at and freed, for each of these reasons.
static DONE: [[AtomicU64; 2]; 4] = [const { [const { AtomicU64::new(0) }; 2] }; 4];

/// What was done for a reason.
pub fn done(why: Who) -> Reclaimed {
    let [looked, freed] = &DONE[why as usize];
    Reclaimed { scanned: looked.load(Relaxed), freed: freed.load(Relaxed) }
}

/// Frees about so many pages of what a group and those below it have, on one node or all, as far as that can be; how many that were.
pub fn reclaim(why: Who, part: impl Into<ReclaimScope>, pages: u64) -> u64 {
    memcgs::tell_swap_room();
    let reclaimed = vellum::reclaim::reclaim(machine(), &All, part, pages);
    let Reclaimed { scanned: looked, freed } = reclaimed.unwrap_or_default();
    DONE[why as usize].iter().zip([looked, freed]).for_each(|(sum, pages)| _ = sum.fetch_add(pages, Relaxed));
    freed
}
