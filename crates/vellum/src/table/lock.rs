//! Locked page tables: releases a page table's lock, and unhooks the page table if it became empty
//! (INV-3). Entries are written under their page table's lock, or before the page table is
//! published (INV-5).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::live::LiveCount;
use super::{MAX_ENTRIES_PER_HOLD, PageTables};
use crate::addr::{Pfn, VirtRange, align_down};
use crate::arch::{Arch, UserRange};
use crate::frame::{Frame, flag};
use crate::machine::Machine;
use crate::platform::{Event, Platform, trace};
use crate::stats::Counter;
use crate::sync::WalkGuard;
use crate::tlb::{DeadTable, Gather};

/// A guard for a lockless walk. While it lives, this CPU is announced as a walker
/// ([`crate::sync::Walkers`]) with preemption disabled, and no page table that the walk can reach
/// is freed (INV-1). The tracer gets an event at the beginning and the end. A CPU with such a guard
/// must not wait for a lock.
pub(super) struct Walk<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    _guard: WalkGuard<'m, P>,
}

impl<'m, P: Platform> Walk<'m, P> {
    /// Begins a walk on this CPU.
    #[inline]
    pub(super) fn enter(machine: &'m Machine<'m, P>) -> Self {
        let walk = Walk { machine, _guard: machine.walkers().enter(machine.platform()) };
        trace(machine.platform(), || Event::WalkBegin);
        walk
    }
}

impl<P: Platform> Drop for Walk<'_, P> {
    #[inline]
    fn drop(&mut self) {
        trace(self.machine.platform(), || Event::WalkEnd);
    }
}

/// A page table that this CPU has locked, and the addresses that the page table translates.
#[must_use = "a locked table must be unlocked"]
pub(crate) struct LockedTable<'t, 'm, P: Platform> {
    pub(super) tables: &'t PageTables<'m, P>,
    pub(super) pfn: Pfn,
    pub(super) desc: &'m Frame,
    /// The level: 1 for the page table that maps pages, the highest for the root.
    pub(crate) level: u8,
    /// The first address that the page table translates.
    pub(crate) base: u64,
}

impl<'t, 'm, P: Platform> LockedTable<'t, 'm, P> {
    /// Makes a [`LockedTable`] for the page table at `pfn`, which has this `level` and translates
    /// `va`. The caller holds the page table's lock, or has not published the page table yet.
    #[inline]
    pub(super) fn new(tables: &'t PageTables<'m, P>, pfn: Pfn, desc: &'m Frame, level: u8, va: u64) -> Self {
        let shift = tables.arch.level_shift(level) + tables.arch.index_bits();
        let base = if shift >= 64 { 0 } else { va >> shift << shift };
        LockedTable { tables, pfn, desc, level, base }
    }

