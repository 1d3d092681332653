//! Collapse: small folios become one large folio, because the program asks for it
//! (`MADV_COLLAPSE`), or because the host has time (khugepaged).
//!
//! Swapped-out pages come back first. Then a folio is allocated, and everything that the block maps
//! is replaced by a copy of it ([`Anon::replace_part`], [`Anon::replace_table`]), with zeros where
//! nothing was. A block that is one large folio already, and is only mapped by small PTEs, is
//! mapped by a huge PTE as it is.
//!
//! A block with a pinned page stays as it is. Shared memory is copied, as if all of it had been
//! written. In VMAs with a userfaultfd, blocks with missing or write-protected pages stay.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange, align_down};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::errno::Errno;
use crate::frame::policy::Advice;
use crate::frame::{HUGE_ORDER, flag};
use crate::memcg::{Refused, may_be_refused};
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::SizeCounter;
use crate::table::{BusyEntries, DetachedTable, Found, LockedTable, MAX_RUNS_PER_HOLD, Run};
use crate::vma::{State, Vma};

use super::Thp;
use crate::space::anon::Anon;
use crate::space::fault::{Access, FaultError, Outcome, SwapIn, Touch};
use crate::space::ground::{More, Pieces, Rest};

/// The most runs that stand in the block of a table that goes on to have others: as many as pages
/// in the largest such block of formats with larger pages.
const RUNS: usize = 128;
/// How often a block is looked at again because something has changed, besides once for each page
/// that is to come back from swap when it is looked at first.
const TRIES: u32 = 4;

/// Why a block was not made one large folio. It is as it was, but for what came back from swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollapseError {
    /// This VMA is no private anonymous memory, or may have no large folios, or is smaller than
    /// one.
    NotAllowed(VirtRange),
    /// Nothing is there but zeros, or something that is not memory.
    Unfit(VirtRange),
    /// More is missing, swapped out, or had by others too, than the limits allow, or than who
    /// watches this VMA; or nothing of it was used.
    BeyondLimits(VirtRange),
    /// Something there is pinned, or changes all the time.
    Busy(VirtRange),
    /// There is no memory for the folio.
    NoMemory(Refused),
    /// What is there can't be brought back from swap.
    Lost(u64),
}

impl CollapseError {
    /// What Linux's `madvise(MADV_COLLAPSE)` answers.
    pub const fn errno(&self) -> Errno {
        match self {
            CollapseError::NotAllowed(_) | CollapseError::Unfit(_) | CollapseError::Lost(_) => Errno::EINVAL,
            CollapseError::BeyondLimits(_) | CollapseError::NoMemory(Refused::OverLimit(_)) => Errno::EBUSY,
            CollapseError::Busy(_) => Errno::EAGAIN,
            CollapseError::NoMemory(Refused::OutOfMemory) => Errno::ENOMEM,
        }
    }

    /// Whether it makes no sense to try others.
    fn is_shortage(&self) -> bool {
        matches!(self, CollapseError::NoMemory(_))
    }
}

impl core::fmt::Display for CollapseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            CollapseError::NotAllowed(range) => write!(f, "{range:?} may have no large folios, or no whole one"),
            CollapseError::Unfit(range) => write!(f, "not all of {range:?} is memory, or nothing is there"),
            CollapseError::BeyondLimits(range) => write!(f, "too little of {range:?} is there for it alone"),
            CollapseError::Busy(range) => write!(f, "something in {range:?} is pinned or changes"),
            CollapseError::NoMemory(why) => why.fmt(f),
            CollapseError::Lost(addr) => FaultError::Poisoned(*addr).fmt(f),
        }
    }
}

impl core::error::Error for CollapseError {}

impl From<FaultError> for CollapseError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::NoMemory(why) => CollapseError::NoMemory(why),
            FaultError::Poisoned(addr) => CollapseError::Lost(addr),
            _ => CollapseError::NoMemory(Refused::OutOfMemory),
        }
    }
}

may_be_refused!(CollapseError);

/// What a block may lack to be collapsed without having been asked for it, in pages of 4 KiB of a
/// huge page; of smaller blocks, in proportion. Linux: `khugepaged/max_ptes_*`, whose defaults
/// these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollapseLimits {
    /// Nothing is there, or zeros.
    pub none: u32,
    /// They are swapped out.
    pub swapped: u32,
    /// Other spaces have them too.
    pub shared: u32,
}

impl Default for CollapseLimits {
    fn default() -> Self {
        CollapseLimits { none: (1 << HUGE_ORDER) - 1, swapped: 1 << (HUGE_ORDER - 3), shared: 1 << (HUGE_ORDER - 1) }
    }
}

