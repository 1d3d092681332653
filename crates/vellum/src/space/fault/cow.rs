//! Copy-on-write: a write to a page that is shared, with a parent or a child, or with the
//! page-cache object behind a private VMA.
//!
//! If the run of PTEs that maps the page holds all references and mappings of the page's folio, the
//! page is not shared any more: the run becomes exclusive in place (reuse). Otherwise the page is
//! copied, together with as many neighbours as the program has copied just before, in one folio of
//! a size that policy allows ([`Anon::replace_part`]). So a program that writes to everything in
//! order takes few faults, and one that writes here and there copies only the pages that it writes
//! to. A huge PTE is split first.
//!
//! A write to a swap-cache page ([`crate::swap`]) is resolved by reuse or copy too: reuse first
//! removes the page from the swap cache; a copy leaves the original in it.

use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Counts, Frame, flag};
use crate::platform::Platform;
use crate::stats::Counter;
use crate::table::{Found, LockedTable, MAX_FOLIOS_PER_HOLD, Run};
use crate::vma::Vma;

use super::{Fault, FaultError, Outcome};
use crate::space::anon::Anon;
use crate::space::ground::Ptes;

/// The largest number of runs of PTEs whose memory is copied into one folio. A block with more runs
/// is copied to several smaller folios.
const MAX_RUNS: usize = 16;

/// The result of an attempt to make a page exclusive in place.
enum Reuse {
    /// The page is exclusive now and may be written.
    Reused,
    /// The page is shared. The order is that of a folio for a copy of the page and its neighbours.
    Shared(u8),
    /// The page is shared, and a huge PTE maps it.
    Huge,
    /// Another CPU changed the PTE, or this attempt removed a part of a large folio from the swap
    /// cache: the caller tries again.
    Changed,
}

