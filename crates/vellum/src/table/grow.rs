//! Growth: allocates page tables, and publishes them only once their first run is written (INV-3).
//!
//! Page tables are allocated before any page table's lock is taken (INV-8).

use core::sync::atomic::Ordering::Relaxed;

use super::entries::Sequence;
use super::{LockedTable, PageTables, Run};
use crate::addr::{Pfn, VirtRange, align_down};
use crate::arch::{Arch, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::stats::Counter;
use crate::sync::Retries;

/// The maximum number of page tables that are published together: one of each level below the root.
const MAX_NEW_LEVELS: usize = 4;

/// The reason why a run was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMapped {
    /// At least one of the entries is not empty.
    Occupied,
    /// A page table could not be allocated: no frame is free, or the memcg is at its limit.
    NoMemory(Refused),
}

impl NotMapped {
    /// Returns the reason why memory was refused. For a caller that has made sure that the entries
    /// are empty, so that [`NotMapped::Occupied`] can't happen.
    pub(crate) fn shortage(self) -> Refused {
        match self {
            NotMapped::NoMemory(why) => why,
            NotMapped::Occupied => Refused::OutOfMemory,
        }
    }
}

impl From<Refused> for NotMapped {
    fn from(why: Refused) -> Self {
        NotMapped::NoMemory(why)
    }
}

/// Spare page tables: allocated ahead of need, empty, and not published. Those of one level form a
/// list, linked through their descriptors; `tables[level - 1]` is its first. Spare page tables that
/// were not used are freed when this value is dropped.
pub(crate) struct SpareTables<'t, 'm, P: Platform> {
    tree: &'t PageTables<'m, P>,
    tables: [Pfn; MAX_NEW_LEVELS],
    /// The entries that the caller writes at once, if they are so many that to zero a page table
    /// beforehand would be wasted. A spare one of their level then has entries of any value.
    filled: Option<Filled>,
}

/// Entries that the caller of [`SpareTables::for_entries`] writes: their level, and their number.
#[derive(Clone, Copy)]
struct Filled {
    level: u8,
    entries: usize,
}

impl<'t, 'm, P: Platform> SpareTables<'t, 'm, P> {
    /// Returns an empty set of spare page tables.
    #[inline]
    pub(crate) fn new(tree: &'t PageTables<'m, P>) -> Self {
        SpareTables { tree, tables: [Pfn::NONE; MAX_NEW_LEVELS], filled: None }
    }

    /// Returns an empty set of spare page tables for one call of [`PageTables::put`], which writes
    /// `entries` entries of `level`.
    #[inline]
    pub(crate) fn for_entries(tree: &'t PageTables<'m, P>, level: u8, entries: usize) -> Self {
        // Zeroing the other half costs less than zeroing all; of a smaller part it hardly does, and
        // the allocator may have a zero frame.
        let filled = (entries >= 1 << (tree.arch.index_bits() - 1)).then_some(Filled { level, entries });
        SpareTables { filled, ..Self::new(tree) }
    }

    /// Returns the number of entries that the caller writes to a new page table of `level`, of
    /// which the entries have any value before; `None` if they are zero.
    #[inline]
    fn filled(&self, level: u8) -> Option<usize> {
        self.filled.filter(|filled| filled.level == level).map(|filled| filled.entries)
    }

    /// Allocates one more page table of `level`.
    ///
    /// # Errors
    /// [`Refused`] if it could not be allocated.
    pub(crate) fn add(&mut self, level: u8) -> Result<(), Refused> {
        let (table, desc) = self.tree.alloc_table(level, self.filled(level).is_none())?;
        let top = &mut self.tables[level as usize - 1];
        desc.set_data(top.0 as u64);
        *top = table;
        Ok(())
    }

    /// Allocates a page table for each level from `lowest` to `hook - 1` that has no spare one.
    /// `hook` is the level of the existing page table to which the new ones will be linked.
    ///
    /// # Errors
    /// [`Refused`] if a page table could not be allocated. Those that were allocated stay in the
    /// set.
    fn provide(&mut self, lowest: u8, hook: u8) -> Result<(), Refused> {
        for level in lowest..hook {
            if !self.has(level, level + 1) {
                self.add(level)?;
            }
        }
        Ok(())
    }

