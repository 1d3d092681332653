//! Copy on write: a page is written that others have too (a parent, a child, the object behind a
//! private VMA).
//!
//! What is the copy of slots ([`crate::swap`]) is written in the same way: they are given up,
//! unless it is copied.
//!
//! If all references and mappings of its folio are those of the run that it stands in, nobody else
//! has it any more, and the run becomes the space's own again in place. Otherwise it is copied,
//! with as many of its neighbours as one folio of the size that policy allows takes
//! ([`super::replace`]).

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

/// The most runs that are copied into one folio; what is more scattered is copied in smaller ones.
const RUNS: usize = 16;

/// What a look at a page that is to be written came to.
enum Seen {
    /// It may be written now.
    Own,
    /// Somebody else has it: a folio of this order would take it and its neighbours. (Less than it
    /// is itself: it is huge, and folios as large as that are not allowed.)
    Others(u8),
    /// It is not what it was.
    Changed,
}

impl<'s, 'm, P: Platform, A: Arch> Fault<'s, 'm, P, A> {
    /// A page that is mapped, but not as the space's own, is to be written.
    pub(super) fn copy_on_write(self, vma: &Vma, addr: u64) -> Result<Outcome, FaultError> {
        // Neighbours were not written.
        let orders = if Ptes::of(self.space).is_soft_dirty_on() { 0 } else { Anon::of(self.space).orders(vma) };
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        let seen = self.find_sharers(&table, vma, addr, orders);
        let page = vma.range.around(addr, table.shift());
        table.release();
        let order = match seen {
            Seen::Changed => return Ok(Outcome::Again),
            Seen::Own => {
                self.machine().count(Counter::CowReuses, 1);
                return Ok(Outcome::Allowed(*page));
            }
            Seen::Others(order) => order,
        };
        let smallest = page.len().ilog2() - FRAME_SHIFT;
        if (order as u32) < smallest {
            return self.split_huge(addr, page);
        }
        let (pfn, order) = Anon::of(self.space).alloc_or_smaller(vma, addr, order, orders, false)?;
        let block = vma.range.around(addr, order as u32 + FRAME_SHIFT);
        if (order as u32) >= smallest && self.replace_by_copy(vma, block, pfn) {
            self.machine().count(Counter::CowCopies, 1);
            return Ok(Outcome::Mapped(*block));
        }
        self.machine().put_folio(pfn, 1 << order, 1 << order);
        if (order as u32) < smallest { self.split_huge(addr, page) } else { Ok(Outcome::Again) }
    }

    /// A huge mapping that can't be copied in one piece becomes a table of pages.
    pub(super) fn split_huge(self, addr: u64, huge: UserRange) -> Result<Outcome, FaultError> {
        self.tables().split_edges(huge.around(addr, self.page_shift()))?;
        Ok(Outcome::Again)
    }

    /// Whether entries are mapped, but not as the space's own, and nobody watches for a write to
    /// them.
    fn is_shared(self, run: &Run) -> bool {
        let arch = self.arch();
        run.kind == Kind::Leaf
            && !run.attrs(arch).intersects(Attrs::EXCLUSIVE | Attrs::UFFD_WP)
            && !self.machine().zero_folio().contains(run.pfn(arch))
    }

