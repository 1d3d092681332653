//! A locked table: how it is locked, and how it is unhooked when nothing is left in it.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::{ENTRIES_A_HOLD, PageTables};
use crate::addr::{Pfn, VirtRange, align_down};
use crate::arch::{Arch, UserRange};
use crate::frame::{Frame, flag};
use crate::machine::Machine;
use crate::platform::{Event, Platform, trace};
use crate::stats::Counter;
use crate::sync::WalkGuard;
use crate::tlb::{DeadTable, Gather};

/// A walk under way, told to the tracer.
pub(super) struct Walk<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    _guard: WalkGuard<'m, P>,
}

impl<'m, P: Platform> Walk<'m, P> {
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

/// A table whose lock this CPU holds, seen from one address.
#[must_use = "a locked table must be unlocked"]
pub(crate) struct LockedTable<'t, 'm, P: Platform, A: Arch> {
    pub(super) tables: &'t PageTables<'m, P, A>,
    pub(super) pfn: Pfn,
    pub(super) desc: &'m Frame,
    /// Its level.
    pub(crate) level: u8,
    /// What its first entry translates.
    pub(crate) base: u64,
}

impl<'t, 'm, P: Platform, A: Arch> LockedTable<'t, 'm, P, A> {
    #[inline]
    pub(super) fn new(tables: &'t PageTables<'m, P, A>, pfn: Pfn, desc: &'m Frame, level: u8, va: u64) -> Self {
        let shift = tables.arch.level_shift(level) + tables.arch.index_bits();
        let base = if shift >= 64 { 0 } else { va >> shift << shift };
        LockedTable { tables, pfn, desc, level, base }
    }

    #[inline]
    pub(super) fn live(&self) -> u32 {
        self.desc.link(1).load(Relaxed)
    }

    #[inline]
    pub(super) fn set_live(&self, live: u32) {
        self.desc.link(1).store(live, Relaxed);
    }

    #[inline]
    pub(super) fn add_live(&self, n: usize) {
        self.set_live(self.live() + n as u32);
    }

    /// Returns the address after the last that this table translates for user mode. The rest of a
    /// root is the host's: no run reaches there.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        let end = self.base.saturating_add((1u64 << self.tables.arch.index_bits()) << self.shift());
        end.min(self.tables.arch.user_end())
    }

    /// Returns how far an operation on `range`, which begins in this table, goes before it gives
    /// the lock back: at most [`ENTRIES_A_HOLD`] entries.
    #[inline]
    pub(crate) fn hold_end(&self, range: UserRange) -> u64 {
        self.end_after(range, ENTRIES_A_HOLD)
    }

    /// Returns the end of what `range`, which begins in this table, has there of the next `entries`,
    /// which are as many as a block has or more. A block that begins among them and goes on behind
    /// them is left out whole.
    #[inline]
    pub(crate) fn end_after(&self, range: UserRange, entries: u64) -> u64 {
        let end = range.end.min(self.end());
        if 1u64 << self.tables.arch.index_bits() <= entries {
            return end;
        }
        let most = range.start.saturating_add(entries << self.shift());
        end.min(align_down(most, self.shift() + self.tables.arch.cont_bits(self.level)))
    }

    /// log2 of what an entry translates.
    #[inline]
    pub(crate) fn shift(&self) -> u32 {
        self.tables.arch.level_shift(self.level)
    }

    #[inline]
    pub(super) fn index(&self, va: u64) -> usize {
        debug_assert!(va >= self.base && va < self.end());
        ((va - self.base) >> self.shift()) as usize
    }

    /// Returns the number of entries up to the one that translates the last address before `end`, a
    /// user address that is past `base`: all there are, if the table ends first.
    #[inline]
    pub(super) fn until(&self, end: u64) -> usize {
        debug_assert!(end > self.base && end <= self.tables.arch.user_end());
        let last = (end - 1 - self.base) >> self.shift();
        (last as usize).min((1 << self.tables.arch.index_bits()) - 1) + 1
    }

    #[inline]
    pub(super) fn entry(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the lock keeps the table hooked. Indices come from `index`, or were bounded by the length of the table.
        unsafe { self.tables.entry(self.pfn, index) }
    }

    /// All entries.
    #[inline]
    pub(super) fn entries(&self) -> &[AtomicU64] {
        // SAFETY: as many as a table of this format has; the lock keeps it hooked.
        unsafe { self.tables.part(self.pfn, 0..1 << self.tables.arch.index_bits()) }
    }

    /// Give the lock back. If nothing is left in the table it is unhooked, and so are the tables above that held nothing
    /// else; the gather frees them.
    #[inline]
    pub(crate) fn unlock(self, gather: &mut Gather<'_, 'm, P>) {
        if self.live() != 0 || self.pfn == self.tables.root {
            self.release();
        } else {
            self.unhook(gather);
        }
    }

    /// Give the lock back where nothing can have become empty.
    #[inline]
    pub(crate) fn release(self) {
        debug_assert!(self.live() != 0 || self.pfn == self.tables.root, "an empty table would stay hooked");
        self.abandon();
    }

    /// Give back the lock of a table that turned out to be dead.
    #[inline]
    pub(super) fn abandon(self) {
        trace(self.tables.platform(), || Event::Unlocking(self.pfn));
        self.desc.table_lock().unlock(self.tables.platform());
    }

    #[cold]
    fn unhook(self, gather: &mut Gather<'_, 'm, P>) {
        let mut child = self;
        loop {
            let parent = child.lock_parent();
            let index = parent.index(child.base);
            debug_assert_eq!(child.tables.arch.table_addr(parent.entry(index).load(Relaxed)).pfn(), child.pfn);
            parent.store(index, parent.entry(index).load(Relaxed), 0);
            parent.set_live(parent.live() - 1);
            child.desc.set_flag(flag::UNHOOKED);
            child.tables.hooked(-1);
            child.tables.machine.count(Counter::TablesFreed, 1);
            gather.push_table(DeadTable { pfn: child.pfn, range: VirtRange { start: child.base, end: child.end() } });
            child.abandon();
            child = parent;
            if child.live() != 0 || child.pfn == child.tables.root {
                return child.abandon();
            }
        }
    }

    /// The table that points to this one. It can't go away: it holds at least that pointer.
    pub(super) fn lock_parent(&self) -> LockedTable<'t, 'm, P, A> {
        let pfn = Pfn(self.desc.data() as u32);
        let desc = self.tables.machine.frames().frame(pfn);
        trace(self.tables.platform(), || Event::Locking(pfn));
        desc.table_lock().lock(self.tables.platform());
        trace(self.tables.platform(), || Event::Locked(pfn));
        debug_assert!(!desc.state().has(flag::UNHOOKED));
        LockedTable::new(self.tables, pfn, desc, self.level + 1, self.base)
    }

    /// Which table hooked this one in, so that it can be unhooked from there.
    pub(super) fn set_parent(desc: &Frame, parent: Pfn) {
        desc.set_data(parent.0 as u64);
    }
}
