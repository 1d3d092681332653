//! Memory is replaced by a copy of it, in one folio: because others have it too ([`super::cow`]), or because it is in many pieces
//! ([`super::collapse`]).
//!
//! The old entries go, and their place is busy until the new ones come ([`crate::table`]'s
//! `occupy`): flush, copy and fill, with no lock held. Nothing writes to what is copied while it
//! is, and a write to the copy is not contradicted by what a CPU still reads of the original. The
//! flush is of all of the place, also where nothing was: an eviction may have emptied that, and not
//! flushed yet.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{LockedTable, Occupied, Run, Supplanted};
use crate::tlb::{Gather, Removed};
use crate::vma::Vma;

use super::AddressSpace;
use crate::space::ground::Ptes;

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Put a folio, which has its references and mappings, in the place of what a block maps, with the same contents: one huge leaf, or a
    /// part of this table, in which nothing else stands but leaves, in `RUNS` runs at most. Where nothing is mapped there will be zeros.
    pub(super) fn replace_part<const RUNS: usize>(
        &self,
        table: LockedTable<'_, 'm, P, A>,
        vma: &Vma,
        block: UserRange,
        pfn: Pfn,
    ) {
        let (level, shift) = (table.level, table.shift());
        let mut removed = ArrayVec::<Removed, RUNS>::new();
        let place = table.occupy(*block, |taken| removed.push(taken));
        let flushed = self.tables.tlb.invalidate(&[*block], shift, false);
        let resident = self.copy_parts(*block, pfn, removed.iter().map(|old| (old.range, old.pfn)));
        place.fill(&self.new_run(vma, *block, pfn, level));
        self.count_replaced(*block, resident);
        // Those that were an object's counted as its, and the gather sets that right.
        Gather::put_flushed(&self.tables.tlb, &removed, &flushed);
    }

    /// Put a folio, which has its references and mappings, in the place of all that a table mapped,
    /// which are leaves, with the same contents: one huge leaf in the place of the table.
    pub(super) fn replace_table(
        &self,
        old: Supplanted<'_, 'm, P, A>,
        place: Occupied<'_, 'm, P, A>,
        vma: &Vma,
        pfn: Pfn,
    ) {
        let arch = &self.tables.arch;
        let (block, level) = (old.table().range(), old.table().level + 1);
        let mut gather = self.gather(UserRange::all(&self.tables.arch).intersect(&block));
        let resident = self.copy_parts(block, pfn, old.leaves().map(|run| (run.range(arch), run.pfn(arch))));
        place.fill(&self.new_run(vma, block, pfn, level));
        old.empty(&mut gather, |removed, gather| gather.push(removed));
        self.count_replaced(block, resident);
    }

    /// What maps a folio that is the space's own in a block.
    fn new_run(&self, vma: &Vma, block: VirtRange, pfn: Pfn, level: u8) -> Run {
        let arch = &self.tables.arch;
        self.tables.machine.frames().expose(pfn, (block.len() >> FRAME_SHIFT) as u32, vma.prot.attrs());
        let raw = arch.leaf(pfn.addr(), Ptes::of(self).exclusive_attrs(vma, Attrs::empty()), level);
        Run::new(block.start, level, Kind::Leaf, raw, (block.len() >> arch.level_shift(level)) as usize)
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
            unsafe { machine.frames().copy(from, to, frames(range.len())) };
            if !machine.zeros_folio().contains(from) {
                resident += i64::from(frames(range.len()));
            }
            at = range.end;
            machine.platform().resched();
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
