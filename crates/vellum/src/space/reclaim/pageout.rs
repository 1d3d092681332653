//! Pages out runs of PTEs: to a swap device, to new folios (migration), or, where they are lazyfree
//! and clean, to nowhere.
//!
//! The reclaimer shares a run as a forked child would ([`fork`](crate::space::fork)): it takes
//! references, and [`Attrs::EXCLUSIVE`] and the right to write are removed from the PTEs. After one
//! flush for many runs no CPU writes to a write-protected run, and a CPU that faults on it gets a
//! copy. So no lock is held while contents are written, no page is missing meanwhile, and no cache
//! of pages under writeback is needed. When it is decided what becomes of a run ([`Fate`]), the
//! PTEs that still map it change in one step; PTEs that have changed since stay.
//!
//! Runs that can't go get their rights back, and keep the accessed and dirty bits that were set
//! since.
//!
//! Runs are not folios: of a folio that is mapped in part, that part goes, and no folio needs to be
//! split first.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Counts, Frame, HUGE_ORDER, flag};
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::SpaceCounter;
use crate::swap::{Slots, SwapRun};
use crate::table::{Found, LockedTable, MAX_FOLIOS_PER_HOLD, MAX_RUNS_PER_HOLD, Run};
use crate::tlb::Gather;
use crate::vma::{Prot, State, VmaFlags};

use super::{IsolationBatch, MigratedPages, Pageout, Rmap};
use crate::space::ground::{Change, Ptes};

/// The runs that are write-protected at a time, behind one flush.
const RUNS: usize = 32;
/// The pages in them after which no more runs are added.
const PAGES: u32 = 1 << 12;

/// A run that is write-protected for pageout.
#[derive(Clone, Copy)]
pub(super) struct WriteProtected {
    /// The run as it was before.
    pub(super) run: Run,
    /// Whether other PTEs map some of it too.
    pub(super) shared: bool,
    /// Whether each page has a reference for this. Isolated folios don't: the isolation has one.
    own: bool,
}

/// The runs that are write-protected behind one flush.
#[derive(Default)]
struct Batch {
    held: ArrayVec<WriteProtected, RUNS>,
    pages: u32,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.held.is_full() || self.pages >= PAGES
    }
}

/// The end of a write-protected run.
#[derive(Clone, Copy)]
pub(super) enum Fate {
    /// It is in these swap slots.
    Swap(SwapRun),
    /// It was copied to these frames, which have references and mappings for it.
    Copy(Pfn),
    /// It stays.
    Stay,
}

/// The progress of [`Pageout::protect_next`].
struct Advance {
    /// The address that it got to.
    next: u64,
    /// The lazyfree pages of 4 KiB that it discarded.
    discarded: u64,
}

/// There is no room for more: no free swap slot, or no memory for copies.
pub(super) struct OutOfRoom;

/// The result of sending a write-protected run away.
pub(super) struct Sent {
    /// The pages of 4 KiB that went.
    pub(super) pages: u64,
    /// Whether there is room for more. If not, the rest of the run stays.
    pub(super) room: Result<(), OutOfRoom>,
}

