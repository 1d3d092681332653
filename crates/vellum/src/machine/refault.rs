//! Refaults: pages of files that are read again soon after reclaim dropped them, because they
//! belong to a working set that was too large for the memory that it had (Linux: `workingset.c`).
//!
//! Each memcg has a clock, the number of its own file pages that reclaim ever dropped. When a folio
//! is dropped, the time is kept for each of its blocks of 16 pages. When a page of the block is
//! read again, the *refault distance*, the time since then, says how many more pages the memcg
//! would have needed to keep the page. If it has as many, in other uses, the page competes with
//! these: it begins on the list of active folios.
//!
//! The times are in a table of fixed size, at a place that follows from the file, the block and the
//! memcg. A block that is dropped later may take the place of another, whose refault then goes
//! unnoticed. The table has room for the blocks of at least twice the machine's memory, in no more
//! than a 4,096th of it.

use core::ops::Range;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

use super::{Machine, alloc_permanent_slice};
use crate::frame::{Frame, Frames, OutOfMemory, Zeroable};
use crate::memcg::{LruvecId, MemcgId};
use crate::platform::Platform;

/// log2 of the number of pages of a block.
const BLOCK_ORDER: u32 = 4;
/// The number of frames of the machine for each entry of the table.
const FRAMES_PER_ENTRY: u64 = 4;
/// The largest table: 16 MiB, for machines of 64 GiB and more.
const MAX_ENTRIES: u64 = 1 << 22;
/// The bits of an entry that have a time; the others distinguish blocks.
const TIME_BITS: u32 = 20;

/// The times at which blocks of files were dropped.
pub(crate) struct Refaults<'p> {
    /// For each place a tag that is not 0 and a time, or 0.
    entries: &'p [AtomicU32],
    /// log2 of the number of pages by which a time differs from the next.
    unit: u32,
}

/// A file, as a memcg uses it.
#[derive(Clone, Copy)]
pub(crate) struct FileOf {
    hash: u64,
}

/// An odd constant without structure: 2^64 divided by the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

impl FileOf {
    /// Names the object with this number, as a memcg uses it.
    pub(crate) fn new(object: u64, memcg: MemcgId) -> Self {
        FileOf { hash: (object << 16 | u64::from(memcg.0)).wrapping_mul(MIX) }
    }

    /// Returns the place of a block, and the part of its entry that distinguishes it from others
    /// with this place. Of the block's number as many bits count as folios know of their pages.
    #[inline]
    fn block(self, block: u64) -> (usize, u32) {
        let hash = (self.hash ^ (block << BLOCK_ORDER) as u32 as u64).wrapping_mul(MIX);
        ((hash >> 40) as usize, ((hash >> 16) as u32 | 1) << TIME_BITS)
    }
}

impl<'p> Refaults<'p> {
    /// Allocates the table.
    ///
    /// # Errors
    /// There is no memory for it.
    pub(super) fn new<P: Platform>(frames: &Frames<'p, P>) -> Result<Self, OutOfMemory> {
        let entries = (frames.total() / FRAMES_PER_ENTRY).clamp(1, MAX_ENTRIES).ilog2();
        // A time lasts until 16 times the machine's memory was dropped.
        let unit = (16 * frames.total().next_power_of_two()).ilog2().saturating_sub(TIME_BITS);
        Ok(Refaults { entries: alloc_permanent_slice::<AtomicU32, P>(frames, 1 << entries)?, unit })
    }

    /// Returns a time as entries have it.
    fn time(&self, clock: u64) -> u32 {
        (clock >> self.unit) as u32 & ((1 << TIME_BITS) - 1)
    }

    /// Returns how many pages were dropped since the block with this page was; `None` if it was not
    /// dropped lately.
    pub(crate) fn distance(&self, file: FileOf, page: u64, clock: u64) -> Option<u64> {
        let (place, tag) = file.block(page >> BLOCK_ORDER);
        let found = self.entries[place & (self.entries.len() - 1)].load(Relaxed);
        let since = self.time(clock).wrapping_sub(found) & ((1 << TIME_BITS) - 1);
        (found >> TIME_BITS == tag >> TIME_BITS).then_some(u64::from(since) << self.unit)
    }
}

/// Keeps the times at which folios of an object are dropped.
pub(crate) struct Dropped<'a, 'm, P: Platform> {
    machine: &'a Machine<'m, P>,
    object: u64,
    memcg: MemcgId,
    /// The object, as `memcg` uses it.
    file: FileOf,
    /// The time, as entries have it, before the folios of `memcg` were dropped.
    time: u32,
    /// The pages of these folios.
    pages: u64,
}

impl<'a, 'm, P: Platform> Dropped<'a, 'm, P> {
    /// Begins with folios of the object with this number.
    pub(crate) fn new(machine: &'a Machine<'m, P>, object: u64) -> Self {
        let mut dropped =
            Dropped { machine, object, memcg: MemcgId::ROOT, file: FileOf { hash: 0 }, time: 0, pages: 0 };
        dropped.begin(MemcgId::ROOT);
        dropped
    }

    /// Begins with folios of this memcg, and advances the clock of the one before.
    #[cold]
    fn begin(&mut self, memcg: MemcgId) {
        let memcgs = self.machine.memcgs();
        memcgs.clock(self.memcg).fetch_add(core::mem::take(&mut self.pages), Relaxed);
        (self.memcg, self.file) = (memcg, FileOf::new(self.object, memcg));
        self.time = self.machine.refaults.time(memcgs.clock(memcg).load(Relaxed));
    }

    /// Adds a folio, which has these pages of the object, at least one. `count` of its frames are
    /// dropped.
    #[inline]
    pub(crate) fn add(&mut self, frame: &Frame, pages: Range<u64>, count: u64) {
        let memcg = LruvecId::unpack(frame.lruvec()).memcg;
        if memcg != self.memcg {
            self.begin(memcg);
        }
        let entries = self.machine.refaults.entries;
        // Most folios are in one block.
        let (mut block, last) = (pages.start >> BLOCK_ORDER, (pages.end - 1) >> BLOCK_ORDER);
        loop {
            let (place, tag) = self.file.block(block);
            entries[place & (entries.len() - 1)].store(tag | self.time, Relaxed);
            if block >= last {
                break;
            }
            block += 1;
        }
        self.pages += count;
    }
}

impl<P: Platform> Drop for Dropped<'_, '_, P> {
    /// Advances the clock of the last memcg.
    fn drop(&mut self) {
        self.machine.memcgs().clock(self.memcg).fetch_add(self.pages, Relaxed);
    }
}

// SAFETY: zeros are a valid value of an atomic integer.
unsafe impl Zeroable for AtomicU32 {}
