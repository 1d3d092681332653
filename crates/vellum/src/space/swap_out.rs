//! Memory goes to a swap device, by the run.
//!
//! Who swaps out has what he writes as a child would ([`super::fork`]): he takes references, and the right to write in place goes
//! from the entries. So nobody writes to what is being written, and whoever wants to gets a copy; no lock is held meanwhile, no page is
//! missing, and there is no cache of pages that are on their way. When the contents are safe, the entries that still map them turn into
//! swap entries, in one go; entries that say something else by then stay, and their slots are given up.
//!
//! What can't go (there are no slots, or the device fails) has its entries back as they were, but for what hardware has recorded since.
//!
//! Runs are not folios: of a folio that is mapped in part, that part goes, and nothing needs to be split first.

use crate::addr::{FRAME_SHIFT, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind, Swapped};
use crate::frame::{Counts, HUGE_ORDER, flag};
use crate::platform::Platform;
use crate::stats::{Counter, SpaceCounter};
use crate::swap::{NoSlots, Slots, SwapRun, WriteError};
use crate::table::{Found, LockedTable, Run};
use crate::tlb::Gather;
use crate::vma::{AreaFlags, Prot, State};

use super::{AddressSpace, AdviseError};

/// Runs that are held at a time, behind one flush.
const RUNS: usize = 32;
/// Pages in them, after which no more are added.
const PAGES: u32 = 4096;

/// Runs as they were before they were held.
struct Batch {
    runs: [Run; RUNS],
    used: usize,
    pages: u32,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.used == RUNS || self.pages >= PAGES
    }
}