/// What `AddressSpace::collapse_some` has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collapsed {
    /// Pages of 4 KiB that were looked at.
    pub scanned: u64,
    /// Blocks that are large folios now.
    pub collapsed: u64,
    /// Where to go on; none, when the end was reached.
    pub next: Option<u64>,
}

/// The contents of a block, in pages of 4 KiB.
#[derive(Default)]
struct Survey {
    /// Memory that counts.
    resident: u32,
    swapped: u32,
    shared: u32,
    /// Runs of leaves, those of zeros included.
    runs: usize,
    /// One that is swapped out.
    away: Option<u64>,
    used: bool,
    pinned: bool,
    /// Somewhere nothing is.
    holes: bool,
    /// There is something that can't be copied.
    unfit: bool,
    /// All of it is one folio, as large as the block or larger, in one run.
    whole: bool,
}

/// The next step of collapsing a block.
enum Next {
    /// Nothing, any more.
    Done,
    /// Bring the page at this address back first. So many pages (of 4 KiB) are out.
    Fetch(u64, u32),
    /// The table that maps it has one run of one folio.
    Promote,
    /// Copy it.
    Copy,
}

impl<'s, 'm, P: Platform, A: Arch> Thp<'s, 'm, P, A> {
    /// Has all of a range in huge pages, as far as whole ones lie in it (Linux: `MADV_COLLAPSE`). A
    /// block that can't be had does not keep the others from being tried, unless there is no
    /// memory: `rest` keeps the error of the last such block.
    ///
    /// # Errors
    /// See [`CollapseError`].
    pub(in crate::space) fn collapse(
        self,
        rest: &mut Rest,
        failed: &mut Option<CollapseError>,
        more: More<'_>,
    ) -> Result<(), CollapseError> {
        let size = 1 << (HUGE_ORDER as u32 + FRAME_SHIFT);
        Pieces::of(self.space).each_vma(rest, more, |vma, part| {
            let whole = |range: VirtRange| (range.start.next_multiple_of(size), align_down(range.end, size.ilog2()));
            let ((first, end), (least, most)) = (whole(*part), whole(*vma.range));
            if least >= most || !self.may_collapse(vma) {
                return Err(CollapseError::NotAllowed(*vma.range));
            }
            if first >= end {
                return Ok(part.end);
            }
            let block = part.tail(first).head(first + size);
            match self.collapse_block(vma, block, None) {
                Err(error) if error.is_shortage() => return Err(error),
                Err(error) => *failed = Some(error),
                Ok(_) => {}
            }
            self.platform().resched();
            // Blocks of a hole would all answer what the first one did.
            let next = match self.tables().find(part.tail(first)) {
                Found::Hole(hole) => hole.max(block.end),
                Found::Table(table) => {
                    table.release();
                    block.end
                }
            };
            Ok(if next >= end { part.end } else { next })
        })
    }

    /// Implements [`AddressSpace::collapse_some`].
    pub(super) fn collapse_some(
        self,
        from: u64,
        pages: u64,
        limits: &CollapseLimits,
    ) -> Result<Collapsed, CollapseError> {
        let mut done = Collapsed { next: Some(from), ..Collapsed::default() };
        while let Some(at) = done.next
            && done.scanned < pages
        {
            let vmas = self.space.read();
            let rest = UserRange::all(self.arch()).tail(at);
            let next = vmas.overlapping(self.platform(), rest).find(|vma| {
                vma.state == State::Live
                    && vma.range.end > at
                    && self.may_collapse(vma)
                    && Anon::of(self.space).orders(vma) != 0
            });
            let Some(vma) = next.copied() else {
                done.next = None;
                break;
            };
            let order = Anon::of(self.space).orders(&vma).ilog2().min(HUGE_ORDER as u32);
            let start = vma.range.start.max(at).next_multiple_of(1 << (order + FRAME_SHIFT));
            let block = VirtRange { start, end: start + (1 << (order + FRAME_SHIFT)) };
            let fits = vma.range.part(block).filter(|_| order as u8 > self.arch().page_order());
            let Some(block) = fits else {
                done.next = Some(vma.range.end);
                continue;
            };
            match self.tables().find(vma.range.tail(block.start)) {
                Found::Hole(end) => {
                    done.next = Some(end.max(block.end));
                    done.scanned += 1;
                    continue;
                }
                Found::Table(table) => table.release(),
            }
            done.next = Some(block.end);
            done.scanned += 1 << order;
            match self.collapse_block(&vma, block, Some(limits)) {
                Err(error) if error.is_shortage() => return Err(error),
                Ok(true) => done.collapsed += 1,
                Ok(false) | Err(_) => {}
            }
            drop(vmas);
            self.platform().resched();
        }
        Ok(done)
    }

