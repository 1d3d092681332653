//! The state of compaction ([`crate::reclaim::compact`]) that all CPUs share: where the next
//! attempt begins, and whether faults ask for one.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// The largest log2 of the number of faults that fall back after an attempt without success
/// (Linux: `COMPACT_MAX_DEFER_SHIFT`).
const MAX_DEFER_SHIFT: u32 = 6;

/// Where compaction goes on, and how many faults do without it. Each word is changed by itself: two
/// CPUs at once may look at the same pageblocks, or let a fault more or less ask.
#[derive(Debug, Default)]
pub(crate) struct Compaction {
    /// The number of the pageblock at which the next attempt begins, modulo their number.
    cursor: AtomicU32,
    /// log2 of the number of faults that fall back before one asks again; 0 after a success.
    defer_shift: AtomicU32,
    /// The number of faults that fell back since the last attempt.
    fell_back: AtomicU32,
}

impl Compaction {
    /// Moves the cursor by `window` pageblocks. Returns where it was.
    pub(crate) fn advance(&self, window: u32) -> u32 {
        self.cursor.fetch_add(window, Relaxed)
    }

    /// Returns whether a fault that found no large block asks for compaction. After an attempt
    /// without success the next faults fall back to smaller folios instead, twice as many after
    /// each, up to 64 (Linux: `compaction_deferred`).
    pub(crate) fn may_ask(&self) -> bool {
        let shift = self.defer_shift.load(Relaxed);
        shift == 0 || self.fell_back.fetch_add(1, Relaxed) >> shift != 0
    }

    /// Notes whether an attempt emptied a pageblock.
    pub(crate) fn note(&self, success: bool) {
        let shift = if success { 0 } else { (self.defer_shift.load(Relaxed) + 1).min(MAX_DEFER_SHIFT) };
        self.defer_shift.store(shift, Relaxed);
        self.fell_back.store(0, Relaxed);
    }
}
