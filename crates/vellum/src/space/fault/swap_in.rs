//! Swap-in: an access to a page with a swap entry reads the page back from its swap slot, together
//! with neighbours that have consecutive slots. They are read into one folio of a size that policy
//! allows. If that folio is smaller than 64 KiB ([`AROUND_ORDERS`]), a block of up to 64 KiB is
//! read into several contiguous folios. A huge swap entry is read into one huge folio.
//!
//! An access reads a block only if accesses have come up to it ([`SwapIn::continues`]), so that a
//! program that needs a page here and there does not pay for the pages around. Policy's folios
//! below 2 MiB are read whole in any case, as on Linux.
//!
//! A swap-cache page is a page in memory that has the contents of a swap slot ([`crate::swap`]). If
//! another space of the fork family (a space and those forked from it) has read the same slots
//! already, the fault maps their swap-cache pages. Otherwise the new folio becomes the swap-cache
//! page of its slots. It is then not exclusive to the space: until a write to it faults, it can be
//! paged out again without a write to the device.
//!
//! The new folio is made exclusive instead, and stays out of the swap cache, under two conditions:
//! no other space refers to the slots; and the access is a write, or the VMA is locked, or less
//! than half of the device's slots are free.

use arrayvec::ArrayVec;

use crate::addr::{FRAME_SHIFT, Pfn, align_down};
use crate::arch::{Arch, Attrs, Kind, SwapEntry, UserRange};
use crate::frame::{HUGE_ORDER, RmapKey, flag};
use crate::platform::Platform;
use crate::stats::{Counter, SizeCounter, SpaceCounter};
use crate::swap::{CachedPages, NotCached, SwapRun};
use crate::sync::Retries;
use crate::table::{Found, LockedTable, Run};
use crate::vma::{State, Vma, VmaFlags};

use super::{Access, FaultError, Outcome, SwapIn, Touch};
use crate::space::anon::Anon;
use crate::space::ground::{Change, Ptes};

/// The orders of the blocks that may be swapped in as several contiguous folios, as a bit mask: up
/// to 64 KiB, like fault-around of an object.
const AROUND_ORDERS: u32 = 0b11111;

impl<'s, 'm, P: Platform> SwapIn<'s, 'm, P> {
    /// Swaps in the page at the address of `touch`, with neighbours that the program seems to need
    /// next, in folios of one of `orders` or in single pages.
    ///
    /// # Errors
    /// There is no memory, or the device could not read the page.
    #[cold]
    pub(in crate::space) fn swap_in(self, touch: Touch<'_>, orders: u32) -> Result<Outcome, FaultError> {
        let whole = orders & ((1 << HUGE_ORDER) - 1);
        self.swap_in_around(touch, orders, Around { orders: orders | AROUND_ORDERS, whole })
    }

    /// Swaps in the page at the address of `touch` with all neighbours that its folio or block may
    /// have, for a caller that swaps them in next.
    ///
    /// # Errors
    /// As for [`SwapIn::swap_in`].
    pub(in crate::space) fn swap_in_all(self, touch: Touch<'_>, orders: u32) -> Result<Outcome, FaultError> {
        self.swap_in_around(touch, orders, Around { orders: orders | AROUND_ORDERS, whole: u32::MAX })
    }

