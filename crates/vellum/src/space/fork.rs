//! A child: `fork`. It has the VMAs of its parent and what is in them, and copies nothing: memory of which both have the same
//! is read-only in both until one of them writes ([`super::cow`]).
//!
//! The parent's tables are gone through once. A run of private memory gets the child's references and mappings, by folio from
//! the descriptors; the right to write to it in place ([`Attrs::EXCLUSIVE`]) goes from all of its entries, and with it the
//! right to write; and the same run is mapped in the child.
//!
//! # What the child finds
//! What the parent held at one moment: when its CPUs are made to forget that they might write, at the end. Until then they write
//! to what the child has too, if they still may; and who may not, because a fault would have to be dealt with first, waits
//! until the end ([`State::Held`]). So of two stores of one thread the child never has the second alone.
//!
//! # Pinned pages
//! Who has pinned a page ([`super::pin`]) writes to it past the entries. So it stays the parent's own, and after that moment the
//! child gets a copy of it.

use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs, Kind, Marker, Swapped, UserRange};
use crate::errno::Errno;
use crate::frame::{TooManyReferences, flag};
use crate::memcg::{Refused, may_be_refused};
use crate::page_cache::{self, Object};
use crate::platform::Platform;
use crate::stats::SpaceCounter;
use crate::swap::Saturated;
use crate::table::{Found, LockedTable, NotMapped, Run};
use crate::tlb::Gather;
use crate::vma::{State, Vma, VmaFlags};

use super::AddressSpace;
use crate::space::anon::Anon;
use crate::space::ground::{Change, Ptes, Vmas};

/// Why there is no child. The parent is as it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkError {
    /// No memory for its VMAs and page tables, or the memcg may not have it.
    NoMemory(Refused),
    /// A swap slot, or a folio, has as many references as it may. No reclaim helps against that.
    TooManyReferences,
}

impl ForkError {
    /// What Linux's `fork` answers.
    pub const fn errno(&self) -> Errno {
        match self {
            ForkError::NoMemory(_) => Errno::ENOMEM,
            ForkError::TooManyReferences => Errno::EAGAIN,
        }
    }
}

impl core::fmt::Display for ForkError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ForkError::NoMemory(why) => why.fmt(f),
            ForkError::TooManyReferences => TooManyReferences.fmt(f),
        }
    }
}

impl core::error::Error for ForkError {}

may_be_refused!(ForkError);

impl From<TooManyReferences> for ForkError {
    fn from(_: TooManyReferences) -> Self {
        ForkError::TooManyReferences
    }
}

impl From<Saturated> for ForkError {
    fn from(_: Saturated) -> Self {
        ForkError::TooManyReferences
    }
}

/// Slots of one table that the child gets references to before the lock of the table is given back.
const SLOTS: u32 = 2048;

/// A fork does so much to one table before it gives its lock back (INV-11), in instructions, of which
/// there are fewer. A table of 512 entries that were written to, each with a folio of its own, is done
/// at once.
const WORK: u32 = 59_000;

/// The work of an entry: it is written once, and twice more if it becomes a part of a block.
const ENTRY: u32 = 25;

/// The work of an entry in which hardware may still record something: it is written again after each
/// of both bits.
const UNSETTLED: u32 = ENTRY + 16;

/// The work of changing the counts of a folio, which is 100, less that of joining one entry: a folio
/// that has one entry alone is in no block.
const FOLIO: u32 = 84;

