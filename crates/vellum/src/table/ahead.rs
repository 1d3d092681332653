//! Prefetches what a pass over a range comes to next: page tables, and descriptors of folios.
//!
//! A pass reads PTEs in ascending order, which hardware prefetchers recognise, but these follow no
//! pointer and stop at the end of a page (Intel Optimization Reference Manual, "Data Prefetching"):
//! without a hint the first lines of each page table, and its descriptor with the lock, are misses
//! that the pass waits for.

use core::sync::atomic::Ordering::Relaxed;

use super::{LockedTable, Run};
use crate::addr::Pfn;
use crate::arch::{Arch, Kind, UserRange};
use crate::frame::{prefetch, prefetch_neighbours};
use crate::platform::Platform;

/// The cache lines to prefetch at the start of a page table. After these the hardware has seen the
/// pass go on.
const LINES: usize = 8;
/// The number of runs to the one whose folio's LRU neighbours are prefetched; the folio's own
/// descriptor is prefetched as long before.
const RUNS_AHEAD: u64 = 8;
/// The PTEs in a cache line.
const PTES_OF_LINE: usize = 8;

/// Prefetches the page table behind `table`, if it lies under the same parent and `range`, the rest
/// of the pass, reaches it.
#[inline]
pub(crate) fn prefetch_next<P: Platform>(table: &LockedTable<'_, '_, P>, range: UserRange) {
    let (tables, level) = (table.tables, table.level + 1);
    if range.end <= table.end() || table.pfn == tables.root {
        return;
    }
    let shift = tables.arch.level_shift(level);
    let index = (table.end() >> shift) as usize & ((1 << tables.arch.index_bits()) - 1);
    if index == 0 {
        return;
    }
    let parent = Pfn(table.desc.data() as u32);
    // SAFETY: the parent is not freed as long as it points to `table`, which stays hooked while it
    // is locked. `index` is in range by its definition.
    let next = unsafe { tables.entry_in(tables.direct_map(), parent, index) }.load(Relaxed);
    if tables.arch.kind(next, level) != Kind::Table {
        return;
    }
    let next = tables.arch.table_addr(next).pfn();
    tables.machine.frames().prefetch(next);
    // No page table is accessed here: it may be freed at any time, and a prefetch of any address is
    // a mere hint.
    let first = tables.direct_map().wrapping_byte_add(next.addr().0 as usize);
    for line in 0..LINES {
        prefetch(first.wrapping_add(line * PTES_OF_LINE));
    }
}

/// Prefetches the descriptor of a folio two runs from the start of `run`, for a pass that ends at
/// `end` and changes a count of each folio. The next run is taken to be as long as `run`.
#[inline(never)]
pub(crate) fn prefetch_folio<P: Platform>(table: &LockedTable<'_, '_, P>, run: &Run, end: u64) {
    if let Some(pfn) = folio_ahead(table, run, 2, end) {
        table.tables.machine.frames().prefetch(pfn);
    }
}

/// Prefetches descriptors for a pass that moves folios between LRU lists, is at `run`, and ends at
/// `end`: that of a folio behind `run`, and those of the neighbours, on its list, of a folio half
/// as far away. The PTEs in between are taken to be runs as long as `run`.
#[inline]
pub(crate) fn prefetch_folios<P: Platform>(table: &LockedTable<'_, '_, P>, run: &Run, end: u64) {
    let frames = table.tables.machine.frames();
    if let Some(pfn) = folio_ahead(table, run, 2 * RUNS_AHEAD, end) {
        frames.prefetch(pfn);
    }
    if let Some(pfn) = folio_ahead(table, run, RUNS_AHEAD, end) {
        prefetch_neighbours(frames, pfn);
    }
}

/// Returns the frame that is mapped where the run begins that is `runs` runs behind the start of
/// `run`, if all of them are as long as `run`.
#[inline]
fn folio_ahead<P: Platform>(table: &LockedTable<'_, '_, P>, run: &Run, runs: u64, end: u64) -> Option<Pfn> {
    let arch = &table.tables.arch;
    let range = run.range(arch);
    let va = range.start + runs * range.len();
    let raw = (va < end).then(|| table.entry(table.index(va)).load(Relaxed))?;
    (arch.kind(raw, table.level) == Kind::Leaf).then(|| arch.leaf_pfn(raw, table.level))
}
