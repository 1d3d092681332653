//! Memory leaves a space, because it is wanted elsewhere: what nobody needs to keep ([`super::lazy`]), at once; and what a swap device
//! takes.
//!
//! Who evicts that has it as a child would ([`super::fork`]): he takes references, and the right to write in place goes from the
//! entries. After one flush for many runs nobody writes to what is held, and whoever wants to gets a copy. So no lock is held while
//! contents are written, no page is missing, and there is no cache of pages that are on their way. When it is decided what becomes
//! of them ([`Way`]), the entries that still map them change in one go; entries that say something else by then stay.
//!
//! What can't go has its entries back as they were, but for what hardware has recorded since.
//!
//! Runs are not folios: of a folio that is mapped in part, that part goes, and nothing needs to be split first.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, UserRange};
use crate::frame::{Counts, Frame, HUGE_ORDER, flag};
use crate::platform::{Platform, Wanted, allows};
use crate::stats::SpaceCounter;
use crate::swap::{Slots, SwapRun};
use crate::table::{FOLIOS_A_HOLD, Found, LockedTable, RUNS_A_HOLD, Run};
use crate::tlb::Gather;
use crate::vma::{Prot, State, Vma, VmaFlags};

use super::AddressSpace;
use crate::space::ground::{Change, Ptes};
use crate::space::isolated::Isolated;
use crate::space::transfer::Copies;

/// Runs that are held at a time, behind one flush.
const RUNS: usize = 32;
/// Pages in them that are to be written, after which no more are added.
const PAGES: u32 = 1 << 12;

/// A run as it was before it was held.
#[derive(Clone, Copy)]
pub(super) struct WriteProtected {
    pub(super) run: Run,
    /// Whether some of it is mapped elsewhere too.
    pub(super) shared: bool,
    /// What was isolated has a reference from that; what was not has one from being held.
    own: bool,
}

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

/// What happens to memory that is held.
#[derive(Clone, Copy)]
pub(super) enum Way {
    /// It is in these slots.
    Swap(SwapRun),
    /// It is in these frames too, which have references and mappings for it.
    Copy(Pfn),
    /// It stays.
    Stay,
}