    fn find_sharers(self, table: &LockedTable<'_, 'm, P, A>, vma: &Vma, addr: u64, orders: u32) -> Seen {
        let arch = self.arch();
        let machine = self.machine();
        let frames = machine.frames();
        let Some(page) = table.run(addr, addr + 1).filter(|run| self.is_shared(run)) else { return Seen::Changed };
        let (head, frame) = frames.head(page.pfn(arch));
        // More mappings than it has pages are not all of this run, and neither are references
        // without a mapping: mostly that is seen here, without a look at the run.
        let counts = frame.counts();
        if !frame.has(flag::OBJECT) && counts.refs == counts.maps && counts.maps <= 1 << frame.order() {
            let alone = || counts.maps == 1 << frame.order() && frame.counts() == counts;
            if alone() && machine.uncache_part(head, frame, alone) {
                return Seen::Changed;
            }
            // The run in which the page stands, no further back than to its folio's first page: so
            // it begins with that folio.
            let before = (page.pfn(arch).0 - head.0) as u64;
            let first = page.va.saturating_sub(before << FRAME_SHIFT).max(vma.range.start).max(table.base);
            let mut run = table.run(first, vma.range.end);
            while let Some(part) = run.filter(|run| run.range(arch).end <= page.va) {
                run = table.run(part.range(arch).end, vma.range.end);
            }
            if let Some(run) = run.filter(|run| self.is_shared(run))
                && let Some(own) = self.exclusive_part(&run, head, frame)
            {
                let attrs = own.attrs(arch) | Attrs::EXCLUSIVE;
                let attrs = (attrs - Attrs::PROT) | Ptes::of(self.space).rights(attrs, vma.prot);
                table.rewrite(&own, arch.leaf(arch.leaf_addr(own.raw, own.level), attrs, own.level));
                return Seen::Own;
            }
        }
        let fits = |(block, _): &(UserRange, u8)| match table.level {
            1 => block.len() < 1 << arch.level_shift(2) && self.runs_to_copy(table, *block).is_some(),
            _ => block.len() == 1 << table.shift(),
        };
        let order = self.tables().aligned_blocks(addr, vma.range, orders).find(fits);
        Seen::Others(order.map_or(arch.page_order(), |(_, order)| order))
    }

    /// The part of a run, from its beginning, whose folios nobody else has; its first one is to be
    /// written. With others it is not so long that the table is locked for long (INV-11).
    fn exclusive_part(self, run: &Run, head: Pfn, first: &Frame) -> Option<Run> {
        let arch = self.arch();
        let machine = self.machine();
        let shift = arch.level_shift(run.level) - FRAME_SHIFT;
        let most = MAX_FOLIOS_PER_HOLD << shift;
        let alone = |(_, frame, pages): &(Pfn, &Frame, u32)| {
            !frame.has(flag::OBJECT) && frame.counts() == Counts { refs: *pages, maps: *pages }
        };
        let mut folios = machine.frames().folios(run.pfn(arch), run.frames(arch));
        let mut own = folios.next().filter(alone).map(|(.., pages)| pages)?;
        if first.has(flag::SWAP_CACHED) {
            // Nobody finds it by its slots after this, and nobody may have found it before. The
            // others keep theirs: they are not written.
            let still = || alone(&(head, first, own));
            (machine.uncache(head, first, still) && still()).then(|| first.clear_flag(flag::SWAP_CACHED))?;
        } else {
            for folio in folios {
                let its = folio.2;
                if u64::from(own + its) > most || !alone(&folio) || folio.1.has(flag::SWAP_CACHED) {
                    break;
                }
                own += its;
            }
        }
        let len = (own >> shift) as usize;
        (len > 0).then_some(Run { len, ..*run })
    }

    /// How many runs stand in a block of the last level, if all of it is mapped, nothing as the
    /// space's own, and they are few.
    fn runs_to_copy(self, table: &LockedTable<'_, 'm, P, A>, block: UserRange) -> Option<usize> {
        let mut at = block.start;
        let mut runs = 0;
        while at < block.end {
            let run = table.run(at, block.end).filter(|run| self.is_shared(run) && runs < RUNS)?;
            at = run.range(self.arch()).end;
            runs += 1;
        }
        Some(runs)
    }

    /// Put a folio in the place of what a block maps, with the same contents. `false`: it is not
    /// what it was.
    fn replace_by_copy(self, vma: &Vma, block: UserRange, pfn: Pfn) -> bool {
        let Found::Table(table) = self.tables().find(block) else { return false };
        let fits = match table.level > 1 {
            true => {
                block.len() == 1 << table.shift()
                    && table.run(block.start, block.end).is_some_and(|run| self.is_shared(&run))
            }
            false => block.end <= table.end() && self.runs_to_copy(&table, block).is_some(),
        };
        match fits {
            true => Anon::of(self.space).replace_part::<RUNS>(table, vma, block, pfn),
            false => table.release(),
        }
        fits
    }
}
