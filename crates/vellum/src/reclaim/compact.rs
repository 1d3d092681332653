//! Compaction: empties pageblocks, so that their frames become free blocks of 2 MiB (Linux:
//! `mm/compaction.c`).
//!
//! A pageblock is isolated first, so that no allocation takes its free frames, and frames that are
//! freed there stay there. Then its folios are isolated from their LRU lists, and migrated as
//! reclaim migrates the pages of a partially mapped folio ([`crate::space::MigratedPages`]):
//! write-protected, copied with no lock held, and mapped again by the rmap. The copies come from
//! other pageblocks, those with the smallest free blocks first; a large folio moves to several
//! smaller ones where no block is as large. If a folio can't be moved, the
//! isolation ends, the folios that have not moved go back to their LRU lists, and the frames that
//! are free are free again.
//!
//! Moved are anonymous folios up to 2 MiB that are not pinned and that no locked VMA maps; clean
//! lazyfree folios are discarded. A pageblock with anything else stays as it is, as does one with
//! memory of a memcg that is at its limit, because a copy is charged before the original is freed.

use arrayvec::ArrayVec;

use crate::addr::Pfn;
use crate::frame::{FrameUse, HUGE_ORDER, IsolatedPageblock, free_in_pageblock, pageblocks, unskip_pageblock};
use crate::machine::Machine;
use crate::platform::Platform;
use crate::space::{ISOLATION_BATCH, IsolationBatch, MigratedPages, Spaces};
use crate::stats::Counter;

use super::{Reclaim, Reclaimed, Victim};

/// The number of frames of a pageblock.
const FRAMES: u32 = 1 << HUGE_ORDER;
/// The number of pageblocks among which compaction chooses the ones to empty: 1 GiB.
const WINDOW: u32 = 512;
/// The number of pageblocks that it tries to empty before it chooses anew.
const TRIES: usize = 4;
/// The least number of free frames of a pageblock that is worth emptying.
const MIN_FREE: u32 = FRAMES / 8;

/// The result of compaction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Compacted {
    /// The number of pageblocks that were emptied. Each is a free block of 2 MiB, or a part of a
    /// larger one, unless another CPU has allocated from it meanwhile.
    pub blocks: u64,
    /// The number of pages of 4 KiB that were moved or discarded.
    pub moved: u64,
}

/// Empties pageblocks of `node`, or of any node, until `blocks` are empty, so that as many free
/// blocks of 2 MiB come into being. Takes the pageblocks with the most free frames first, in each
/// gigabyte, and goes on to the next gigabyte where it could empty none. Leaves a pageblock where
/// the free frames elsewhere don't suffice for copies. Skips pageblocks that could not be emptied
/// before, until no others are left, or if `blocks` is [`u64::MAX`].
///
/// A host calls this when a fault asks for it
/// ([`Memory::compact`](crate::platform::Memory::compact)), and when an administrator does (Linux:
/// `/proc/sys/vm/compact_memory`). The caller holds no lock; the platform's `resched` is called
/// between pageblocks.
pub fn compact<'m, P: Platform>(
    machine: &'m Machine<'m, P>,
    spaces: &(impl Spaces<'m, P> + ?Sized),
    node: Option<usize>,
    blocks: u64,
) -> Compacted {
    let frames = machine.frames();
    let (all, mut done) = (pageblocks(frames), Compacted::default());
    let work = Reclaim { machine, spaces, wanted: 0, done: Reclaimed::default(), arch: core::marker::PhantomData };
    // Free frames in the caches of CPUs are in no pageblock's bitmap.
    frames.drain();
    let mut left = all;
    while left > 0 && done.blocks < blocks {
        let window = left.min(WINDOW);
        left -= window;
        let start = machine.compaction().advance(window);
        let numbers = (start..).take(window as usize).map(|number| number % all);
        let unskip = || numbers.clone().for_each(|number| unskip_pageblock(frames, Pfn(number << HUGE_ORDER)));
        if blocks == u64::MAX {
            unskip();
        }
        // Each emptied pageblock fills others, so the choice is made anew until it has none that
        // can be emptied.
        loop {
            let (before, candidates) = (done.blocks, candidates(machine, node, numbers.clone()));
            if candidates.is_empty() {
                // The next attempt looks at all of them again.
                unskip();
            }
            for Candidate { first, free } in candidates {
                let copies = u64::from(FRAMES - free);
                if done.blocks < blocks && frames.free_frames() >= frames.min_free() + u64::from(free) + 2 * copies {
                    let (is_empty, moved) = work.empty_pageblock(first);
                    done.blocks += u64::from(is_empty);
                    done.moved += moved;
                }
            }
            if done.blocks == before || done.blocks >= blocks {
                break;
            }
        }
    }
    machine.compaction().note(done.blocks > 0);
    done
}

