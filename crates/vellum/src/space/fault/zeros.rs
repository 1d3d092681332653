//! The zero folio: maps it for a read of untouched anonymous memory, and replaces it on a write.
//! All address spaces share it.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, LockedTable, NotMapped, Run};
use crate::vma::Vma;

use super::{Fault, FaultError, Outcome};
use crate::space::anon::Anon;
use crate::space::ground::{LeafShape, Ptes};

impl<'s, 'm, P: Platform> Fault<'s, 'm, P> {
    /// Returns the orders of the blocks that a read fault may map to the zero folio, as a bit mask:
    /// all orders up to the largest of `orders`, the orders of folios that faults may allocate in
    /// the VMA. A part of the zero folio can be mapped at any order, so that a small hole does not
    /// cost a fault for each of its pages.
    pub(in crate::space) fn zero_orders(self, orders: u32) -> u32 {
        let largest = orders.checked_ilog2().map(|top| top.min(self.machine().zero_folio().order as u32));
        largest.map_or(0, |top| (2 << top) - 1)
    }

    /// Maps the zero folio in the block of `order` around `addr`, for a read of untouched memory.
    #[inline(never)]
    pub(super) fn map_zeros(self, vma: &Vma, addr: u64, order: u8) -> Result<Outcome, FaultError> {
        let block = vma.range.around(addr, order as u32 + FRAME_SHIFT);
        match self.tables().map_run(block, &self.zero_ptes(vma, block, Attrs::empty())) {
            Ok(()) => Ok(Outcome::Mapped(*block)),
            Err(NotMapped::Occupied) => Ok(Outcome::Again),
            Err(NotMapped::NoMemory(why)) => Err(why.into()),
        }
    }

    /// Returns the PTEs that map `block` to the zero folio, with the attributes `extra` added.
    /// `block` is naturally aligned and no larger than the zero folio.
    pub(in crate::space) fn zero_ptes(self, vma: &Vma, block: UserRange, extra: Attrs) -> Run {
        let zeros = self.machine().zero_folio();
        let LeafShape { level, entries } = Ptes::of(self.space).leaf_shape((block.len() >> FRAME_SHIFT).ilog2() as u8);
        let offset = (block.start >> FRAME_SHIFT) as u32 & ((1 << zeros.order) - 1);
        let attrs = (vma.prot.attrs() - Attrs::WRITE) | Attrs::ACCESSED | extra;
        let raw = self.arch().leaf(zeros.pfn.add(offset).addr(), attrs, level);
        Run::new(block.start, level, Kind::Leaf, raw, entries)
    }

    /// Unmaps the zero folio around `page`, for a write to `page`: the fault is then retried, finds
    /// a hole, and maps a new folio in it. Unmaps the block of the largest folio that policy allows
    /// around the page.
    ///
    /// Flushes before it unlocks the page table: once a CPU has mapped a folio into the hole and
    /// written to it, no other CPU may read zeros through a stale TLB entry.
    pub(super) fn unmap_zeros(self, vma: &Vma, page: UserRange) {
        let arch = self.arch();
        let zeros = self.machine().zero_folio();
        let orders = self.machine().policy().orders(Anon::of(self.space).advice(vma));
        let mut blocks = self.tables().aligned_blocks(page.start, vma.range, orders).map(|(block, _)| block);
        let block = blocks.find(|block| block.covers(&page)).unwrap_or(page);
        let mut gather = self.space.gather(block);
        let mut at = block.start;
        while at < block.end {
            let table = match self.tables().find(block.tail(at)) {
                Found::Hole(end) => {
                    at = end;
                    continue;
                }
                Found::Table(table) => table,
            };
            let end = block.end.min(table.end());
            let mut stale: Option<VirtRange> = None;
            while at < end
                && let Some(run) = table.run(at, end)
            {
                if run.kind == Kind::Leaf
                    && zeros.contains(run.pfn(arch))
                    && !run.attrs(arch).contains(Attrs::UFFD_WP)
                    && let Some(removed) = table.take(at, end)
                {
                    let range = removed.uncounted();
                    stale = Some(VirtRange { start: stale.map_or(range.start, |s| s.start), end: range.end });
                }
                at = run.range(arch).end;
            }
            if let Some(range) = stale {
                self.tables().tlb.invalidate(&[range], table.shift(), false);
            }
            table.unlock(&mut gather);
        }
    }

