//! Prefetches the page table that a pass over a range comes to next.
//!
//! A pass reads PTEs in ascending order, which hardware prefetchers recognise, but these follow no
//! pointer and stop at the end of a page (Intel Optimization Reference Manual, "Data Prefetching"):
//! without a hint the first lines of each page table, and its descriptor with the lock, are misses
//! that the pass waits for.

use core::sync::atomic::Ordering::Relaxed;

use super::LockedTable;
use crate::addr::Pfn;
use crate::arch::{Arch, Kind, UserRange};
use crate::frame::prefetch;
use crate::platform::Platform;

/// The cache lines to prefetch at the start of a page table. After these the hardware has seen the
/// pass go on.
const LINES: usize = 8;
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
