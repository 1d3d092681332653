//! Copies the memory that a block of addresses maps into one folio, and maps the folio there
//! instead: for copy-on-write, and for collapse.
//!
//! Busy entries, at which faults wait, take the place of the old PTEs until the new PTEs are
//! written ([`LockedTable::make_busy`]). The TLB flush and the copy follow without the page table's
//! lock. So no CPU writes to the original while it is copied, and none reads the original after a
//! write to the copy. The flush covers the whole block, holes included: a reclaimer may have
//! cleared PTEs in the holes and not flushed them yet.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{BusyEntries, DetachedTable, LockedTable, Run};
use crate::tlb::{Gather, Removed};
use crate::vma::Vma;

use super::Anon;
use crate::space::ground::Ptes;

impl<'s, 'm, P: Platform> Anon<'s, 'm, P> {
    /// Copies the memory that `block` maps into the folio `pfn` of [`Anon::alloc`], and maps the
    /// folio in the block instead. The block is one huge PTE of `table`, or a part of `table` with
    /// only leaf PTEs, in at most `RUNS` runs, and holes. A hole becomes zeros.
    pub(in crate::space) fn replace_part<const RUNS: usize>(
        self,
        table: LockedTable<'_, 'm, P>,
        vma: &Vma,
        block: UserRange,
        pfn: Pfn,
    ) {
        let (level, shift) = (table.level, table.shift());
        let mut removed = ArrayVec::<Removed, RUNS>::new();
        let place = table.make_busy(*block, |taken| removed.push(taken));
        let flushed = self.tables().tlb.invalidate(&[*block], shift, false);
        let resident = self.copy_parts(*block, pfn, removed.iter().map(|old| (old.range, old.pfn)));
        place.fill(&self.new_run(vma, *block, pfn, level));
        self.count_replaced(*block, resident);
        // The old frames of page-cache objects were counted as shmem. `put_flushed` moves them to
        // the count of anonymous memory.
        Gather::put_flushed(&self.tables().tlb, &removed, &flushed);
    }

    /// Copies the memory that a whole page table maps into the folio `pfn` of [`Anon::alloc`], and
    /// maps the folio by one huge PTE in the place of the page table. The page table `old` was
    /// detached from the upper page table, where `place` is a busy entry now. It has only leaf PTEs
    /// and holes.
    pub(in crate::space) fn replace_table(
        self,
        old: DetachedTable<'_, 'm, P>,
        place: BusyEntries<'_, 'm, P>,
        vma: &Vma,
        pfn: Pfn,
    ) {
        let arch = self.arch();
        let (block, level) = (old.table().range(), old.table().level + 1);
        let mut gather = self.space.gather(self.user_part(block));
        let resident = self.copy_parts(block, pfn, old.leaf_runs().map(|run| (run.range(arch), run.pfn(arch))));
        place.fill(&self.new_run(vma, block, pfn, level));
        old.drain(&mut gather, |removed, gather| gather.push(removed));
        self.count_replaced(block, resident);
    }

    /// Returns the PTEs that map the folio `pfn` in `block`, exclusive to the space.
    fn new_run(self, vma: &Vma, block: VirtRange, pfn: Pfn, level: u8) -> Run {
        let arch = self.arch();
        self.machine().frames().sync_icache(pfn, (block.len() >> FRAME_SHIFT) as u32, vma.prot.attrs());
        let raw = arch.leaf(pfn.addr(), Ptes::of(self.space).exclusive_attrs(vma, Attrs::empty()), level);
        Run::new(block.start, level, Kind::Leaf, raw, (block.len() >> arch.level_shift(level)) as usize)
    }

    /// Copies `parts` of a block (addresses and first frame, in ascending order) to the same places
    /// in the new folio `pfn`, and zeroes the rest of the folio. The PTEs of the parts are gone and
    /// flushed. Returns the number of copied frames that were counted as resident: all except those
    /// of the zero folio.
    fn copy_parts(self, block: VirtRange, pfn: Pfn, parts: impl Iterator<Item = (VirtRange, Pfn)>) -> i64 {
        let machine = self.machine();
        let frames = |bytes: u64| (bytes >> FRAME_SHIFT) as u32;
        let (mut at, mut resident) = (block.start, 0);
        let zero_until = |at: u64, end: u64| {
            if at < end {
                // SAFETY: only the caller refers to the folio before it is mapped.
                unsafe { machine.frames().zero(pfn.add(frames(at - block.start)), frames(end - at)) };
            }
        };
        for (range, from) in parts {
            zero_until(at, range.start);
            let to = pfn.add(frames(range.start - block.start));
            // SAFETY: the cleared PTEs had references to the frames `from`, which the caller drops
            // only after this copy. Only the caller refers to the new folio before it is mapped.
            unsafe { machine.frames().copy(from, to, frames(range.len())) };
            if !machine.zero_folio().contains(from) {
                resident += i64::from(frames(range.len()));
            }
            at = range.end;
            machine.platform().resched();
        }
        zero_until(at, block.end);
        resident
    }

    /// Adds the frames of a block to the space's count of anonymous memory, except the `resident`
    /// frames that were counted before.
    fn count_replaced(self, block: VirtRange, resident: i64) {
        let more = (block.len() >> FRAME_SHIFT) as i64 - resident;
        if more != 0 {
            self.tables().slot().add(SpaceCounter::Anon, more);
        }
    }
}