impl<'s, 'm, P: Platform, A: Arch> Pageout<'s, 'm, P, A> {
    /// Pages out `ranges` (ascending). With `isolated`, only folios of that isolation batch, shared
    /// ones too; without, only folios that only this space maps. They are copied to new folios,
    /// which `copies` records, or else swapped out. What can't go stays. Returns the number of 4
    /// KiB pages that went. Runs beside faults.
    pub(crate) fn pageout(
        self,
        ranges: &[VirtRange],
        isolated: Option<IsolationBatch>,
        mut copies: Option<&mut MigratedPages>,
    ) -> u64 {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return 0 };
        self.space.peak.note(&self.tables().slots);
        let mut went = 0;
        let mut room = Ok(());
        let mut left = ranges.iter();
        let mut range = self.user_part(*first);
        let mut turn = None;
        left.next();
        loop {
            self.platform().resched();
            let _evicting = self.tables().tlb.set_reclaim_flush_pending();
            let mut gather = self.space.gather(self.user_part(VirtRange { start: range.start, end: last.end }));
            let mut batch = Batch::default();
            while !batch.is_full() && !gather.is_full() {
                if range.is_empty() {
                    let Some(next) = left.next() else { break };
                    range = self.user_part(*next);
                    turn = None;
                    continue;
                }
                match self.protect_next(range, isolated, &mut batch, &mut gather) {
                    Some(Advance { next, discarded }) => {
                        range = range.tail(next);
                        went += discarded;
                        self.platform().resched();
                    }
                    None if !batch.held.is_empty() => break,
                    None => {
                        gather.flush();
                        drop(turn.take());
                        turn = Some(Change::claim_unlocked(self.space, range));
                    }
                }
            }
            // From here on no CPU writes to the runs of the batch.
            gather.flush();
            for held in &batch.held {
                let all = held.run.range(self.arch());
                went += match room {
                    Ok(()) => {
                        let Sent { pages, room: left } = match &mut copies {
                            Some(copies) => self.migrate(held, copies, &mut gather),
                            None => self.swap_out(held, isolated.is_some(), &mut gather),
                        };
                        room = left;
                        pages
                    }
                    Err(OutOfRoom) => self.finish(held, all, Fate::Stay, &mut gather),
                };
                self.platform().resched();
            }
            if range.is_empty() && left.len() == 0 {
                return went;
            }
        }
    }

    /// Write-protects the part of a range that the first page table there maps, or discards it
    /// where it is lazyfree. Returns `None` if a change has locked the VMA there.
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
        let (mut at, mut dropped, mut runs) = (part.start, 0, 0);
        while at < end && runs < MAX_RUNS_PER_HOLD && !batch.is_full() && !gather.is_full() {
            runs += 1;
            let Some(mut run) = table.run_ignoring_accessed_dirty(at, end) else { break };
            let whole = part.covers(&run.range(arch));
            if locked {
                Rmap::of(self.space).note_locked(&run, isolated);
            } else if run.kind == Kind::Leaf && whole {
                // Swapping out a leaf takes a block of slots, and none is larger than a huge page.
                let fits = arch.level_shift(run.level) - FRAME_SHIFT <= HUGE_ORDER as u32;
                if self.machine().frames().head(run.pfn(arch)).1.has(flag::LAZYFREE) {
                    dropped += self.discard_run(&table, &mut run, isolated, gather);
                } else if fits && let Some(held) = self.protect_run(&table, &mut run, isolated, batch, gather) {
                    batch.held.push(held);
                    batch.pages += run.frames(arch);
                }
            }
            at = run.range(arch).end;
        }
        table.unlock(gather);
        Some(Advance { next: at, discarded: dropped })
    }

    /// Whether these pages of a folio may go from a space that has them alone, or not, and nobody
    /// has them pinned: but for who has isolated the folio, and for what is the caller's own.
    #[inline]
    pub(super) fn is_reclaimable(
        self,
        (frame, pages): (&Frame, u32),
        alone: bool,
        isolated: Option<IsolationBatch>,
        own: impl FnOnce() -> u32,
    ) -> bool {
        let Counts { refs, maps } = frame.counts();
        let may = match isolated {
            None => alone || maps == pages,
            Some(isolated) => isolated.may_go(frame),
        };
        // Whoever else has isolated a folio gives it up when he likes.
        let known = maps + u32::from(isolated.is_some());
        may && !frame.has(flag::OBJECT)
            && (refs <= known || refs - known <= own())
            && allows(self.platform(), FailPoint::Unpinned)
    }

    /// Hold a run, as far as it may go and is to be kept. None: it may not go, as far as it goes
    /// then.
    fn protect_run(
        self,
        table: &LockedTable<'_, 'm, P, A>,
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
        let alone = attrs.contains(Attrs::EXCLUSIVE);
        let (mut taken, mut stays, mut shared) = (0, 0, false);
        for (head, frame, pages) in frames.folios(run.pfn(arch), run.frames(arch)) {
            // What was isolated is not held a second time, nor does being held add a reference to
            // it.
            let own = || match isolated {
                None => self.protected_pages_of(head, frame.order(), &batch.held),
                Some(_) => 0,
            };
            if !self.is_reclaimable((frame, pages), alone, isolated, own) {
                stays = pages;
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
        let pages = if taken == 0 { stays } else { taken };
        run.len = (pages >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        if taken != 0 && attrs.intersects(Attrs::EXCLUSIVE | Attrs::WRITE) {
            let new = attrs - Attrs::EXCLUSIVE - Attrs::WRITE;
            table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), new, run.level));
            gather.note(run.range(arch), table.shift());
        }
        (taken != 0).then(|| WriteProtected { run: Run { len: run.len, ..was }, shared, own: isolated.is_none() })
    }

    /// How many pages of a folio are held already, by the last of these runs.
    fn protected_pages_of(self, head: Pfn, order: u8, held: &[WriteProtected]) -> u32 {
        let arch = self.arch();
        let of_it = |WriteProtected { run, .. }: &WriteProtected| {
            let (start, end) = (run.pfn(arch).0, run.pfn(arch).0 + run.frames(arch));
            end.min(head.0 + (1 << order)).saturating_sub(start.max(head.0))
        };
        held.iter().rev().map(of_it).take_while(|pages| *pages > 0).sum()
    }

    /// The frame that a run mapped at an address when it was held.
    pub(super) fn frame_at(self, run: &Run, at: u64) -> Pfn {
        run.pfn(self.arch()).add(((at - run.va) >> FRAME_SHIFT) as u32)
    }

    /// A part of what was held goes its fate, where its entries are as they were left. Slots that
    /// nothing became of are given up, and so are the references. How many pages went.
    pub(super) fn finish(
        self,
        held: &WriteProtected,
        part: VirtRange,
        fate: Fate,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let run = &held.run;
        let arch = self.arch();
        let machine = self.machine();
        let mut went = 0;
        let mut at = part.start;
        while at < part.end {
            if gather.is_full() {
                gather.flush();
            }
            let vmas = self.space.read();
            let vma = vmas.find(at).filter(|v| v.state == State::Live && !v.flags.contains(VmaFlags::LOCKED));
            let pfn = self.frame_at(run, at);
            let (mut end, mut goes) = (vma.map_or(part.end, |v| v.range.end.min(part.end)), false);
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
                            goes = self.replace_ptes(&table, &now, fate, at - part.start, gather);
                            if !goes {
                                self.restore(&table, &now, run, vma.prot);
                            }
                        }
                    }
                    table.unlock(gather);
                }
            }
            drop(vmas);
            let pages = ((end - at) >> FRAME_SHIFT) as u32;
            if goes {
                went += pages as u64;
            } else if let Fate::Swap(slots) = fate {
                // SAFETY: no entry was made of this part of what was allocated.
                unsafe { machine.swaps().release(machine.frames(), part_of(slots, at - part.start, pages)) };
            } else if let Fate::Copy(copy) = fate {
                self.drop_copy(copy.add(frames_of(at - part.start)), pages);
            }
            if held.own {
                for (head, frame, pages) in machine.frames().folios(pfn, pages) {
                    machine.put_refs(head, frame, pages);
                }
            }
            at = end;
        }
        if let Fate::Swap(_) = fate {
            self.tables().slot().add(SpaceCounter::Anon, -(went as i64));
            self.tables().slot().add(SpaceCounter::Swap, went as i64);
        }
        went
    }

    /// The entries of a run change, if they may: `skip` bytes before them are another part's.
    fn replace_ptes(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        now: &Run,
        fate: Fate,
        skip: u64,
        gather: &mut Gather<'_, 'm, P>,
    ) -> bool {
        let arch = self.arch();
        let (kind, raw) = match fate {
            Fate::Swap(slots) => (Kind::Swap, self.swap_pte(now, part_of(slots, skip, now.frames(arch)))),
            Fate::Copy(copy) => (Kind::Leaf, arch.leaf(copy.add(frames_of(skip)).addr(), now.attrs(arch), now.level)),
            Fate::Stay => return false,
        };
        let removed = if now.level > 1 { table.take_busy(now.va).1 } else { table.take_run(now) };
        if kind == Kind::Leaf {
            // Whoever writes to the copy is not contradicted by what a CPU still reads of the
            // original.
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

    /// What was taken from entries when they were held is theirs again, unless a child has them
    /// now.
    fn restore(self, table: &LockedTable<'_, 'm, P, A>, now: &Run, was: &Run, prot: Prot) {
        let arch = self.arch();
        let frames = self.machine().frames();
        let alone =
            frames.folios(now.pfn(arch), now.frames(arch)).all(|(_, frame, pages)| frame.counts().maps == pages);
        if alone && was.attrs(arch).contains(Attrs::EXCLUSIVE) {
            let attrs = now.attrs(arch) | Attrs::EXCLUSIVE;
            let attrs = (attrs - Attrs::PROT) | Ptes::of(self.space).rights(attrs, prot);
            table.rewrite(now, arch.leaf(arch.leaf_addr(now.raw, now.level), attrs, now.level));
        }
    }
}

/// The slots of a part of a block: so many pages, so many bytes from its beginning.
pub(super) fn part_of(slots: SwapRun, skip: u64, count: u32) -> SwapRun {
    SwapRun { slots: Slots { first: slots.slots.first + frames_of(skip), count }, ..slots }
}

fn frames_of(bytes: u64) -> u32 {
    (bytes >> FRAME_SHIFT) as u32
}
