//! Collapse: replaces the small folios of a block (an aligned range of addresses, of a huge page's
//! size or smaller) by one large folio, for `MADV_COLLAPSE`, or for a scan that the host runs when
//! it has time (khugepaged).
//!
//! Swapped-out pages of the block are swapped in first. Then a folio is allocated, and the pages
//! that the block maps are copied to it ([`Anon::replace_part`], [`Anon::replace_table`]), with
//! zeros where the block maps nothing. If small PTEs map one large folio, as large as the block,
//! nothing is copied: a huge PTE replaces them.
//!
//! A block with a pinned page stays as it is. Pages that other spaces map too are copied, as a
//! write fault would do. In VMAs with a userfaultfd, blocks with missing or write-protected pages
//! stay as they are.

use core::sync::atomic::Ordering::Relaxed;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange, align_down};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::errno::Errno;
use crate::frame::policy::{Advice, LargeFolios};
use crate::frame::{HUGE_ORDER, flag};
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache::{Object, ObjectError};
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::SizeCounter;
use crate::table::{BusyEntries, DetachedTable, Found, LockedTable, MAX_RUNS_PER_HOLD, Run};
use crate::vma::{State, Vma};

use super::Thp;
use crate::space::anon::Anon;
use crate::space::fault::{Access, FaultError, Outcome, SwapIn, Touch};
use crate::space::ground::{More, Pieces, Rest};

/// The maximum number of runs of leaf PTEs in a block that is smaller than the range of its page
/// table. A block with more runs is not collapsed. In a format with pages of 16 KiB no block has
/// more: the largest, of 2 MiB, has 128 pages.
const RUNS: usize = 128;
/// The number of attempts to collapse a block that keeps changing, besides one for each page that
/// was swapped out at the first attempt.
const TRIES: u32 = 4;

/// The reason why a block was not collapsed. Pages that were swapped in for it stay in memory;
/// otherwise the block is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CollapseError {
    /// This VMA has `MADV_NOHUGEPAGE`, or contains no whole huge page.
    NotAllowed(VirtRange),
    /// This block has no memory but the zero folio; or it has PTEs that can't be collapsed: markers
    /// and uffd-wp ones; or it has too many runs to be copied in one step. Of an object: it has no
    /// page, reaches beyond the object's end, or the object has a store.
    Unfit(VirtRange),
    /// More pages of this block are missing, swapped out or shared than the limits allow; or a page
    /// is missing in a VMA with a userfaultfd; or, in a scan, no page was accessed.
    BeyondLimits(VirtRange),
    /// A page of this block is pinned, or its PTEs keep changing.
    Busy(VirtRange),
    /// There is no memory for the folio, or the memcg is at its limit.
    NoMemory(Refused),
    /// The page at this address can't be read back from swap.
    Poisoned(u64),
}

impl CollapseError {
    /// Returns the error number of Linux's `madvise(MADV_COLLAPSE)`.
    pub const fn errno(&self) -> Errno {
        match self {
            CollapseError::NotAllowed(_) | CollapseError::Unfit(_) | CollapseError::Poisoned(_) => Errno::EINVAL,
            CollapseError::BeyondLimits(_) | CollapseError::NoMemory(Refused::OverLimit(_)) => Errno::EBUSY,
            CollapseError::Busy(_) => Errno::EAGAIN,
            CollapseError::NoMemory(Refused::OutOfMemory) => Errno::ENOMEM,
        }
    }

    /// Returns whether there is no memory, so that other blocks need not be tried.
    pub(super) fn is_shortage(&self) -> bool {
        matches!(self, CollapseError::NoMemory(_))
    }
}

