//! The audit: compares the engine's counts with the page tables, descriptors, lists and indexes
//! that they count, on a machine on which no other operation of the engine runs.
//!
//! | count | compared with | file |
//! |---|---|---|
//! | the mappings of a folio | the PTEs that map it, in all spaces | `spaces` |
//! | resident and swapped pages of a space | the space's PTEs, which must be inside its VMAs | `spaces` |
//! | page tables of all spaces | the frames that are page tables | `frames` |
//! | the references of a folio (INV-2) | its mappings, and objects' index entries; the rest are pins | `frames` |
//! | pages on LRU lists (INV-9) | the lists, and the folios in use | `frames` |
//! | folios on deferred-split queues | the partially mapped folios | `frames` |
//! | free frames | the descriptors of free blocks | `frames` |
//! | swap-cache pages | the folios that the swap cache names | `frames` |
//! | entries of a node of an object's index | the index | `objects` |
//! | an object's pages in memory and in swap | the index | `objects` |
//! | the object and page that a folio names | the index | `objects` |
//! | the VMAs that map an object, and those that may write | the VMAs of all spaces | `objects` |
//! | references of a slot | the PTEs, objects' pages and swap-cache page that name it | `slots` |
//! | pages charged to a memcg (INV-9) | the blocks whose descriptors name it or a descendant memcg | `charges` |
//! | frames charged for spaces' and objects' structures | the structures found in spaces and objects | `charges` |
//! | pages in swap of a memcg's objects | the objects | `objects` |
//! | dirty pages of a memcg, and those that are being written | the objects, by folio | `objects` |
//!
//! An audit changes nothing and allocates nothing. It takes the locks that its reads require, and
//! holds each only for a moment. So it is safe while other operations of the engine run, but what
//! these change between two of its reads may make it report false differences. It counts in one
//! array with an element for each frame; each comparison clears the array and uses it again. An
//! audit reads every descriptor about ten times. It reads every PTE twice, and once more for each
//! swap device. For a swap device with more slots than the array has elements it reads the PTEs
//! once for each part that fits.

mod charges;
mod discrepancy;
mod frames;
mod objects;
mod slots;
mod spaces;
#[cfg(test)]
mod tests;

pub use discrepancy::{Discrepancy, Quantity};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::frame::{Frame, FrameKind, FrameState};
use crate::machine::Machine;
use crate::memcg::MAX_MEMCGS;
use crate::platform::Platform;
use crate::space::AddressSpace;

/// The sums over a machine that an audit finds, in pages of 4 KiB unless stated otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// The number of address spaces.
    pub spaces: u64,
    /// Frames of the page tables of all address spaces.
    pub tables: u64,
    /// Pages of folios in use.
    pub folios: u64,
    /// Pages that PTEs map.
    pub mapped: u64,
    /// Pins, such as a device's for DMA: references to folios that neither a PTE nor a page-cache
    /// object holds.
    pub pinned: u64,
    /// Frames of spaces' and objects' own structures: neither folios nor page tables.
    pub structures: u64,
    /// Frames of the host's own structures that are charged to memcgs.
    pub host: u64,
}

/// Returns the length of the array that [`audit`] counts in: the number of frames between the
/// machine's first and its last frame, both included, but at least [`MAX_MEMCGS`].
pub fn counts_len<P: Platform>(machine: &Machine<'_, P>) -> usize {
    let regions = machine.platform().regions().iter();
    let end = regions.map(|region| ((region.base.0 + region.len) >> FRAME_SHIFT) as u32).max().unwrap_or(0);
    (end.saturating_sub(first_frame(machine).0) as usize).max(MAX_MEMCGS)
}

/// Returns the machine's first frame.
fn first_frame<P: Platform>(machine: &Machine<'_, P>) -> Pfn {
    Pfn(machine.platform().regions().iter().map(|region| region.base.pfn().0).min().unwrap_or(0))
}

/// Audits a machine whose address spaces are `spaces`: passes each discrepancy to `report`, and
/// returns the sums over the machine. Page-table, lruvec and other locks may be held while `report`
/// runs, so it must be quick and must not call back into the engine.
///
/// `counts` is memory to count in, of the length that [`counts_len`] returns; it is overwritten.
///
/// # Panics
/// If `counts` is shorter than [`counts_len`].
pub fn audit<'s, 'm: 's, P: Platform + 's>(
    machine: &'m Machine<'m, P>,
    spaces: impl Iterator<Item = &'s AddressSpace<'m, P>> + Clone,
    counts: &mut [u32],
    report: &mut dyn FnMut(Discrepancy),
) -> Sums {
    let first = first_frame(machine);
    let counts = &mut counts[..counts_len(machine)];
    counts.fill(0);
    let mut audit = Audit { machine, first, counts, report, sums: Sums::default() };
    audit.sums.structures = spaces.clone().map(|space| audit.check_space(space)).sum();
    audit.check_frames();
    audit.sums.structures += audit.check_indexes();
    audit.check_references();
    audit.check_lists();
    audit.check_swap_cache();
    audit.check_mappers(spaces.clone());
    audit.check_slots(spaces);
    audit.check_charges(audit.sums.structures);
    audit.check_swapped();
    audit.check_dirty();
    audit.sums
}

/// An audit in progress.
struct Audit<'a, 'm, P: Platform> {
    machine: &'m Machine<'m, P>,
    /// The machine's first frame.
    first: Pfn,
    /// The counts of the present comparison: by frame from `first` on, by slot, or by memcg.
    counts: &'a mut [u32],
    /// The caller's callback.
    report: &'a mut dyn FnMut(Discrepancy),
    /// The sums so far.
    sums: Sums,
}

impl<P: Platform> Audit<'_, '_, P> {
    /// Reports a discrepancy if the engine's count of `what` is not the number that the audit
    /// found.
    fn compare(&mut self, what: Quantity, counted: u64, found: u64) {
        if counted != found {
            (self.report)(Discrepancy::Differs { what, counted, found });
        }
    }

    /// Returns the audit's own count for a frame; 0 for a frame of no region.
    fn count_of(&self, pfn: Pfn) -> u32 {
        self.counts.get(pfn.0.wrapping_sub(self.first.0) as usize).copied().unwrap_or(0)
    }
}

/// Passes the first frame of each block of the machine to `visit` (a block is a folio, a page
/// table, a free block or another allocation), and each tail frame that is outside any block. Calls
/// `resched` every [`BLOCKS_PER_RESCHED`] blocks.
fn each_block<'m, P: Platform>(machine: &Machine<'m, P>, mut visit: impl FnMut(Pfn, &'m Frame, FrameState)) {
    let frames = machine.frames();
    for region in machine.platform().regions() {
        let (mut at, end) = (region.base.pfn(), ((region.base.0 + region.len) >> FRAME_SHIFT) as u32);
        let mut blocks = 0u32;
        while at.0 < end
            && let Some((frame, state)) = frames.block_at(at)
        {
            visit(at, frame, state);
            at = if state.kind() == FrameKind::Tail { at.add(1) } else { at.add(1 << state.order()) };
            blocks += 1;
            if blocks.is_multiple_of(BLOCKS_PER_RESCHED) {
                machine.platform().resched();
            }
        }
    }
}

/// The number of blocks that [`each_block`] visits between two calls of `resched` (INV-11).
const BLOCKS_PER_RESCHED: u32 = 512;