    fn may_collapse(self, vma: &Vma) -> bool {
        vma.backing.is_anonymous() && vma.advice != Advice::NoHuge
    }

    /// Have a block of a VMA, whose lock the caller is in as a reader, in one folio. Whether
    /// anything had to be done for that.
    fn collapse_block(
        self,
        vma: &Vma,
        block: UserRange,
        limits: Option<&CollapseLimits>,
    ) -> Result<bool, CollapseError> {
        let order = (block.len().ilog2() - FRAME_SHIFT) as u8;
        let (mut left, mut fetches) = (TRIES, None);
        let mut limits = limits;
        while left > 0 {
            left -= 1;
            match self.next_step(vma, block, limits)? {
                Next::Done => return Ok(false),
                Next::Promote => {
                    if self.map_huge(vma, block) {
                        return Ok(true);
                    }
                }
                Next::Fetch(addr, swapped) => {
                    if fetches.is_none() {
                        left += *fetches.insert(swapped);
                    }
                    match SwapIn::of(self.space).swap_in(Touch { vma, addr, access: Access::Write }, 1 << order)? {
                        Outcome::Mapped(_) => {}
                        _ => self.platform().relax(),
                    }
                }
                Next::Copy => {
                    let machine = self.machine();
                    let pfn = Anon::of(self.space).alloc(vma, block.start, order, false).inspect_err(|_| {
                        machine.count_size(SizeCounter::CollapseFailed, order);
                    })?;
                    if self.replace_all(vma, block, pfn) {
                        machine.count_size(SizeCounter::Collapsed, order);
                        return Ok(true);
                    }
                    machine.put_folio(pfn, 1 << order, 1 << order);
                }
            }
            // They are about what was found at first.
            limits = None;
        }
        Err(CollapseError::Busy(*block))
    }

    /// What is to be done with a block now, as far as a look at one part of it after the other
    /// tells.
    fn next_step(self, vma: &Vma, block: UserRange, limits: Option<&CollapseLimits>) -> Result<Next, CollapseError> {
        let (mut seen, mut all, mut at) = (Survey::default(), false, block.start);
        while at < block.end {
            match self.tables().find(vma.range.tail(at)) {
                Found::Hole(_) if at == block.start => return Err(CollapseError::Unfit(*block)),
                Found::Hole(end) => {
                    seen.holes = true;
                    at = end;
                }
                Found::Table(table) => {
                    all = block == table.range();
                    at = self.survey(&table, block, at, &mut seen);
                    table.release();
                    self.platform().resched();
                }
            }
        }
        self.check_block(seen, all, vma, block, limits)
    }

    /// What is to be done with a block in which that was found; `all`: it is all that a table has.
    fn check_block(
        self,
        seen: Survey,
        all: bool,
        vma: &Vma,
        block: UserRange,
        limits: Option<&CollapseLimits>,
    ) -> Result<Next, CollapseError> {
        let Survey { resident, swapped, shared, runs, away, used, pinned, holes, unfit, whole } = seen;
        if whole {
            return Ok(if all { Next::Promote } else { Next::Done });
        }
        if unfit || resident + swapped == 0 || !all && runs > RUNS {
            return Err(CollapseError::Unfit(*block));
        }
        if holes && vma.uffd.is_some() {
            return Err(CollapseError::BeyondLimits(*block));
        }
        if let Some(limits) = limits {
            let share = |limit: u32| ((u64::from(limit) * (block.len() >> FRAME_SHIFT)) >> HUGE_ORDER) as u32;
            let none = (block.len() >> FRAME_SHIFT) as u32 - resident - swapped;
            let beyond = none > share(limits.none) || swapped > share(limits.swapped) || shared > share(limits.shared);
            if beyond || !used {
                return Err(CollapseError::BeyondLimits(*block));
            }
        }
        match away {
            Some(addr) => Ok(Next::Fetch(addr, swapped)),
            None if pinned => Err(CollapseError::Busy(*block)),
            None => Ok(Next::Copy),
        }
    }