impl core::fmt::Display for CollapseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            CollapseError::NotAllowed(range) => write!(
                f,
                "the VMA {range:?} can't be collapsed: it has MADV_NOHUGEPAGE, or contains no whole huge page"
            ),
            CollapseError::Unfit(range) => write!(
                f,
                "{range:?} can't be collapsed: it has no page in memory or swap, or guards or uffd-wp PTEs, or \
                 belongs to a file on a disk"
            ),
            CollapseError::BeyondLimits(range) => write!(
                f,
                "{range:?}: more unmapped, swapped or shared pages than max_ptes_* or the userfaultfd allow, or none \
                 accessed"
            ),
            CollapseError::Busy(range) => write!(f, "{range:?} has a pinned page or keeps changing: try again later"),
            CollapseError::NoMemory(refused) => refused.fmt(f),
            CollapseError::Poisoned(addr) => FaultError::Poisoned(*addr).fmt(f),
        }
    }
}

impl core::error::Error for CollapseError {}

impl From<FaultError> for CollapseError {
    fn from(error: FaultError) -> Self {
        match error {
            FaultError::NoMemory(refused) => CollapseError::NoMemory(refused),
            FaultError::Poisoned(addr) => CollapseError::Poisoned(addr),
            _ => CollapseError::NoMemory(Refused::OutOfMemory),
        }
    }
}

may_be_refused!(CollapseError);

/// The limits of [`AddressSpace::collapse_some`](crate::space::AddressSpace::collapse_some), in
/// pages of 4 KiB of a huge page; for smaller blocks in proportion. Linux: `khugepaged/max_ptes_*`,
/// which has the same defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CollapseLimits {
    /// The maximum number of pages that are unmapped, or mapped to the zero folio.
    pub none: u32,
    /// The maximum number of pages that are swapped out.
    pub swapped: u32,
    /// The maximum number of pages that other spaces map too.
    pub shared: u32,
}

impl Default for CollapseLimits {
    fn default() -> Self {
        CollapseLimits { none: (1 << HUGE_ORDER) - 1, swapped: 1 << (HUGE_ORDER - 3), shared: 1 << (HUGE_ORDER - 1) }
    }
}

/// The progress of [`AddressSpace::collapse_some`](crate::space::AddressSpace::collapse_some).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collapsed {
    /// The number of pages of 4 KiB that were scanned.
    pub scanned: u64,
    /// The number of blocks that were collapsed.
    pub collapsed: u64,
    /// The address to continue at; `None` at the end of the space.
    pub next: Option<u64>,
}

/// The contents of a block, the range that collapse is to map to one folio. Counts are of 4 KiB
/// pages.
#[derive(Default)]
struct Survey {
    /// The number of mapped pages, without those of the zero folio.
    resident: u32,
    /// The number of swapped-out pages.
    swapped: u32,
    /// The number of mapped pages that other spaces map too.
    shared: u32,
    /// The number of runs of leaf PTEs, including those of the zero folio.
    runs: usize,
    /// The address of the first page that is swapped out.
    first_swapped: Option<u64>,
    /// True if a mapped page was accessed.
    accessed: bool,
    /// True if a mapped page is pinned: its folio has references besides those of its mappings.
    pinned: bool,
    /// True if PTEs are empty or a page table is missing.
    holes: bool,
    /// True if there is a PTE that can't be collapsed, or one that is busy (another CPU is changing
    /// it).
    unfit: bool,
    /// True if one run maps the whole block to one folio, as large as the block or larger.
    whole: bool,
}

/// The next step of collapsing a block.
enum Step {
    /// Do nothing: a huge PTE maps the block already; or smaller PTEs map one folio in the block,
    /// which is too small for a huge PTE.
    Done,
    /// Swap in the first swapped-out page.
    SwapIn {
        /// The address of the page.
        addr: u64,
        /// The number of 4 KiB pages of the block that are swapped out.
        swapped: u32,
    },
    /// Replace the page table of the block, which maps one folio by one run, by a huge PTE.
    MapHuge,
    /// Copy the block to a new folio.
    Copy,
}