    /// Implements [`SwapIn::swap_in`]. Swaps in the largest block around the address that `around`
    /// allows and that was swapped out to consecutive slots.
    fn swap_in_around(self, touch: Touch<'_>, orders: u32, around: Around) -> Result<Outcome, FaultError> {
        let Touch { vma, addr, access } = touch;
        let arch = self.arch();
        let Found::Table(table) = self.tables().find(vma.range.tail(addr)) else { return Ok(Outcome::Again) };
        let entry = vma.range.around(addr, table.shift());
        let Some(run) = self.whole_swap_run(&table, entry) else {
            table.release();
            return Ok(Outcome::Again);
        };
        if self.is_cached(&run) {
            let mut mapped_runs = ArrayVec::new();
            let shared = self.map_cached(&table, vma, entry, &mut mapped_runs);
            table.release();
            mapped_runs.iter().for_each(|run| Ptes::of(self.space).release_swap(run));
            return match shared {
                true => Ok(Outcome::Mapped(*entry)),
                false if run.level > 1 => self.split_huge_swap(addr, entry),
                false => Ok(Outcome::Again),
            };
        }
        let smallest = (entry.len().ilog2() - FRAME_SHIFT) as u8;
        let alone = |block| self.whole_swap_run(&table, block).is_some_and(|run| !self.is_cached(&run));
        let is_wanted = |block, order: u8| around.whole >> order & 1 != 0 || self.continues(block);
        let found = match table.level {
            1 => self
                .tables()
                .aligned_blocks(addr, vma.range, around.orders)
                .find(|(block, order)| is_wanted(*block, *order) && alone(*block)),
            _ => None,
        };
        let is_too_large = table.level > 1 && !is_wanted(entry, smallest);
        table.release();
        if is_too_large {
            return self.split_huge_swap(addr, entry);
        }
        let wanted = found.map_or(smallest, |(_, order)| order);
        let fits = orders & ((2 << wanted) - 1) & !((1 << smallest) - 1);
        let folio = fits.checked_ilog2().map_or(smallest, |order| order as u8);
        let contiguous = if folio < wanted {
            Anon::of(self.space).alloc_contiguous(vma, addr, wanted, folio).map(|pfn| (pfn, folio))
        } else {
            None
        };
        let (order, (pfn, folio)) = match contiguous {
            Some(folios) => (wanted, folios),
            None => {
                let single = Anon::of(self.space).alloc_or_smaller(vma, addr, folio, orders, false)?;
                (single.1, single)
            }
        };
        if order < smallest {
            Anon::of(self.space).free_contiguous(pfn, 1 << order, folio);
            return self.split_huge_swap(addr, entry);
        }
        let block = vma.range.around(addr, order as u32 + FRAME_SHIFT);
        let result = self.read_and_map(vma, block, access, pfn);
        if let SwapInResult::Mapped = result {
            if folio > arch.page_order() {
                (0..1 << (order - folio)).for_each(|_| self.machine().count_size(SizeCounter::SwapIn, folio));
            }
            return Ok(Outcome::SwappedIn(*block));
        }
        Anon::of(self.space).free_contiguous(pfn, 1 << order, folio);
        match result {
            // Perhaps the device lost another page of the block: try the accessed page alone.
            SwapInResult::Lost if order > arch.page_order() && smallest == arch.page_order() => {
                self.swap_in_around(touch, 0, Around { orders: 0, whole: 0 })
            }
            SwapInResult::Lost if order > arch.page_order() => self.split_huge_swap(addr, entry),
            SwapInResult::Lost => Err(FaultError::Poisoned(addr)),
            _ => Ok(Outcome::Again),
        }
    }

    /// Implements [`AddressSpace::swap_off`](crate::space::AddressSpace::swap_off).
    pub(super) fn swap_off(self, device: u8) -> Result<(), FaultError> {
        let rest = UserRange::all(self.arch());
        // The claim keeps changes (`mremap`) from moving swap PTEs to addresses that were visited
        // already.
        let mut change = Change::begin(self.space, rest);
        change.unlock();
        self.swap_in_range(rest, |swapped| swapped.device == device)
    }

