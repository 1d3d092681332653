//! Replaces what a block maps by a copy of it in one folio: for copy-on-write, and for collapse.
//!
//! The old PTEs are replaced by busy entries until the new ones are written
//! ([`LockedTable::make_busy`]): flush, copy and fill follow with no lock held. No CPU writes to
//! the original while it is copied, and none reads the original after a write to the copy. The
//! flush covers the whole block, holes included: a reclaimer may have cleared PTEs there, with the
//! flush still pending.

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
    /// Copies what `block` maps into the folio `pfn` of [`Anon::alloc`], and maps the folio there
    /// instead. The block is one huge PTE of `table`, or a part of `table` that has only leaf PTEs,
    /// in at most `RUNS` runs, and holes, which become zeros.
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
        // The gather subtracts the frames of objects, which were counted as shmem.
        Gather::put_flushed(&self.tables().tlb, &removed, &flushed);
    }

    /// Copies what a whole page table maps into the folio `pfn` of [`Anon::alloc`], and maps the
    /// folio by one huge PTE in its place. The page table was detached, and has only leaf PTEs and
    /// holes.
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

    /// Returns the PTEs that map an exclusive folio in a block.
    fn new_run(self, vma: &Vma, block: VirtRange, pfn: Pfn, level: u8) -> Run {
        let arch = self.arch();
        self.machine().frames().sync_icache(pfn, (block.len() >> FRAME_SHIFT) as u32, vma.prot.attrs());
        let raw = arch.leaf(pfn.addr(), Ptes::of(self.space).exclusive_attrs(vma, Attrs::empty()), level);
        Run::new(block.start, level, Kind::Leaf, raw, (block.len() >> arch.level_shift(level)) as usize)
    }

    /// Copies `parts` of a block, in ascending order, to the new folio `pfn`, and zeroes the rest
    /// of the folio. No CPU reaches the parts any more. Returns how many of the copied frames
    /// counted as resident.
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
            // SAFETY: the caller drops the references of the cleared PTEs only later, and only the
            // caller refers to the copy before it is mapped.
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

    /// Counts a block as resident, of which `resident` frames were counted before.
    fn count_replaced(self, block: VirtRange, resident: i64) {
        let more = (block.len() >> FRAME_SHIFT) as i64 - resident;
        if more != 0 {
            self.tables().slot().add(SpaceCounter::Anon, more);
        }
    }
}
