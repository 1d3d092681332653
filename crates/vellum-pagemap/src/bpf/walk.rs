//! Tables, from the highest to the lowest.

use std::io;

use super::direct::Direct;
use super::program::{Memory, PAGE};
use crate::tables::LEVELS;

/// Bits of an entry (Intel SDM, volume 3, 4.5; Linux, `arch/x86/include/asm/pgtable_types.h`).
const PRESENT: u64 = 1;
/// At an upper level: it maps memory.
const HUGE: u64 = 1 << 7;
/// What hardware records, on some processors of entries that are empty as well.
const RECORDED: u64 = 1 << 5 | 1 << 6;

/// A page table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// The first address of its range.
    pub start: u64,
    /// Entries that are not empty.
    pub entries: u16,
    /// Nothing is in it, nor in any table below it: it is needed for nothing.
    pub bare: bool,
}

impl Table {
    /// Whether it has no entries. (A table of an upper level that leads only to such is not empty,
    /// but bare.)
    pub fn is_empty(&self) -> bool {
        self.entries == 0
    }
}

/// The tables of an address space, as they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Walked {
    /// Of each level, the lowest first, and in ascending order; but for the highest table, which is
    /// always there.
    pub levels: Vec<Vec<Table>>,
    /// How many there are as Linux counts them (`VmPTE`), when all had been read.
    pub counted: u64,
    /// Linux has made or freed tables meanwhile: some may be missing, or gone.
    pub changed: bool,
}

impl Walked {
    /// Tables that are put by, for huge pages: Linux counts them, and no entry leads to them. Not
    /// quite right, or even negative, if some were made or freed meanwhile.
    pub fn deposited(&self) -> i64 {
        // Of five levels, the fourth is not counted.
        self.counted as i64 - self.levels.iter().take(LEVELS).map(|level| level.len() as i64).sum::<i64>()
    }
}

/// Goes through them.
pub(super) struct Walk<'a, M> {
    memory: &'a mut M,
    direct: Direct,
    pub(super) levels: Vec<Vec<Table>>,
    /// Entries of upper tables have changed.
    pub(super) changed: bool,
}

impl<'a, M: Memory> Walk<'a, M> {
    /// All tables but the highest, which is at an address, of so many levels with it.
    ///
    /// # Errors
    /// An entry leads where nothing is.
    pub(super) fn all(memory: &'a mut M, direct: Direct, levels: usize, root: u64) -> io::Result<Self> {
        let entries = memory.page(root)?;
        let mut walk = Walk { memory, direct, levels: vec![Vec::new(); levels - 1], changed: false };
        // The upper half is the kernel's.
        walk.below(levels - 1, 0, root, &entries[..256])?;
        Ok(walk)
    }

