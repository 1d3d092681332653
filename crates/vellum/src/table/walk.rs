//! Lockless walks: from the root down to the page table that holds the PTE of an address.
//!
//! A walk takes no lock on the way. At its end it draws a ticket for the lock of the page table
//! that it reached. The CPU waits for the lock only after the walk has ended, because the lock's
//! holder may be waiting for walks to end (INV-1). What the walk read may have changed by the time
//! that the CPU has the lock, so the CPU checks again and walks again if needed. After a bounded
//! number of retries it closes the space's gate, which makes other operations wait (INV-21).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{LockedTable, PageTables};
use crate::addr::{FRAME_SHIFT, Pfn, VirtRange, align_down};
use crate::arch::{Arch, Kind, UserRange};
use crate::frame::{Frame, flag};
use crate::platform::{Event, Platform, trace};
use crate::sync::{Retries, Ticket};

/// The result of a walk to an address.
pub(crate) enum Found<'t, 'm, P: Platform> {
    /// No PTE maps anything from the address of the walk up to this address. The hole may be
    /// longer.
    Hole(u64),
    /// The locked page table that holds the address's entry, which may be empty.
    Table(LockedTable<'t, 'm, P>),
}

/// The result of [`PageTables::probe`].
pub(crate) struct Probe {
    /// The entry.
    pub(crate) raw: u64,
    /// The level of the page table that holds it.
    pub(crate) level: u8,
    /// If the entry is empty, the order (log2 of the size in frames) of the largest empty block of
    /// addresses around it, at least a page; otherwise 0.
    pub(crate) order: u8,
}

/// The entry at which a lockless walk ended, and its place.
pub(super) struct WalkEnd {
    /// The page table that holds the entry.
    pub(super) table: Pfn,
    /// The level of that page table.
    pub(super) level: u8,
    /// The entry as the walk read it. A leaf PTE of a cont block is given as if it were in no cont
    /// block.
    pub(super) raw: u64,
}

/// A ticket for the lock of a page table, drawn in the walk that reached the page table. The page
/// table is not freed before the ticket was served, even if it is unhooked: the CPU that frees it
/// waits for all tickets ([`crate::sync::RawSpin::drain`], INV-1).
#[must_use = "CPUs that queued later wait until this ticket is served"]
pub(super) struct QueuedLock<'t, 'm, P: Platform> {
    tables: &'t PageTables<'m, P>,
    table: Pfn,
    desc: &'m Frame,
    ticket: Ticket,
}

impl<'t, 'm, P: Platform> QueuedLock<'t, 'm, P> {
    /// Waits until the ticket is served and returns the locked page table, which is of `level` and
    /// translates `va`. Returns `None` if the page table was unhooked meanwhile: the caller walks
    /// again. The caller's walk has ended.
    #[inline]
    pub(super) fn lock(self, level: u8, va: u64) -> Option<LockedTable<'t, 'm, P>> {
        let QueuedLock { tables, table, desc, ticket } = self;
        desc.table_lock().wait(tables.platform(), ticket);
        trace(tables.platform(), || Event::Locked(table));
        let locked = LockedTable::new(tables, table, desc, level, va);
        if desc.state().has(flag::UNHOOKED) {
            locked.unlock_unchecked();
            return None;
        }
        Some(locked)
    }
}

impl<'m, P: Platform> PageTables<'m, P> {
    /// Walks to the first address of `at` and returns the first entry on the way down that is not a
    /// pointer to a page table, or else the entry at level `lowest`. For an empty range this
    /// returns an empty entry of the root and reads nothing, because the range may lie at the end
    /// of the user half, where the next entry is the host's (INV-17).
    ///
    /// # Safety
    /// The caller holds the guard of [`PageTables::begin_walk`], which announces this CPU as a
    /// walker, until it no longer uses the page table of the result.
    #[inline]
    pub(super) unsafe fn descend(&self, at: UserRange, lowest: u8) -> WalkEnd {
        // Local copies: the compiler would load the fields again after each atomic load.
        let (arch, memory) = (self.arch, self.direct_map());
        let mut table = self.root;
        let mut level = arch.levels();
        let (mut shift, bits) = (arch.level_shift(level), arch.index_bits());
        let va = at.start;
        if at.is_empty() {
            return WalkEnd { table, level, raw: 0 };
        }
        loop {
            let index = (va >> shift) as usize & ((1 << bits) - 1);
            trace(self.platform(), || Event::Descend(table, index as u16));
            // SAFETY: the root lives as long as the tree. Any other page table was hooked when its
            // pointer was read, after this walk began, and can't be freed before the walk ends
            // (INV-1). `index` is in range by its definition.
            let raw = unsafe { self.entry_in(memory, table, index) }.load(Acquire);
            let kind = arch.kind(raw, level);
            if level <= lowest || kind != Kind::Table {
                let raw = if kind == Kind::Leaf { arch.without_cont(raw, index) } else { raw };
                return WalkEnd { table, level, raw };
            }
            table = arch.table_addr(raw).pfn();
            level -= 1;
            shift -= bits;
        }
    }