    /// Replaces the zero folio by a new zeroed folio, for a write in a VMA that is registered with
    /// a userfaultfd for missing pages. If the PTEs were empty for a moment, another fault would
    /// report a page as missing that the userfaultfd has supplied. So busy entries, at which other
    /// faults wait, take the place of the old PTEs until the TLBs are flushed and the new PTEs are
    /// written ([`LockedTable::make_busy`]). The new folio is the largest that policy allows in a
    /// block that maps only the zero folio.
    #[cold]
    pub(super) fn replace_zeros(self, vma: &Vma, addr: u64, page: UserRange) -> Result<Outcome, FaultError> {
        let arch = self.arch();
        let orders = Anon::of(self.space).orders(vma);
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        let fits = |(block, _): &(UserRange, u8)| self.maps_only_zeros(&table, *block);
        let found = self.tables().aligned_blocks(addr, vma.range, orders).find(fits);
        table.release();
        let smallest = (page.len().ilog2() - FRAME_SHIFT) as u8;
        let order = found.map_or(arch.page_order(), |(_, order)| order);
        if order < smallest {
            return self.split_huge(addr, page);
        }
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, addr, order, orders, true)?;
        let block = vma.range.around(addr, order as u32 + FRAME_SHIFT);
        if order >= smallest && self.map_over_zeros(vma, block, pfn) {
            return Ok(Outcome::Mapped(*block));
        }
        self.machine().put_folio(pfn, 1 << order, 1 << order);
        if order < smallest { self.split_huge(addr, page) } else { Ok(Outcome::Again) }
    }

    /// Returns whether PTEs of `table` map all of `block` to the zero folio, and none of these PTEs
    /// is write-protected for a userfaultfd.
    fn maps_only_zeros(self, table: &LockedTable<'_, 'm, P>, block: UserRange) -> bool {
        let arch = self.arch();
        let zeros = self.machine().zero_folio();
        let fits = if table.level > 1 { 1 << table.shift() } else { 1 << (arch.level_shift(2) - 1) };
        if block.len() > fits {
            return false;
        }
        let run = table.run(block.start, block.end);
        run.is_some_and(|run| {
            let is_zeros = run.kind == Kind::Leaf && block == run.range(arch) && zeros.contains(run.pfn(arch));
            is_zeros && !run.attrs(arch).contains(Attrs::UFFD_WP)
        })
    }

    /// Maps the folio `pfn` in `block` instead of the zero folio. Returns false, and changes
    /// nothing, if another CPU has changed the PTEs of the block.
    fn map_over_zeros(self, vma: &Vma, block: UserRange, pfn: Pfn) -> bool {
        let arch = self.arch();
        let Found::Table(table) = self.tables().find(block) else { return false };
        if !self.maps_only_zeros(&table, block) {
            table.release();
            return false;
        }
        let (level, shift) = (table.level, table.shift());
        let place = table.make_busy(*block, |old| _ = old.uncounted());
        self.tables().tlb.invalidate(&[*block], shift, false);
        let attrs = vma.prot.attrs() | Attrs::HARDWARE | Attrs::EXCLUSIVE | Attrs::SOFT_DIRTY;
        let frames = (block.len() >> FRAME_SHIFT) as u32;
        self.machine().frames().sync_icache(pfn, frames, attrs);
        let raw = arch.leaf(pfn.addr(), attrs, level);
        place.fill(&Run::new(block.start, level, Kind::Leaf, raw, (block.len() >> shift) as usize));
        self.tables().slot().add(SpaceCounter::Anon, frames as i64);
        true
    }
}
