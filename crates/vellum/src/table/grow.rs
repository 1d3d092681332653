//! New tables, born with their first run.

use core::sync::atomic::Ordering::Relaxed;

use super::{LockedTable, PageTables, Run};
use crate::addr::{Pfn, VirtRange, align_down};
use crate::arch::{Arch, UserRange};
use crate::memcg::Refused;
use crate::platform::Platform;
use crate::stats::Counter;
use crate::sync::Retries;

/// The deepest chain of new tables: all levels but the root.
const MOST: usize = 4;

/// Why a run was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMapped {
    /// Something stands there already.
    Occupied,
    /// No memory for a table, or the memcg may not have one.
    NoMemory(Refused),
}

impl NotMapped {
    /// Returns why memory was refused, where nothing stood in the way.
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

/// Tables that are not published yet and hold nothing: a stack of them for each level, `tables[level - 1]` being the topmost,
/// whose descriptor names the next.
pub(crate) struct Spares<'t, 'm, P: Platform, A: Arch> {
    tree: &'t PageTables<'m, P, A>,
    tables: [Pfn; MOST],
}

impl<'t, 'm, P: Platform, A: Arch> Spares<'t, 'm, P, A> {
    /// None yet.
    #[inline]
    pub(crate) fn new(tree: &'t PageTables<'m, P, A>) -> Self {
        Spares { tree, tables: [Pfn::NONE; MOST] }
    }

    /// Have one more table of this level.
    pub(crate) fn add(&mut self, level: u8) -> Result<(), Refused> {
        let (table, desc) = self.tree.alloc_table(level)?;
        let top = &mut self.tables[level as usize - 1];
        desc.set_data(top.0 as u64);
        *top = table;
        Ok(())
    }

    /// Have a table of each level from `lowest` to below `hook`.
    fn provide(&mut self, lowest: u8, hook: u8) -> Result<(), Refused> {
        for level in lowest..hook {
            if !self.has(level, level + 1) {
                self.add(level)?;
            }
        }
        Ok(())
    }

    fn has(&self, lowest: u8, hook: u8) -> bool {
        (lowest..hook).all(|level| self.tables[level as usize - 1] != Pfn::NONE)
    }

    /// Take a table of this level, of which there is one.
    fn take(&mut self, level: u8) -> Pfn {
        let top = &mut self.tables[level as usize - 1];
        let next = Pfn(self.tree.machine.frames().frame(*top).data() as u32);
        core::mem::replace(top, next)
    }

    /// Have entries written into the lowest table, and write each table's pointer into the one above; last of all, the topmost
    /// table's pointer into `hook`, which publishes the rest.
    fn publish(
        &mut self,
        va: u64,
        lowest: u8,
        hook: &LockedTable<'_, 'm, P, A>,
        write: impl FnOnce(&LockedTable<'_, 'm, P, A>),
    ) {
        let tree = self.tree;
        let mut taken = [Pfn::NONE; MOST];
        (lowest..hook.level).for_each(|level| taken[level as usize - 1] = self.take(level));
        let locked = |level: u8| {
            let pfn = taken[level as usize - 1];
            LockedTable::new(tree, pfn, tree.machine.frames().frame(pfn), level, va)
        };
        write(&locked(lowest));
        for level in lowest..hook.level {
            let table = locked(level);
            let pfn = table.pfn;
            let above = if level + 1 == hook.level { hook.pfn } else { taken[level as usize] };
            LockedTable::<P, A>::set_parent(table.desc, above);
            let above = LockedTable::new(tree, above, tree.machine.frames().frame(above), level + 1, va);
            above.store(above.index(va), 0, tree.arch.table_pte(pfn.addr()));
            above.add_live(1);
        }
        if tree.arch.tlb_rules().not_present.lasts() {
            // To this CPU the pointer may still be an entry that is not present; what it knows of
            // leaves the caller sees to.
            let start = align_down(va, hook.shift());
            let span = VirtRange { start, end: start + (1 << hook.shift()) };
            tree.tlb.invalidate_local(span, hook.shift(), true);
        }
        let born = (hook.level - lowest) as i64;
        tree.hooked(born);
        tree.machine.count(Counter::TablesAllocated, born as u64);
    }
}

impl<P: Platform, A: Arch> Drop for Spares<'_, '_, P, A> {
    /// What was provided for nothing goes back.
    fn drop(&mut self) {
        for level in 1..=MOST as u8 {
            while self.has(level, level + 1) {
                let table = self.take(level);
                self.tree.free_private(table, true);
            }
        }
    }
}

impl<'m, P: Platform, A: Arch> PageTables<'m, P, A> {
    /// Writes a run of any kind at `at`, all of which is the run's, where nothing is mapped yet,
    /// and makes missing tables. All of the run stands in one table.
    ///
    /// # Errors
    /// If it can't be done in full, nothing was changed.
    #[inline]
    pub(crate) fn map_run(&self, at: UserRange, run: &Run) -> Result<(), NotMapped> {
        debug_assert_eq!(at, run.range(&self.arch));
        let &Run { level, len, .. } = run;
        let write = |table: &LockedTable<'_, 'm, P, A>| {
            self.tlb.flush_pending_reclaim(run.range(&self.arch), self.arch.page_shift());
            table.set(run);
        };
        self.put_there(at, level, len, write).unwrap_or_else(|| self.put(at, level, len, &mut Spares::new(self), write))
    }

    /// Calls `write` to write the first `n` entries of `level` at `at`, of one table, where nothing
    /// is mapped yet; missing tables come from the spare ones, or else are made.
    ///
    /// # Errors
    /// If it can't be done in full, nothing was changed, and nothing written.
    pub(crate) fn put(
        &self,
        range: UserRange,
        level: u8,
        n: usize,
        spares: &mut Spares<'_, 'm, P, A>,
        write: impl Fn(&LockedTable<'_, 'm, P, A>),
    ) -> Result<(), NotMapped> {
        let va = range.start;
        debug_assert!(!range.is_empty(), "an address without a page");
        let mut patience = Retries::new(&self.gate);
        loop {
            patience.retry();
            let walk = self.enter();
            // SAFETY: in a walk.
            let at = unsafe { self.descend(range, level) };
            if at.level > level && at.raw != 0 {
                return Err(NotMapped::Occupied);
            }
            if !spares.has(level, at.level) {
                drop(walk);
                spares.provide(level, at.level)?;
                continue;
            }
            // SAFETY: in the walk that came to this table.
            let place = unsafe { self.draw(at.table) };
            drop(walk);
            let Some(table) = place.lock(at.level, va) else {
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

    /// The same, if the table is there. Else none.
    #[inline]
    fn put_there(
        &self,
        range: UserRange,
        level: u8,
        n: usize,
        write: impl Fn(&LockedTable<'_, 'm, P, A>),
    ) -> Option<Result<(), NotMapped>> {
        let va = range.start;
        let walk = self.enter();
        // SAFETY: in a walk.
        let at = unsafe { self.descend(range, level) };
        if at.level > level {
            return (at.raw != 0).then_some(Err(NotMapped::Occupied));
        }
        // SAFETY: in the walk that came to this table.
        let place = unsafe { self.draw(at.table) };
        drop(walk);
        Some(place.lock(at.level, va)?.put(va, n, write))
    }
}

impl<P: Platform, A: Arch> LockedTable<'_, '_, P, A> {
    /// Have `n` entries written if there are none yet, and give the lock back.
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
