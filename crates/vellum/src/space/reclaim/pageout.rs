//! Pages out the memory that runs of PTEs map: writes it to a swap device, migrates it to new
//! folios, or, if it is lazyfree and clean, discards it.
//!
//! The reclaimer write-protects a run as fork does ([`fork`](crate::space::fork)): it removes
//! [`Attrs::EXCLUSIVE`] and the right to write from the PTEs, and has a reference to the pages.
//! After one flush for many runs no CPU can write to the pages. A CPU that takes a write fault
//! copies the page, because of the reclaimer's reference. So the contents are written with no lock
//! held, programs can read the pages meanwhile, and no cache of pages under writeback is needed.
//! Once the contents are elsewhere too ([`PageoutTarget`]), the PTEs that still map the run's pages
//! are replaced in one step. PTEs that another CPU has changed since the write protection stay as
//! they are.
//!
//! If a run can't be paged out, its PTEs get their rights back, and keep the accessed and dirty
//! bits that were set since the write protection.
//!
//! Runs are not folios: of a partially mapped folio the mapped part is paged out, and no folio
//! needs to be split first.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Counts, Frame, HUGE_ORDER, flag};
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::SpaceCounter;
use crate::swap::{Slots, SwapRun};
use crate::table::{Found, LockedTable, MAX_ENTRIES_PER_HOLD, MAX_FOLIOS_PER_HOLD, MAX_RUNS_PER_HOLD, Run};
use crate::tlb::Gather;
use crate::vma::{Prot, State, VmaFlags};

use super::{IsolationBatch, MigratedPages, Pageout, Rmap};
use crate::space::ground::{Change, Ptes};

/// The maximum number of runs that are write-protected with one flush.
const RUNS: usize = 32;
/// The number of pages of 4 KiB in a [`Batch`] from which on no more runs are added to it.
const PAGES: u32 = 1 << 12;

/// A run that is write-protected for pageout.
#[derive(Clone, Copy)]
pub(super) struct WriteProtected {
    /// The run as it was before its write protection.
    pub(super) run: Run,
    /// True if other PTEs map some of the run's pages too.
    pub(super) shared: bool,
    /// True if the write protection took a reference to each page of the run, which
    /// [`Pageout::finish`] drops. False if the folios are isolated: the isolation has a reference
    /// to each folio, which serves as well to make a write fault copy the page.
    has_refs: bool,
}

/// The runs that are write-protected with one flush.
#[derive(Default)]
struct Batch {
    runs: ArrayVec<WriteProtected, RUNS>,
    /// The number of pages of 4 KiB in `runs`.
    pages: u32,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.runs.is_full() || self.pages >= PAGES
    }
}

/// The place where the contents of a write-protected run are when its write protection ends.
#[derive(Clone, Copy)]
pub(super) enum PageoutTarget {
    /// The contents are also in these swap slots. Each slot has a reference for the swap entry that
    /// is to name it.
    Swap(SwapRun),
    /// The contents are also in a copy that begins at this frame. Each frame of the copy has a
    /// reference and a mapping for the PTE that is to map it.
    Copy(Pfn),
    /// The contents are nowhere else: the run stays mapped.
    Keep,
}

/// The progress of [`Pageout::protect_next`].
struct Advance {
    /// The address at which [`Pageout::protect_next`] stopped.
    next: u64,
    /// The number of lazyfree pages of 4 KiB that [`Pageout::protect_next`] discarded.
    discarded: u64,
}

/// The error that no more pages can be paged out: no swap slot is free, the memcg is at its swap
/// limit, or, for migration, there is no memory for a copy.
pub(super) struct OutOfRoom;

/// The result of [`Pageout::swap_out`] and [`Pageout::migrate`].
pub(super) struct PagedOut {
    /// The number of pages of 4 KiB that were paged out.
    pub(super) pages: u64,
    /// An error if there is no room for more pages; then the rest of the run stayed mapped.
    pub(super) room: Result<(), OutOfRoom>,
}