/// Runs of one table that the child is to have: its tables can't be made while the parent's is
/// locked.
type Batch = ArrayVec<Run, 32>;

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// A child with the same limits, charged to the same memcg; memory that both have stays charged where it was. VMAs that
    /// are not to be had by a child are missing, and none is locked or watched. Of object memory only private copies are mapped; the rest
    /// the child faults in.
    ///
    /// Nothing else changes this space meanwhile, and its faults wait.
    ///
    /// # Errors
    /// See [`ForkError`]: there is no child, and nothing was changed.
    pub fn fork(&self) -> Result<Self, ForkError> {
        let all = UserRange::all(&self.tables.arch);
        let mut change = Change::begin(self, all);
        let limits = change.vmas().limits;
        change.unlock();
        let mut child = AddressSpace::new(self.tables.machine, self.tables.arch, self.tables.memcg(), limits)?;
        child.tables.max_run = self.tables.max_run;
        child.tables.joins = self.tables.joins;
        child.families = self.families.of_child(child.id());
        child.family = child.families.own();
        child.tracks.store(Ptes::of(self).is_soft_dirty_on(), Relaxed);
        change.vmas().copy_to(&mut child)?;
        change.vmas().each(self.tables.machine, all, |v| v.state = State::Held);
        change.unlock();
        let shared = self.share(&child);
        change.vmas().each(self.tables.machine, all, |v| v.state = State::Live);
        shared?;
        Ok(child)
    }

    /// Give the child what is in its VMAs. Whatever it answers, nobody may write any more to what the child has got.
    fn share(&self, child: &Self) -> Result<(), ForkError> {
        let mut gather = self.gather(UserRange::all(&self.tables.arch));
        let mut pinned = false;
        let shared = self.each_shared(child, |vma| self.share_vma(child, vma, &mut pinned, &mut gather));
        drop(gather);
        shared?;
        // This is the moment that the child has: nobody writes any more without a fault.
        if pinned { self.each_shared(child, |vma| self.copy_pinned(child, vma)) } else { Ok(()) }
    }

    /// The VMAs that a child has with its parent's private memory.
    fn each_shared(&self, child: &Self, mut f: impl FnMut(&Vma) -> Result<(), ForkError>) -> Result<(), ForkError> {
        let mut at = 0;
        loop {
            // The child is nobody else's yet, and the parent's VMAs don't change: no lock is held for long.
            let next = child.read().tree.find_from(at).copied();
            let Some(vma) = next else { return Ok(()) };
            at = vma.range.end;
            if !vma.flags.contains(VmaFlags::WIPEONFORK) && !vma.backing.is_shared() {
                f(&vma)?;
            }
            self.tables.platform().resched();
        }
    }

    /// Returns where that ends of which a child may have private memory in a VMA. Copies of what
    /// lies beyond the end of the object are those that a truncation is about to remove, which
    /// visits no child that comes now ([`super::discard()`]).
    fn copies_end(&self, vma: &Vma) -> u64 {
        if vma.backing.is_anonymous() {
            return vma.range.end;
        }
        // SAFETY: the fork has claimed all of the parent's addresses, so the parent's VMA, whose
        // backing the child's is a copy of, stays, and with it a reference to the object.
        let object = unsafe { Object::behind(self.tables.machine, &vma.backing) };
        let pages = object.size().div_ceil(1 << self.page_shift());
        self.mapped_in(vma, &object, &(0..pages)).map_or(vma.range.start, |inside| inside.end)
    }

    fn share_vma(
        &self,
        child: &Self,
        vma: &Vma,
        pinned: &mut bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<(), ForkError> {
        let mut at = vma.range.start;
        let inside = self.copies_end(vma);
        while at < vma.range.end {
            match self.tables.find(vma.range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let mut batch = Batch::new();
                    let whole = vma.range.tail(at);
                    let range = if at < inside { whole.head(inside) } else { whole };
                    let shared = self.share_table(&table, range, (vma, inside), &mut batch, pinned, gather);
                    table.release();
                    self.tables.platform().resched();
                    child.adopt(vma.range, &batch)?;
                    at = shared?;
                    self.tables.platform().resched();
                }
            }
        }
        Ok(())
    }

    /// Share what a table has of a range, until the batch is full; how far that was. From `inside`
    /// on, only markers; the range does not reach across it.
    ///
    /// # Errors
    /// A swap slot is saturated. What comes before it is in the batch.
    fn share_table(
        &self,
        table: &LockedTable<'_, 'm, P, A>,
        range: UserRange,
        (vma, inside): (&Vma, u64),
        batch: &mut Batch,
        pinned: &mut bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<u64, ForkError> {
        let arch = &self.tables.arch;
        let end = table.hold_end(range);
        let mut at = range.start;
        let mut slots = 0;
        let mut work = WORK;
        // Half of it is a block, or a folio.
        let least = ((2 * UNSETTLED) << arch.block_bits(table.level)).max(2 * FOLIO);
        while at < end && !batch.is_full() && slots < SLOTS && work >= least {
            let Some(mut run) = table.run(at, end) else { break };
            match run.kind {
                Kind::Leaf | Kind::Swap if at >= inside => {}
                Kind::Leaf => {
                    if !vma.backing.is_anonymous() {
                        Ptes::of(self).cut_where_equal(&mut run, |frame| frame.has(flag::OBJECT));
                    }
                    // Whether lazily freed memory was written to is recorded per folio, in the
                    // child as well.
                    let lazy = !run.settled && Ptes::of(self).cut_where_equal(&mut run, |frame| frame.has(flag::LAZY));
                    if lazy {
                        run = Ptes::of(self).first_folio(table, &run);
                    }
                    match self.share_run(table, &mut run, &mut work, gather)? {
                        Shared::Both => {
                            // Other CPUs may have set dirty bits since the entries were read, until
                            // they were made read-only: now they can't.
                            if lazy {
                                run = table.run(run.va, run.range(arch).end).unwrap_or(run);
                            }
                            let attrs = run.attrs(arch) - Attrs::EXCLUSIVE - Attrs::WRITE - Attrs::WATCHED;
                            batch.push(Run {
                                raw: arch.leaf(arch.leaf_addr(run.raw, run.level), attrs, run.level),
                                ..run
                            });
                        }
                        Shared::Pinned => *pinned = true,
                        Shared::Object => {}
                    }
                }
                Kind::Marker if arch.marked(run.raw) == Some(Marker::Watched) => {}
                Kind::Marker => batch.push(run),
                Kind::Swap => {
                    // SAFETY: the entries have references, and the table is locked.
                    unsafe {
                        self.tables.machine.swaps().duplicate(self.tables.platform(), Ptes::of(self).swap_slots(&run))
                    }?;
                    slots += run.frames(arch);
                    let swapped = arch.swapped(run.raw);
                    let raw = arch.swap(Swapped { attrs: swapped.attrs - Attrs::WATCHED, ..swapped });
                    batch.push(Run { raw, ..run });
                }
                Kind::None | Kind::Table | Kind::Busy => {}
            }
            at = run.range(arch).end;
        }
        Ok(at)
    }

    /// Give the child copies of what has stayed the parent's own in a VMA. Nothing there changes meanwhile, but for what is
    /// written by who has pinned it.
    fn copy_pinned(&self, child: &Self, vma: &Vma) -> Result<(), ForkError> {
        let arch = &self.tables.arch;
        let mut at = vma.range.start;
        let inside = self.copies_end(vma);
        while at < inside {
            match self.tables.find(vma.range.tail(at)) {
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

    fn copy_run(&self, child: &Self, vma: &Vma, run: &Run) -> Result<(), Refused> {
        let arch = &self.tables.arch;
        let pages = run.range(arch).len() >> arch.page_shift();
        for n in 0..pages as u32 {
            let va = run.va + ((n as u64) << arch.page_shift());
            let from = run.pfn(arch).add(n << arch.page_order());
            let (pfn, order) = Anon::of(child).alloc_or_smaller(vma, va, arch.page_order(), 0, false)?;
            // SAFETY: the parent has the page mapped until its VMAs are held no more; the copy is nobody else's yet.
            unsafe { self.tables.machine.frames().copy(from, pfn, 1 << order) };
            Anon::of(child).map(vma, va, pfn, order).map_err(NotMapped::shortage)?;
            self.tables.platform().resched();
        }
        Ok(())
    }

    /// Takes references and mappings for the child, and from the entries the right to write in
    /// place, as far as `work` goes, which is at least twice a block, or a folio. Of `work` it leaves
    /// what may still be done, and of the run what it dealt with.
    #[inline(never)]
    fn share_run(
        &self,
        table: &LockedTable<'_, 'm, P, A>,
        run: &mut Run,
        work: &mut u32,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Result<Shared, TooManyReferences> {
        let arch = &self.tables.arch;
        let frames = self.tables.machine.frames();
        let pfn = run.pfn(arch);
        if self.tables.machine.zeros_folio().contains(pfn) {
            return Ok(Shared::Both);
        }
        let first = frames.head(pfn).1;
        if first.has(flag::OBJECT) {
            return Ok(Shared::Object);
        }
        let attrs = run.attrs(arch);
        let exclusive = attrs.contains(Attrs::EXCLUSIVE);
        let entry = if run.settled { ENTRY } else { UNSETTLED };
        self.shorten(run, *work / 2 / entry);
        // The entries first: what they leave is for folios.
        let mut folios = (*work - run.len as u32 * entry) / FOLIO;
        let before = folios;
        let taken = match exclusive {
            true => self.share_own(pfn, run.frames(arch), &mut folios),
            false => self.share_others(pfn, run.frames(arch), &mut folios)?,
        };
        // A reference that no entry has belongs to something that may write there unnoticed: the
        // folio stays the parent's own, and the child gets a copy.
        let pinned = taken == 0;
        if pinned {
            *run = Ptes::of(self).first_folio(table, run);
        } else {
            run.len = (taken >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        }
        *work = work.saturating_sub((before - folios) * FOLIO + run.len as u32 * entry);
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
    fn shorten(&self, run: &mut Run, most: u32) {
        let shift = self.tables.arch.level_shift(run.level);
        if run.len as u64 > u64::from(most) {
            let end = run.va + (u64::from(most) << shift);
            let end = align_down(end, shift + self.tables.arch.block_bits(run.level));
            run.len = (end.saturating_sub(run.va) >> shift).max(1) as usize;
        }
    }

    /// Takes references and mappings of frames that are the space's own, of at most `most` folios, of
    /// which it leaves how many may still be taken, up to the first folio that is held; returns how
    /// many frames that were. Their references are too many only if some have no mapping: then the
    /// folio is held.
    ///
    /// Out of line, like the next: each folio costs little more than its atomic operation.
    #[inline(never)]
    fn share_own(&self, pfn: Pfn, count: u32, most: &mut u32) -> u32 {
        let frames = self.tables.machine.frames();
        let (mut taken, mut left) = (0, *most);
        for (head, frame, pages) in frames.folios(pfn, count) {
            let Some(rest) = left.checked_sub(1) else { break };
            left = rest;
            if frames.get_counts(head, frame, pages, pages).is_held() {
                frames.put(head, frame, pages, pages);
                // Its counts have changed twice, which is more than twice `FOLIO`.
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
    fn share_others(&self, pfn: Pfn, count: u32, most: &mut u32) -> Result<u32, TooManyReferences> {
        let frames = self.tables.machine.frames();
        let (mut taken, mut left) = (0, *most);
        for (head, frame, pages) in frames.folios(pfn, count) {
            let Some(rest) = left.checked_sub(1) else { break };
            left = rest;
            if let Err(error) = frames.share_counts(head, frame, pages, pages) {
                return if taken == 0 { Err(error) } else { Ok(taken) };
            }
            taken += pages;
        }
        *most = left;
        Ok(taken)
    }

    /// Map runs of one table of the parent's, which have their references and mappings; if that fails they have them no more.
    fn adopt(&self, within: UserRange, runs: &[Run]) -> Result<(), Refused> {
        let arch = &self.tables.arch;
        let mut left = runs;
        while let [run, rest @ ..] = left {
            if let Err(error) = self.tables.map_run(within.intersect(&run.range(arch)), run) {
                left.iter().for_each(|run| self.give_up(run));
                return Err(error.shortage());
            }
            self.count_adopted(run);
            left = rest;
            // The table is there now: the rest without going down to it each time.
            let Some(next) = left.first() else { break };
            if let Found::Table(table) = self.tables.find(within.intersect(&next.range(arch))) {
                while let [run, rest @ ..] = left
                    && run.level == table.level
                    && run.va < table.end()
                {
                    table.set(run);
                    self.count_adopted(run);
                    left = rest;
                }
                table.release();
            }
        }
        Ok(())
    }

    fn is_counted(&self, run: &Run) -> bool {
        run.kind == Kind::Leaf && !self.tables.machine.zeros_folio().contains(run.pfn(&self.tables.arch))
    }

    fn count_adopted(&self, run: &Run) {
        let frames = run.frames(&self.tables.arch) as i64;
        if run.kind == Kind::Swap {
            self.tables.slot().add(SpaceCounter::Swap, frames);
        } else if self.is_counted(run) {
            self.tables.slot().add(SpaceCounter::Anon, frames);
        }
    }

    /// The parent has the run too, so it is not the last.
    fn give_up(&self, run: &Run) {
        if run.kind == Kind::Swap {
            self.count_adopted(run);
            Ptes::of(self).release_swap(run);
        } else if self.is_counted(run) {
            let frames = self.tables.machine.frames();
            for (head, frame, pages) in frames.folios(run.pfn(&self.tables.arch), run.frames(&self.tables.arch)) {
                frames.put(head, frame, pages, pages);
            }
        }
    }
}

impl Vmas {
    /// Give an empty space the VMAs that a child has.
    fn copy_to<P: Platform, A: Arch>(&self, child: &mut AddressSpace<'_, P, A>) -> Result<(), Refused> {
        let (machine, memcg, space) = (child.tables.machine, child.memcg(), child.id());
        let vmas = child.vmas.get_mut();
        for vma in self.tree.iter_from(0).filter(|v| !v.flags.contains(VmaFlags::DONTFORK)) {
            let flags = vma.flags - VmaFlags::LOCKS - VmaFlags::WATCHES;
            let vma = Vma { flags, watcher: None, ..*vma };
            // One at a time: what so many inserts may need at most is a multiple of what they take.
            vmas.reserve(machine, memcg, 1)?;
            page_cache::lend_to(machine, &vma.backing, space, memcg)?;
            let inserted = vmas.tree.insert(vma);
            debug_assert!(inserted.is_ok(), "a VMA was added without being reserved");
            vmas.account(&vma, vma.range, 1);
            machine.platform().resched();
        }
        vmas.merge(machine, UserRange::all(&child.tables.arch));
        vmas.trim(machine);
        Ok(())
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
