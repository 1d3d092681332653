//! Walks page tables from the root to the last level.

use std::io;

use super::direct::DirectMap;
use super::program::{KernelMemory, PAGE};
use crate::tables::LEVELS;

/// Bits of a PTE (Intel SDM, volume 3, 4.5; Linux, `arch/x86/include/asm/pgtable_types.h`).
const PRESENT: u64 = 1;
/// In a PTE of an upper level: the PTE maps a huge page, and does not lead to a page table.
const HUGE: u64 = 1 << 7;
/// The accessed and dirty bits, which some processors set in none PTEs as well.
const ACCESSED_DIRTY: u64 = 1 << 5 | 1 << 6;

/// A page table, as the walk found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The first address that it spans.
    pub start: u64,
    /// PTEs that are not none.
    pub entries: u16,
    /// True if nothing is mapped in this page table or in any below it. Linux could free it.
    pub bare: bool,
}

impl Table {
    /// Returns whether the page table has no PTEs. An upper page table that leads only to empty
    /// ones is not empty, but bare.
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

/// The page tables of an address space, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkedTables {
    /// The page tables of each level, the last level first, in ascending order; without the root.
    pub levels: Vec<Vec<Table>>,
    /// The number of page tables in Linux's count (`VmPTE`) after the walk.
    pub counted: u64,
    /// True if Linux allocated or freed page tables during the walk. `levels` may then lack some,
    /// or have some that were freed.
    pub changed: bool,
}

impl WalkedTables {
    /// Returns the number of page tables that Linux deposited for the split of huge PTEs. Linux
    /// counts these, but no PTE leads to them, so the number is Linux's count less the tables
    /// found. Imprecise, even negative, if page tables came or went during the walk.
    pub fn deposited(&self) -> i64 {
        // With five levels, Linux does not count the page tables of the fourth (P4D).
        self.counted as i64 - self.levels.iter().take(LEVELS).map(|level| level.len() as i64).sum::<i64>()
    }
}

/// The state of a walk.
pub(super) struct Walk<'a, M> {
    memory: &'a mut M,
    direct: DirectMap,
    pub(super) levels: Vec<Vec<Table>>,
    /// True if a PTE that led to a page table changed during the walk.
    pub(super) changed: bool,
}

impl<'a, M: KernelMemory> Walk<'a, M> {
    /// Walks all page tables below the root, which is at the address `root`. `levels` includes the
    /// root.
    ///
    /// # Errors
    /// A PTE leads to an address without memory.
    pub(super) fn all(memory: &'a mut M, direct: DirectMap, levels: usize, root: u64) -> io::Result<Self> {
        let entries = memory.page(root)?;
        let mut walk = Walk { memory, direct, levels: vec![Vec::new(); levels - 1], changed: false };
        // Leave out the upper half of the root, which translates the kernel's addresses.
        walk.below(levels - 1, 0, root, &entries[..256])?;
        Ok(walk)
    }

    /// Walks all page tables below a page table of `level`. `start` is the first address that the
    /// page table spans, `entries` are its PTEs, and `at` is the kernel address from which they
    /// were read. Returns whether nothing is mapped in it and below it.
    fn below(&mut self, level: usize, start: u64, at: u64, entries: &[u64]) -> io::Result<bool> {
        let (leading, mapping): (Vec<_>, Vec<_>) =
            (0..).zip(entries).filter(|(_, entry)| is_filled(entry)).partition(|(_, entry)| leads(level, **entry));
        let mut bare = mapping.is_empty();
        if leading.is_empty() {
            return Ok(bare);
        }
        let places: Vec<u64> = leading.iter().map(|(_, entry)| self.direct.address(**entry)).collect();
        let tables = self.memory.pages(&places)?;
        let now = self.memory.page(at)?;
        for (((n, entry), place), table) in leading.into_iter().zip(places).zip(tables) {
            // Linux clears the PTE first and frees the page table later. So if the PTE is unchanged
            // now, it led to a page table when that was read.
            if (now[n] ^ entry) & !ACCESSED_DIRTY != 0 {
                self.changed = true;
                continue;
            }
            let (table, start) = (table?, start + n as u64 * span(level));
            let entries = table.iter().filter(|entry| is_filled(entry)).count() as u16;
            let here = self.levels[level - 1].len();
            self.levels[level - 1].push(Table { start, entries, bare: false });
            let nothing = self.below(level - 1, start, place, &table)?;
            self.levels[level - 1][here].bare = nothing;
            bare &= nothing;
        }
        Ok(bare)
    }
}

