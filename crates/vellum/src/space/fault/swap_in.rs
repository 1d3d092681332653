//! What was swapped out is touched, and comes back with as much around it as went out side by side,
//! and went nowhere else since: in one folio that policy allows, or, up to [`ROW`], in a row of
//! smaller ones. What went out in one huge piece comes back as that.
//!
//! What others of the family have brought back from the same slots is mapped with them
//! ([`crate::swap`]'s `cache`). Otherwise it is the slots' copy from then on, not the space's own,
//! so that it needs not be written again before somebody has written to it: unless nobody else has
//! these slots, and it is written to right now, or is to stay, or slots are short.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs, Kind, SwapEntry, UserRange};
use crate::frame::{RmapKey, flag};
use crate::platform::Platform;
use crate::stats::{Counter, SizeCounter, SpaceCounter};
use crate::swap::{NotCached, SwapRun};
use crate::sync::Retries;
use crate::table::{Found, LockedTable, Run};
use crate::vma::{State, Vma, VmaFlags};

use super::{Access, FaultError, Outcome, SwapIn, Touch};
use crate::space::anon::Anon;
use crate::space::ground::{Change, Ptes};

/// Orders of what comes back in a row of folios that are smaller than it: up to 64 KiB, as much as
/// what a fault on an object maps.
const ROW: u32 = 0b11111;

impl<'s, 'm, P: Platform, A: Arch> SwapIn<'s, 'm, P, A> {
    /// Bring back what was swapped out at an address, in folios of one of these orders or in pages.
    ///
    /// # Errors
    /// There is no memory, or the device does not give back what it got.
    #[cold]
    pub(in crate::space) fn swap_in(self, touch: Touch<'_>, orders: u32) -> Result<Outcome, FaultError> {
        self.swap_in_around(touch, orders, orders | ROW)
    }

    /// The same, with as much around it as is of one of the orders `around`.
    fn swap_in_around(self, touch: Touch<'_>, orders: u32, around: u32) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        let arch = self.arch();
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        let entry = vma.range.around(addr, table.shift());
        let Some(run) = self.whole_swap_run(&table, entry) else {
            table.release();
            return Ok(Outcome::Again);
        };
        if self.is_cached(&run) {
            let mut shares = ArrayVec::new();
            let shared = self.map_cached(&table, vma, entry, &mut shares);
            table.release();
            shares.iter().for_each(|run| Ptes::of(self.space).release_swap(run));
            return match shared {
                true => Ok(Outcome::Mapped(*entry)),
                false if run.level > 1 => self.split_huge_swap(addr, entry),
                false => Ok(Outcome::Again),
            };
        }
        let alone = |block| self.whole_swap_run(&table, block).is_some_and(|run| !self.is_cached(&run));
        let found = match table.level {
            1 => self.tables().aligned_blocks(addr, vma.range, around).find(|(block, _)| alone(*block)),
            _ => None,
        };
        table.release();
        let smallest = (entry.len().ilog2() - FRAME_SHIFT) as u8;
        let wanted = found.map_or(smallest, |(_, order)| order);
        let fits = orders & ((2 << wanted) - 1) & !((1 << smallest) - 1);
        let folio = fits.checked_ilog2().map_or(smallest, |order| order as u8);
        let row = if folio < wanted {
            Anon::of(self.space).alloc_contiguous(vma, addr, wanted, folio).map(|pfn| (pfn, folio))
        } else {
            None
        };
        let (order, (pfn, folio)) = match row {
            Some(row) => (wanted, row),
            None => {
                let alone = Anon::of(self.space).alloc_or_smaller(vma, addr, folio, orders, false)?;
                (alone.1, alone)
            }
        };
        if order < smallest {
            Anon::of(self.space).free_contiguous(pfn, 1 << order, folio);
            return self.split_huge_swap(addr, entry);
        }
        let block = vma.range.around(addr, order as u32 + FRAME_SHIFT);
        let back = self.read_and_map(vma, block, access, pfn);
        if let Brought::Back = back {
            if folio > arch.page_order() {
                (0..1 << (order - folio)).for_each(|_| self.machine().count_size(SizeCounter::SwapIn, folio));
            }
            return Ok(Outcome::Back(*block));
        }
        Anon::of(self.space).free_contiguous(pfn, 1 << order, folio);
        match back {
            // Perhaps it is another page that is lost.
            Brought::Lost if order > arch.page_order() && smallest == arch.page_order() => {
                self.swap_in_around(touch, 0, 0)
            }
            Brought::Lost if order > arch.page_order() => self.split_huge_swap(addr, entry),
            Brought::Lost => Err(FaultError::Poisoned(addr)),
            _ => Ok(Outcome::Again),
        }
    }

    /// Implements [`AddressSpace::swap_off`].
    pub(super) fn swap_off(self, device: u8) -> Result<(), FaultError> {
        let rest = UserRange::all(self.arch());
        // So that nothing moves to where this has looked already.
        let mut change = Change::begin(self.space, rest);
        change.unlock();
        self.swap_in_range(rest, |swapped| swapped.device == device)
    }

