//! Down from the root to the table in which an address's entry stands.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Acquire, Relaxed};

use super::{LockedTable, PageTables};
use crate::addr::{FRAME_SHIFT, Pfn, VirtRange, align_down};
use crate::arch::{Arch, Kind, UserRange};
use crate::frame::{Frame, flag};
use crate::platform::{Event, Platform, trace};
use crate::sync::{Retries, Ticket};

/// What stands at an address.
pub(crate) enum Found<'t, 'm, P: Platform, A: Arch> {
    /// Nothing, from there to here (and perhaps further).
    Hole(u64),
    /// An entry of this table, which may be empty.
    Table(LockedTable<'t, 'm, P, A>),
}

/// Where a lockless descent ended.
pub(super) struct Landing {
    pub(super) table: Pfn,
    pub(super) level: u8,
    /// What the entry there was.
    pub(super) raw: u64,
}

/// A place in the queue for the lock of a table, drawn in the walk that came there. It keeps the
/// table's frame a table, hooked or not, until it was served ([`crate::sync::RawSpin::drain`]).
#[must_use = "all that come later wait until it was served"]
pub(super) struct InLine<'t, 'm, P: Platform, A: Arch> {
    tables: &'t PageTables<'m, P, A>,
    table: Pfn,
    desc: &'m Frame,
    ticket: Ticket,
}

impl<'t, 'm, P: Platform, A: Arch> InLine<'t, 'm, P, A> {
    /// Waits until the place is served, and returns the locked table, which is of this level and
    /// translates `va`. None: it was unhooked meanwhile, and the caller begins again. The caller is
    /// in no walk.
    #[inline]
    pub(super) fn lock(self, level: u8, va: u64) -> Option<LockedTable<'t, 'm, P, A>> {
        let InLine { tables, table, desc, ticket } = self;
        desc.table_lock().wait(tables.platform(), ticket);
        trace(tables.platform(), || Event::Locked(table));
        let locked = LockedTable::new(tables, table, desc, level, va);
        if desc.state().has(flag::UNHOOKED) {
            locked.abandon();
            return None;
        }
        Some(locked)
    }
}

impl<'m, P: Platform, A: Arch> PageTables<'m, P, A> {
    /// Returns the entry that translates the first address of `at`, no lower than `lowest`: the
    /// first on the way down that is not a pointer to a table. For an empty range, which may lie at
    /// the very end of the user half, that is an empty entry of the root, and nothing is read.
    ///
    /// # Safety
    /// The caller is in a walk.
    #[inline]
    pub(super) unsafe fn descend(&self, at: UserRange, lowest: u8) -> Landing {
        // Its own copies: after each of the loads they would have to be read again.
        let (arch, memory) = (self.arch, self.memory());
        let mut table = self.root;
        let mut level = arch.levels();
        let (mut shift, bits) = (arch.level_shift(level), arch.index_bits());
        let va = at.start;
        if at.is_empty() {
            return Landing { table, level, raw: 0 };
        }
        loop {
            let index = (va >> shift) as usize & ((1 << bits) - 1);
            trace(self.platform(), || Event::Descend(table, index as u16));
            // SAFETY: the root lives as long as the tree; any other table was hooked when its pointer was read, after this
            // walk began, and can't be freed before the walk ends (INV-1). `index` is in range by its definition.
            let raw = unsafe { self.entry_in(memory, table, index) }.load(Acquire);
            let kind = arch.kind(raw, level);
            if level <= lowest || kind != Kind::Table {
                let raw = if kind == Kind::Leaf { arch.without_cont(raw, index) } else { raw };
                return Landing { table, level, raw };
            }
            table = arch.table_addr(raw).pfn();
            level -= 1;
            shift -= bits;
        }
    }

