//! The audit: compares what the engine counts with what it finds, on a machine at rest.
//!
//! | what is counted | with what it is compared | file |
//! |---|---|---|
//! | the mappings of a folio | the PTEs that map it, in all spaces | `spaces` |
//! | resident and swapped pages of a space | its PTEs inside its VMAs, which are all of its PTEs | `spaces` |
//! | page tables of all spaces | the frames that are page tables | `frames` |
//! | the references of a folio | its mappings, and the pages of objects' indexes; those beyond are pins | `frames` |
//! | pages on LRU lists, partially mapped folios | the lists, and the folios in use | `frames` |
//! | free frames | the descriptors | `frames` |
//! | the swap cache | the folios that it names | `frames` |
//! | entries of a node of an object's index; the object's pages in memory and in swap; the object and page that a folio names | the index | `objects` |
//! | the VMAs of each space that map an object, and may write to it | the VMAs of all spaces | `objects` |
//! | references of a slot | the PTEs, the pages of objects and the swap-cache page that name it | `slots` |
//! | pages charged to a memcg, with its descendants | the folios, page tables, and other blocks whose descriptors name these | `charges` |
//! | charged blocks that are neither, nor the host's | frames of spaces' VMA trees and slots, and of objects' heads, mappers and nodes | `charges` |
//! | pages in swap of a memcg's objects | the objects | `objects` |
//!
//! An audit changes nothing and allocates nothing. It takes each lock that it needs for a moment,
//! as any reader does: on a machine that is not at rest it is safe, and finds differences that are
//! none. What it counts it counts in one array with an element for each frame, which it uses again
//! for each comparison. It costs about ten looks at every descriptor, and one at every PTE for each
//! swap device and twice for the rest; a swap device with more slots than the array has elements
//! takes several.

mod charges;
mod frames;
mod objects;
mod slots;
mod spaces;
#[cfg(test)]
mod tests;
mod unsound;

pub use unsound::{Unsound, What};

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::Arch;
use crate::frame::{Frame, FrameKind, FrameState};
use crate::machine::Machine;
use crate::memcg::MAX_MEMCGS;
use crate::platform::Platform;
use crate::space::AddressSpace;

/// Sums of a machine, in pages of 4 KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Address spaces.
    pub spaces: u64,
    /// Frames of their page tables.
    pub tables: u64,
    /// Pages of folios in use.
    pub folios: u64,
    /// Pages that PTEs map.
    pub mapped: u64,
    /// References to folios that are neither mappings nor pages of objects: pages that the host has
    /// in hand.
    pub pinned: u64,
    /// Frames of spaces and objects beside folios and page tables.
    pub structures: u64,
    /// The host's own structures, charged to memcgs.
    pub host: u64,
}

/// Returns the first frame of a machine, and the length of the array that [`audit`] counts in: how
/// many frames lie from there to the last one, and at least [`MAX_MEMCGS`].
pub fn span<P: Platform>(machine: &Machine<'_, P>) -> (Pfn, usize) {
    let regions = || machine.platform().regions().iter();
    let first = regions().map(|region| region.base.pfn().0).min().unwrap_or(0);
    let end = regions().map(|region| ((region.base.0 + region.len) >> FRAME_SHIFT) as u32).max().unwrap_or(0);
    (Pfn(first), (end.saturating_sub(first) as usize).max(MAX_MEMCGS))
}

/// Audits a machine whose address spaces are `spaces`: shows each difference to `report`, and
/// returns sums. `report` must be quick, and must not call back into the engine: locks may be held.
///
/// `counts` has as many elements as [`span`] says, and is overwritten.
///
/// # Panics
/// If `counts` is shorter.
pub fn audit<'s, 'm: 's, P: Platform, A: Arch + 's>(
    machine: &'m Machine<'m, P>,
    spaces: impl Iterator<Item = &'s AddressSpace<'m, P, A>> + Clone,
    counts: &mut [u32],
    report: &mut dyn FnMut(Unsound),
) -> Sums {
    let (first, len) = span(machine);
    let counts = &mut counts[..len];
    counts.fill(0);
    let mut audit = Audit { machine, first, counts, report, sums: Sums::default() };
    audit.sums.structures = spaces.clone().map(|space| audit.space(space)).sum();
    audit.frames();
    audit.sums.structures += audit.indexes();
    audit.references();
    audit.lists();
    audit.swap_cache();
    audit.mappers(spaces.clone());
    audit.slots(spaces);
    audit.charges(audit.sums.structures);
    audit.swapped();
    audit.sums
}

struct Audit<'a, 'm, P: Platform> {
    machine: &'m Machine<'m, P>,
    first: Pfn,
    /// What is counted at present: by frame from `first` on, by slot, or by memcg.
    counts: &'a mut [u32],
    report: &'a mut dyn FnMut(Unsound),
    sums: Sums,
}

impl<P: Platform> Audit<'_, '_, P> {
    fn compare(&mut self, what: What, counted: u64, found: u64) {
        if counted != found {
            (self.report)(Unsound::Differs { what, counted, found });
        }
    }

    /// Returns what was counted for a frame.
    fn count(&self, pfn: Pfn) -> u32 {
        self.counts.get(pfn.0.wrapping_sub(self.first.0) as usize).copied().unwrap_or(0)
    }
}

/// Shows the first frame of each block of the machine, and each frame that belongs to none: a tail.
fn each_block<'m, P: Platform>(machine: &Machine<'m, P>, mut visit: impl FnMut(Pfn, &'m Frame, FrameState)) {
    let frames = machine.frames();
    for region in machine.platform().regions() {
        let (mut at, end) = (region.base.pfn(), ((region.base.0 + region.len) >> FRAME_SHIFT) as u32);
        let mut blocks = 0u32;
        while at.0 < end
            && let Some(frame) = frames.get(at)
        {
            let state = frame.state();
            visit(at, frame, state);
            at = if state.kind() == FrameKind::Tail { at.add(1) } else { at.add(1 << state.order()) };
            blocks += 1;
            if blocks.is_multiple_of(BLOCKS) {
                machine.platform().resched();
            }
        }
    }
}

/// Blocks that are looked at between two points where the CPU may do something else.
const BLOCKS: u32 = 512;