impl<'s, 'm, P: Platform> Thp<'s, 'm, P> {
    /// Collapses all huge pages that lie entirely in `rest` (`MADV_COLLAPSE`), except those of
    /// objects ([`Thp::collapse_next`]). If a block can't be collapsed, sets `failed` to the error
    /// and goes on with the next block, unless there is no memory. Faults may run at the same time.
    ///
    /// # Errors
    /// [`CollapseError::NoMemory`], and [`CollapseError::NotAllowed`] at a VMA that can't have huge
    /// pages. `rest` still has the block or the VMA that failed, and everything after it.
    pub(in crate::space) fn collapse(
        self,
        rest: &mut Rest,
        failed: &mut Option<CollapseError>,
        more: More<'_>,
    ) -> Result<(), CollapseError> {
        let size = 1 << (HUGE_ORDER as u32 + FRAME_SHIFT);
        Pieces::of(self.space).each_vma(rest, more, |vma, part| {
            if !vma.backing.is_anonymous() {
                return Ok(part.end);
            }
            let whole_pages = |range: VirtRange| VirtRange {
                start: range.start.next_multiple_of(size),
                end: align_down(range.end, size.ilog2()),
            };
            let (in_part, in_vma) = (whole_pages(*part), whole_pages(*vma.range));
            if in_vma.start >= in_vma.end || !self.can_collapse(vma) {
                return Err(CollapseError::NotAllowed(*vma.range));
            }
            if in_part.start >= in_part.end {
                return Ok(part.end);
            }
            let block = part.tail(in_part.start).head(in_part.start + size);
            match self.collapse_block(vma, block, None) {
                Err(error) if error.is_shortage() => return Err(error),
                Err(error) => *failed = Some(error),
                Ok(_) => {}
            }
            self.platform().resched();
            // Skip a hole (addresses without a page table): each block in it would fail with the
            // same error.
            let next = match self.tables().find(part.tail(in_part.start)) {
                Found::Hole(hole) => hole.max(block.end),
                Found::Table(table) => {
                    table.release();
                    block.end
                }
            };
            Ok(if next >= in_part.end { part.end } else { next })
        })
    }