/// There is no room for more.
struct NoRoom;

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Swap out what a range has that is this space's alone (Linux: `MADV_PAGEOUT`), side by side with faults. What can't go stays.
    pub(super) fn page_out(&self, range: VirtRange) -> Result<(), AdviseError> {
        self.all(range, true, false)?;
        self.note_peak();
        let mut at = range.start;
        while at < range.end {
            let mut gather = self.gather(VirtRange { start: at, ..range });
            let mut batch = Batch { runs: [Run::new(0, 1, Kind::None, 0, 0); RUNS], used: 0, pages: 0 };
            while at < range.end && !batch.is_full() {
                match self.hold_next(VirtRange { start: at, ..range }, &mut batch, &mut gather) {
                    Some(next) => at = next,
                    None if batch.used > 0 => break,
                    None => self.tables.platform().wait(),
                }
            }
            // From here on nobody writes to what is held.
            gather.flush();
            let mut room = Ok(());
            for run in &batch.runs[..batch.used] {
                match room {
                    Ok(()) => room = self.send(run, &mut gather),
                    Err(NoRoom) => self.settle(run, run.range(&self.tables.arch), None, &mut gather),
                }
                self.tables.platform().resched();
            }
            if room.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Hold what the next table has of a range; how far that was. None, if the area there is not to be touched for a while.
    fn hold_next(&self, range: VirtRange, batch: &mut Batch, gather: &mut Gather<'_, 'm, P>) -> Option<u64> {
        let arch = &self.tables.arch;
        let areas = self.read();
        let Some(area) = areas.overlapping(range).next() else { return Some(range.end) };
        let part = area.range.intersect(&range);
        match area.state {
            State::Held => return None,
            State::Dying => return Some(part.end),
            State::Live if area.flags.contains(AreaFlags::LOCKED) || area.backing.is_shared() => return Some(part.end),
            State::Live => {}
        }
        let table = match self.tables.find(part.start, part.end) {
            Found::Hole(end) => return Some(end),
            Found::Table(table) => table,
        };
        let end = part.end.min(table.end());
        let mut at = part.start;
        while at < end && !batch.is_full() {
            let Some(mut run) = table.run(at, end) else { break };
            let whole = part.covers(&run.range(arch));
            // What is as large as no block of slots, or reaches across an end of the range, stays.
            if run.kind == Kind::Leaf && whole && arch.level_shift(run.level) - FRAME_SHIFT <= HUGE_ORDER as u32 {
                let was = run;
                if self.hold(&table, &mut run, &batch.runs[..batch.used], gather) {
                    batch.runs[batch.used] = Run { len: run.len, ..was };
                    batch.used += 1;
                    batch.pages += run.frames(arch);
                }
            }
            at = run.range(arch).end;
        }
        table.release();
        Some(at)
    }

    /// Hold a run, as far as it is the space's alone and nobody has it pinned, or say `false`: it is not, as far as it goes then.
    fn hold(
        &self,
        table: &LockedTable<'_, 'm, P, A>,
        run: &mut Run,
        held: &[Run],
        gather: &mut Gather<'_, 'm, P>,
    ) -> bool {
        let arch = &self.tables.arch;
        let frames = self.tables.machine.frames();
        if self.tables.machine.zeros_folio().contains(run.pfn(arch)) {
            return false;
        }
        let attrs = run.attrs(arch);
        let exclusive = attrs.contains(Attrs::EXCLUSIVE);
        let (mut taken, mut stays) = (0, 0);
        for (head, frame, pages) in frames.folios(run.pfn(arch), run.frames(arch)) {
            let Counts { refs, maps } = frame.counts();
            let pinned = refs > maps && refs - maps > self.held_of(head, frame.order(), held);
            if pinned || frame.has(flag::OBJECT) || !exclusive && maps != pages {
                stays = pages;
                break;
            }
            frames.get_counts(head, frame, pages, 0);
            taken += pages;
        }
        let pages = if taken == 0 { stays } else { taken };
        run.len = (pages >> (arch.level_shift(run.level) - FRAME_SHIFT)) as usize;
        if taken != 0 && attrs.intersects(Attrs::EXCLUSIVE | Attrs::WRITE) {
            let new = attrs - Attrs::EXCLUSIVE - Attrs::WRITE;
            table.rewrite(run, arch.leaf(arch.leaf_addr(run.raw, run.level), new, run.level));
            gather.note(run.range(arch), table.shift());
        }
        taken != 0
    }

    /// How many pages of a folio are held already, by the last of these runs.
    fn held_of(&self, head: Pfn, order: u8, held: &[Run]) -> u32 {
        let arch = &self.tables.arch;
        let of_it = |run: &Run| {
            let (start, end) = (run.pfn(arch).0, run.pfn(arch).0 + run.frames(arch));
            end.min(head.0 + (1 << order)).saturating_sub(start.max(head.0))
        };
        held.iter().rev().map(of_it).take_while(|pages| *pages > 0).sum()
    }

    /// Write what is held, in naturally aligned blocks as large as slots are to be had, and turn its entries into swap entries.
    ///
    /// # Errors
    /// There is no room. What was not written stays.
    fn send(&self, run: &Run, gather: &mut Gather<'_, 'm, P>) -> Result<(), NoRoom> {
        let arch = &self.tables.arch;
        let machine = self.tables.machine;
        let smallest = (arch.level_shift(run.level) - FRAME_SHIFT) as u8;
        let range = run.range(arch);
        let mut largest = HUGE_ORDER;
        let mut at = range.start;
        while at < range.end {
            let aligned = (at >> FRAME_SHIFT).trailing_zeros() as u8;
            let fits = ((range.end - at) >> FRAME_SHIFT).ilog2() as u8;
            let order = largest.min(aligned).min(fits).max(smallest);
            let slots = match machine.swaps().allocate(self.tables.platform(), order) {
                Ok(slots) => slots,
                Err(NoSlots::Scattered) if order > smallest => {
                    largest = order - 1;
                    continue;
                }
                Err(_) => {
                    self.settle(run, VirtRange { start: at, ..range }, None, gather);
                    return Err(NoRoom);
                }
            };
            let block = VirtRange { start: at, end: at + (1 << (order as u32 + FRAME_SHIFT)) };
            // SAFETY: the slots were allocated just now. The frames are held: whoever might have written to them has lost the right
            // before a flush, and won't have it back before they are settled.
            let written = unsafe { machine.swaps().write(machine.frames(), slots, self.held_at(run, at)) };
            if written.is_ok() {
                self.settle(run, block, Some(slots), gather);
            } else {
                // SAFETY: nobody else has seen these slots.
                unsafe { machine.swaps().release(machine.frames(), slots) };
                let rest = VirtRange { start: at, ..range };
                self.settle(run, if written == Err(WriteError::NoMemory) { rest } else { block }, None, gather);
            }
            if written == Err(WriteError::NoMemory) {
                return Err(NoRoom);
            }
            at = block.end;
            self.tables.platform().resched();
        }
        Ok(())
    }

    /// The frame that a run mapped at an address when it was held.
    fn held_at(&self, run: &Run, at: u64) -> Pfn {
        run.pfn(&self.tables.arch).add(((at - run.va) >> FRAME_SHIFT) as u32)
    }

    /// What happens to a part of what was held: where its entries are as they were left, they become swap entries for these slots, or,
    /// without slots, have their rights back. Slots that nothing became of are given up, and so are the references.
    fn settle(&self, run: &Run, part: VirtRange, slots: Option<SwapRun>, gather: &mut Gather<'_, 'm, P>) {
        let arch = &self.tables.arch;
        let machine = self.tables.machine;
        let mut turned = 0;
        let mut at = part.start;
        while at < part.end {
            if gather.is_full() {
                gather.flush();
            }
            let areas = self.read();
            let area = areas.find(at).filter(|v| v.state == State::Live && !v.flags.contains(AreaFlags::LOCKED));
            let border = area.map_or(part.end, |v| v.range.end.min(part.end));
            let pfn = self.held_at(run, at);
            let (mut end, mut done) = (border, false);
            match self.tables.find(at, border) {
                Found::Hole(next) => end = next,
                Found::Table(table) => {
                    end = end.min(table.end());
                    if let Some(now) = table.run(at, end) {
                        end = now.range(arch).end.min(end);
                        let whole = now.range(arch) == VirtRange { start: at, end };
                        let same = now.kind == Kind::Leaf && now.pfn(arch) == pfn && now.level == run.level;
                        if area.is_some() && whole && same && !now.attrs(arch).contains(Attrs::EXCLUSIVE) {
                            match slots {
                                Some(slots) => {
                                    self.turn(&table, &now, part_of(slots, at - part.start, end - at), gather);
                                    done = true;
                                }
                                None => self.restore(&table, &now, run, area.map_or(Prot::empty(), |v| v.prot)),
                            }
                        }
                    }
                    table.release();
                }
            }
            drop(areas);
            let pages = ((end - at) >> FRAME_SHIFT) as u32;
            if done {
                turned += pages;
            } else if let Some(slots) = slots {
                // SAFETY: no entry was made of this part of what was allocated.
                unsafe { machine.swaps().release(machine.frames(), part_of(slots, at - part.start, end - at)) };
            }
            for (head, frame, pages) in machine.frames().folios(pfn, pages) {
                machine.put_refs(head, frame, pages);
            }
            at = end;
        }
        self.tables.slot().add(SpaceCounter::Anon, -(turned as i64));
        self.tables.slot().add(SpaceCounter::Swap, turned as i64);
        machine.count(Counter::SwapOut, turned as u64);
    }

    /// Entries become swap entries.
    fn turn(&self, table: &LockedTable<'_, 'm, P, A>, now: &Run, slots: SwapRun, gather: &mut Gather<'_, 'm, P>) {
        let arch = &self.tables.arch;
        let raw = arch.swap(Swapped {
            device: slots.device,
            slot: (slots.slots.first >> arch.page_order()) as u64,
            attrs: now.attrs(arch) & (Attrs::WATCHED | Attrs::SOFT_DIRTY),
        });
        if now.level > 1 {
            let (_, removed) = table.take_busy(now.va);
            table.fill(now.va, raw);
            gather.push(removed);
        } else if let Some(removed) = table.take(now.va, now.range(arch).end) {
            table.set(&Run::new(now.va, now.level, Kind::Swap, raw, now.len));
            gather.push(removed);
        }
    }

    /// What was taken from entries when they were held is theirs again, unless a child has them now.
    fn restore(&self, table: &LockedTable<'_, 'm, P, A>, now: &Run, was: &Run, prot: Prot) {
        let arch = &self.tables.arch;
        let frames = self.tables.machine.frames();
        let alone =
            frames.folios(now.pfn(arch), now.frames(arch)).all(|(_, frame, pages)| frame.counts().maps == pages);
        if alone && was.attrs(arch).contains(Attrs::EXCLUSIVE) {
            let attrs = now.attrs(arch) | Attrs::EXCLUSIVE;
            let attrs = (attrs - Attrs::PROT) | self.rights(attrs, prot);
            table.rewrite(now, arch.leaf(arch.leaf_addr(now.raw, now.level), attrs, now.level));
        }
    }
}

/// The slots of a part of a block, so many bytes long and so many from its beginning.
fn part_of(slots: SwapRun, skip: u64, len: u64) -> SwapRun {
    let (skip, count) = ((skip >> FRAME_SHIFT) as u32, (len >> FRAME_SHIFT) as u32);
    SwapRun { slots: Slots { first: slots.slots.first + skip, count }, ..slots }
}