    /// Returns the live count: the number of entries that are not empty.
    #[inline]
    pub(crate) fn live(&self) -> LiveCount<'m> {
        LiveCount::of(self.desc)
    }

    /// Returns the end of the user addresses that this page table translates. In a root, the
    /// entries after that end are the host's, and no run reaches them (INV-17).
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        let end = self.base.saturating_add((1u64 << self.tables.arch.index_bits()) << self.shift());
        end.min(self.tables.arch.user_end())
    }

    /// Returns the address at which an operation on `range` releases this page table's lock: the
    /// end of `range` or of the page table, but at most [`MAX_ENTRIES_PER_HOLD`] entries from the
    /// start (INV-11). `range` begins in this page table.
    #[inline]
    pub(crate) fn hold_end(&self, range: UserRange) -> u64 {
        self.end_after(range, MAX_ENTRIES_PER_HOLD)
    }

    /// Returns the address up to which an operation on `range` may go if it handles at most
    /// `entries` entries under this lock. `range` begins in this page table, and `entries` is at
    /// least the length of a cont block. If that limit would cut a cont block (PTEs that a TLB may
    /// hold as one translation), the result is the start of that block.
    #[inline]
    pub(crate) fn end_after(&self, range: UserRange, entries: u64) -> u64 {
        let end = range.end.min(self.end());
        if 1u64 << self.tables.arch.index_bits() <= entries {
            return end;
        }
        let most = range.start.saturating_add(entries << self.shift());
        end.min(align_down(most, self.shift() + self.tables.arch.cont_bits(self.level)))
    }

    /// Returns log2 of the number of bytes that an entry translates.
    #[inline]
    pub(crate) fn shift(&self) -> u32 {
        self.tables.arch.level_shift(self.level)
    }

    /// Returns the index of the entry that translates `va`, an address of this page table.
    #[inline]
    pub(super) fn index(&self, va: u64) -> usize {
        debug_assert!(va >= self.base && va < self.end());
        ((va - self.base) >> self.shift()) as usize
    }

    /// Returns the index after that of the entry that translates `end - 1`, or the number of
    /// entries if the page table ends before that address. `end` is a user address above `base`.
    #[inline]
    pub(super) fn end_index(&self, end: u64) -> usize {
        debug_assert!(end > self.base && end <= self.tables.arch.user_end());
        let last = (end - 1 - self.base) >> self.shift();
        (last as usize).min((1 << self.tables.arch.index_bits()) - 1) + 1
    }

    /// Returns an entry.
    #[inline]
    pub(super) fn entry(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the lock keeps the page table hooked, so it is not freed. Indices come from
        // `index`, or were bounded by the number of entries.
        unsafe { self.tables.entry(self.pfn, index) }
    }

    /// Returns all entries.
    #[inline]
    pub(super) fn entries(&self) -> &[AtomicU64] {
        // SAFETY: the range has the length of a page table of this format; the lock keeps the page
        // table hooked, so it is not freed.
        unsafe { self.tables.entry_slice(self.pfn, 0..1 << self.tables.arch.index_bits()) }
    }

    /// Releases the lock. If the page table is empty, first unhooks it (clears the pointer to it),
    /// and then every page table above that becomes empty. The gather frees the unhooked page
    /// tables (INV-3). The root stays.
    #[inline]
    pub(crate) fn unlock(self, gather: &mut Gather<'_, 'm, P>) {
        if self.live().get() != 0 || self.pfn == self.tables.root {
            self.release();
        } else {
            self.unhook(gather);
        }
    }

    /// Releases the lock after an operation that can't have emptied the page table.
    #[inline]
    pub(crate) fn release(self) {
        debug_assert!(
            self.live().get() != 0 || self.pfn == self.tables.root,
            "released an empty page table: it would stay hooked (INV-3)"
        );
        self.unlock_unchecked();
    }

    /// Releases the lock without a check of the live count. For a page table that was unhooked, for
    /// the root, and for one that is known not to be empty.
    #[inline]
    pub(super) fn unlock_unchecked(self) {
        trace(self.tables.platform(), || Event::Unlocking(self.pfn));
        self.desc.table_lock().unlock(self.tables.platform());
    }

    /// Unhooks this empty page table, and then each parent that becomes empty, taking each parent's
    /// lock before the child's is released. A CPU whose walk reached the page table before, or that
    /// waits for its lock, finds the mark [`flag::UNHOOKED`] once it has the lock, and walks again.
    #[cold]
    fn unhook(self, gather: &mut Gather<'_, 'm, P>) {
        let mut child = self;
        loop {
            let parent = child.lock_parent();
            let index = parent.index(child.base);
            debug_assert_eq!(child.tables.arch.table_addr(parent.entry(index).load(Relaxed)).pfn(), child.pfn);
            parent.store(index, parent.entry(index).load(Relaxed), 0);
            parent.live().subtract(1);
            child.desc.set_flag(flag::UNHOOKED);
            child.tables.count_hooked(-1);
            child.tables.machine.count(Counter::TablesFreed, 1);
            gather.push_table(DeadTable { pfn: child.pfn, range: VirtRange { start: child.base, end: child.end() } });
            child.unlock_unchecked();
            child = parent;
            if child.live().get() != 0 || child.pfn == child.tables.root {
                return child.unlock_unchecked();
            }
        }
    }

    /// Locks the parent: the page table that points to this one. The parent can't be unhooked in
    /// the meantime, because it is not empty as long as it points to this page table.
    pub(super) fn lock_parent(&self) -> LockedTable<'t, 'm, P> {
        let pfn = Pfn(self.desc.data() as u32);
        let desc = self.tables.machine.frames().frame(pfn);
        trace(self.tables.platform(), || Event::Locking(pfn));
        desc.table_lock().lock(self.tables.platform());
        trace(self.tables.platform(), || Event::Locked(pfn));
        debug_assert!(!desc.state().has(flag::UNHOOKED));
        LockedTable::new(self.tables, pfn, desc, self.level + 1, self.base)
    }
}

/// Stores `parent`, the page table that points to the page table of `desc`, in that descriptor.
/// [`LockedTable::lock_parent`] reads it.
#[inline]
pub(super) fn set_parent(desc: &Frame, parent: Pfn) {
    desc.set_data(parent.0 as u64);
}