    /// Swaps in the pages of `rest` for whose swap entries `wanted` returns true. The caller has
    /// claimed the range.
    ///
    /// # Errors
    /// See [`AddressSpace::swap_off`](crate::space::AddressSpace::swap_off).
    pub(in crate::space) fn swap_in_range(
        self,
        mut rest: UserRange,
        wanted: impl Fn(&SwapEntry) -> bool,
    ) -> Result<(), FaultError> {
        let mut result = Ok(());
        let mut retries = Retries::new(&self.tables().gate);
        let is_wanted = |run: &Run| run.kind == Kind::Swap && wanted(&self.arch().swap_entry(run.raw));
        while let Some(addr) = Ptes::of(self.space).next_run(rest, is_wanted) {
            rest = rest.tail(addr);
            match self.try_swap_in_at(addr, &retries) {
                Ok(Outcome::Mapped(block) | Outcome::SwappedIn(block) | Outcome::Allowed(block)) => {
                    rest = rest.tail(block.end);
                    retries = Retries::new(&self.tables().gate);
                }
                Ok(Outcome::Again | Outcome::Fragmented(_)) => {
                    self.platform().relax();
                    retries.retry();
                }
                // Not reached: the range is claimed, so no other CPU locks or unmaps a VMA in it.
                Ok(Outcome::Locked | Outcome::NoVma) => self.platform().wait(),
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

    /// Tries to swap in the page at `addr`, whatever access its VMA allows.
    fn try_swap_in_at(self, addr: u64, retries: &Retries<'_>) -> Result<Outcome, FaultError> {
        let vmas = self.space.read_with(Some(retries));
        match vmas.find(addr) {
            None => Ok(Outcome::NoVma),
            Some(vma) if vma.state == State::Locked => Ok(Outcome::Locked),
            Some(vma) => {
                let entry = self.tables().probe(addr, vma.range, 0);
                match self.arch().kind(entry.raw, entry.level) {
                    Kind::Swap => {
                        let touch = Touch { vma, addr, access: Access::Read };
                        self.swap_in_all(touch, Anon::of(self.space).orders(vma))
                    }
                    _ => Ok(Outcome::Again),
                }
            }
        }
    }

    /// Returns whether accesses seem to have come up to `block`: both ends of as much memory before
    /// it are mapped. So the blocks that a stream reads double, from its second page on.
    fn continues(self, block: UserRange) -> bool {
        let is_mapped = |addr| {
            let entry = self.tables().probe(addr, UserRange::all(self.arch()), 0);
            self.arch().kind(entry.raw, entry.level) == Kind::Leaf
        };
        let before = block.start.checked_sub(block.len());
        before.is_some_and(|start| is_mapped(block.start - (1 << self.page_shift())) && is_mapped(start))
    }

    /// Splits the huge swap entry of `huge`, so that the retried fault can swap in a part of it.
    fn split_huge_swap(self, addr: u64, huge: UserRange) -> Result<Outcome, FaultError> {
        self.tables().split_edges(huge.around(addr, self.page_shift()))?;
        Ok(Outcome::Again)
    }

    /// Returns the PTEs of `block` as one run, if all of them are swap entries, of consecutive
    /// slots. Otherwise, and if `table` has only a part of the block, returns `None`.
    fn whole_swap_run(self, table: &LockedTable<'_, 'm, P>, block: UserRange) -> Option<Run> {
        let arch = self.arch();
        if block.start < table.base || block.end > table.end() {
            return None;
        }
        let run = table.run(block.start, block.end)?;
        (run.kind == Kind::Swap && block == run.range(arch)).then_some(run)
    }

    /// Returns whether any slot of a run of swap entries has a swap-cache page. The caller holds
    /// the lock of the run's page table.
    fn is_cached(self, run: &Run) -> bool {
        // SAFETY: each swap entry keeps its reference to its slot while the page table is locked.
        unsafe { self.machine().swaps().is_cached(Ptes::of(self.space).swap_slots(run)) }
    }

    /// Replaces the swap entries of `entry`, and of its neighbours in the aligned 64 KiB around it,
    /// by PTEs that map the swap-cache pages of their slots, where there are such pages. Returns
    /// whether all of `entry` is mapped now. Adds the replaced swap entries to `mapped_runs`: the
    /// caller releases their slots.
    fn map_cached(
        self,
        table: &LockedTable<'_, 'm, P>,
        vma: &Vma,
        entry: UserRange,
        mapped_runs: &mut ArrayVec<Run, { 1 << AROUND_ORDERS.ilog2() }>,
    ) -> bool {
        let machine = self.machine();
        let order = (entry.len().ilog2() - FRAME_SHIFT) as u8;
        let shift = AROUND_ORDERS.ilog2() + FRAME_SHIFT;
        let mut at = align_down(entry.start, shift).max(vma.range.start).max(table.base);
        let end = (align_down(entry.start, shift) + (1 << shift)).max(entry.end).min(vma.range.end).min(table.end());
        let mut mapped = false;
        while at < end
            && let Some(run) = table.run(at, end)
        {
            at = run.range(self.arch()).end;
            if run.kind != Kind::Swap {
                continue;
            }
            // SAFETY: each swap entry keeps its reference to its slot while the page table is
            // locked.
            let cached =
                unsafe { machine.swaps().get_cached(machine.frames(), Ptes::of(self.space).swap_slots(&run), order) };
            at = run.va + entry.len();
            if let Some(CachedPages { pfn, frames }) = cached {
                let run = Run { len: (frames >> order) as usize, ..run };
                at = run.range(self.arch()).end;
                self.map_swapped_in(table, vma, &run, pfn, Attrs::empty());
                self.defer_split_if_partial(pfn, frames);
                mapped |= run.range(self.arch()).covers(&entry);
                mapped_runs.push(run);
            }
        }
        mapped
    }

    /// Queues each folio that has fewer mappings than pages for a deferred split: a part of it is
    /// mapped by no space. The folios are those of the `count` frames from `pfn` on, which were
    /// mapped just now as swap-cache pages.
    fn defer_split_if_partial(self, pfn: Pfn, count: u32) {
        let machine = self.machine();
        for (head, frame, _) in machine.frames().folios(pfn, count) {
            let order = frame.order();
            if order != 0
                && frame.counts().maps < 1 << order
                && !frame.has(flag::PARTIALLY_MAPPED)
                && machine.lru().defer_if_partial(head)
            {
                machine.count_size(SizeCounter::SplitDeferred, order);
            }
        }
    }

    /// Replaces the swap entries `run` by leaf PTEs that map the frames from `pfn` on, with the
    /// attributes of the swap entries and `extra`.
    fn map_swapped_in(self, table: &LockedTable<'_, 'm, P>, vma: &Vma, run: &Run, pfn: Pfn, extra: Attrs) {
        let arch = self.arch();
        let pages = run.frames(arch);
        let attrs = arch.swap_entry(run.raw).attrs | vma.prot.attrs() | Attrs::HARDWARE | extra;
        let attrs = (attrs - Attrs::GRANT) | Ptes::of(self.space).rights(attrs, vma.prot);
        let raw = arch.leaf(pfn.addr(), attrs, run.level);
        self.machine().frames().sync_icache(pfn, pages, attrs);
        self.tables().tlb.flush_pending_reclaim(run.range(arch), self.page_shift());
        table.replace(run, &Run::new(run.va, run.level, Kind::Leaf, raw, run.len));
        self.tables().slot().add(SpaceCounter::Anon, pages as i64);
    }

    /// Decides whether the new folios from `pfn` on, with the contents of `slots`, are exclusive to
    /// the space, and adds them to the swap cache if they are not. The caller has a reference to
    /// each slot besides those of the swap entries, and has locked the page table.
    fn add_to_cache(self, vma: &Vma, access: Access, slots: SwapRun, pfn: Pfn) -> Sharing {
        let machine = self.machine();
        let swaps = machine.swaps();
        // SAFETY: the swap entries have references to the slots, which stay while the page table is
        // locked, so the device is attached. The two references to a slot are those of this space's
        // swap entry and of the caller.
        let alone = unsafe { swaps.max_references(machine.platform(), slots) } == 2;
        let keeps_page = || access == Access::Write || vma.flags.contains(VmaFlags::LOCKED);
        // SAFETY: the swap entries keep their references to the device's slots while the page table
        // is locked.
        if alone && (keeps_page() || unsafe { swaps.is_half_full(slots.device) }) {
            return Sharing::Exclusive;
        }
        // Once the folios are in the swap cache, other spaces that refer to the slots may map them
        // too, even spaces that do not descend from this one. So the folios' rmap keys must name
        // the fork family of their common ancestor.
        for (_, frame, _) in machine.frames().folios(pfn, slots.slots.count) {
            frame.set_data(RmapKey { family: self.space.families.first(), ..RmapKey::unpack(frame.data()) }.pack());
        }
        // SAFETY: the swap entries keep their references to the slots while the page table is
        // locked. The folios are new, so no other CPU adds them, and they have the contents that
        // were just read from the slots. The caller does not map them as exclusive, and
        // copy-on-write deletes them from the cache before it makes them exclusive.
        match unsafe { swaps.add_to_cache(machine.frames(), slots, pfn) } {
            Ok(()) => Sharing::SwapCached,
            Err(NotCached::Taken) => Sharing::Taken,
            Err(NotCached::Refused) => Sharing::Exclusive,
        }
    }

    /// Reads the contents of `block`, which has swap entries of consecutive slots, into the new
    /// folios from `pfn` on, and maps the folios.
    fn read_and_map(self, vma: &Vma, block: UserRange, access: Access, pfn: Pfn) -> SwapInResult {
        let arch = self.arch();
        let machine = self.machine();
        let Found::Table(table) = self.tables().find(block) else { return SwapInResult::Changed };
        let Some(run) = self.whole_swap_run(&table, block) else {
            table.release();
            return SwapInResult::Changed;
        };
        let slots = Ptes::of(self.space).swap_slots(&run);
        // This reference keeps the slots from being freed and reused during the read. So if the
        // swap entries are the same after the read, the contents that were read are theirs.
        //
        // SAFETY: each swap entry keeps its reference to its slot while the page table is locked.
        unsafe { machine.swaps().get_transient(self.platform(), slots) };
        table.release();
        // SAFETY: the slots keep the references that `get_transient` took above. No PTE maps the
        // new folio at `pfn` yet, so this CPU has its frames to itself.
        let read = unsafe { machine.swaps().read(machine.frames(), slots, pfn) };
        let mut result = SwapInResult::Changed;
        if let Found::Table(table) = self.tables().find(block) {
            if self.whole_swap_run(&table, block).is_some_and(|now| now == run) {
                result = if read.is_ok() { SwapInResult::Mapped } else { SwapInResult::Lost };
            }
            if matches!(result, SwapInResult::Mapped) {
                match self.add_to_cache(vma, access, slots, pfn) {
                    Sharing::Exclusive => self.map_swapped_in(&table, vma, &run, pfn, Attrs::EXCLUSIVE),
                    Sharing::SwapCached => self.map_swapped_in(&table, vma, &run, pfn, Attrs::empty()),
                    Sharing::Taken => result = SwapInResult::Changed,
                }
            }
            table.release();
        }
        // SAFETY: this drops the transient reference, which this call took.
        unsafe { machine.swaps().release(machine.frames(), slots) };
        if matches!(result, SwapInResult::Mapped) {
            Ptes::of(self.space).release_swap(&run);
            machine.count(Counter::SwapIn, run.frames(arch).into());
        }
        result
    }
}

/// The blocks that a swap-in may read around an address, by their orders, as bit sets.
#[derive(Clone, Copy)]
struct Around {
    /// The orders of blocks that may be read.
    orders: u32,
    /// The orders of blocks, huge swap entries included, that are read in any case. Others are read
    /// if accesses have come up to them ([`SwapIn::continues`]).
    whole: u32,
}

/// The result of an attempt to swap in a block.
enum SwapInResult {
    /// The block is mapped.
    Mapped,
    /// The device could not read a page of the block.
    Lost,
    /// Another CPU changed the PTEs, or swapped in one of the slots.
    Changed,
}

/// The state of folios that were just read from swap slots.
enum Sharing {
    /// The folios are exclusive to the space, and not in the swap cache.
    Exclusive,
    /// The folios are the swap-cache pages of their slots, and not exclusive.
    SwapCached,
    /// Another CPU has added a swap-cache page for one of the slots: the folios are not needed.
    Taken,
}