/// There is no room for more.
pub(super) struct NoRoom;

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Evict what these ranges, in ascending order, have of folios that were isolated, whoever else has them too, or else of what is
    /// this space's alone; side by side with faults: to `copies`, or else to where memory is swapped. What can't go stays. How many pages
    /// (of 4 KiB) went.
    pub(crate) fn evict(
        &self,
        ranges: &[VirtRange],
        isolated: Option<Isolated>,
        mut copies: Option<&mut Copies>,
    ) -> u64 {
        let (Some(first), Some(last)) = (ranges.first(), ranges.last()) else { return 0 };
        self.peak.note(&self.tables.slots);
        let mut went = 0;
        let mut room = Ok(());
        let mut left = ranges.iter();
        let mut range = UserRange::all(&self.tables.arch).intersect(&*first);
        let mut turn = None;
        left.next();
        loop {
            self.tables.platform().resched();
            let _evicting = self.tables.tlb.evicting();
            let mut gather = self
                .gather(UserRange::all(&self.tables.arch).intersect(&VirtRange { start: range.start, end: last.end }));
            let mut batch = Batch::default();
            while !batch.is_full() && !gather.is_full() {
                if range.is_empty() {
                    let Some(next) = left.next() else { break };
                    range = UserRange::all(&self.tables.arch).intersect(&*next);
                    turn = None;
                    continue;
                }
                match self.hold_next(range, isolated, &mut batch, &mut gather) {
                    Some((next, dropped)) => {
                        range = range.tail(next);
                        went += dropped;
                        self.tables.platform().resched();
                    }
                    None if !batch.held.is_empty() => break,
                    None => {
                        gather.flush();
                        drop(turn.take());
                        turn = Some(Change::wait_turn(self, range));
                    }
                }
            }
            // From here on nobody writes to what is held.
            gather.flush();
            for held in &batch.held {
                let all = held.run.range(&self.tables.arch);
                went += match room {
                    Ok(()) => {
                        let (pages, left) = match &mut copies {
                            Some(copies) => self.transfer(held, copies, &mut gather),
                            None => self.send(held, isolated.is_some(), &mut gather),
                        };
                        room = left;
                        pages
                    }
                    Err(NoRoom) => self.settle(held, all, Way::Stay, &mut gather),
                };
                self.tables.platform().resched();
            }
            if range.is_empty() && left.len() == 0 {
                return went;
            }
        }
    }

    /// The first VMA from `addr` on that is displaced and has some of these places.
    pub(crate) fn next_displaced(&self, addr: u64, mut places: impl FnMut() -> VirtRange) -> Option<Vma> {
        self.read().displaced(addr).find(|vma| vma.with_places(places()).is_some()).copied()
    }

    /// Whether a folio was used through what these addresses have of it, since somebody last asked;
    /// and how many frames of it they have.
    pub(crate) fn used(&self, range: VirtRange, head: Pfn) -> (bool, u32) {
        let arch = &self.tables.arch;
        let range = UserRange::all(&self.tables.arch).intersect(&range);
        let (mut used, mut frames) = (false, 0);
        let mut at = range.start;
        while at < range.end {
            let vmas = self.read();
            let held = vmas.find(at).is_none_or(|vma| vma.state != State::Live);
            match self.tables.find(range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let Some(run) = table.run(at, range.end) else {
                        table.release();
                        continue;
                    };
                    at = run.range(arch).end;
                    let its = run.kind == Kind::Leaf && self.tables.machine.frames().head(run.pfn(arch)).0 == head;
                    if its {
                        frames += run.frames(arch);
                    }
                    if its && !held && run.attrs(arch).contains(Attrs::ACCESSED) {
                        table.forget_recorded(&run, Attrs::ACCESSED, |_, _| used = true);
                    }
                    table.release();
                }
            }
            drop(vmas);
            self.tables.platform().resched();
        }
        (used, frames)
    }

    /// Hold what the next table has of a range, or drop it; how far that was, and how many pages (of 4 KiB) were dropped. None, if the
    /// VMA there is not to be touched for a while.
    fn hold_next(
        &self,
        range: UserRange,
        isolated: Option<Isolated>,
        batch: &mut Batch,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Option<(u64, u64)> {
        let arch = &self.tables.arch;
        let vmas = self.read();
        let Some(vma) = vmas.first(range) else { return Some((range.end, 0)) };
        let part = vma.range.intersect(&range);
        match vma.state {
            State::Held => return None,
            State::Dying => return Some((part.end, 0)),
            State::Live if vma.backing.is_shared() => return Some((part.end, 0)),
            State::Live => {}
        }
        let locked = vma.flags.contains(VmaFlags::LOCKED);
        if locked && isolated.is_none() {
            return Some((part.end, 0));
        }
        let table = match self.tables.find(part) {
            Found::Hole(end) => return Some((end, 0)),
            Found::Table(table) => table,
        };
        let end = table.end_after(part, FOLIOS_A_HOLD);
        let (mut at, mut dropped, mut runs) = (part.start, 0, 0);
        while at < end && runs < RUNS_A_HOLD && !batch.is_full() && !gather.is_full() {
            runs += 1;
            let Some(mut run) = table.run_whatever_recorded(at, end) else { break };
            let whole = part.covers(&run.range(arch));
            if locked {
                self.tell_locked(&run, isolated);
            } else if run.kind == Kind::Leaf && whole {
                // Swapping out a leaf takes a block of slots, and none is larger than a huge page.
                let fits = arch.level_shift(run.level) - FRAME_SHIFT <= HUGE_ORDER as u32;
                if self.tables.machine.frames().head(run.pfn(arch)).1.has(flag::LAZY) {
                    dropped += self.drop_lazily(&table, &mut run, isolated, gather);
                } else if fits && let Some(held) = self.hold(&table, &mut run, isolated, batch, gather) {
                    batch.held.push(held);
                    batch.pages += run.frames(arch);
                }
            }
            at = run.range(arch).end;
        }
        table.unlock(gather);
        Some((at, dropped))
    }

    /// Whether these pages of a folio may go from a space that has them alone, or not, and nobody has them pinned: but for who has
    /// isolated the folio, and for what is the caller's own.
    #[inline]
    pub(super) fn may_go(
        &self,
        (frame, pages): (&Frame, u32),
        alone: bool,
        isolated: Option<Isolated>,
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
            && allows(self.tables.platform(), Wanted::Unpinned)
    }

    /// Hold a run, as far as it may go and is to be kept. None: it may not go, as far as it goes then.
    fn hold(
        &self,
        table: &LockedTable<'_, 'm, P, A>,
        run: &mut Run,
        isolated: Option<Isolated>,
        batch: &Batch,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Option<WriteProtected> {
        let arch = &self.tables.arch;
        let frames = self.tables.machine.frames();
        if self.tables.machine.zeros_folio().contains(run.pfn(arch)) {
            return None;
        }
        let was = *run;
        let attrs = run.attrs(arch);
        let alone = attrs.contains(Attrs::EXCLUSIVE);
        let (mut taken, mut stays, mut shared) = (0, 0, false);
        for (head, frame, pages) in frames.folios(run.pfn(arch), run.frames(arch)) {
            // What was isolated is not held a second time, nor does being held add a reference to it.
            let own = || match isolated {
                None => self.held_of(head, frame.order(), &batch.held),
                Some(_) => 0,
            };
            if !self.may_go((frame, pages), alone, isolated, own) {
                stays = pages;
                break;
            }
            if taken != 0 && (batch.pages + taken + pages > PAGES || frame.has(flag::LAZY)) {
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
    fn held_of(&self, head: Pfn, order: u8, held: &[WriteProtected]) -> u32 {
        let arch = &self.tables.arch;
        let of_it = |WriteProtected { run, .. }: &WriteProtected| {
            let (start, end) = (run.pfn(arch).0, run.pfn(arch).0 + run.frames(arch));
            end.min(head.0 + (1 << order)).saturating_sub(start.max(head.0))
        };
        held.iter().rev().map(of_it).take_while(|pages| *pages > 0).sum()
    }

    /// The frame that a run mapped at an address when it was held.
    pub(super) fn held_at(&self, run: &Run, at: u64) -> Pfn {
        run.pfn(&self.tables.arch).add(((at - run.va) >> FRAME_SHIFT) as u32)
    }

    /// A part of what was held goes its way, where its entries are as they were left. Slots that nothing became of are given up, and so
    /// are the references. How many pages went.
    pub(super) fn settle(
        &self,
        held: &WriteProtected,
        part: VirtRange,
        way: Way,
        gather: &mut Gather<'_, 'm, P>,
    ) -> u64 {
        let run = &held.run;
        let arch = &self.tables.arch;
        let machine = self.tables.machine;
        let mut went = 0;
        let mut at = part.start;
        while at < part.end {
            if gather.is_full() {
                gather.flush();
            }
            let vmas = self.read();
            let vma = vmas.find(at).filter(|v| v.state == State::Live && !v.flags.contains(VmaFlags::LOCKED));
            let pfn = self.held_at(run, at);
            let (mut end, mut goes) = (vma.map_or(part.end, |v| v.range.end.min(part.end)), false);
            match self.tables.find(UserRange::all(&self.tables.arch).intersect(&VirtRange { start: at, end })) {
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
                            goes = self.go(&table, &now, way, at - part.start, gather);
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
            } else if let Way::Swap(slots) = way {
                // SAFETY: no entry was made of this part of what was allocated.
                unsafe { machine.swaps().release(machine.frames(), part_of(slots, at - part.start, pages)) };
            } else if let Way::Copy(copy) = way {
                self.put_copy(copy.add(frames_of(at - part.start)), pages);
            }
            if held.own {
                for (head, frame, pages) in machine.frames().folios(pfn, pages) {
                    machine.put_refs(head, frame, pages);
                }
            }
            at = end;
        }
        if let Way::Swap(_) = way {
            self.tables.slot().add(SpaceCounter::Anon, -(went as i64));
            self.tables.slot().add(SpaceCounter::Swap, went as i64);
        }
        went
    }

    /// The entries of a run change, if they may: `skip` bytes before them are another part's.
    fn go(
        &self,
        table: &LockedTable<'_, 'm, P, A>,
        now: &Run,
        way: Way,
        skip: u64,
        gather: &mut Gather<'_, 'm, P>,
    ) -> bool {
        let arch = &self.tables.arch;
        let (kind, raw) = match way {
            Way::Swap(slots) => (Kind::Swap, self.swap_entry(now, part_of(slots, skip, now.frames(arch)))),
            Way::Copy(copy) => (Kind::Leaf, arch.leaf(copy.add(frames_of(skip)).addr(), now.attrs(arch), now.level)),
            Way::Stay => return false,
        };
        let removed = if now.level > 1 { table.take_busy(now.va).1 } else { table.take_run(now) };
        if kind == Kind::Leaf {
            // Whoever writes to the copy is not contradicted by what a CPU still reads of the original.
            self.tables.tlb.invalidate(&[now.range(arch)], table.shift(), false);
        }
        if now.level > 1 {
            table.fill(now.va, raw);
        } else {
            table.set(&Run::new(now.va, now.level, kind, raw, now.len));
        }
        gather.push(removed);
        true
    }

    /// What was taken from entries when they were held is theirs again, unless a child has them now.
    fn restore(&self, table: &LockedTable<'_, 'm, P, A>, now: &Run, was: &Run, prot: Prot) {
        let arch = &self.tables.arch;
        let frames = self.tables.machine.frames();
        let alone =
            frames.folios(now.pfn(arch), now.frames(arch)).all(|(_, frame, pages)| frame.counts().maps == pages);
        if alone && was.attrs(arch).contains(Attrs::EXCLUSIVE) {
            let attrs = now.attrs(arch) | Attrs::EXCLUSIVE;
            let attrs = (attrs - Attrs::PROT) | Ptes::of(self).rights(attrs, prot);
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