    /// Look at some of a block from an address on, in a table that is locked, or taken from its
    /// place. How far that was.
    fn survey(self, table: &LockedTable<'_, 'm, P, A>, block: UserRange, at: u64, seen: &mut Survey) -> u64 {
        let arch = self.arch();
        let (mut at, mut looked) = (at, 0);
        while at < block.end
            && looked < MAX_RUNS_PER_HOLD
            && let Some(run) = table.run(at, block.end)
        {
            looked += 1;
            match run.kind {
                Kind::None => seen.holes = true,
                Kind::Leaf => self.survey_leaves(&run, block, seen),
                Kind::Swap => {
                    seen.swapped += run.frames(arch);
                    seen.away.get_or_insert(at);
                    seen.unfit |= arch.swap_entry(run.raw).attrs.contains(Attrs::UFFD_WP);
                }
                Kind::Table | Kind::Marker | Kind::Busy => seen.unfit = true,
            }
            at = run.range(arch).end;
        }
        at
    }

    fn survey_leaves(self, run: &Run, block: UserRange, seen: &mut Survey) {
        let arch = self.arch();
        let machine = self.machine();
        let (pfn, attrs, pages) = (run.pfn(arch), run.attrs(arch), run.frames(arch));
        seen.runs += 1;
        seen.whole |= run.level > 1;
        seen.unfit |= attrs.contains(Attrs::UFFD_WP);
        if machine.zero_folio().contains(pfn) {
            return;
        }
        let order = (block.len().ilog2() - FRAME_SHIFT) as u8;
        let one = pfn.is_aligned(order) && machine.frames().head(pfn).1.order() >= order;
        seen.whole |= one && block == run.range(arch);
        seen.resident += pages;
        seen.used |= attrs.contains(Attrs::ACCESSED);
        seen.pinned |= !allows(self.platform(), FailPoint::Unpinned);
        for (_, frame, pages) in machine.frames().folios(pfn, pages) {
            let counts = frame.counts();
            seen.pinned |= counts.refs > counts.maps;
            seen.unfit |= frame.has(flag::OBJECT);
            if !attrs.contains(Attrs::EXCLUSIVE) && counts.maps > pages {
                seen.shared += pages;
            }
        }
    }

    /// Map by one huge leaf what a table maps as one run of one folio. Whether that is still so.
    fn map_huge(self, vma: &Vma, block: UserRange) -> bool {
        let arch = self.arch();
        let mut gather = self.space.gather(block);
        let Some((old, place)) = self.detach_table(vma, block, |next| matches!(next, Next::Promote)) else {
            return false;
        };
        // With all that hardware has recorded.
        let Some(run) = old.leaf_runs().next() else {
            old.restore(place);
            return false;
        };
        let raw = arch.leaf(arch.leaf_addr(run.raw, run.level), run.attrs(arch), run.level + 1);
        place.fill(&Run::new(block.start, run.level + 1, Kind::Leaf, raw, 1));
        old.drain(&mut gather, |removed, _| {
            removed.unsplit();
        });
        true
    }

    /// Take the table that maps a block and nothing else from its place. None, if there is none, or
    /// what is to be done with it now is not what is `wanted`.
    fn detach_table(
        self,
        vma: &Vma,
        block: UserRange,
        wanted: impl Fn(Next) -> bool,
    ) -> Option<(DetachedTable<'s, 'm, P, A>, BusyEntries<'s, 'm, P, A>)> {
        let Found::Table(table) = self.tables().find(block) else { return None };
        if block != table.range() {
            table.release();
            return None;
        }
        let (old, place) = table.detach();
        let (mut seen, mut at) = (Survey::default(), block.start);
        while at < block.end {
            let next = self.survey(old.table(), block, at, &mut seen);
            if next == at {
                seen.unfit = true;
                break;
            }
            at = next;
            self.platform().resched();
        }
        if self.check_block(seen, true, vma, block, None).is_ok_and(wanted) {
            return Some((old, place));
        }
        old.restore(place);
        None
    }

    /// Put a folio in the place of all that a block maps. Whether it is still to be copied.
    fn replace_all(self, vma: &Vma, block: UserRange, pfn: Pfn) -> bool {
        let Found::Table(table) = self.tables().find(block) else { return false };
        if block == table.range() {
            table.release();
            return match self.detach_table(vma, block, |next| matches!(next, Next::Copy)) {
                Some((old, place)) => {
                    Anon::of(self.space).replace_table(old, place, vma, pfn);
                    true
                }
                None => false,
            };
        }
        let (mut seen, mut at) = (Survey::default(), block.start);
        while at < block.end && seen.runs <= RUNS {
            let next = self.survey(&table, block, at, &mut seen);
            if next == at {
                seen.unfit = true;
                break;
            }
            at = next;
        }
        let fits = at >= block.end && matches!(self.check_block(seen, false, vma, block, None), Ok(Next::Copy));
        match fits {
            true => Anon::of(self.space).replace_part::<RUNS>(table, vma, block, pfn),
            false => table.release(),
        }
        fits
    }
}
