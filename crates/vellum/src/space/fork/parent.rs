//! The parent's side of a fork: shares its memory with the child, run by run.

use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs, Kind, Marker, SwapEntry, UserRange};
use crate::frame::{TooManyReferences, flag};
use crate::memcg::Refused;
use crate::page_cache::Object;
use crate::platform::Platform;
use crate::table::{Found, LockedTable, NotMapped, Run};
use crate::tlb::Gather;
use crate::vma::{State, Vma, VmaFlags};

use super::{Child, ForkError, Parent};
use crate::space::AddressSpace;
use crate::space::anon::Anon;
use crate::space::ground::{Change, Ptes, mapped_part};

/// Slots of one table that the child gets references to before the lock of the table is given back.
const MAX_SLOTS_PER_HOLD: u32 = 2048;

/// A fork does so much to one table before it gives its lock back (INV-11), in instructions, of
/// which there are fewer. A table of 512 entries that were written to, each with a folio of its
/// own, is done at once.
const MAX_WORK_PER_HOLD: u32 = 59_000;

/// The work of an entry: it is written once, and twice more if it becomes a part of a block.
const PTE_COST: u32 = 25;

/// The work of an entry in which hardware may still record something: it is written again after
/// each of both bits.
const UNSTABLE_PTE_COST: u32 = PTE_COST + 16;

/// The work of changing the counts of a folio, which is 100, less that of joining one entry: a
/// folio that has one entry alone is in no block.
const FOLIO_COST: u32 = 84;

/// Runs of one page table that the child is to have. The child's page tables can't be allocated
/// while the parent's is locked.
type Batch = ArrayVec<Run, 32>;

/// The part of a VMA whose private memory a child may have.
#[derive(Clone, Copy)]
struct PrivatePart<'v> {
    /// The VMA.
    vma: &'v Vma,
    /// The end of the part, which begins where the VMA does.
    end: u64,
}