    /// Implements [`AddressSpace::collapse_some`](crate::space::AddressSpace::collapse_some).
    pub(super) fn collapse_some(
        self,
        from: u64,
        pages: u64,
        limits: &CollapseLimits,
        mut collapse: impl FnMut(&Object<'m, P>, u64) -> Result<bool, ObjectError>,
    ) -> Result<Collapsed, CollapseError> {
        let mut done = Collapsed { next: Some(from), ..Collapsed::default() };
        while let Some(at) = done.next
            && done.scanned < pages
        {
            let vmas = self.space.read();
            let rest = UserRange::all(self.arch()).tail(at);
            let next = vmas.overlapping(self.platform(), rest).find(|vma| {
                let is_wanted = match vma.backing.is_anonymous() {
                    true => self.can_collapse(vma) && Anon::of(self.space).orders(vma) != 0,
                    false => self.wants_huge_object(vma),
                };
                vma.state == State::Live && vma.range.end > at && is_wanted
            });
            let Some(vma) = next.copied() else {
                done.next = None;
                break;
            };
            if !vma.backing.is_anonymous() {
                drop(vmas);
                match self.scan_object(&vma, limits, &mut done, &mut collapse) {
                    Err(error) if error.is_shortage() => return Err(error),
                    _ => continue,
                }
            }
            // The settings may have changed since.
            let order = Anon::of(self.space).orders(&vma).checked_ilog2().unwrap_or(0).min(HUGE_ORDER as u32);
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

    /// Returns whether a VMA is private anonymous memory that may have huge pages.
    fn can_collapse(self, vma: &Vma) -> bool {
        vma.backing.is_anonymous() && self.may_be_huge(vma)
    }

    /// Returns whether a VMA may have huge pages on request: it has no `MADV_NOHUGEPAGE`, and its
    /// space may have large folios.
    pub(super) fn may_be_huge(self, vma: &Vma) -> bool {
        vma.advice != Advice::NoHuge && self.space.large_folios.load(Relaxed) != LargeFolios::None as u8
    }

    /// Collapses a block of a VMA; the caller has locked the VMAs for reading. Returns false if the
    /// block was one folio already and nothing changed.
    ///
    /// # Errors
    /// See [`CollapseError`].
    fn collapse_block(
        self,
        vma: &Vma,
        block: UserRange,
        limits: Option<&CollapseLimits>,
    ) -> Result<bool, CollapseError> {
        let order = (block.len().ilog2() - FRAME_SHIFT) as u8;
        // `swapped_first`: the number of swapped-out pages that the block had before the first
        // swap-in.
        let (mut tries, mut swapped_first) = (TRIES, None);
        let mut limits = limits;
        while tries > 0 {
            tries -= 1;
            match self.next_step(vma, block, limits)? {
                Step::Done => return Ok(false),
                Step::MapHuge => {
                    if self.map_huge(vma, block) {
                        return Ok(true);
                    }
                }
                Step::SwapIn { addr, swapped } => {
                    if swapped_first.is_none() {
                        tries += *swapped_first.insert(swapped);
                    }
                    match SwapIn::of(self.space).swap_in_all(Touch { vma, addr, access: Access::Write }, 1 << order)? {
                        Outcome::Mapped(_) => {}
                        _ => self.platform().relax(),
                    }
                }
                Step::Copy => {
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
            // The limits apply to the contents that the first attempt found, because swap-in
            // changes the contents.
            limits = None;
        }
        Err(CollapseError::Busy(*block))
    }

    /// Returns the next step for a block. The block's page tables are locked and released one after
    /// the other, so the result may be outdated when this returns.
    ///
    /// # Errors
    /// The block can't be collapsed.
    fn next_step(self, vma: &Vma, block: UserRange, limits: Option<&CollapseLimits>) -> Result<Step, CollapseError> {
        let (mut seen, mut is_whole_table, mut at) = (Survey::default(), false, block.start);
        while at < block.end {
            match self.tables().find(vma.range.tail(at)) {
                Found::Hole(_) if at == block.start => return Err(CollapseError::Unfit(*block)),
                Found::Hole(end) => {
                    seen.holes = true;
                    at = end;
                }
                Found::Table(table) => {
                    is_whole_table = block == table.range();
                    at = self.survey(&table, block, at, &mut seen);
                    table.release();
                    self.platform().resched();
                }
            }
        }
        self.choose_step(seen, is_whole_table, vma, block, limits)
    }

    /// Returns the next step for a block with the contents `seen`. `is_whole_table` is true if one
    /// page table translates this block and nothing else.
    ///
    /// # Errors
    /// The block can't be collapsed.
    fn choose_step(
        self,
        seen: Survey,
        is_whole_table: bool,
        vma: &Vma,
        block: UserRange,
        limits: Option<&CollapseLimits>,
    ) -> Result<Step, CollapseError> {
        let Survey { resident, swapped, shared, runs, first_swapped, accessed, pinned, holes, unfit, whole } = seen;
        if whole {
            return Ok(if is_whole_table { Step::MapHuge } else { Step::Done });
        }
        if unfit || resident + swapped == 0 || !is_whole_table && runs > RUNS {
            return Err(CollapseError::Unfit(*block));
        }
        if holes && vma.uffd.is_some() {
            return Err(CollapseError::BeyondLimits(*block));
        }
        if let Some(limits) = limits {
            let share = |limit: u32| ((u64::from(limit) * (block.len() >> FRAME_SHIFT)) >> HUGE_ORDER) as u32;
            let none = (block.len() >> FRAME_SHIFT) as u32 - resident - swapped;
            let beyond = none > share(limits.none) || swapped > share(limits.swapped) || shared > share(limits.shared);
            if beyond || !accessed {
                return Err(CollapseError::BeyondLimits(*block));
            }
        }
        match first_swapped {
            Some(addr) => Ok(Step::SwapIn { addr, swapped }),
            None if pinned => Err(CollapseError::Busy(*block)),
            None => Ok(Step::Copy),
        }
    }

    /// Adds the PTEs of a block from the address `at` on to `seen`, up to the end of `table`, and
    /// at most [`MAX_RUNS_PER_HOLD`] runs. `table` is locked, or detached (its parent does not
    /// point to it any more). Returns the address at which it stopped. This is `at` if the PTE at
    /// `at` is busy.
    fn survey(self, table: &LockedTable<'_, 'm, P>, block: UserRange, at: u64, seen: &mut Survey) -> u64 {
        let arch = self.arch();
        let (mut at, mut runs) = (at, 0);
        while at < block.end
            && runs < MAX_RUNS_PER_HOLD
            && let Some(run) = table.run(at, block.end)
        {
            runs += 1;
            match run.kind {
                Kind::None => seen.holes = true,
                Kind::Leaf => self.survey_leaves(&run, block, seen),
                Kind::Swap => {
                    seen.swapped += run.frames(arch);
                    seen.first_swapped.get_or_insert(at);
                    seen.unfit |= arch.swap_entry(run.raw).attrs.contains(Attrs::UFFD_WP);
                }
                Kind::Table | Kind::Marker | Kind::Busy => seen.unfit = true,
            }
            at = run.range(arch).end;
        }
        at
    }

    /// Adds a run of leaf PTEs of a block to `seen`.
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
        let is_one_folio = pfn.is_aligned(order) && machine.frames().head(pfn).1.order() >= order;
        seen.whole |= is_one_folio && block == run.range(arch);
        seen.resident += pages;
        seen.accessed |= attrs.contains(Attrs::ACCESSED);
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

    /// Replaces the page table of a block, which maps one folio by one run, by a huge PTE that maps
    /// the folio. Returns false, and changes nothing, if another CPU has changed the page table
    /// meanwhile.
    fn map_huge(self, vma: &Vma, block: UserRange) -> bool {
        let arch = self.arch();
        let mut gather = self.space.gather(block);
        let Some((old, place)) = self.detach_table(vma, block, |step| matches!(step, Step::MapHuge)) else {
            return false;
        };
        // The run has the accessed and dirty bits of all its PTEs. `old` is detached and flushed,
        // so no CPU sets more of these bits.
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

    /// Detaches the page table that translates `block` and nothing else: makes its parent's entry
    /// busy (a marker at which other CPUs wait), and flushes. Returns the page table and the busy
    /// entry. Returns `None`, and changes nothing, if there is no such page table, or if
    /// `is_wanted` returns false for the step that its contents now call for.
    fn detach_table(
        self,
        vma: &Vma,
        block: UserRange,
        is_wanted: impl Fn(Step) -> bool,
    ) -> Option<(DetachedTable<'s, 'm, P>, BusyEntries<'s, 'm, P>)> {
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
        if self.choose_step(seen, true, vma, block, None).is_ok_and(is_wanted) {
            return Some((old, place));
        }
        old.restore(place);
        None
    }

    /// Copies a block to the new folio `pfn`, and maps the folio in place of the block's pages.
    /// Returns false if the block has changed so that it must not be copied; then nothing changes,
    /// and the folio stays the caller's.
    fn replace_all(self, vma: &Vma, block: UserRange, pfn: Pfn) -> bool {
        let Found::Table(table) = self.tables().find(block) else { return false };
        if block == table.range() {
            table.release();
            return match self.detach_table(vma, block, |step| matches!(step, Step::Copy)) {
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
        let copies = at >= block.end && matches!(self.choose_step(seen, false, vma, block, None), Ok(Step::Copy));
        match copies {
            true => Anon::of(self.space).replace_part::<RUNS>(table, vma, block, pfn),
            false => table.release(),
        }
        copies
    }
}