impl<'s, 'm, P: Platform> Pageout<'s, 'm, P> {
    /// Pages out `ranges` (ascending). With `isolated`, takes only folios of that isolation batch,
    /// also those that other spaces map; without, only folios that no other space maps. With
    /// `copies`, migrates the pages to new folios, which `copies` records; without, swaps them out.
    /// Clean lazyfree folios are discarded in either case. Pages that can't be paged out stay.
    ///
    /// Returns the number of 4 KiB pages paged out. Faults may run at the same time. The caller
    /// holds no lock. If a change of VMAs (`mremap`, say) has locked the VMA of a range, this waits
    /// for the change and claims the range, which keeps other such changes away until the range is
    /// paged out.
    pub(crate) fn pageout(
        self,
        ranges: &[VirtRange],
        isolated: Option<IsolationBatch>,
        mut copies: Option<&mut MigratedPages>,
    ) -> u64 {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return 0 };
        self.space.peak.note(&self.tables().slots);
        let mut paged_out = 0;
        let mut room = Ok(());
        let mut rest = ranges.iter();
        let mut range = self.user_part(*first);
        let mut claim = None;
        rest.next();
        loop {
            self.platform().resched();
            let _pending = self.tables().tlb.set_reclaim_flush_pending();
            let mut gather = self.space.gather(self.user_part(VirtRange { start: range.start, end: last.end }));
            let mut batch = Batch::default();
            while !batch.is_full() && !gather.is_full() {
                if range.is_empty() {
                    let Some(next) = rest.next() else { break };
                    range = self.user_part(*next);
                    claim = None;
                    continue;
                }
                match self.protect_next(range, isolated, &mut batch, &mut gather) {
                    Some(Advance { next, discarded }) => {
                        range = range.tail(next);
                        paged_out += discarded;
                        self.platform().resched();
                    }
                    None if !batch.runs.is_empty() => break,
                    None => {
                        gather.flush();
                        drop(claim.take());
                        claim = Some(Change::claim_unlocked(self.space, range));
                    }
                }
            }
            // After this flush no CPU writes to the pages of the batch.
            gather.flush();
            for protected in &batch.runs {
                let all = protected.run.range(self.arch());
                paged_out += match room {
                    Ok(()) => {
                        let done = match &mut copies {
                            Some(copies) => self.migrate(protected, copies, &mut gather),
                            None => self.swap_out(protected, isolated.is_some(), &mut gather),
                        };
                        room = done.room;
                        done.pages
                    }
                    Err(OutOfRoom) => self.finish(protected, all, PageoutTarget::Keep, &mut gather),
                };
                self.platform().resched();
            }
            if range.is_empty() && rest.len() == 0 {
                return paged_out;
            }
        }
    }

    /// Write-protects PTEs at the start of `range`, in one page table and as far as `batch` has
    /// room, and adds their runs to `batch`. Discards lazyfree folios instead. If the VMA is
    /// `VM_LOCKED`, only marks its folios ([`Rmap::note_locked`]). Returns `None` if a change of
    /// VMAs has locked the VMA at the start of `range` ([`State::Locked`]). Takes the VMA lock for
    /// reading and the page table's lock.
    fn protect_next(
        self,
        range: UserRange,
        isolated: Option<IsolationBatch>,
        batch: &mut Batch,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Option<Advance> {
        let arch = self.arch();
        let vmas = self.space.read();
        let Some(vma) = vmas.first(range) else { return Some(Advance { next: range.end, discarded: 0 }) };
        let part = vma.range.intersect(&range);
        match vma.state {
            State::Locked => return None,
            State::Dying => return Some(Advance { next: part.end, discarded: 0 }),
            State::Live if vma.backing.is_shared() => return Some(Advance { next: part.end, discarded: 0 }),
            State::Live => {}
        }
        let locked = vma.flags.contains(VmaFlags::LOCKED);
        if locked && isolated.is_none() {
            return Some(Advance { next: part.end, discarded: 0 });
        }
        let table = match self.tables().find(part) {
            Found::Hole(end) => return Some(Advance { next: end, discarded: 0 }),
            Found::Table(table) => table,
        };
        let end = table.end_after(part, MAX_FOLIOS_PER_HOLD);
        let (mut at, mut discarded, mut runs, mut read) = (part.start, 0, 0, 0);
        let has_time = |runs, read| runs < MAX_RUNS_PER_HOLD && read < MAX_ENTRIES_PER_HOLD;
        while at < end && has_time(runs, read) && !batch.is_full() && !gather.is_full() {
            let Some(mut run) = table.run_ignoring_accessed_dirty(at, end) else { break };
            runs += 1;
            read += run.len as u64;
            let whole = part.covers(&run.range(arch));
            if locked {
                Rmap::of(self.space).note_locked(&run, isolated);
            } else if run.kind == Kind::Leaf && whole {
                // A leaf PTE is swapped out to one block of slots, and no block of slots is larger
                // than a huge page.
                let fits = arch.level_shift(run.level) - FRAME_SHIFT <= HUGE_ORDER as u32;
                let lazyfree = self.machine().frames().head(run.pfn(arch)).1.has(flag::LAZYFREE);
                if lazyfree || vma.flags.contains(VmaFlags::DROPPABLE) {
                    discarded += self.discard_run(&table, vma, &mut run, isolated, gather);
                } else if fits && let Some(protected) = self.protect_run(&table, &mut run, isolated, batch, gather) {
                    batch.runs.push(protected);
                    batch.pages += run.frames(arch);
                }
            }
            at = run.range(arch).end;
        }
        self.count_discarded(discarded);
        table.unlock(gather);
        Some(Advance { next: at, discarded })
    }

    /// Returns whether pageout may take a folio of which a run of this space maps `pages` pages.
    /// The folio must be anonymous and not pinned. It is pinned if it has more references than its
    /// mappings, the isolation (with `isolated`), and the runs that are write-protected already
    /// (`protection_refs`) account for.
    ///
    /// With `isolated`, the folio must also be of that batch and evictable
    /// ([`IsolationBatch::is_evictable`]). Without, this space alone must map it, which is so if
    /// the run's PTEs are `exclusive`, or if the folio's mappings are exactly those `pages`.
    #[inline]
    pub(super) fn is_reclaimable(
        self,
        frame: &Frame,
        pages: u32,
        exclusive: bool,
        isolated: Option<IsolationBatch>,
        protection_refs: impl FnOnce() -> u32,
    ) -> bool {
        let Counts { refs, maps } = frame.counts();
        let is_candidate = match isolated {
            None => exclusive || maps == pages,
            Some(isolated) => isolated.is_evictable(frame),
        };
        // If another CPU has isolated the folio, the reference of that CPU counts as a pin here:
        // the CPU may drop it at any time, so it can't be told from a pin.
        let known = maps + u32::from(isolated.is_some());
        is_candidate
            && !frame.has(flag::OBJECT)
            && (refs <= known || refs - known <= protection_refs())
            && allows(self.platform(), FailPoint::Unpinned)
    }

    /// Write-protects the PTEs at the start of a run, up to the first folio that is not reclaimable
    /// or is lazyfree, and as far as `batch` has room: removes [`Attrs::EXCLUSIVE`] and the right
    /// to write, and, without `isolated`, takes a reference to each page. Shortens the run to these
    /// PTEs and notes them for the flush.
    ///
    /// Returns `None` if the first folio is not reclaimable, and shortens the run to the PTEs that
    /// map that folio. `table` is locked.
    fn protect_run(
        self,
        table: &LockedTable<'_, 'm, P>,
        run: &mut Run,
        isolated: Option<IsolationBatch>,
        batch: &Batch,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Option<WriteProtected> {
        let arch = self.arch();
        let frames = self.machine().frames();
        if self.machine().zero_folio().contains(run.pfn(arch)) {
            return None;
        }
        let was = *run;
        let attrs = run.attrs(arch);
        let exclusive = attrs.contains(Attrs::EXCLUSIVE);
        let (mut taken, mut skipped, mut shared) = (0, 0, false);
        for (head, frame, pages) in frames.folios(run.pfn(arch), run.frames(arch)) {
            // Without `isolated`, each earlier run of the batch took a reference to each page that
            // it maps, also to pages of this folio.
            let protection_refs = || match isolated {
                None => self.protected_pages_of(head, frame.order(), &batch.runs),
                Some(_) => 0,
            };
            if !self.is_reclaimable(frame, pages, exclusive, isolated, protection_refs) {
                skipped = pages;
                break;
            }
            if taken != 0 && (batch.pages + taken + pages > PAGES || frame.has(flag::LAZYFREE)) {
                break;
            }
            if isolated.is_none() {
                frames.get_counts(head, frame, pages, 0);
            }
            taken += pages;
            shared |= frame.counts().maps > pages;
        }
        let pages = if taken == 0 { skipped } else { taken };
        run.len = (pages >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        if taken != 0 && attrs.intersects(Attrs::EXCLUSIVE | Attrs::WRITE) {
            let new = attrs - Attrs::EXCLUSIVE - Attrs::WRITE;
            table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), new, run.level));
            gather.note(run.range(arch), table.shift());
        }
        (taken != 0).then(|| WriteProtected { run: Run { len: run.len, ..was }, shared, has_refs: isolated.is_none() })
    }

    /// Returns the number of pages of the folio `head` that the last of `runs` map. The count goes
    /// backwards from the last run, and ends at the first run that maps no page of the folio.
    fn protected_pages_of(self, head: Pfn, order: u8, runs: &[WriteProtected]) -> u32 {
        let arch = self.arch();
        let pages_of_folio = |WriteProtected { run, .. }: &WriteProtected| {
            let (start, end) = (run.pfn(arch).0, run.pfn(arch).0 + run.frames(arch));
            end.min(head.0 + (1 << order)).saturating_sub(start.max(head.0))
        };
        runs.iter().rev().map(pages_of_folio).take_while(|pages| *pages > 0).sum()
    }

    /// Returns the frame that a run maps at the address `at`.
    pub(super) fn frame_at(self, run: &Run, at: u64) -> Pfn {
        run.pfn(self.arch()).add(((at - run.va) >> FRAME_SHIFT) as u32)
    }

    /// Ends the write protection of `part` of a run. Makes each PTE that has not changed since the
    /// write protection name `target`; with [`PageoutTarget::Keep`], or where `target` can't be
    /// used, gives the PTE its rights back instead. PTEs that have changed stay as they are. Drops
    /// the references to slots or frames of `target` that no PTE names, and the references that the
    /// write protection took.
    ///
    /// Returns the number of 4 KiB pages paged out. Takes the VMA lock for reading and page-table
    /// locks, one after the other; the caller holds no lock. Flushes `gather` when it is full.
    pub(super) fn finish(
        self,
        protected: &WriteProtected,
        part: VirtRange,
        target: PageoutTarget,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let run = &protected.run;
        let arch = self.arch();
        let machine = self.machine();
        let mut paged_out = 0;
        let mut at = part.start;
        while at < part.end {
            if gather.is_full() {
                gather.flush();
            }
            let vmas = self.space.read();
            let vma = vmas.find(at).filter(|v| v.state == State::Live && !v.flags.contains(VmaFlags::LOCKED));
            let pfn = self.frame_at(run, at);
            let (mut end, mut replaced) = (vma.map_or(part.end, |v| v.range.end.min(part.end)), false);
            match self.tables().find(self.user_part(VirtRange { start: at, end })) {
                Found::Hole(next) => end = next,
                Found::Table(table) => {
                    end = end.min(table.end());
                    if let Some(now) = table.run(at, end) {
                        end = now.range(arch).end.min(end);
                        let whole = now.range(arch) == VirtRange { start: at, end };
                        let same = now.kind == Kind::Leaf && now.pfn(arch) == pfn && now.level == run.level;
                        if let Some(vma) = vma
                            && whole
                            && same
                            && !now.attrs(arch).contains(Attrs::EXCLUSIVE)
                        {
                            let attrs = match target {
                                PageoutTarget::Swap(_) => now.attrs(arch),
                                PageoutTarget::Copy(_) | PageoutTarget::Keep => self.restored(&now, run, vma.prot),
                            };
                            replaced = self.replace_ptes(&table, &now, target, (at - part.start, attrs), gather);
                            if !replaced && attrs != now.attrs(arch) {
                                table.rewrite(&now, arch.leaf(arch.leaf_addr(now.raw, now.level), attrs, now.level));
                            }
                        }
                    }
                    table.unlock(gather);
                }
            }
            drop(vmas);
            let pages = ((end - at) >> FRAME_SHIFT) as u32;
            if replaced {
                paged_out += pages as u64;
            } else if let PageoutTarget::Swap(slots) = target {
                // SAFETY: each of these slots has a reference that was taken for a swap entry, and
                // no swap entry was made of them.
                unsafe { machine.swaps().release(machine.frames(), slots_at(slots, at - part.start, pages)) };
            } else if let PageoutTarget::Copy(copy) = target {
                self.drop_copy(copy.add(frames_in(at - part.start)), pages);
            }
            if protected.has_refs {
                for (head, frame, pages) in machine.frames().folios(pfn, pages) {
                    machine.put_refs(head, frame, pages);
                }
            }
            at = end;
        }
        if let PageoutTarget::Swap(_) = target {
            self.tables().slot().add(SpaceCounter::Anon, -(paged_out as i64));
            self.tables().slot().add(SpaceCounter::Swap, paged_out as i64);
        }
        paged_out
    }

    /// Makes the PTEs of the run `now` name the part of `target` that begins at `offset` bytes;
    /// with [`PageoutTarget::Copy`] with the attributes `attrs`. Adds the frames that these PTEs
    /// mapped to `gather`. With [`PageoutTarget::Keep`], changes nothing and returns false. `table`
    /// is locked.
    fn replace_ptes(
        self,
        table: &LockedTable<'_, 'm, P>,
        now: &Run,
        target: PageoutTarget,
        (offset, attrs): (u64, Attrs),
        gather: &mut Gather<'_, 'm, P>,
    ) -> bool {
        let arch = self.arch();
        let (kind, raw) = match target {
            PageoutTarget::Swap(slots) => (Kind::Swap, self.swap_pte(now, slots_at(slots, offset, now.frames(arch)))),
            PageoutTarget::Copy(copy) => (Kind::Leaf, arch.leaf(copy.add(frames_in(offset)).addr(), attrs, now.level)),
            PageoutTarget::Keep => return false,
        };
        let removed = if now.level > 1 { table.take_busy(now.va).1 } else { table.take_run(now) };
        if kind == Kind::Leaf {
            // The original's TLB entries are flushed before the copy is mapped: otherwise a CPU
            // could still read the original after another CPU has written to the copy.
            self.tables().tlb.invalidate(&[now.range(arch)], table.shift(), false);
        }
        if now.level > 1 {
            table.fill(now.va, raw);
        } else {
            table.set(&Run::new(now.va, now.level, kind, raw, now.len));
        }
        gather.push(removed);
        true
    }

    /// Returns the attributes of the run `now` without its write protection: exclusive, with the
    /// rights of a VMA with `prot`, if the PTEs were exclusive before the write protection (`was`),
    /// and no other space, such as a new child, maps the folios by now. Otherwise those that the
    /// run has now. The page table is locked.
    fn restored(self, now: &Run, was: &Run, prot: Prot) -> Attrs {
        let arch = self.arch();
        let frames = self.machine().frames();
        let is_alone =
            || frames.folios(now.pfn(arch), now.frames(arch)).all(|(_, frame, pages)| frame.counts().maps == pages);
        let attrs = now.attrs(arch);
        if !was.attrs(arch).contains(Attrs::EXCLUSIVE) || !is_alone() {
            return attrs;
        }
        let attrs = attrs | Attrs::EXCLUSIVE;
        (attrs - Attrs::GRANT) | Ptes::of(self.space).rights(attrs, prot)
    }
}

/// Returns the part of `slots` that begins at `offset` bytes and has `count` slots.
pub(super) fn slots_at(slots: SwapRun, offset: u64, count: u32) -> SwapRun {
    SwapRun { slots: Slots { first: slots.slots.first + frames_in(offset), count }, ..slots }
}

/// Returns the number of frames of 4 KiB in `bytes`.
fn frames_in(bytes: u64) -> u32 {
    (bytes >> FRAME_SHIFT) as u32
}