impl<'s, 'm, P: Platform, A: Arch> Parent<'s, 'm, P, A> {
    /// Implements [`AddressSpace::fork`].
    pub(super) fn fork(self) -> Result<AddressSpace<'m, P, A>, ForkError> {
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
        change.vmas().copy_to(&mut child)?;
        change.vmas().each(self.machine(), all, |v| v.state = State::Locked);
        change.unlock();
        let shared = self.share(&child);
        change.vmas().each(self.machine(), all, |v| v.state = State::Live);
        shared?;
        Ok(child)
    }

    /// Gives the child what its VMAs map. When this returns, also with an error, no CPU writes to
    /// shared memory without a fault.
    fn share(self, child: &AddressSpace<'m, P, A>) -> Result<(), ForkError> {
        let mut gather = self.space.gather(UserRange::all(self.arch()));
        let mut pinned = false;
        let shared = self.each_shared_vma(child, |vma| self.share_vma(child, vma, &mut pinned, &mut gather));
        drop(gather);
        shared?;
        // The gather has flushed: the child has the memory of this moment, and no CPU writes to it
        // without a fault any more.
        if pinned { self.each_shared_vma(child, |vma| self.copy_pinned(child, vma)) } else { Ok(()) }
    }

    /// Calls `f` for each VMA of the child that gets its parent's private memory.
    fn each_shared_vma(
        self,
        child: &AddressSpace<'m, P, A>,
        mut f: impl FnMut(&Vma) -> Result<(), ForkError>,
    ) -> Result<(), ForkError> {
        let mut at = 0;
        loop {
            // Only this fork knows the child yet, and the parent's VMAs don't change: the lock need
            // not be held.
            let next = child.read().tree.find_from(at).copied();
            let Some(vma) = next else { return Ok(()) };
            at = vma.range.end;
            if !vma.flags.contains(VmaFlags::WIPEONFORK) && !vma.backing.is_shared() {
                f(&vma)?;
            }
            self.platform().resched();
        }
    }

    /// Returns the end of the part of a VMA whose private memory a child may have. A truncation is
    /// about to remove the private copies of pages beyond the end of the object, and does not visit
    /// this child ([`unmap_removed`](crate::space::unmap_removed)).
    fn copies_end(self, vma: &Vma) -> u64 {
        if vma.backing.is_anonymous() {
            return vma.range.end;
        }
        // SAFETY: the fork has claimed all of the parent's addresses, so the parent's VMA, whose
        // backing the child's is a copy of, stays, and with it a reference to the object.
        let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
        let pages = object.size().div_ceil(1 << self.page_shift());
        mapped_part(vma, &object, &(0..pages), self.page_shift()).map_or(vma.range.start, |inside| inside.end)
    }

    /// Shares the private memory of a VMA with the child, page table by page table.
    fn share_vma(
        self,
        child: &AddressSpace<'m, P, A>,
        vma: &Vma,
        pinned: &mut bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<(), ForkError> {
        let mut at = vma.range.start;
        let inside = self.copies_end(vma);
        while at < vma.range.end {
            match self.tables().find(vma.range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let mut batch = Batch::new();
                    let whole = vma.range.tail(at);
                    let range = if at < inside { whole.head(inside) } else { whole };
                    let shared =
                        self.share_table(&table, range, PrivatePart { vma, end: inside }, &mut batch, pinned, gather);
                    table.release();
                    self.platform().resched();
                    Child::of(child).map_runs(vma.range, &batch)?;
                    at = shared?;
                    self.platform().resched();
                }
            }
        }
        Ok(())
    }

    /// Shares the part of `range` that a page table maps, until the batch is full or [`MAX_WORK_PER_HOLD`] is
    /// used up; returns the address that it got to. Behind the end of the private part only markers
    /// are shared; the range does not reach across that end.
    ///
    /// # Errors
    /// A swap slot or a folio has as many references as it may. The runs before it are in the
    /// batch.
    fn share_table(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        range: UserRange,
        PrivatePart { vma, end: inside }: PrivatePart<'_>,
        batch: &mut Batch,
        pinned: &mut bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<u64, ForkError> {
        let arch = self.arch();
        let end = table.hold_end(range);
        let mut at = range.start;
        let mut slots = 0;
        let mut work = MAX_WORK_PER_HOLD;
        // Half of it is a block, or a folio.
        let least = ((2 * UNSTABLE_PTE_COST) << arch.cont_bits(table.level)).max(2 * FOLIO_COST);
        while at < end && !batch.is_full() && slots < MAX_SLOTS_PER_HOLD && work >= least {
            let Some(mut run) = table.run(at, end) else { break };
            match run.kind {
                Kind::Leaf | Kind::Swap if at >= inside => {}
                Kind::Leaf => {
                    if !vma.backing.is_anonymous() {
                        Ptes::of(self.space).shorten_to_equal(&mut run, |frame| frame.has(flag::OBJECT));
                    }
                    // Whether lazily freed memory was written to is recorded per folio, in the
                    // child as well.
                    let lazy = !run.stable
                        && Ptes::of(self.space).shorten_to_equal(&mut run, |frame| frame.has(flag::LAZYFREE));
                    if lazy {
                        run = Ptes::of(self.space).first_folio(table, &run);
                    }
                    match self.share_run(table, &mut run, &mut work, gather)? {
                        Shared::Both => {
                            // Other CPUs may have set dirty bits since the entries were read, until
                            // they were made read-only: now they can't.
                            if lazy {
                                run = table.run(run.va, run.range(arch).end).unwrap_or(run);
                            }
                            let attrs = run.attrs(arch) - Attrs::EXCLUSIVE - Attrs::WRITE - Attrs::UFFD_WP;
                            batch.push(Run {
                                raw: arch.leaf(arch.leaf_addr(run.raw, run.level), attrs, run.level),
                                ..run
                            });
                        }
                        Shared::Pinned => *pinned = true,
                        Shared::Object => {}
                    }
                }
                Kind::Marker if arch.marker_of(run.raw) == Some(Marker::UffdWp) => {}
                Kind::Marker => batch.push(run),
                Kind::Swap => {
                    // SAFETY: the entries have references, and the table is locked.
                    unsafe {
                        self.machine().swaps().duplicate(self.platform(), Ptes::of(self.space).swap_slots(&run))
                    }?;
                    slots += run.frames(arch);
                    let swapped = arch.swap_entry(run.raw);
                    let raw = arch.swap_pte(SwapEntry { attrs: swapped.attrs - Attrs::UFFD_WP, ..swapped });
                    batch.push(Run { raw, ..run });
                }
                Kind::None | Kind::Table | Kind::Busy => {}
            }
            at = run.range(arch).end;
        }
        Ok(at)
    }

    /// Give the child copies of what has stayed the parent's own in a VMA. Nothing there changes
    /// meanwhile, but for what is written by who has pinned it.
    fn copy_pinned(self, child: &AddressSpace<'m, P, A>, vma: &Vma) -> Result<(), ForkError> {
        let arch = self.arch();
        let mut at = vma.range.start;
        let inside = self.copies_end(vma);
        while at < inside {
            match self.tables().find(vma.range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let run = table.run(at, inside.min(table.end()));
                    table.release();
                    let Some(run) = run else { continue };
                    at = run.range(arch).end;
                    if run.kind == Kind::Leaf && run.attrs(arch).contains(Attrs::EXCLUSIVE) {
                        self.copy_run(child, vma, &run)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn copy_run(self, child: &AddressSpace<'m, P, A>, vma: &Vma, run: &Run) -> Result<(), Refused> {
        let arch = self.arch();
        let pages = run.range(arch).len() >> arch.page_shift();
        for n in 0..pages as u32 {
            let va = run.va + ((n as u64) << arch.page_shift());
            let from = run.pfn(arch).add(n << arch.page_order());
            let (pfn, order) = Anon::of(child).alloc_or_smaller(vma, va, arch.page_order(), 0, false)?;
            // SAFETY: the parent has the page mapped until its VMAs are held no more; the copy is
            // nobody else's yet.
            unsafe { self.machine().frames().copy(from, pfn, 1 << order) };
            Anon::of(child).map(vma, va, pfn, order).map_err(NotMapped::shortage)?;
            self.platform().resched();
        }
        Ok(())
    }

    /// Takes references and mappings for the child, and from the entries the right to write in
    /// place, as far as `work` goes, which is at least twice a block, or a folio. Of `work` it
    /// leaves what may still be done, and of the run what it dealt with.
    #[inline(never)]
    fn share_run(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        run: &mut Run,
        work: &mut u32,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<Shared, TooManyReferences> {
        let arch = self.arch();
        let frames = self.machine().frames();
        let pfn = run.pfn(arch);
        if self.machine().zero_folio().contains(pfn) {
            return Ok(Shared::Both);
        }
        let first = frames.head(pfn).1;
        if first.has(flag::OBJECT) {
            return Ok(Shared::Object);
        }
        let attrs = run.attrs(arch);
        let exclusive = attrs.contains(Attrs::EXCLUSIVE);
        let entry = if run.stable { PTE_COST } else { UNSTABLE_PTE_COST };
        self.shorten(run, *work / 2 / entry);
        // The entries first: what they leave is for folios.
        let mut folios = (*work - run.len as u32 * entry) / FOLIO_COST;
        let before = folios;
        let taken = match exclusive {
            true => self.share_exclusive(pfn, run.frames(arch), &mut folios),
            false => self.share_shared(pfn, run.frames(arch), &mut folios)?,
        };
        // A reference that no entry has belongs to something that may write there unnoticed: the
        // folio stays the parent's own, and the child gets a copy.
        let pinned = taken == 0;
        if pinned {
            *run = Ptes::of(self.space).first_folio(table, run);
        } else {
            run.len = (taken >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        }
        *work = work.saturating_sub((before - folios) * FOLIO_COST + run.len as u32 * entry);
        let kept = if pinned { attrs & Attrs::EXCLUSIVE } else { Attrs::empty() };
        let new = (attrs - Attrs::EXCLUSIVE - Attrs::WRITE) | kept;
        // Where nothing changes, no block is taken apart and joined again.
        if exclusive && new != attrs {
            table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), new, run.level));
            if attrs.contains(Attrs::WRITE) {
                gather.note(run.range(arch), table.shift());
            }
        }
        Ok(if pinned { Shared::Pinned } else { Shared::Both })
    }

    /// Of a run, keeps at most `most` entries, up to where a block ends, and at least one.
    fn shorten(self, run: &mut Run, most: u32) {
        let shift = self.arch().level_shift(run.level);
        if run.len as u64 > u64::from(most) {
            let end = run.va + (u64::from(most) << shift);
            let end = align_down(end, shift + self.arch().cont_bits(run.level));
            run.len = (end.saturating_sub(run.va) >> shift).max(1) as usize;
        }
    }

    /// Takes references and mappings of frames that are the space's own, of at most `most` folios,
    /// of which it leaves how many may still be taken, up to the first folio that is held; returns
    /// how many frames that were. Their references are too many only if some have no mapping: then
    /// the folio is held.
    ///
    /// Out of line, like the next: each folio costs little more than its atomic operation.
    #[inline(never)]
    fn share_exclusive(self, pfn: Pfn, count: u32, most: &mut u32) -> u32 {
        let frames = self.machine().frames();
        let (mut taken, mut left) = (0, *most);
        for (head, frame, pages) in frames.folios(pfn, count) {
            let Some(rest) = left.checked_sub(1) else { break };
            left = rest;
            if frames.get_counts(head, frame, pages, pages).has_unmapped_refs() {
                frames.put(head, frame, pages, pages);
                // Its counts have changed twice, which is more than twice `FOLIO_COST`.
                left = left.saturating_sub(2);
                break;
            }
            taken += pages;
        }
        *most = left;
        taken
    }

    /// The same for frames that others have too, up to the first folio that may have no more
    /// references.
    ///
    /// # Errors
    /// It is the first.
    #[inline(never)]
    fn share_shared(self, pfn: Pfn, count: u32, most: &mut u32) -> Result<u32, TooManyReferences> {
        let frames = self.machine().frames();
        let (mut taken, mut left) = (0, *most);
        for (head, frame, pages) in frames.folios(pfn, count) {
            let Some(rest) = left.checked_sub(1) else { break };
            left = rest;
            if let Err(error) = frames.get_counts_checked(head, frame, pages, pages) {
                return if taken == 0 { Err(error) } else { Ok(taken) };
            }
            taken += pages;
        }
        *most = left;
        Ok(taken)
    }
}

/// What became of a run of the parent's.
enum Shared {
    /// Both have it now.
    Both,
    /// It stays the parent's own, which may not write until the child has a copy.
    Pinned,
    /// It is an object's: the child finds it there.
    Object,
}