/// A pageblock that is worth emptying.
struct Candidate {
    /// The first frame.
    first: Pfn,
    /// The number of free frames.
    free: u32,
}

/// Returns the pageblocks with the most free frames, of those on `node` with the `numbers`.
fn candidates<P: Platform>(
    machine: &Machine<'_, P>,
    node: Option<usize>,
    numbers: impl Iterator<Item = u32>,
) -> ArrayVec<Candidate, TRIES> {
    let mut best = ArrayVec::<Candidate, TRIES>::new();
    for first in numbers.map(|number| Pfn(number << HUGE_ORDER)) {
        let free = free_in_pageblock(machine.frames(), first).filter(|(_, on)| node.is_none_or(|node| node == *on));
        let Some((free, _)) = free.filter(|(free, _)| *free >= MIN_FREE) else { continue };
        let at = best.partition_point(|other| other.free >= free);
        if at < TRIES {
            if best.is_full() {
                best.pop();
            }
            best.insert(at, Candidate { first, free });
        }
    }
    machine.platform().resched();
    best
}

impl<'m, P: Platform, S: Spaces<'m, P> + ?Sized> Reclaim<'_, 'm, P, S> {
    /// Moves all folios out of a pageblock. Returns whether the pageblock is wholly free, and the
    /// number of pages that were moved or discarded.
    fn empty_pageblock(&self, first: Pfn) -> (bool, u64) {
        let machine = self.machine;
        let Some(pageblock) = IsolatedPageblock::new(machine.frames(), first) else { return (false, 0) };
        let (isolated, mut copies) = (IsolationBatch::new(machine), MigratedPages::of_pageblock(first));
        let mut folios = IsolatedFolios { first, heads: [0; _] };
        let mut at = first;
        let mut moves = true;
        while at.0 < first.0 + FRAMES && moves {
            let mut victims = ArrayVec::<Victim<'m>, ISOLATION_BATCH>::new();
            while at.0 < first.0 + FRAMES && moves && !victims.is_full() {
                match pageblock.frame_use(at) {
                    FrameUse::Free => at = at.add(1),
                    FrameUse::Cached => {
                        machine.frames().drain();
                        moves = pageblock.frame_use(at) == FrameUse::Free;
                    }
                    FrameUse::Folio => match machine.lru().isolate_at(at) {
                        Some((frame, pages)) => {
                            isolated.add(frame);
                            folios.add(at);
                            let next = Victim::new(at, frame, pages);
                            if !victims.last_mut().is_some_and(|last| last.join(&next)) {
                                victims.push(next);
                            }
                            at = at.add(pages);
                        }
                        None => moves = pageblock.frame_use(at) == FrameUse::Free,
                    },
                    FrameUse::Other => moves = false,
                }
            }
            if moves {
                victims.sort_unstable_by_key(|victim| victim.rmap_key);
                for family in victims.chunk_by_mut(|a, b| a.family() == b.family()) {
                    self.reclaim_family(family, isolated, false, Some(&mut copies));
                }
                moves = victims.iter().all(|victim| victim.is_done(machine, isolated));
            }
            machine.platform().resched();
        }
        copies.finish(machine);
        let folios = folios.iter().map(|head| (head, machine.frames().frame(head)));
        let moved = isolated.putback(machine, folios.map(|(head, frame)| Some((head, frame, 1 << frame.order()))));
        // The frames that this freed may be in a CPU's cache.
        machine.frames().drain();
        let is_empty = pageblock.release();
        machine.count(Counter::PagesMigrated, moved);
        machine.count(if is_empty { Counter::CompactSuccesses } else { Counter::CompactFailures }, 1);
        (is_empty, moved)
    }
}

/// The isolated folios of a pageblock.
struct IsolatedFolios {
    /// The first frame of the pageblock.
    first: Pfn,
    /// A bit for each frame of the pageblock, which is set if the frame is the head of such a
    /// folio.
    heads: [u64; FRAMES as usize / 64],
}

impl IsolatedFolios {
    fn add(&mut self, head: Pfn) {
        let at = (head.0 - self.first.0) as usize;
        self.heads[at / 64] |= 1 << (at % 64);
    }

    fn iter(&self) -> impl Iterator<Item = Pfn> {
        (0..FRAMES).filter(|at| self.heads[*at as usize / 64] >> (at % 64) & 1 != 0).map(|at| self.first.add(at))
    }
}