    /// Returns the hole at the start of `range`, which ends no later than `range` does, or the
    /// locked page table that holds the PTE at the start of `range`. Waits while that PTE is busy:
    /// a marker that another CPU will replace (INV-4). The caller holds no spin lock.
    #[inline]
    pub(crate) fn find<'t>(&'t self, range: UserRange) -> Found<'t, 'm, P> {
        self.find_at(range, 1)
    }

    /// Returns what [`PageTables::find`] does, but walks no further down than to a page table of
    /// level `lowest`.
    #[inline]
    pub(crate) fn find_at<'t>(&'t self, range: UserRange, lowest: u8) -> Found<'t, 'm, P> {
        let mut retries = Retries::new(&self.gate);
        loop {
            let walk = self.begin_walk();
            // SAFETY: this CPU is in a walk as long as `walk` lives.
            let at = unsafe { self.descend(range, lowest) };
            if at.level > lowest && at.raw == 0 {
                // SAFETY: this CPU is in the walk that ended at `at`.
                return Found::Hole(unsafe { self.hole_end(&at, range) });
            }
            // SAFETY: this CPU is in the walk that ended at `at`.
            let queued = unsafe { self.queue_lock(at.table) };
            drop(walk);
            match queued.lock(at.level, range.start) {
                Some(table) if table.is_busy(range) => {
                    table.release();
                    self.platform().wait();
                }
                Some(table) => return Found::Table(table),
                None => self.platform().relax(),
            }
            // Another CPU hooked or unhooked a page table here, or made the entry busy, and may do
            // so again without end. A closed gate keeps new operations from doing so, and thus
            // bounds the retries (INV-21).
            retries.retry();
        }
    }

    /// Reads the entry for `va` without locks. If it is empty, also finds the largest of `orders`
    /// (a bit mask) at which the naturally aligned block around `va` lies in `vma` and is empty
    /// too. Only a hint: [`PageTables::map_run`] decides under the page table's lock.
    #[inline]
    pub(crate) fn probe(&self, va: u64, vma: UserRange, orders: u32) -> Probe {
        let _walk = self.begin_walk();
        // SAFETY: this CPU is in a walk as long as `_walk` lives.
        let at = unsafe { self.descend(vma.tail(va), 1) };
        if at.raw != 0 {
            return Probe { raw: at.raw, level: at.level, order: 0 };
        }
        if orders == 0 {
            return Probe { raw: 0, level: at.level, order: self.arch.page_order() };
        }
        // SAFETY: this CPU is in the walk that ended at `at`.
        let order = unsafe { self.largest_empty(&at, va, vma, orders) };
        Probe { raw: 0, level: at.level, order }
    }

    /// Returns the largest of `orders` at which the block around the empty entry at `va` lies in
    /// `vma` and is empty; the order of a page if there is none.
    ///
    /// # Safety
    /// The caller still holds the guard ([`PageTables::begin_walk`]) of the walk that ended at
    /// `at`.
    #[inline(never)]
    unsafe fn largest_empty(&self, at: &WalkEnd, va: u64, vma: UserRange, orders: u32) -> u8 {
        let order = self.aligned_blocks(va, vma, orders).find(|(block, _)| {
            // SAFETY: the caller is in the walk that ended at `at`.
            unsafe { self.is_block_empty(at, *block) }
        });
        order.map_or(self.arch.page_order(), |(_, order)| order)
    }

    /// Returns empty PTEs of `vma` around the empty PTE at `va`: the part in `vma` of the largest
    /// naturally aligned block of an order from `largest` down to `least` in which nothing is
    /// mapped; if there is none, all PTEs in the block of order `least` up to the next that is not
    /// empty. Where no page table is, the largest block is that of a page table. Only a hint, as
    /// [`PageTables::probe`].
    pub(crate) fn empty_around(&self, va: u64, vma: UserRange, largest: u8, least: u8) -> UserRange {
        let arch = &self.arch;
        let around = |order: u8| vma.around(va, u32::from(order) + FRAME_SHIFT);
        let _walk = self.begin_walk();
        // SAFETY: this CPU is in a walk as long as `_walk` lives.
        let at = unsafe { self.descend(vma.tail(va), 1) };
        if at.raw != 0 {
            return around(arch.page_order());
        }
        let largest = if at.level > 1 { arch.page_order() + arch.index_bits() as u8 } else { largest };
        // Each block has the one before it, so that no entry is read twice, and the search ends
        // where something is mapped.
        let mut empty = None;
        for block in (least..=largest).map(around) {
            let inner = empty.unwrap_or_else(|| around(arch.page_order()));
            let halves = [block.head(inner.start), block.tail(inner.end)];
            // SAFETY: this CPU is in the walk that ended at `at`.
            if !halves.iter().all(|half| unsafe { self.is_block_empty(&at, *half) }) {
                break;
            }
            empty = Some(block);
        }
        if let Some(block) = empty {
            return block;
        }
        let block = around(least);
        let (first, here) = (arch.index(block.start, at.level), arch.index(va, at.level));
        let pages = (block.len() >> arch.level_shift(at.level)) as usize;
        // SAFETY: the walk keeps the page table from being freed. A part of a naturally aligned
        // block smaller than the page table lies entirely in it.
        let entries = unsafe { self.entry_slice(at.table, first..first + pages) };
        let is_mapped = |entry: &AtomicU64| entry.load(Relaxed) != 0;
        let (before, after) = entries.split_at(here - first);
        let start = before.iter().rposition(is_mapped).map_or(0, |last| last + 1);
        let end = after.iter().position(is_mapped).map_or(pages, |next| here - first + next);
        let addr = |page: usize| block.start + ((page as u64) << arch.level_shift(at.level));
        block.tail(addr(start)).head(addr(end))
    }

    /// Returns the order of the largest block of `orders` that continues a stretch of `vma`: it is
    /// empty and naturally aligned, the PTE at `va` is its first or its last, and as many PTEs
    /// before its start, or behind its end, are not empty. Returns the order of a page if there is
    /// none. Looks only at the page table of the PTE. Only a hint, as [`PageTables::probe`].
    pub(crate) fn continuing(&self, va: u64, vma: UserRange, orders: u32) -> u8 {
        let (arch, page) = (&self.arch, self.arch.page_order());
        let mut found = page;
        let _walk = self.begin_walk();
        // SAFETY: this CPU is in a walk as long as `_walk` lives.
        let at = unsafe { self.descend(vma.tail(va), 1) };
        if at.raw != 0 || at.level > 1 {
            return found;
        }
        // SAFETY: the walk keeps the page table from being freed.
        let entries = unsafe { self.entry_slice(at.table, 0..1 << arch.index_bits()) };
        let is_mapped = |entry: &AtomicU64| entry.load(Relaxed) != 0;
        let here = arch.index(va, 1);
        for order in page + 1..=orders.checked_ilog2().unwrap_or(0) as u8 {
            let (pages, size) = (1 << (order - page), 1 << (u32::from(order) + FRAME_SHIFT));
            let (start, first) = (align_down(va, u32::from(order) + FRAME_SHIFT), here & !(pages - 1));
            // The stretch and the block, from the lower end of both.
            let (from, lower) = match here - first {
                0 if first >= pages => (start - size, first - pages),
                last if last + 1 == pages => (start, first),
                _ => break,
            };
            let both = VirtRange { start: from, end: from.saturating_add(2 * size) };
            let Some(entries) = entries.get(lower..lower + 2 * pages).filter(|_| vma.part(both).is_some()) else {
                break;
            };
            let (mut below, mut above) = {
                let (below, above) = entries.split_at(pages);
                (below.iter(), above.iter())
            };
            let continues = match lower == first {
                true => !below.any(is_mapped) && above.all(is_mapped),
                false => below.all(is_mapped) && !above.any(is_mapped),
            };
            if !continues {
                break;
            }
            if orders & 1 << order != 0 {
                found = order;
            }
        }
        found
    }

    /// Returns the naturally aligned blocks around `va` that lie entirely in `vma`, with their
    /// orders, the largest first: those of `orders` (a bit mask) that are larger than a page.
    #[inline]
    pub(crate) fn aligned_blocks(&self, va: u64, vma: UserRange, orders: u32) -> impl Iterator<Item = (UserRange, u8)> {
        let mut left = orders & !((2 << self.arch.page_order()) - 1);
        core::iter::from_fn(move || {
            while left != 0 {
                let order = left.ilog2();
                left &= !(1 << order);
                let start = align_down(va, order + FRAME_SHIFT);
                let block = VirtRange { start, end: start.saturating_add(1 << (order + FRAME_SHIFT)) };
                if let Some(block) = vma.part(block) {
                    return Some((block, order as u8));
                }
            }
            None
        })
    }

    /// Returns true if all entries of `block` are empty. `block` lies around the empty entry at
    /// `at`, and the page table there translates all of it; it is a naturally aligned block, or a
    /// part of one.
    ///
    /// # Safety
    /// The caller still holds the guard ([`PageTables::begin_walk`]) of the walk that ended at
    /// `at`.
    unsafe fn is_block_empty(&self, at: &WalkEnd, block: UserRange) -> bool {
        if block.len() >= 1 << (self.arch.level_shift(at.level) + self.arch.index_bits()) {
            // The block is as large as the page table, which would not be hooked if it were empty
            // (INV-3).
            return false;
        }
        let first = self.arch.index(block.start, at.level);
        let len = (block.len() >> self.arch.level_shift(at.level)) as usize;
        // SAFETY: the walk keeps the page table from being freed. A naturally aligned block smaller
        // than the page table lies entirely in it.
        are_empty(unsafe { self.entry_slice(at.table, first..first + len) })
    }

    /// Begins a walk, which ends when the guard is dropped.
    #[inline]
    pub(super) fn begin_walk(&self) -> super::lock::Walk<'m, P> {
        super::lock::Walk::enter(self.machine)
    }

    /// Draws a ticket for the lock of a page table that a walk has reached. The caller ends the
    /// walk before it waits for the ticket: the lock's holder may be waiting for walks to end.
    ///
    /// # Safety
    /// The caller still holds the guard of the walk ([`PageTables::begin_walk`]) in which it
    /// reached `table`.
    #[inline]
    pub(super) unsafe fn queue_lock<'t>(&'t self, table: Pfn) -> QueuedLock<'t, 'm, P> {
        let desc = self.machine.frames().frame(table);
        trace(self.platform(), || Event::Locking(table));
        QueuedLock { tables: self, table, desc, ticket: desc.table_lock().draw(self.platform()) }
    }

    /// Returns the end of the hole at the start of `range`, as far as the page table at `at` shows
    /// and no further than the end of `range`.
    ///
    /// # Safety
    /// The caller still holds the guard ([`PageTables::begin_walk`]) of the walk that ended at
    /// `at`.
    unsafe fn hole_end(&self, at: &WalkEnd, range: UserRange) -> u64 {
        let VirtRange { start: va, end } = *range;
        let shift = self.arch.level_shift(at.level);
        let index = self.arch.index(va, at.level);
        let start = va >> shift << shift;
        let most = (1 << self.arch.index_bits()) - index;
        let most = most.min((end - start).div_ceil(1 << shift).max(1) as usize);
        // SAFETY: the caller is in the walk that ended at `at`; `index + most` is at most the
        // number of entries.
        let rest = unsafe { self.entry_slice(at.table, index + 1..index + most) };
        let empty = 1 + leading_empty(rest) as u64;
        start.saturating_add(empty << shift).min(end)
    }
}

/// Returns the number of empty entries before the first that is not empty. Reads many entries at a
/// time, because most of an address space is holes.
pub(super) fn leading_empty(entries: &[AtomicU64]) -> usize {
    const MANY: usize = 16;
    let many = MANY * entries.chunks_exact(MANY).take_while(|part| any_bits(part) == 0).count();
    many + entries[many..].iter().take_while(|entry| entry.load(Relaxed) == 0).count()
}

/// Returns whether all entries are empty. Reads eight at a time, as most blocks that a fault looks
/// at are.
pub(super) fn are_empty(entries: &[AtomicU64]) -> bool {
    let (eights, rest) = entries.as_chunks::<8>();
    eights.iter().all(|eight| any_bits(eight) == 0) && any_bits(rest) == 0
}

/// Returns the bits that any of the entries has, which are read without a branch between them.
fn any_bits(entries: &[AtomicU64]) -> u64 {
    entries.iter().fold(0, |any, entry| any | entry.load(Relaxed))
}