    /// Bring back what a range, which is claimed, has in slots like these.
    ///
    /// # Errors
    /// As of [`AddressSpace::swap_off`].
    pub(in crate::space) fn swap_in_range(
        self,
        mut rest: UserRange,
        like: impl Fn(&SwapEntry) -> bool,
    ) -> Result<(), FaultError> {
        let mut result = Ok(());
        let mut patience = Retries::new(&self.tables().gate);
        let is_it = |run: &Run| run.kind == Kind::Swap && like(&self.arch().swap_entry(run.raw));
        while let Some(addr) = Ptes::of(self.space).next_run(rest, is_it) {
            rest = rest.tail(addr);
            match self.try_at(addr, &patience) {
                Ok(Outcome::Mapped(block) | Outcome::Back(block) | Outcome::Allowed(block)) => {
                    rest = rest.tail(block.end);
                    patience = Retries::new(&self.tables().gate);
                }
                Ok(Outcome::Again) => {
                    self.platform().relax();
                    patience.retry();
                }
                // Not while the range is claimed.
                Ok(Outcome::Locked | Outcome::Nothing) => self.platform().wait(),
                Err(FaultError::Poisoned(_)) => {
                    result = result.and(Err(FaultError::Poisoned(addr)));
                    rest = rest.tail(addr + (1 << self.page_shift()));
                }
                Err(error) => return Err(error),
            }
            self.platform().resched();
        }
        result
    }

    /// A try to bring back what was swapped out at an address, whatever may be done there.
    fn try_at(self, addr: u64, patience: &Retries<'_>) -> Result<Outcome, FaultError> {
        let vmas = self.space.read_with(Some(patience));
        match vmas.find(addr) {
            None => Ok(Outcome::Nothing),
            Some(vma) if vma.state == State::Locked => Ok(Outcome::Locked),
            Some(vma) => {
                let (raw, level, _) = self.tables().probe(addr, vma.range, 0);
                match self.arch().kind(raw, level) {
                    Kind::Swap => {
                        let touch = Touch { vma, addr, access: Access::Read };
                        self.swap_in(touch, Anon::of(self.space).orders(vma))
                    }
                    _ => Ok(Outcome::Again),
                }
            }
        }
    }

    /// What went out in one piece comes back page by page.
    fn split_huge_swap(self, addr: u64, huge: UserRange) -> Result<Outcome, FaultError> {
        self.tables().split_edges(huge.around(addr, self.page_shift()))?;
        Ok(Outcome::Again)
    }

    /// The slots that all of a block went to, side by side, if this table has all of it.
    fn whole_swap_run(self, table: &LockedTable<'_, 'm, P, A>, block: UserRange) -> Option<Run> {
        let arch = self.arch();
        if block.start < table.base || block.end > table.end() {
            return None;
        }
        let run = table.run(block.start, block.end)?;
        (run.kind == Kind::Swap && block == run.range(arch)).then_some(run)
    }

    /// Whether slots of a run, whose table is locked, have copies.
    fn is_cached(self, run: &Run) -> bool {
        // SAFETY: the entries have references.
        unsafe { self.machine().swaps().is_cached(Ptes::of(self.space).swap_slots(run)) }
    }

    /// Map the copies of slots around an entry, up to 64 KiB; whether that entry is among them. The
    /// references of the swap entries that were there are the caller's to give up.
    fn map_cached(
        self,
        table: &LockedTable<'_, 'm, P, A>,
        vma: &Vma,
        entry: UserRange,
        shares: &mut ArrayVec<Run, { 1 << ROW.ilog2() }>,
    ) -> bool {
        let machine = self.machine();
        let order = (entry.len().ilog2() - FRAME_SHIFT) as u8;
        let row = ROW.ilog2() + FRAME_SHIFT;
        let mut at = align_down(entry.start, row).max(vma.range.start).max(table.base);
        let end = (align_down(entry.start, row) + (1 << row)).max(entry.end).min(vma.range.end).min(table.end());
        let mut mapped = false;
        while at < end
            && let Some(run) = table.run(at, end)
        {
            at = run.range(self.arch()).end;
            if run.kind != Kind::Swap {
                continue;
            }
            // SAFETY: the entries have references, which stay while the table is locked.
            let shared =
                unsafe { machine.swaps().get_cached(machine.frames(), Ptes::of(self.space).swap_slots(&run), order) };
            at = run.va + entry.len();
            if let Some((pfn, frames)) = shared {
                let run = Run { len: (frames >> order) as usize, ..run };
                at = run.range(self.arch()).end;
                self.map_back(table, vma, &run, pfn, Attrs::empty());
                self.defer_partial(pfn, frames);
                mapped |= run.range(self.arch()).covers(&entry);
                shares.push(run);
            }
        }
        mapped
    }