impl<'s, 'm, P: Platform> Fault<'s, 'm, P> {
    /// Resolves a write to a page that is mapped, but not exclusive to the space.
    pub(super) fn copy_on_write(self, vma: &Vma, addr: u64) -> Result<Outcome, FaultError> {
        // Once soft-dirty was cleared, copy the page alone: a copy of neighbours would make them
        // soft-dirty, though they were not written.
        let orders = match Anon::of(self.space).orders(vma) {
            _ if Ptes::of(self.space).is_soft_dirty_on() => 0,
            0 => Anon::of(self.space).growth_orders(vma),
            orders => orders,
        };
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        let reuse = self.try_reuse(&table, vma, addr, orders);
        let page = vma.range.around(addr, table.shift());
        table.release();
        let order = match reuse {
            Reuse::Changed => return Ok(Outcome::Again),
            Reuse::Reused => {
                self.machine().count(Counter::CowReuses, 1);
                return Ok(Outcome::Allowed(*page));
            }
            Reuse::Huge if vma.is_hugetlb() => return self.copy_huge(vma, addr),
            Reuse::Huge => return self.split_huge(addr, page),
            Reuse::Shared(order) => order,
        };
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, addr, order, orders, false)?;
        let block = vma.range.around(addr, order as u32 + FRAME_SHIFT);
        if self.replace_by_copy(vma, block, pfn) {
            self.machine().count(Counter::CowCopies, 1);
            return Ok(Outcome::Mapped(*block));
        }
        self.machine().put_folio(pfn, 1 << order, 1 << order);
        Ok(Outcome::Again)
    }

    /// Splits the huge PTE that maps `huge`, so that the retried fault can be resolved for a part
    /// of it.
    pub(super) fn split_huge(self, addr: u64, huge: UserRange) -> Result<Outcome, FaultError> {
        self.tables().split_edges(huge.around(addr, self.page_shift()))?;
        Ok(Outcome::Again)
    }

    /// Returns whether a run maps pages, other than the zero folio's, that are neither exclusive to
    /// the space nor write-protected for a userfaultfd.
    pub(super) fn is_shared(self, run: &Run) -> bool {
        let arch = self.arch();
        run.kind == Kind::Leaf
            && !run.attrs(arch).intersects(Attrs::EXCLUSIVE | Attrs::UFFD_WP)
            && !self.machine().zero_folio().contains(run.pfn(arch))
    }

    /// Makes the page at `addr` exclusive in place if it is not shared any more, together with the
    /// pages after it in the run that are not shared either. If the page is shared, returns the
    /// order of the folio for a copy: one of `orders`, or that of a page.
    fn try_reuse(self, table: &LockedTable<'_, 'm, P>, vma: &Vma, addr: u64, orders: u32) -> Reuse {
        let arch = self.arch();
        let machine = self.machine();
        let frames = machine.frames();
        let Some(page) = table.run(addr, addr + 1).filter(|run| self.is_shared(run)) else { return Reuse::Changed };
        let (head, frame) = frames.head(page.pfn(arch));
        // A folio with more mappings than pages, or with references without a mapping, is shared.
        // This cheap check finds most shared folios without reading the run.
        let counts = frame.counts();
        if !frame.has(flag::OBJECT) && counts.refs == counts.maps && counts.maps <= 1 << frame.order() {
            let alone = || counts.maps == 1 << frame.order() && frame.counts() == counts;
            if alone() && machine.uncache_part(head, frame, alone) {
                return Reuse::Changed;
            }
            // Find the run that maps the page. It is read from the address of the folio's first
            // page on, so that it begins with that folio.
            let before = (page.pfn(arch).0 - head.0) as u64;
            let first = page.va.saturating_sub(before << FRAME_SHIFT).max(vma.range.start).max(table.base);
            let mut run = table.run(first, vma.range.end);
            while let Some(part) = run.filter(|run| run.range(arch).end <= page.va) {
                run = table.run(part.range(arch).end, vma.range.end);
            }
            if let Some(run) = run.filter(|run| self.is_shared(run))
                && let Some(exclusive) = self.exclusive_part(&run, head, frame)
            {
                let attrs = exclusive.attrs(arch) | Attrs::EXCLUSIVE;
                let attrs = (attrs - Attrs::GRANT) | Ptes::of(self.space).rights(attrs, vma.prot);
                let leaf = arch.leaf(arch.leaf_addr(exclusive.raw, exclusive.level), attrs, exclusive.level);
                table.rewrite(&exclusive, leaf);
                return Reuse::Reused;
            }
        }
        if table.level > 1 {
            return Reuse::Huge;
        }
        let fits =
            |(block, _): &(UserRange, u8)| self.follows_copies(table, vma, *block) && self.can_copy(table, *block);
        let order = self.tables().aligned_blocks(addr, vma.range, orders).find(fits);
        Reuse::Shared(order.map_or(arch.page_order(), |(_, order)| order))
    }

    /// Returns the part at the start of a run whose folios have only the references and mappings of
    /// the run's PTEs. Returns `None` if the first folio (`head`, `first`), to which the caller
    /// writes, has other references or mappings. Removes the first folio from the swap cache. The
    /// number of folios in the part is limited, so that the page table is locked for a bounded time
    /// (INV-11).
    fn exclusive_part(self, run: &Run, head: Pfn, first: &Frame) -> Option<Run> {
        let arch = self.arch();
        let machine = self.machine();
        let shift = arch.level_shift(run.level) - FRAME_SHIFT;
        let max_frames = MAX_FOLIOS_PER_HOLD << shift;
        let alone = |(_, frame, pages): &(Pfn, &Frame, u32)| {
            !frame.has(flag::OBJECT) && frame.counts() == Counts { refs: *pages, maps: *pages }
        };
        let mut folios = machine.frames().folios(run.pfn(arch), run.frames(arch));
        let mut frames = folios.next().filter(alone).map(|(.., pages)| pages)?;
        if first.has(flag::SWAP_CACHED) {
            // After `uncache` no CPU can find the folio by its swap slots. A CPU may have found it
            // before and taken a reference, so the counts are checked again. The folios after the
            // first stay in the swap cache and are not made exclusive: they are not written to.
            let still_alone = || alone(&(head, first, frames));
            (machine.uncache(head, first, still_alone) && still_alone())
                .then(|| first.clear_flag(flag::SWAP_CACHED))?;
        } else {
            for folio in folios {
                let pages = folio.2;
                if u64::from(frames + pages) > max_frames || !alone(&folio) || folio.1.has(flag::SWAP_CACHED) {
                    break;
                }
                frames += pages;
            }
        }
        let len = (frames >> shift) as usize;
        (len > 0).then_some(Run { len, ..*run })
    }

    /// Returns whether as many pages as a block of lowest-level PTEs has are mapped before it, in
    /// its page table, and all of them are exclusive to the space: the program has written to them.
    /// They have at most [`MAX_RUNS`] runs.
    fn follows_copies(self, table: &LockedTable<'_, 'm, P>, vma: &Vma, block: UserRange) -> bool {
        let arch = self.arch();
        let Some(mut at) = block.start.checked_sub(block.len()) else { return false };
        if at < vma.range.start.max(table.base) {
            return false;
        }
        let mut runs = 0;
        while at < block.start {
            let run = table.run(at, block.start).filter(|run| run.kind == Kind::Leaf && runs < MAX_RUNS);
            let Some(run) = run.filter(|run| run.attrs(arch).contains(Attrs::EXCLUSIVE)) else { return false };
            at = run.range(arch).end;
            runs += 1;
        }
        true
    }

    /// Returns whether a block of lowest-level PTEs can be copied into one folio: all of it is
    /// mapped, nothing is exclusive to the space, and it has at most [`MAX_RUNS`] runs.
    fn can_copy(self, table: &LockedTable<'_, 'm, P>, block: UserRange) -> bool {
        let mut at = block.start;
        let mut runs = 0;
        while at < block.end {
            let Some(run) = table.run(at, block.end).filter(|run| self.is_shared(run) && runs < MAX_RUNS) else {
                return false;
            };
            at = run.range(self.arch()).end;
            runs += 1;
        }
        true
    }

    /// Copies the memory that `block` maps into the folio `pfn`, and maps the folio in `block`
    /// instead. Returns false, and changes nothing, if another CPU changed the block so that it
    /// can't be copied.
    fn replace_by_copy(self, vma: &Vma, block: UserRange, pfn: Pfn) -> bool {
        let Found::Table(table) = self.tables().find(block) else { return false };
        let fits = table.level == 1 && block.end <= table.end() && self.can_copy(&table, block);
        match fits {
            true => Anon::of(self.space).replace_part::<MAX_RUNS>(table, vma, block, pfn),
            false => table.release(),
        }
        fits
    }
}