    /// Returns what stands where a range begins: a hole, which ends no later than the range, or a
    /// locked table, whose entry there is not busy: waits until it is so. The caller holds no spin
    /// lock.
    #[inline]
    pub(crate) fn find<'t>(&'t self, range: UserRange) -> Found<'t, 'm, P, A> {
        self.find_at(range, 1)
    }

    /// The same, going down no further than to a table of level `lowest`.
    #[inline]
    pub(crate) fn find_at<'t>(&'t self, range: UserRange, lowest: u8) -> Found<'t, 'm, P, A> {
        let mut patience = Retries::new(&self.gate);
        loop {
            let walk = self.enter();
            // SAFETY: in a walk.
            let at = unsafe { self.descend(range, lowest) };
            if at.level > lowest && at.raw == 0 {
                // SAFETY: in a walk, and the table was reached in it.
                return Found::Hole(unsafe { self.hole_end(&at, range) });
            }
            // SAFETY: in a walk, and the table was reached in it.
            let place = unsafe { self.draw(at.table) };
            drop(walk);
            match place.lock(at.level, range.start) {
                Some(table) if table.is_busy(range) => {
                    table.release();
                    self.platform().wait();
                }
                Some(table) => return Found::Table(table),
                None => self.platform().relax(),
            }
            // Tables come and go here, or entries are busy, and no queue is to be had for that.
            patience.retry();
        }
    }

    /// Returns the entry for `va`, which lies in `vma`, its level, and, if it is empty, the
    /// largest of `orders` whose block around `va` lies in `vma` and is as empty. A look without
    /// locks: [`PageTables::map_run`] decides.
    #[inline]
    pub(crate) fn room(&self, va: u64, vma: UserRange, orders: u32) -> (u64, u8, u8) {
        let _walk = self.enter();
        // SAFETY: in a walk.
        let at = unsafe { self.descend(vma.tail(va), 1) };
        if at.raw != 0 {
            return (at.raw, at.level, 0);
        }
        if orders == 0 {
            return (0, at.level, self.arch.page_order());
        }
        // SAFETY: in the walk that landed there.
        (0, at.level, unsafe { self.largest_empty(&at, va, vma, orders) })
    }

    /// The largest of some orders, or else a page's, whose block around an empty entry lies in `vma` and is empty.
    ///
    /// # Safety
    /// The caller is in the walk that landed there.
    #[inline(never)]
    unsafe fn largest_empty(&self, at: &Landing, va: u64, vma: UserRange, orders: u32) -> u8 {
        let order = self.blocks(va, vma, orders).find(|(block, _)| {
            // SAFETY: by contract.
            unsafe { self.is_empty_in(at, *block) }
        });
        order.map_or(self.arch.page_order(), |(_, order)| order)
    }

    /// The naturally aligned blocks around `va` that lie in `vma` entirely, of these orders and larger than a page, the
    /// largest first.
    #[inline]
    pub(crate) fn blocks(&self, va: u64, vma: UserRange, orders: u32) -> impl Iterator<Item = (UserRange, u8)> {
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

    /// Whether all entries of `block` around an empty one, which the table at `at` has in full, are empty.
    ///
    /// # Safety
    /// The caller is in the walk that landed there.
    unsafe fn is_empty_in(&self, at: &Landing, block: UserRange) -> bool {
        if block.len() >= 1 << (self.arch.level_shift(at.level) + self.arch.index_bits()) {
            // As large as the table, which would not be there if it were empty.
            return false;
        }
        let first = self.arch.index(block.start, at.level);
        let len = (block.len() >> self.arch.level_shift(at.level)) as usize;
        // SAFETY: the walk keeps the table; a block smaller than the table and naturally aligned lies in it entirely.
        unsafe { self.part(at.table, first..first + len) }.iter().all(|entry| entry.load(Relaxed) == 0)
    }

    /// Begin a walk.
    #[inline]
    pub(super) fn enter(&self) -> super::lock::Walk<'m, P> {
        super::lock::Walk::enter(self.machine)
    }

    /// Gets in line for the lock of a table that a walk has come to. The caller ends the walk and
    /// waits then: a walk waits for no lock, because the lock's holder may be waiting for the walk.
    ///
    /// # Safety
    /// The caller is in the walk in which it found the table.
    #[inline]
    pub(super) unsafe fn draw<'t>(&'t self, table: Pfn) -> InLine<'t, 'm, P, A> {
        let desc = self.machine.frames().frame(table);
        trace(self.platform(), || Event::Locking(table));
        InLine { tables: self, table, desc, ticket: desc.table_lock().draw(self.platform()) }
    }

    /// Returns where the hole ends that a range begins in, as far as the table that it was found in
    /// shows.
    ///
    /// # Safety
    /// The caller is in the walk that landed there.
    unsafe fn hole_end(&self, at: &Landing, range: UserRange) -> u64 {
        let VirtRange { start: va, end } = *range;
        let shift = self.arch.level_shift(at.level);
        let index = self.arch.index(va, at.level);
        let start = va >> shift << shift;
        let most = (1 << self.arch.index_bits()) - index;
        let most = most.min((end - start).div_ceil(1 << shift).max(1) as usize);
        // SAFETY: by contract; the entries from `index` on that the table has at most.
        let rest = unsafe { self.part(at.table, index + 1..index + most) };
        let empty = 1 + leading_empty(rest) as u64;
        start.saturating_add(empty << shift).min(end)
    }
}

/// How many entries are empty before the first that is not. None of them is followed. Eight at a
/// time without a branch between them: most of an address space is holes.
fn leading_empty(entries: &[AtomicU64]) -> usize {
    let is_empty = |part: &&[AtomicU64]| part.iter().fold(0, |any, entry| any | entry.load(Relaxed)) == 0;
    let eights = 8 * entries.chunks_exact(8).take_while(is_empty).count();
    eights + entries[eights..].iter().take_while(|entry| entry.load(Relaxed) == 0).count()
}