    /// Returns true if each level from `lowest` to `hook - 1` has a spare page table.
    fn has(&self, lowest: u8, hook: u8) -> bool {
        (lowest..hook).all(|level| self.tables[level as usize - 1] != Pfn::NONE)
    }

    /// Takes a spare page table of `level`. There is at least one.
    fn take(&mut self, level: u8) -> Pfn {
        let top = &mut self.tables[level as usize - 1];
        let next = Pfn(self.tree.machine.frames().frame(*top).data() as u32);
        core::mem::replace(top, next)
    }

    /// Publishes one spare page table of each level from `lowest` to the level below `hook`. Calls
    /// `write` to write PTEs into the lowest one, writes each page table's pointer into the one
    /// above, and the topmost pointer into `hook`, which the caller has locked. That last store
    /// publishes them all.
    fn publish(
        &mut self,
        va: u64,
        lowest: u8,
        hook: &LockedTable<'_, 'm, P>,
        write: impl FnOnce(&LockedTable<'_, 'm, P>),
    ) {
        let tree = self.tree;
        let mut taken = [Pfn::NONE; MAX_NEW_LEVELS];
        (lowest..hook.level).for_each(|level| taken[level as usize - 1] = self.take(level));
        let locked = |level: u8| {
            let pfn = taken[level as usize - 1];
            LockedTable::new(tree, pfn, tree.machine.frames().frame(pfn), level, va)
        };
        let new = locked(lowest);
        if let Some(filled) = self.filled(lowest) {
            new.zero_all_but(va, filled);
        }
        write(&new);
        for level in lowest..hook.level {
            let table = locked(level);
            let pfn = table.pfn;
            let above = if level + 1 == hook.level { hook.pfn } else { taken[level as usize] };
            super::lock::set_parent(table.desc, above);
            let above = LockedTable::new(tree, above, tree.machine.frames().frame(above), level + 1, va);
            above.store(above.index(va), 0, tree.arch.table_pte(pfn.addr()));
            above.live().add(1);
        }
        if tree.arch.tlb_rules().not_present.lasts() {
            // This CPU may still cache that the entry in `hook` is not present. The caller handles
            // leaf PTEs that this CPU caches as not present (INV-20).
            let start = align_down(va, hook.shift());
            let span = VirtRange { start, end: start + (1 << hook.shift()) };
            tree.tlb.invalidate_local(span, hook.shift(), true);
        }
        let published = (hook.level - lowest) as i64;
        tree.count_hooked(published);
        tree.machine.count(Counter::TablesAllocated, published as u64);
    }
}

impl<P: Platform> Drop for SpareTables<'_, '_, P> {
    /// Frees the page tables that were not used.
    #[inline]
    fn drop(&mut self) {
        if self.tables != [Pfn::NONE; MAX_NEW_LEVELS] {
            self.free();
        }
    }
}

impl<P: Platform> SpareTables<'_, '_, P> {
    #[cold]
    fn free(&mut self) {
        for level in 1..=MAX_NEW_LEVELS as u8 {
            while self.has(level, level + 1) {
                let table = self.take(level);
                self.tree.free_private(table, self.filled(level).is_none());
            }
        }
    }
}

impl<'m, P: Platform> PageTables<'m, P> {
    /// Writes a run of any kind into empty entries. `at` are the addresses of the run, all
    /// translated by one page table. Allocates missing page tables. The caller holds no spin lock.
    ///
    /// # Errors
    /// [`NotMapped`], with nothing changed (INV-7).
    #[inline]
    pub(crate) fn map_run(&self, at: UserRange, run: &Run) -> Result<(), NotMapped> {
        debug_assert_eq!(at, run.range(&self.arch));
        self.map_by(at, run, run.len, |table| table.set(run))
    }

    /// Writes runs into empty entries as [`PageTables::map_run`] does, of PTEs that map pages of a
    /// page-cache object. `at` are the addresses of the runs, which follow one another.
    pub(crate) fn map_object_runs(
        &self,
        at: UserRange,
        runs: impl Iterator<Item = Run> + Clone,
    ) -> Result<(), NotMapped> {
        let Some(first) = runs.clone().next() else { return Ok(()) };
        let len = (at.len() >> self.arch.level_shift(first.level)) as usize;
        debug_assert_eq!(runs.clone().map(|run| run.len).sum::<usize>(), len);
        self.map_by(at, &first, len, |table| runs.clone().for_each(|run| table.set_object(&run)))
    }

