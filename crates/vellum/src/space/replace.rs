//! Memory is replaced by a copy of it, in one folio: because others have it too ([`super::cow`]), or because it is in many pieces
//! ([`super::collapse`]).
//!
//! Out with the old entries, flush, copy, in with the new, all under the table's lock. Nobody can write to what is copied while it is,
//! and whoever writes to the copy is not contradicted by what a CPU still reads of the original. The flush is of all of the place, also where
//! nothing was: an eviction may have emptied that, and not flushed yet.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::cache;
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{LockedTable, Run};
use crate::tlb::{Gather, Removed};
use crate::vma::Vma;

use super::AddressSpace;

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Put a folio, which has its references and mappings, in the place of what a block maps, with the same contents: one huge leaf, or a
    /// part of this table, in which nothing else stands but leaves, in `RUNS` runs at most. Where nothing is mapped there will be zeros.
    pub(super) fn replace_part<const RUNS: usize>(
        &self,
        table: LockedTable<'_, 'm, P, A>,
        area: &Vma,
        block: UserRange,
        pfn: Pfn,
    ) {
        let (new, len) = (self.leaf_of(area, pfn, table.level), (block.len() >> table.shift()) as usize);
        let huge = table.level > 1;
        let mut removed: [Removed; RUNS] = core::array::from_fn(|_| Removed::nothing());
        let mut used = 0;
        let mut at = block.start;
        while at < block.end {
            let taken = match table.run(at, block.end).map(|run| run.kind) {
                Some(Kind::Leaf) if huge => Some(table.take_busy(at).1),
                Some(Kind::Leaf) => table.take(at, block.end),
                Some(Kind::None) => {
                    at = table.run(at, block.end).map_or(block.end, |run| run.range(&self.tables.arch).end);
                    continue;
                }
                _ => None,
            };
            let (Some(taken), Some(place)) = (taken, removed.get_mut(used)) else {
                unreachable!("a leaf of this block, which lies in it: looked at under the lock")
            };
            at = taken.range.end;
            *place = taken;
            used += 1;
        }
        let removed = &removed[..used];
        let flushed = self.tables.tlb.invalidate(&[*block], table.shift(), false);
        let resident = self.copy_parts(*block, pfn, removed.iter().map(|old| (old.range, old.pfn)));
        self.tables.machine.frames().expose(pfn, (block.len() >> FRAME_SHIFT) as u32, area.prot.attrs());
        if huge {
            table.fill(block.start, new);
        } else {
            table.set(&Run::new(block.start, table.level, Kind::Leaf, new, len));
        }
        table.release();
        self.count_replaced(*block, resident);
        // Those that were an object's counted as its, and the gather sets that right.
        Gather::put_flushed(&self.tables.tlb, removed, &flushed);
    }

    /// Put a folio, which has its references and mappings, in the place of all that a table maps, which are leaves, with the same
    /// contents: one huge leaf in the place of the table.
    pub(super) fn replace_table(&self, table: LockedTable<'_, 'm, P, A>, area: &Vma, pfn: Pfn) {
        let block = table.range();
        let mut gather = self.gather(block);
        let mut resident = 0;
        let old = table.supplant(|table| {
            let mut at = block.start;
            let leaves = core::iter::from_fn(|| {
                while at < block.end
                    && let Some(run) = table.run(at, block.end)
                {
                    at = run.range(&self.tables.arch).end;
                    if run.kind == Kind::Leaf {
                        return Some((run.range(&self.tables.arch), run.pfn(&self.tables.arch)));
                    }
                }
                None
            });
            resident = self.copy_parts(block, pfn, leaves);
            self.tables.machine.frames().expose(pfn, (block.len() >> FRAME_SHIFT) as u32, area.prot.attrs());
            self.leaf_of(area, pfn, table.level + 1)
        });
        old.empty(&mut gather, |removed, gather| gather.push(removed));
        self.count_replaced(block, resident);
    }

    /// The first leaf that maps a folio which is the space's own.
    fn leaf_of(&self, area: &Vma, pfn: Pfn, level: u8) -> u64 {
        self.tables.arch.leaf(pfn.addr(), self.own_attrs(area, Attrs::empty()), level)
    }

    /// Fill a folio with what stood in parts of a block, in ascending order, which nobody reaches any more, and with zeros where nothing
    /// did. How many frames were memory that counts.
    fn copy_parts(&self, block: VirtRange, pfn: Pfn, parts: impl Iterator<Item = (VirtRange, Pfn)>) -> i64 {
        let machine = self.tables.machine;
        let frames = |bytes: u64| (bytes >> FRAME_SHIFT) as u32;
        let (mut at, mut resident) = (block.start, 0);
        let zero_until = |at: u64, end: u64| {
            if at < end {
                // SAFETY: the folio is nobody else's before it is mapped.
                unsafe { machine.frames().zero(pfn.add(frames(at - block.start)), frames(end - at)) };
            }
        };
        for (range, from) in parts {
            zero_until(at, range.start);
            let to = pfn.add(frames(range.start - block.start));
            // SAFETY: what was taken out keeps its references until the caller drops them; the copy is nobody else's before it is mapped.
            unsafe { cache::copy_frames(machine, from, to, frames(range.len())) };
            if !machine.zeros_folio().contains(from) {
                resident += i64::from(frames(range.len()));
            }
            at = range.end;
        }
        zero_until(at, block.end);
        resident
    }

    /// A block is all memory now, of which so many frames were before.
    fn count_replaced(&self, block: VirtRange, resident: i64) {
        let more = (block.len() >> FRAME_SHIFT) as i64 - resident;
        if more != 0 {
            self.tables.slot().add(SpaceCounter::Anon, more);
        }
    }
}
