//! New tables, born with their first run.

use core::sync::atomic::Ordering::Relaxed;

use super::{LockedTable, PageTables};
use crate::addr::Pfn;
use crate::arch::Arch;
use crate::frame::OutOfMemory;
use crate::platform::Platform;
use crate::stats::Counter;

/// The deepest chain of new tables: all levels but the root.
const MOST: usize = 4;

/// Why a run was not mapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotMapped {
    /// Something stands there already.
    Occupied,
    /// No memory for a table, or the group may not have one.
    OutOfMemory,
}

impl From<OutOfMemory> for NotMapped {
    fn from(_: OutOfMemory) -> Self {
        NotMapped::OutOfMemory
    }
}

/// Tables that are not published yet and hold nothing, by level: `tables[level - 1]`.
struct Chain<'t, 'm, P: Platform, A: Arch> {
    tree: &'t PageTables<'m, P, A>,
    tables: [Pfn; MOST],
}

impl<'t, 'm, P: Platform, A: Arch> Chain<'t, 'm, P, A> {
    /// Have a table of each level from `lowest` to below `hook`.
    fn provide(&mut self, lowest: u8, hook: u8) -> Result<(), OutOfMemory> {
        for level in lowest..hook {
            let slot = &mut self.tables[level as usize - 1];
            if *slot == Pfn::NONE {
                *slot = self.tree.alloc_table(level)?;
            }
        }
        Ok(())
    }

    fn has(&self, lowest: u8, hook: u8) -> bool {
        (lowest..hook).all(|level| self.tables[level as usize - 1] != Pfn::NONE)
    }

    /// Write the run into the lowest table and each table's pointer into the one above; last of all, the topmost table's
    /// pointer into `hook`, which publishes the rest.
    fn publish(&mut self, va: u64, lowest: u8, hook: &LockedTable<'_, 'm, P, A>, (raw, step): (u64, u64), n: usize) {
        let tree = self.tree;
        for level in lowest..hook.level {
            let pfn = core::mem::replace(&mut self.tables[level as usize - 1], Pfn::NONE);
            let table = LockedTable::new(tree, pfn, tree.machine.frames().frame(pfn), level, va);
            if level == lowest {
                table.set_at_steps(va, raw, step, n);
            }
            let above = if level + 1 == hook.level { hook.pfn } else { self.tables[level as usize] };
            LockedTable::<P, A>::set_parent(table.desc, above);
            let above = LockedTable::new(tree, above, tree.machine.frames().frame(above), level + 1, va);
            above.store(above.index(va), 0, tree.arch.table(pfn.addr()));
            above.add_live(1);
        }
        let born = (hook.level - lowest) as i64;
        tree.hooked(born);
        tree.machine.count(Counter::TablesBorn, born as u64);
    }
}

impl<P: Platform, A: Arch> Drop for Chain<'_, '_, P, A> {
    /// What was provided for nothing goes back.
    fn drop(&mut self) {
        for table in self.tables.iter().filter_map(|t| t.some()) {
            self.tree.free_private(table, true);
        }
    }
}

impl<'m, P: Platform, A: Arch> PageTables<'m, P, A> {
    /// Map `n` leaves, `raw` being the first, from `va` at `level`, where nothing is mapped yet; missing tables are made.
    /// All of the leaves stand in one table.
    ///
    /// # Errors
    /// If it can't be done in full, nothing was changed.
    #[inline]
    pub(crate) fn map_run(&self, va: u64, level: u8, raw: u64, n: usize) -> Result<(), NotMapped> {
        self.map_at_steps(va, level, (raw, self.arch.step(raw, level)), n)
    }

    /// The same for entries of any kind that differ by a step.
    pub(crate) fn map_at_steps(&self, va: u64, level: u8, (raw, step): (u64, u64), n: usize) -> Result<(), NotMapped> {
        let mut chain = Chain { tree: self, tables: [Pfn::NONE; MOST] };
        loop {
            let walk = self.enter();
            // SAFETY: in a walk.
            let at = unsafe { self.descend(va, level) };
            if at.level > level && at.raw != 0 {
                return Err(NotMapped::Occupied);
            }
            if !chain.has(level, at.level) {
                drop(walk);
                chain.provide(level, at.level)?;
                continue;
            }
            // SAFETY: in the walk that came to this table.
            let Some(table) = (unsafe { self.try_lock(at.table, at.level, va) }) else {
                drop(walk);
                self.platform().relax();
                continue;
            };
            drop(walk);
            if at.level == level {
                let empty = table.is_empty(va, n);
                if empty {
                    table.set_at_steps(va, raw, step, n);
                }
                table.release();
                return if empty { Ok(()) } else { Err(NotMapped::Occupied) };
            }
            let hole = table.entry(table.index(va)).load(Relaxed) == 0;
            if hole {
                chain.publish(va, level, &table, (raw, step), n);
            }
            table.release();
            if hole {
                return Ok(());
            }
        }
    }
}