    /// All tables below one of some level, which begins at an address, was read at another, and has
    /// these entries. Whether nothing is in any of them, nor in it.
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
            // Linux takes an entry out, and frees the table later; so if it is still there, it was
            // a table when it was read.
            if (now[n] ^ entry) & !RECORDED != 0 {
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
    entry & !RECORDED != 0
}

/// Whether an entry of a table of some level leads to another one.
pub(super) fn leads(level: usize, entry: u64) -> bool {
    level > 0 && entry & (PRESENT | HUGE) == PRESENT
}

/// Bytes of addresses that an entry of a table of some level is for.
pub(super) fn span(level: usize) -> u64 {
    PAGE << (9 * level)
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::bpf::program::Page;

    /// Tables at some places of memory, which is mapped somewhere; and what happens to it each time
    /// before something is read.
    struct Fake<F> {
        direct: Direct,
        pages: HashMap<u64, Page>,
        before: F,
    }

    impl<F: FnMut(&mut HashMap<u64, Page>, &[u64])> Memory for Fake<F> {
        fn pages(&mut self, at: &[u64]) -> io::Result<Vec<io::Result<Page>>> {
            let places: Vec<u64> = at.iter().map(|at| at.wrapping_sub(self.direct.base)).collect();
            (self.before)(&mut self.pages, &places);
            let page = |place| self.pages.get(place).copied().ok_or(io::Error::from_raw_os_error(libc::EFAULT));
            Ok(places.iter().map(page).collect())
        }
    }

    const ROOT: u64 = 7 << 30;
    /// What an entry that leads to another table says besides (Linux: `_PAGE_TABLE`), and one of a
    /// page.
    const LEADS: u64 = 0x67;
    const MAPS: u64 = 0x8000_0000_0000_0067;
    const FOUR: Direct = Direct { base: 0xffff_9a43_c000_0000, end: 1 << 36 };

    fn table(entries: &[(usize, u64)]) -> Page {
        let mut page = [0; 512];
        entries.iter().for_each(|(n, entry)| page[*n] = *entry);
        page
    }

    fn walk(
        direct: Direct,
        levels: usize,
        pages: &[(u64, Page)],
        before: impl FnMut(&mut HashMap<u64, Page>, &[u64]),
    ) -> (Vec<Vec<Table>>, bool) {
        let mut memory = Fake { direct, pages: pages.iter().copied().collect(), before };
        let root = direct.base.wrapping_add(ROOT);
        let Walk { levels, changed, .. } = Walk::all(&mut memory, direct, levels, root).unwrap();
        (levels, changed)
    }

    /// A root, and a table of each level below it, at 1, 2, 3... MiB, of which the last has these
    /// entries.
    fn chain(levels: usize, last: &[(usize, u64)]) -> Vec<(u64, Page)> {
        let mut pages: Vec<_> =
            (1..levels as u64).map(|n| (n << 20, table(&[(n as usize, (n + 1) << 20 | LEADS)]))).collect();
        pages.last_mut().unwrap().1 = table(last);
        pages.push((ROOT, table(&[(0, 1 << 20 | LEADS)])));
        pages
    }

    fn nothing(_: &mut HashMap<u64, Page>, _: &[u64]) {}

    #[test]
    fn five_levels_are_like_four() {
        let five = Direct { base: 0xff11_0000_4000_0000, end: 1 << 40 };
        let mut pages = chain(5, &[(511, MAPS)]);
        pages.push((ROOT, table(&[(200, 1 << 20 | LEADS)])));
        let (levels, changed) = walk(five, 5, &pages, nothing);
        let starts: Vec<_> = levels.iter().map(|level| level[0].start - (200 << 48)).collect();
        assert_eq!(starts, [1 << 39 | 2 << 30 | 3 << 21, 1 << 39 | 2 << 30, 1 << 39, 0]);
        assert!(!changed && levels.iter().flatten().all(|table| table.entries == 1 && !table.bare));
    }

    #[test]
    fn the_kernels_half_is_left_alone() {
        let mut pages = chain(4, &[]);
        pages.push((ROOT, table(&[(255, 1 << 20 | LEADS), (256, 5 << 30 | LEADS)])));
        assert_eq!(walk(FOUR, 4, &pages, nothing).0[2][0].start, 255 << 39);
    }

    /// The place of what is encrypted (AMD, bit 51 or 47) has a bit more than memory has.
    #[test]
    fn bits_that_no_memory_has_are_no_part_of_a_place() {
        let mut pages = chain(4, &[(9, MAPS)]);
        pages.push((ROOT, table(&[(0, 1 << 20 | 1 << 51 | 1 << 47 | LEADS)])));
        assert_eq!(walk(FOUR, 4, &pages, nothing).0[0].len(), 1);
    }

    /// What moves, or is swapped out, leads nowhere, whatever its entry looks like; neither does
    /// what is mapped huge.
    #[test]
    fn only_what_is_present_leads_to_tables() {
        for entry in [0x1234_5000 << 9 | 0x7e, 5 << 30 | LEADS | HUGE, 5 << 30 | HUGE | 1 << 8] {
            let mut pages = chain(4, &[]);
            pages[1].1 = table(&[(5, entry)]);
            let (levels, _) = walk(FOUR, 4, &pages, nothing);
            assert!(levels[0].is_empty());
            assert_eq!(levels[1], [Table { start: 1 << 30, entries: 1, bare: false }], "{entry:x}");
        }
    }

    /// Some processors write to empty entries that an access has been tried to.
    #[test]
    fn what_hardware_records_makes_no_entry() {
        let (levels, _) = walk(FOUR, 4, &chain(4, &[(3, RECORDED)]), nothing);
        assert!(levels[0][0].is_empty() && levels.iter().flatten().all(|table| table.bare));
    }

    /// The second table is unhooked before it is read, and is something else by then: nothing of it
    /// is told, nor what it seems to lead to.
    #[test]
    fn what_is_no_table_any_more_is_not_told() {
        let (levels, changed) = walk(FOUR, 4, &chain(4, &[(1, MAPS)]), |pages, places| {
            if places == [2 << 20] {
                pages.insert(1 << 20, [0; 512]);
                pages.insert(2 << 20, [LEADS; 512]);
            }
        });
        assert!(changed && levels[1].is_empty() && levels[0].is_empty(), "{levels:?}");
        assert_eq!(levels[2].len(), 1, "it was read before");
    }

    /// Hardware records that it has used an entry: that is no change.
    #[test]
    fn an_entry_that_was_used_is_the_same() {
        let (levels, changed) = walk(FOUR, 4, &chain(4, &[(1, MAPS)]), |pages, places| {
            if places == [2 << 20] {
                pages.insert(1 << 20, table(&[(1, (2 << 20 | LEADS) & !(1 << 5))]));
            }
        });
        assert!(!changed && levels[0].len() == 1);
    }

    #[test]
    fn what_leads_nowhere_is_an_error() {
        let mut pages = chain(4, &[]);
        pages[1].1 = table(&[(5, 9 << 30 | LEADS)]);
        let mut memory = Fake { direct: FOUR, pages: pages.into_iter().collect(), before: nothing };
        assert!(Walk::all(&mut memory, FOUR, 4, FOUR.base.wrapping_add(ROOT)).is_err());
    }
}