    /// Frames were mapped by their slots, for which they have references: of their folios nobody
    /// may map the rest by now.
    fn defer_partial(self, pfn: Pfn, count: u32) {
        let machine = self.machine();
        for (head, frame, _) in machine.frames().folios(pfn, count) {
            let order = frame.order();
            if order != 0
                && frame.counts().maps < 1 << order
                && !frame.has(flag::PARTIALLY_MAPPED)
                && machine.memcgs().defer_if_partial(machine.frames(), head)
            {
                machine.count_size(SizeCounter::SplitDeferred, order);
            }
        }
    }

    /// Swap entries map frames from `pfn` on.
    fn map_back(self, table: &LockedTable<'_, 'm, P, A>, vma: &Vma, run: &Run, pfn: Pfn, own: Attrs) {
        let arch = self.arch();
        let pages = run.frames(arch);
        let attrs = arch.swap_entry(run.raw).attrs | vma.prot.attrs() | Attrs::HARDWARE | own;
        let attrs = (attrs - Attrs::PROT) | Ptes::of(self.space).rights(attrs, vma.prot);
        let raw = arch.leaf(pfn.addr(), attrs, run.level);
        self.machine().frames().sync_icache(pfn, pages, attrs);
        self.tables().tlb.flush_pending_reclaim(run.range(arch), self.page_shift());
        table.replace(run, &Run::new(run.va, run.level, Kind::Leaf, raw, run.len));
        self.tables().slot().add(SpaceCounter::Anon, pages as i64);
    }

    /// Whether what comes back to frames is the space's own, which nobody finds by its slots; or
    /// else it is their copy now. None: by now they have others. The caller has a reference to each
    /// slot beside that of the entries, whose table is locked.
    fn becomes_exclusive(self, vma: &Vma, access: Access, slots: SwapRun, pfn: Pfn) -> Option<bool> {
        let machine = self.machine();
        let swaps = machine.swaps();
        // SAFETY: the entries have references, as all below needs; so the device is there.
        let alone = unsafe { swaps.max_references(machine.platform(), slots) } == 2;
        let stays = || access == Access::Write || vma.flags.contains(VmaFlags::LOCKED);
        // SAFETY: as above.
        if alone && (stays() || unsafe { swaps.is_half_full(slots.device) }) {
            return Some(true);
        }
        // From now on spaces may map them that are not descended from this one.
        for (_, frame, _) in machine.frames().folios(pfn, slots.slots.count) {
            frame.set_data(RmapKey { family: self.space.families.first(), ..RmapKey::unpack(frame.data()) }.pack());
        }
        // SAFETY: as above. The folios are new, and what was read just now is what the slots hold.
        // They will not be mapped as the space's own; who makes them that sees to it.
        match unsafe { swaps.add_to_cache(machine.frames(), slots, pfn) } {
            Ok(()) => Some(false),
            Err(NotCached::Taken) => None,
            Err(NotCached::Refused) => Some(true),
        }
    }

    fn read_and_map(self, vma: &Vma, block: UserRange, access: Access, pfn: Pfn) -> Brought {
        let arch = self.arch();
        let machine = self.machine();
        let Found::Table(table) = self.tables().find(block) else { return Brought::Changed };
        let Some(run) = self.whole_swap_run(&table, block) else {
            table.release();
            return Brought::Changed;
        };
        let slots = Ptes::of(self.space).swap_slots(&run);
        // The slots hold what they hold as long as they have this reference: if the entries are the
        // same after the read, so are the contents. SAFETY: the entries have references, which stay
        // while the table is locked.
        unsafe { machine.swaps().get_transient(self.platform(), slots) };
        table.release();
        // SAFETY: the reference taken above. The folio is not mapped yet.
        let read = unsafe { machine.swaps().read(machine.frames(), slots, pfn) };
        let mut brought = Brought::Changed;
        if let Found::Table(table) = self.tables().find(block) {
            if self.whole_swap_run(&table, block).is_some_and(|now| now == run) {
                brought = if read.is_ok() { Brought::Back } else { Brought::Lost };
            }
            if matches!(brought, Brought::Back) {
                match self.becomes_exclusive(vma, access, slots, pfn) {
                    Some(true) => self.map_back(&table, vma, &run, pfn, Attrs::EXCLUSIVE),
                    Some(false) => self.map_back(&table, vma, &run, pfn, Attrs::empty()),
                    None => brought = Brought::Changed,
                }
            }
            table.release();
        }
        // SAFETY: the reference taken above.
        unsafe { machine.swaps().release(machine.frames(), slots) };
        if matches!(brought, Brought::Back) {
            Ptes::of(self.space).release_swap(&run);
            machine.count(Counter::SwapIn, run.frames(arch).into());
        }
        brought
    }
}

/// What became of an attempt to bring memory back.
enum Brought {
    Back,
    /// The device does not give it back.
    Lost,
    /// It is not there any more.
    Changed,
}
