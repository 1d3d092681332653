//! Reclaims memory through the engine (pageout, swap, discard of lazyfree pages) and counts the
//! pages scanned and freed, by reason.

use crate::mem::spaces::All;
use crate::mem::{machine, memcgs};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use vellum::reclaim::{ReclaimScope, Reclaimed};

/// The reason for which memory is reclaimed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Background reclaim: free memory is below its mark (Linux: kswapd).
    Background,
    /// Direct reclaim: a thread waits for memory.
    Direct,
    /// A memcg has reached its limit.
    Limit,
    /// A program requests it (`memory.reclaim`).
    Requested,
}

/// The pages scanned and freed, by reason.
static DONE: [[AtomicU64; 2]; 4] = [const { [const { AtomicU64::new(0) }; 2] }; 4];

/// Returns the pages scanned and freed for a reason since boot.
pub fn done(why: Reason) -> Reclaimed {
    let [looked, freed] = &DONE[why as usize];
    Reclaimed { scanned: looked.load(Relaxed), freed: freed.load(Relaxed) }
}

/// Compacts the memory of all nodes until there are `blocks` more free blocks of 2 MiB.
pub fn compact(blocks: u64) {
    vellum::reclaim::compact(machine(), &All, None, blocks);
}

/// Frees about `pages` pages of a memcg and its descendants, on one node or on all. Returns the
/// number of pages freed, which is less if not enough can be reclaimed.
pub fn reclaim(why: Reason, part: impl Into<ReclaimScope>, pages: u64) -> u64 {
    memcgs::update_swap_room();
    let reclaimed = vellum::reclaim::reclaim(machine(), &All, part, pages);
    let Reclaimed { scanned: looked, freed } = reclaimed.unwrap_or_default();
    DONE[why as usize].iter().zip([looked, freed]).for_each(|(sum, pages)| _ = sum.fetch_add(pages, Relaxed));
    freed
}