fn is_filled(entry: &u64) -> bool {
    entry & !ACCESSED_DIRTY != 0
}

/// Returns whether a PTE of a page table of `level` leads to another page table.
pub(super) fn leads(level: usize, entry: u64) -> bool {
    level > 0 && entry & (PRESENT | HUGE) == PRESENT
}

/// Returns the bytes of addresses that a PTE of `level` translates.
pub(super) fn span(level: usize) -> u64 {
    PAGE << (9 * level)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::bpf::program::Page;

    /// Page tables at some physical addresses of a direct map. `before` may change them before each
    /// read.
    struct Fake<F> {
        direct: DirectMap,
        pages: HashMap<u64, Page>,
        before: F,
    }

    impl<F: FnMut(&mut HashMap<u64, Page>, &[u64])> KernelMemory for Fake<F> {
        fn pages(&mut self, at: &[u64]) -> io::Result<Vec<io::Result<Page>>> {
            let places: Vec<u64> = at.iter().map(|at| at.wrapping_sub(self.direct.base)).collect();
            (self.before)(&mut self.pages, &places);
            let page = |place| self.pages.get(place).copied().ok_or(io::Error::from_raw_os_error(libc::EFAULT));
            Ok(places.iter().map(page).collect())
        }
    }

    const ROOT: u64 = 7 << 30;
    /// The low bits of a PTE that leads to a page table (Linux: `_PAGE_TABLE`), and of one that
    /// maps a page.
    const LEADS: u64 = 0x67;
    const MAPS: u64 = 0x8000_0000_0000_0067;
    const FOUR: DirectMap = DirectMap { base: 0xffff_9a43_c000_0000, end: 1 << 36 };

    fn table(entries: &[(usize, u64)]) -> Page {
        let mut page = [0; 512];
        entries.iter().for_each(|(n, entry)| page[*n] = *entry);
        page
    }

    fn walk(
        direct: DirectMap,
        levels: usize,
        pages: &[(u64, Page)],
        before: impl FnMut(&mut HashMap<u64, Page>, &[u64]),
    ) -> (Vec<Vec<Table>>, bool) {
        let mut memory = Fake { direct, pages: pages.iter().copied().collect(), before };
        let root = direct.base.wrapping_add(ROOT);
        let Walk { levels, changed, .. } = Walk::all(&mut memory, direct, levels, root).unwrap();
        (levels, changed)
    }

    /// A root, and a page table of each level below it, at 1, 2, 3... MiB. The last one has these
    /// PTEs.
    fn chain(levels: usize, last: &[(usize, u64)]) -> Vec<(u64, Page)> {
        let mut pages: Vec<_> =
            (1..levels as u64).map(|n| (n << 20, table(&[(n as usize, (n + 1) << 20 | LEADS)]))).collect();
        pages.last_mut().unwrap().1 = table(last);
        pages.push((ROOT, table(&[(0, 1 << 20 | LEADS)])));
        pages
    }

    fn nothing(_: &mut HashMap<u64, Page>, _: &[u64]) {}

    #[test]
    fn five_levels_are_walked_like_four() {
        let five = DirectMap { base: 0xff11_0000_4000_0000, end: 1 << 40 };
        let mut pages = chain(5, &[(511, MAPS)]);
        pages.push((ROOT, table(&[(200, 1 << 20 | LEADS)])));
        let (levels, changed) = walk(five, 5, &pages, nothing);
        let starts: Vec<_> = levels.iter().map(|level| level[0].start - (200 << 48)).collect();
        assert_eq!(starts, [1 << 39 | 2 << 30 | 3 << 21, 1 << 39 | 2 << 30, 1 << 39, 0]);
        assert!(!changed && levels.iter().flatten().all(|table| table.entries == 1 && !table.bare));
    }

    #[test]
    fn the_kernels_half_is_not_walked() {
        let mut pages = chain(4, &[]);
        pages.push((ROOT, table(&[(255, 1 << 20 | LEADS), (256, 5 << 30 | LEADS)])));
        assert_eq!(walk(FOUR, 4, &pages, nothing).0[2][0].start, 255 << 39);
    }

    /// The PTE of encrypted memory (AMD, bit 51 or 47) has a bit above all physical addresses.
    #[test]
    fn encryption_bits_are_not_part_of_an_address() {
        let mut pages = chain(4, &[(9, MAPS)]);
        pages.push((ROOT, table(&[(0, 1 << 20 | 1 << 51 | 1 << 47 | LEADS)])));
        assert_eq!(walk(FOUR, 4, &pages, nothing).0[0].len(), 1);
    }

    /// A migration or swap entry leads nowhere, whatever its bits; neither does a huge PTE.
    #[test]
    fn only_present_ptes_lead_to_page_tables() {
        for entry in [0x1234_5000 << 9 | 0x7e, 5 << 30 | LEADS | HUGE, 5 << 30 | HUGE | 1 << 8] {
            let mut pages = chain(4, &[]);
            pages[1].1 = table(&[(5, entry)]);
            let (levels, _) = walk(FOUR, 4, &pages, nothing);
            assert!(levels[0].is_empty());
            assert_eq!(levels[1], [Table { start: 1 << 30, entries: 1, bare: false }], "{entry:x}");
        }
    }

    /// Some processors set accessed and dirty bits in none PTEs.
    #[test]
    fn accessed_and_dirty_bits_alone_are_no_pte() {
        let (levels, _) = walk(FOUR, 4, &chain(4, &[(3, ACCESSED_DIRTY)]), nothing);
        assert!(levels[0][0].is_empty() && levels.iter().flatten().all(|table| table.bare));
    }

    /// The second page table is unhooked before it is read, and reused by then: it is not reported,
    /// nor is what it seems to lead to.
    #[test]
    fn a_table_unhooked_during_the_walk_is_not_reported() {
        let (levels, changed) = walk(FOUR, 4, &chain(4, &[(1, MAPS)]), |pages, places| {
            if places == [2 << 20] {
                pages.insert(1 << 20, [0; 512]);
                pages.insert(2 << 20, [LEADS; 512]);
            }
        });
        assert!(changed && levels[1].is_empty() && levels[0].is_empty(), "{levels:?}");
        assert_eq!(levels[2].len(), 1, "it was read before");
    }

    /// A processor sets the accessed bit: that is no change.
    #[test]
    fn an_accessed_bit_is_no_change() {
        let (levels, changed) = walk(FOUR, 4, &chain(4, &[(1, MAPS)]), |pages, places| {
            if places == [2 << 20] {
                pages.insert(1 << 20, table(&[(1, (2 << 20 | LEADS) & !(1 << 5))]));
            }
        });
        assert!(!changed && levels[0].len() == 1);
    }

    #[test]
    fn a_pte_to_missing_memory_is_an_error() {
        let mut pages = chain(4, &[]);
        pages[1].1 = table(&[(5, 9 << 30 | LEADS)]);
        let mut memory = Fake { direct: FOUR, pages: pages.into_iter().collect(), before: nothing };
        assert!(Walk::all(&mut memory, FOUR, 4, FOUR.base.wrapping_add(ROOT)).is_err());
    }
}