    /// Calls `set` with the locked page table to write `len` entries at `at`, which are empty and
    /// begin with those of `first`. For [`PageTables::map_run`].
    #[inline(always)]
    fn map_by(
        &self,
        at: UserRange,
        first: &Run,
        len: usize,
        set: impl Fn(&LockedTable<'_, 'm, P>),
    ) -> Result<(), NotMapped> {
        let level = first.level;
        let write = |table: &LockedTable<'_, 'm, P>| {
            self.tlb.flush_pending_reclaim(*at, self.arch.page_shift());
            set(table);
        };
        // The entries of a second run are zeroed, as writing those of the first may read them: they
        // may be a block of contiguous PTEs together.
        self.put_in_existing_table(at, level, len, write)
            .unwrap_or_else(|| self.put(at, level, len, &mut SpareTables::for_entries(self, level, first.len), write))
    }

    /// Calls `write` with the locked page table to write the `n` empty entries of `level` at the
    /// start of `range`, all of one page table. Missing page tables come from `spares`, or are
    /// allocated.
    ///
    /// # Errors
    /// [`NotMapped`], with nothing changed: `write` was not called (INV-7).
    pub(crate) fn put(
        &self,
        range: UserRange,
        level: u8,
        n: usize,
        spares: &mut SpareTables<'_, 'm, P>,
        write: impl Fn(&LockedTable<'_, 'm, P>),
    ) -> Result<(), NotMapped> {
        let va = range.start;
        debug_assert!(!range.is_empty(), "put() called with an empty range");
        let mut retries = Retries::new(&self.gate);
        loop {
            retries.retry();
            let walk = self.begin_walk();
            // SAFETY: this CPU is in a walk as long as `walk` lives.
            let at = unsafe { self.descend(range, level) };
            if at.level > level && at.raw != 0 {
                return Err(NotMapped::Occupied);
            }
            if !spares.has(level, at.level) {
                drop(walk);
                spares.provide(level, at.level)?;
                continue;
            }
            // SAFETY: this CPU is in the walk that ended at `at`.
            let queued = unsafe { self.queue_lock(at.table) };
            drop(walk);
            let Some(table) = queued.lock(at.level, va) else {
                self.platform().relax();
                continue;
            };
            if at.level == level {
                return table.put(va, n, write);
            }
            let hole = table.entry(table.index(va)).load(Relaxed) == 0;
            if hole {
                spares.publish(va, level, &table, &write);
            }
            table.release();
            if hole {
                return Ok(());
            }
        }
    }

    /// Writes entries as [`PageTables::put`] does if their page table exists. Returns `None` if the
    /// page table does not exist, or was unhooked before this CPU had its lock.
    #[inline]
    fn put_in_existing_table(
        &self,
        range: UserRange,
        level: u8,
        n: usize,
        write: impl Fn(&LockedTable<'_, 'm, P>),
    ) -> Option<Result<(), NotMapped>> {
        let va = range.start;
        let walk = self.begin_walk();
        // SAFETY: this CPU is in a walk as long as `walk` lives.
        let at = unsafe { self.descend(range, level) };
        if at.level > level {
            return (at.raw != 0).then_some(Err(NotMapped::Occupied));
        }
        // SAFETY: this CPU is in the walk that ended at `at`.
        let queued = unsafe { self.queue_lock(at.table) };
        drop(walk);
        Some(queued.lock(at.level, va)?.put(va, n, write))
    }
}

impl<P: Platform> LockedTable<'_, '_, P> {
    /// Zeroes the entries of a page table that is not published, but for the `n` from `va` on.
    fn zero_all_but(&self, va: u64, n: usize) {
        let (start, end) = (self.index(va), self.index(va) + n);
        for part in [0..start, end..self.entries().len()] {
            self.write(part.start, part.len(), Sequence::of_equal(0), Sequence::of_equal(0));
        }
    }

    /// Calls `write` if the `n` entries from `va` on are empty, and releases the lock.
    ///
    /// # Errors
    /// [`NotMapped::Occupied`] if one of them is not empty.
    #[inline(always)]
    fn put(self, va: u64, n: usize, write: impl Fn(&Self)) -> Result<(), NotMapped> {
        let empty = self.is_empty(va, n);
        if empty {
            write(&self);
        }
        self.release();
        if empty { Ok(()) } else { Err(NotMapped::Occupied) }
    }
}
