//! Busy entries: what stood there was taken out, something else will stand there soon, and the
//! table's lock is not held meanwhile.
//!
//! Whatever takes long (to flush, to copy) is done while entries are busy. No run goes on past a
//! busy entry ([`LockedTable::run`]), and [`PageTables::find`](super::PageTables::find) waits at
//! one; so whatever walks there waits as it would for the lock, and finds the entries changed. The
//! operation that made them busy holds the lock of the VMAs as a reader, so that nothing unmaps,
//! moves or forks these addresses. Busy entries count as live: their table stays hooked.

use core::sync::atomic::Ordering::Relaxed;

use super::{LockedTable, Run};
use crate::addr::VirtRange;
use crate::arch::{Arch, Kind, UserRange};
use crate::platform::{Event, Platform, trace};
use crate::tlb::Removed;

/// Entries of a table that are busy until this is filled.
#[must_use = "what walks there waits until it is filled"]
pub(crate) struct Occupied<'t, 'm, P: Platform, A: Arch>(LockedTable<'t, 'm, P, A>);

impl<'t, 'm, P: Platform, A: Arch> LockedTable<'t, 'm, P, A> {
    /// Returns whether the entry where a range begins is busy.
    #[inline]
    pub(super) fn is_busy(&self, range: UserRange) -> bool {
        !range.is_empty() && self.entry(self.index(range.start)).load(Relaxed) == self.tables.arch.busy_pte()
    }

    /// Takes the leaves of a block out, shows each run of them to `taken`, makes all entries of the
    /// block busy and gives the lock back. The block holds leaves and empty entries only, of this
    /// table. What hardware has recorded is dropped, as by [`LockedTable::take`].
    pub(crate) fn occupy(self, block: VirtRange, mut taken: impl FnMut(Removed)) -> Occupied<'t, 'm, P, A> {
        let arch = &self.tables.arch;
        let busy = arch.busy_pte();
        let mut at = block.start;
        self.part_at(self.index(at));
        self.part_at(self.index(at) + ((block.len() >> self.shift()) as usize));
        while at < block.end
            && let Some(run) = self.run(at, block.end)
        {
            let index = self.index(at);
            for (i, entry) in self.entries()[index..index + run.len].iter().enumerate() {
                self.exchange_at(index + i, entry, busy);
            }
            match run.kind {
                Kind::Leaf => {
                    let (pfn, frames, range) = (run.pfn(arch), run.frames(arch), run.range(arch));
                    taken(Removed { pfn, frames, range, shift: self.shift() });
                }
                _ => self.add_live(run.len),
            }
            at = run.range(arch).end;
        }
        debug_assert_eq!(at, block.end, "looked at under this lock");
        Occupied::new(self)
    }
}

impl<'t, 'm, P: Platform, A: Arch> Occupied<'t, 'm, P, A> {
    /// Gives back the lock of a table in which the caller has made entries busy.
    pub(super) fn new(table: LockedTable<'t, 'm, P, A>) -> Self {
        trace(table.tables.platform(), || Event::Unlocking(table.pfn));
        table.desc.table_lock().unlock(table.tables.platform());
        Occupied(table)
    }

    /// Writes a run, as long as what is busy.
    pub(crate) fn fill(self, run: &Run) {
        let table = self.0;
        trace(table.tables.platform(), || Event::Locking(table.pfn));
        table.desc.table_lock().lock(table.tables.platform());
        trace(table.tables.platform(), || Event::Locked(table.pfn));
        table.set_over(run, table.tables.arch.busy_pte());
        table.release();
    }
}
