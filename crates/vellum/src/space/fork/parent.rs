//! The parent's side of a fork: shares its memory with the child, run by run.

use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind, Marker, SwapEntry, UserRange};
use crate::frame::{Counts, FrameState, flag};
use crate::memcg::ListHold;
use crate::page_cache::Object;
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::table::{Found, LockedTable, MAX_PARTS, Part, Run, Scattered, ahead};
use crate::tlb::Gather;
use crate::vma::{State, UffdId, Vma, VmaFlags};

use super::run::Shared;
use super::{Child, ForkError, Parent};
use crate::space::AddressSpace;
use crate::space::ground::{Change, Ptes, mapped_part};

/// The largest number of swap slots to which a fork takes references for the child before it
/// releases the lock of their page table.
const MAX_SLOTS_PER_HOLD: u32 = 2048;

/// The largest number of PTEs that a fork copies before it releases the lock of their page table.
const MAX_COPIES: usize = 512;

/// The largest number of instructions that a fork executes before it releases the lock of a page
/// table (INV-11). It is enough for a page table with 512 dirty PTEs, each with a folio of its own.
const MAX_WORK_PER_HOLD: u32 = 59_000;

/// The cost of sharing a PTE, in instructions. The PTE is written once, and twice more if it is in
/// a cont block (PTEs that a TLB may hold as one translation).
pub(super) const PTE_COST: u32 = 25;

/// The cost of sharing a PTE in which hardware may still set the accessed or the dirty bit, in
/// instructions. The PTE is written again for each of the two bits that hardware sets meanwhile.
pub(super) const UNSTABLE_PTE_COST: u32 = PTE_COST + 16;

/// The cost of changing the counts of a folio, in instructions. The cost is 100, but [`PTE_COST`]
/// includes 16 for cont blocks, and a folio with a single PTE is in no cont block. So these 16 are
/// subtracted here, and [`PTE_COST`] plus this constant is right for such a folio.
pub(super) const FOLIO_COST: u32 = 84;

/// The cost of changing the counts of a folio and undoing the change, in instructions, for a folio
/// that turns out to be pinned.
const UNDO_COST: u32 = 200;

/// The cost of a run that is read by itself, without that of its PTEs and folios, in instructions.
const RUN_COST: u32 = 300;

/// The cost of reading a PTE as a part of a run, in instructions. A run that is shortened, because
/// its folios differ, is read again from there on.
const READ_COST: u32 = 3;

/// The runs and PTEs that the child gets from one of the parent's page tables. [`Child::map_batch`]
/// maps them after [`Parent`] has unlocked that page table, because the child's page tables can't
/// be allocated under a spin lock.
pub(super) struct Batch {
    /// The level of the page table.
    pub(super) level: u8,
    /// The counter of the child's private memory in the VMA.
    pub(super) counter: SpaceCounter,
    /// The attributes of the parent's PTEs that the child's lack.
    unwanted: Attrs,
    /// The pieces, in ascending order of addresses.
    pub(super) pieces: ArrayVec<Piece, 32>,
    /// The PTEs of the pieces that are copies.
    pub(super) copies: ArrayVec<u64, MAX_COPIES>,
}

/// A piece of a [`Batch`].
pub(super) enum Piece {
    /// A run.
    Run(Run),
    /// PTEs of a scattered stretch, which are the next `ptes` of [`Batch::copies`].
    Copies {
        /// The first address.
        start: u64,
        /// The number of PTEs.
        ptes: usize,
        /// The number of frames that count as resident.
        resident: u32,
    },
}

impl Batch {
    /// Returns an empty batch, for a page table of `level` and a VMA of the child.
    fn new(level: u8, vma: &Vma) -> Self {
        let keeps_wp = vma.flags.contains(VmaFlags::UFFD_WP);
        let unwanted = if keeps_wp { Attrs::empty() } else { Attrs::UFFD_WP };
        let counter = if vma.is_hugetlb() { SpaceCounter::Hugetlb } else { SpaceCounter::Anon };
        Batch { level, counter, unwanted, pieces: ArrayVec::new(), copies: ArrayVec::new() }
    }

    fn is_full(&self) -> bool {
        self.pieces.is_full() || self.copies.is_full()
    }
}

/// The part of a child's VMA in which it may share private memory.
#[derive(Clone, Copy)]
struct PrivatePart<'v> {
    /// The VMA.
    vma: &'v Vma,
    /// The end of the part, which begins at the start of the VMA.
    end: u64,
}

impl<'s, 'm, P: Platform> Parent<'s, 'm, P> {
    /// Implements [`AddressSpace::fork`].
    pub(super) fn fork(self, keeps: &dyn Fn(UffdId) -> bool) -> Result<AddressSpace<'m, P>, ForkError> {
        let all = UserRange::all(self.arch());
        let mut change = Change::begin(self.space, all);
        let limits = change.vmas().limits;
        change.unlock();
        let mut child = AddressSpace::new(self.machine(), *self.arch(), self.tables().memcg(), limits)?;
        child.tables.max_run = self.tables().max_run;
        child.tables.uses_cont_blocks = self.tables().uses_cont_blocks;
        child.families = self.space.families.of_child(child.id());
        child.family = child.families.own();
        child.soft_dirty_on.store(Ptes::of(self.space).is_soft_dirty_on(), Relaxed);
        change.vmas().copy_to(&mut child, keeps)?;
        change.vmas().each(self.machine(), all, |v| v.state = State::Locked);
        change.unlock();
        let shared = self.share(&child);
        change.vmas().each(self.machine(), all, |v| v.state = State::Live);
        shared?;
        Ok(child)
    }

    /// Shares the parent's private memory with the child. When this returns, even with an error,
    /// the TLBs are flushed, and no CPU writes without a fault to memory that parent and child
    /// share.
    fn share(self, child: &AddressSpace<'m, P>) -> Result<(), ForkError> {
        let mut gather = self.space.gather(UserRange::all(self.arch()));
        let mut pinned = false;
        let shared = self.each_shared_vma(child, |vma| self.share_vma(child, vma, &mut pinned, &mut gather));
        drop(gather);
        shared?;
        // Dropping the gather has flushed the TLBs: the child has the contents as of this flush,
        // and no CPU writes to the memory that both share without a fault any more.
        if pinned { self.each_shared_vma(child, |vma| self.copy_pinned(child, vma)) } else { Ok(()) }
    }

    /// Calls `f` for each VMA of the child that shares its parent's private memory, or that may
    /// have the parent's guard pages or write-protected pages.
    fn each_shared_vma(
        self,
        child: &AddressSpace<'m, P>,
        mut f: impl FnMut(&Vma) -> Result<(), ForkError>,
    ) -> Result<(), ForkError> {
        let mut at = 0;
        loop {
            // Only this fork refers to the child yet, so its VMAs don't change while they are
            // unlocked.
            let next = child.read().tree.find_from(at).copied();
            let Some(vma) = next else { return Ok(()) };
            at = vma.range.end;
            if vma.may_have_own() && !vma.flags.contains(VmaFlags::WIPEONFORK) {
                f(&vma)?;
            }
            self.platform().resched();
        }
    }

    /// Returns the end of the part of a VMA in which a child may share private memory: its start if
    /// it is `MAP_SHARED`; in a private VMA of an object, the address of the object's end. Private
    /// copies of pages beyond the object's end are not shared, because a truncation may be about to
    /// unmap them, and does not visit this child
    /// ([`unmap_removed`](crate::space::unmap_removed)).
    pub(super) fn private_end(self, vma: &Vma) -> u64 {
        if vma.backing.is_anonymous() {
            return vma.range.end;
        }
        if vma.backing.is_shared() {
            return vma.range.start;
        }
        // SAFETY: the child's VMA has a copy of the backing of a parent's VMA. The fork has claimed
        // all of the parent's addresses, so that VMA stays, and its reference to the object with
        // it.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        let pages = object.size().div_ceil(1 << self.page_shift());
        mapped_part(vma, &object, &(0..pages), self.page_shift()).map_or(vma.range.start, |part| part.end)
    }

    /// Shares the private memory of a VMA with the child, page table by page table. Page tables
    /// that map nothing but pages of page-cache objects have none.
    fn share_vma(
        self,
        child: &AddressSpace<'m, P>,
        vma: &Vma,
        pinned: &mut bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<(), ForkError> {
        let mut at = vma.range.start;
        let private_end = self.private_end(vma);
        while at < vma.range.end {
            match self.tables().find(vma.range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) if !table.live().may_have_private() && !vma.flags.contains(VmaFlags::UFFD_WP) => {
                    at = table.end();
                    table.release();
                    self.platform().resched();
                }
                Found::Table(table) => {
                    ahead::prefetch_next(&table, vma.range);
                    let mut batch = Batch::new(table.level, vma);
                    let whole = vma.range.tail(at);
                    let range = if at < private_end { whole.head(private_end) } else { whole };
                    let shared = self.share_table(
                        &table,
                        range,
                        PrivatePart { vma, end: private_end },
                        &mut batch,
                        pinned,
                        gather,
                    );
                    table.release();
                    self.platform().resched();
                    Child::of(child).map_batch(vma.range, &batch)?;
                    at = shared?;
                    self.platform().resched();
                }
            }
        }
        Ok(())
    }

    /// Shares the part of `range` that `table` maps with the child, and adds the runs for the child
    /// to `batch`. Stops when `batch` is full or [`MAX_WORK_PER_HOLD`] is used up, and returns the
    /// address at which it stopped. `range` lies entirely before or entirely after the end of the
    /// private part; after it, only markers are shared. Sets `pinned` if a page stays exclusive to
    /// the parent.
    ///
    /// # Errors
    /// A swap slot or a folio has the maximum number of references. The runs before it are in
    /// `batch`.
    fn share_table(
        self,
        table: &LockedTable<'_, 'm, P>,
        range: UserRange,
        PrivatePart { vma, end: private_end }: PrivatePart<'_>,
        batch: &mut Batch,
        pinned: &mut bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<u64, ForkError> {
        let arch = self.arch();
        let end = table.hold_end(range);
        let mut at = range.start;
        let mut slots = 0;
        let mut work = MAX_WORK_PER_HOLD;
        let unwanted = batch.unwanted;
        let keeps_wp = unwanted.is_empty();
        // The least work that must be left for another run. Half of it is enough for all PTEs of a
        // cont block, and half of it for the counts of one folio ([`Parent::share_run`]), after
        // `share_scattered` has undone a change.
        let least = UNDO_COST + ((2 * UNSTABLE_PTE_COST) << arch.cont_bits(table.level)).max(2 * FOLIO_COST);
        while at < end && !batch.is_full() && slots < MAX_SLOTS_PER_HOLD && work >= least {
            // Pages of objects that are write-protected for a userfaultfd become markers.
            if !keeps_wp
                && !vma.backing.is_anonymous()
                && let Some(next) = self.after_object_pages(table, at, end, &mut work)
            {
                at = next;
                continue;
            }
            let next = self.share_scattered(table, at, end.min(private_end), batch, &mut work, gather);
            if next != at {
                at = next;
                continue;
            }
            let Some(mut run) = table.run(at, end) else { break };
            let read = RUN_COST + READ_COST * run.len as u32;
            match run.kind {
                // The child faults the pages of the object in. Markers keep their write protection.
                Kind::Leaf if at >= private_end && keeps_wp && run.attrs(arch).contains(Attrs::UFFD_WP) => {
                    batch.pieces.push(Piece::Run(Run::wp_markers(arch, run.va, run.range(arch).end)));
                }
                Kind::Leaf | Kind::Swap if at >= private_end => {}
                Kind::Leaf => {
                    ahead::prefetch_folio(table, &run, end);
                    if !vma.backing.is_anonymous() {
                        Ptes::of(self.space).shorten_to_equal(&mut run, |frame| frame.has(flag::OBJECT));
                    }
                    // Reclaim drops a lazyfree folio only if it is clean. A run has the dirty bits
                    // of all its PTEs, so share a single lazyfree folio at a time: the child's PTEs
                    // are then dirty only if that folio is.
                    let lazyfree = !run.stable
                        && Ptes::of(self.space).shorten_to_equal(&mut run, |frame| frame.has(flag::LAZYFREE));
                    if lazyfree {
                        run = Ptes::of(self.space).first_folio(table, &run);
                    }
                    match self.share_run(table, &mut run, &mut work, gather)? {
                        Shared::Both => {
                            // Other CPUs may have set dirty bits after the PTEs were read and
                            // before they became read-only. Now they can't: read the PTEs again.
                            if lazyfree {
                                run = table.run(run.va, run.range(arch).end).unwrap_or(run);
                            }
                            let attrs = run.attrs(arch) - Attrs::EXCLUSIVE - Attrs::WRITE - unwanted;
                            batch.pieces.push(Piece::Run(Run {
                                raw: arch.leaf(arch.leaf_addr(run.raw, run.level), attrs, run.level),
                                ..run
                            }));
                        }
                        Shared::Pinned => *pinned = true,
                        Shared::Object if keeps_wp && run.attrs(arch).contains(Attrs::UFFD_WP) => {
                            batch.pieces.push(Piece::Run(Run::wp_markers(arch, run.va, run.range(arch).end)));
                        }
                        Shared::Object => {}
                    }
                }
                Kind::Marker if arch.marker_of(run.raw) == Some(Marker::UffdWp) && !keeps_wp => {}
                Kind::Marker => batch.pieces.push(Piece::Run(run)),
                Kind::Swap => {
                    // SAFETY: each swap entry keeps its reference to its slot while the page table
                    // is locked.
                    unsafe {
                        self.machine().swaps().duplicate(self.platform(), Ptes::of(self.space).swap_slots(&run))
                    }?;
                    slots += run.frames(arch);
                    let swapped = arch.swap_entry(run.raw);
                    let raw = arch.swap_pte(SwapEntry { attrs: swapped.attrs - unwanted, ..swapped });
                    batch.pieces.push(Piece::Run(Run { raw, ..run }));
                }
                Kind::None | Kind::Table | Kind::Busy => {}
            }
            work = work.saturating_sub(read);
            at = run.range(arch).end;
        }
        Ok(at)
    }

    /// Returns the end of a run of pages of a page-cache object that begins at `at`: the child
    /// faults them in. Returns `None` if there is none. Subtracts the instructions from `work`.
    fn after_object_pages(self, table: &LockedTable<'_, 'm, P>, at: u64, end: u64, work: &mut u32) -> Option<u64> {
        let mut run = table.run(at, end).filter(|run| run.kind == Kind::Leaf)?;
        let read = RUN_COST + READ_COST * run.len as u32;
        let is_objects = Ptes::of(self.space).shorten_to_equal(&mut run, |frame| frame.has(flag::OBJECT));
        *work = work.saturating_sub(read);
        is_objects.then(|| run.range(self.arch()).end)
    }

    /// Shares a scattered stretch of the parent's leaf PTEs ([`Scattered`]) from `at` on, and adds
    /// copies of them, without `batch.unwanted`, to `batch`, which is not full. Returns
    /// the address at which it stopped: `at` if no such stretch begins there. Stops before `end`,
    /// where attributes differ or a long run begins, when `batch` is full or `work` is used up, and
    /// before a folio that needs attention: one of a page-cache object, one that may be pinned, and
    /// one with the maximum number of references. `work` is at least [`UNDO_COST`], and a call that
    /// shares nothing subtracts no more than that.
    fn share_scattered(
        self,
        table: &LockedTable<'_, 'm, P>,
        at: u64,
        end: u64,
        batch: &mut Batch,
        work: &mut u32,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let affordable = (*work - UNDO_COST) / (PTE_COST + FOLIO_COST);
        let most = batch.copies.remaining_capacity().min(affordable as usize);
        let stretch = if at < end { Scattered::at(table, at, end, most) } else { None };
        let Some(stretch) = stretch else { return at };
        let old = stretch.attrs();
        let exclusive = old.contains(Attrs::EXCLUSIVE);
        let Taken { ptes, resident, undone } = match exclusive {
            true => self.take_scattered::<true>(&stretch),
            false => self.take_scattered::<false>(&stretch),
        };
        *work -= ptes as u32 * (PTE_COST + FOLIO_COST) + if undone { UNDO_COST } else { 0 };
        if ptes == 0 {
            return at;
        }
        let shared = old - Attrs::EXCLUSIVE - Attrs::WRITE;
        let kept = if exclusive { shared } else { old };
        let first = batch.copies.len();
        batch.copies.extend(core::iter::repeat_n(0, ptes));
        stretch.change_and_copy([kept, shared - batch.unwanted], &mut batch.copies[first..]);
        batch.pieces.push(Piece::Copies { start: at, ptes, resident });
        let next = at + ((ptes as u64) << table.shift());
        if exclusive && old.contains(Attrs::WRITE) {
            gather.note(VirtRange { start: at, end: next }, table.shift());
        }
        next
    }

    /// Takes references and mappings of the folios of a scattered stretch for the child, up to the
    /// first folio that needs attention ([`Parent::share_scattered`]).
    #[inline(never)]
    fn take_scattered<const EXCLUSIVE: bool>(self, stretch: &Scattered<'_, '_, 'm, P>) -> Taken {
        let frames = self.machine().frames();
        let order = stretch.order_of_a_pte();
        let mut hold = ListHold::new(frames, self.machine().memcgs());
        let mut taken = Taken { ptes: 0, resident: 0, undone: false };
        let mut parts = ArrayVec::new();
        // The state word and the PTEs of the folio before, if all its PTEs were exclusive.
        let (mut state, mut len) = (None, 0);
        // Where every other folio needs attention, few descriptors are read in vain.
        let mut most = 1;
        loop {
            stretch.next_parts(taken.ptes, most, &mut parts);
            for part in &parts {
                let pages = (len as u32) << order;
                if part.ptes == len && Some(part.frame.state()) == state && hold.has_all(part.frame, pages) {
                    frames.set_counts(part.pfn, part.frame, Counts { refs: 2 * pages, maps: 2 * pages });
                    taken.ptes += len;
                    taken.resident += pages;
                    continue;
                }
                match self.take_part::<EXCLUSIVE>(part, order, &mut hold, &mut taken) {
                    Some(Alike(alike)) => (state, len) = (alike, part.ptes),
                    None => return taken,
                }
            }
            if parts.len() < most {
                return taken;
            }
            most = (2 * most).min(MAX_PARTS);
        }
    }

    /// Takes references and mappings of the folios of a part of a scattered stretch. Returns `None`
    /// before a folio that needs attention.
    #[inline(never)]
    fn take_part<const EXCLUSIVE: bool>(
        self,
        &Part { mut pfn, ptes, .. }: &Part<'m>,
        order: u32,
        hold: &mut ListHold<'_, 'm, P>,
        taken: &mut Taken,
    ) -> Option<Alike> {
        let frames = self.machine().frames();
        let mut left = (ptes as u32) << order;
        loop {
            let (head, folio) = frames.head(pfn);
            let state = folio.state();
            if state.has(flag::OBJECT) {
                return None;
            }
            // The PTEs of one folio change its counts once.
            let size = 1 << state.order();
            let pages = left.min(size - (pfn.0 - head.0));
            let mut alike = None;
            if !state.has(flag::ZERO_FOLIO) {
                if !EXCLUSIVE {
                    frames.get_counts_checked(head, folio, pages, pages).ok()?;
                } else if hold.has_all(folio, pages) {
                    frames.set_counts(head, folio, Counts { refs: 2 * pages, maps: 2 * pages });
                    alike = (pages == size && ptes as u32 == size >> order).then_some(state);
                } else if frames.get_counts(head, folio, pages, pages).has_unmapped_refs() {
                    frames.put(head, folio, pages, pages);
                    taken.undone = true;
                    return None;
                }
                taken.resident += pages;
            }
            taken.ptes += (pages >> order) as usize;
            left -= pages;
            if left == 0 {
                return Some(Alike(alike));
            }
            pfn = pfn.add(pages);
        }
    }
}

/// The references and mappings that [`Parent::take_scattered`] took for the child.
struct Taken {
    /// The number of PTEs.
    ptes: usize,
    /// The number of frames that count as resident.
    resident: u32,
    /// True if the fork changed the counts of the folio after these PTEs, and undid the change
    /// because the folio may be pinned.
    undone: bool,
}

/// The state word of a folio that is a whole part of a scattered stretch, and of which the PTEs of
/// that part have all references. Another such folio, with the same state word, changes its counts
/// in the same way.
struct Alike(Option<FrameState>);
