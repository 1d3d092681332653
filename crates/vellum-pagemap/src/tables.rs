//! Page tables counted: which are needed, and which hold nothing.
//!
//! A process's tables are in no list that it may read, but what is in them is. A table is in use if
//! anything in its range has an entry that is not empty; so the tables in use, of each level, are
//! the different ranges that pages are in, over the whole process (VMAs may share a table). One
//! more is put by for each huge page of anonymous memory, for the day when that is taken apart. All
//! the rest of what Linux counts (`VmPTE`) is empty. Those of the lowest level are found one by one
//! ([`crate::Pagemap::tables`]).

use crate::Region;

/// How addresses are translated: what a table of each level spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    page: u64,
    levels: usize,
}

/// Levels that Linux counts in `VmPTE`: `PTE`, `PMD` and `PUD` tables.
pub const LEVELS: usize = 3;

impl Geometry {
    /// That of this machine, for a process whose highest address is this.
    pub fn of(page: u64, highest: u64) -> Self {
        let bits = u64::BITS - highest.leading_zeros();
        // Each level has as many bits as entries fit into a page. The highest table is not counted,
        // nor is there one if a smaller address space was chosen when the kernel was built.
        let per_level = page.ilog2() - 3;
        let levels = bits.max(39).saturating_sub(page.ilog2()).div_ceil(per_level) as usize;
        Geometry { page, levels: levels.saturating_sub(1).clamp(1, LEVELS) }
    }

    /// The size of a page.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Entries in a table.
    pub fn entries(&self) -> u64 {
        self.page / 8
    }

    /// Bytes of addresses that a table of a level spans; level 0 is the lowest.
    pub fn span(&self, level: usize) -> u64 {
        self.page * self.entries().pow(level as u32 + 1)
    }

    /// The level of the tables whose entries map pages of a size, or parts of them: Arm maps some
    /// sizes of hugetlbfs by several entries in a row.
    pub(crate) fn level(&self, page: u64) -> usize {
        (0..LEVELS - 1).find(|level| page < self.span(*level)).unwrap_or(LEVELS - 1)
    }

    /// How many levels are counted.
    pub fn levels(&self) -> usize {
        self.levels
    }
}

/// How full tables of the lowest level are: how many of them hold up to an eighth of what they can,
/// and so on.
pub type Occupancy = [u64; 8];

/// A process's tables, each level's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// In use, by level: something below is not empty.
    pub used: [u64; LEVELS],
    /// Put by for huge pages.
    pub deposited: u64,
    /// Of the lowest level, and empty. None: this kernel does not tell.
    pub empty: Option<u64>,
    /// Of upper levels: they lead to tables of the lowest, empty or not, or to huge pages.
    pub leading: [u64; LEVELS],
    /// How full those in use are.
    pub occupancy: Occupancy,
    /// Entries of the lowest level that are not empty.
    pub entries: u64,
}

impl Tables {
    /// Those in use, and those put by.
    pub fn needed(&self) -> u64 {
        self.used.iter().sum::<u64>() + self.deposited
    }

    /// Add those of other addresses.
    pub(crate) fn add(&mut self, other: &Tables) {
        for level in 0..LEVELS {
            self.used[level] += other.used[level];
            self.leading[level] += other.leading[level];
        }
        self.occupancy.iter_mut().zip(other.occupancy).for_each(|(count, more)| *count += more);
        self.deposited += other.deposited;
        self.entries += other.entries;
        if let Some(more) = other.empty {
            *self.empty.get_or_insert(0) += more;
        }
    }

    /// Of upper levels: they lead to tables, but all of those are empty. None: this kernel does not
    /// tell.
    pub fn leading_nowhere(&self) -> Option<u64> {
        let nowhere = |level: usize| self.leading[level] - self.used[level];
        self.empty.map(|_| (1..LEVELS).map(nowhere).sum())
    }
}

/// What maps a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// Entries of tables of this level.
    pub(crate) level: usize,
    /// For each of which one of the lowest level is put by.
    pub(crate) deposits: bool,
}

/// A table of the lowest level, and what is in it; or what is in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The first address of its range.
    pub(crate) start: u64,
    /// That of the table which maps these addresses; 0, or there is a huge page.
    pub(crate) level: usize,
    /// How many pages of the smallest size are mapped.
    pub(crate) entries: u64,
}

impl Leaf {
    /// Entries that are not empty. None: a huge page.
    pub(crate) fn table(&self) -> Option<u64> {
        (self.level == 0).then_some(self.entries)
    }
}

/// Counts tables of pages that are told in ascending order.
#[derive(Debug)]
pub(crate) struct Counter {
    geometry: Geometry,
    pub(crate) tables: Tables,
    /// The last one in use of each level, by its number.
    last: [Option<u64>; LEVELS],
    last_leading: [Option<u64>; LEVELS],
    /// Tables of the lowest level since [`Counter::take`], and huge pages.
    leaves: Vec<Leaf>,
}

impl Counter {
    pub(crate) fn new(geometry: Geometry) -> Self {
        Counter {
            geometry,
            tables: Tables::default(),
            last: [None; LEVELS],
            last_leading: [None; LEVELS],
            leaves: Vec::new(),
        }
    }

    /// Pages that have entries.
    pub(crate) fn add(&mut self, region: &Region, mapped: Mapped) {
        let span = self.geometry.span(0);
        let (first, last) = (region.start / span, (region.end - 1) / span);
        for table in first..=last {
            let start = table * span;
            let bytes = region.end.min(start + span) - region.start.max(start);
            let entries = bytes / self.geometry.page();
            match self.leaves.last_mut() {
                Some(leaf) if leaf.start == start => leaf.entries += entries,
                _ => {
                    self.leaves.push(Leaf { start, level: mapped.level, entries });
                    self.tables.deposited += u64::from(mapped.deposits);
                }
            }
        }
        for level in mapped.level.max(1)..self.geometry.levels() {
            let span = self.geometry.span(level);
            let (first, last) = (region.start / span, (region.end - 1) / span);
            self.tables.used[level] += last - first + u64::from(self.last[level] != Some(first));
            self.last[level] = Some(last);
        }
    }

    /// All pages of a range were told; and so were all its tables of the lowest level, if they can
    /// be: the first address of each. They are given back in ascending order, empty ones too.
    pub(crate) fn take(&mut self, existing: Option<&[u64]>) -> Vec<Leaf> {
        let mut leaves = std::mem::take(&mut self.leaves);
        if let Some(existing) = existing {
            let used = leaves.len();
            for start in existing {
                if leaves[..used].binary_search_by_key(start, |leaf| leaf.start).is_err() {
                    leaves.push(Leaf { start: *start, level: 0, entries: 0 });
                }
            }
            *self.tables.empty.get_or_insert(0) += (leaves.len() - used) as u64;
            leaves.sort_by_key(|leaf| leaf.start);
        }
        for level in 1..self.geometry.levels() {
            for leaf in leaves.iter().filter(|leaf| leaf.level <= level) {
                let upper = Some(leaf.start / self.geometry.span(level));
                self.tables.leading[level] += u64::from(self.last_leading[level] != upper);
                self.last_leading[level] = upper;
            }
        }
        for entries in leaves.iter().filter_map(Leaf::table).filter(|entries| *entries != 0) {
            self.tables.used[0] += 1;
            self.tables.entries += entries;
            self.tables.occupancy[((entries - 1) * 8 / self.geometry.entries()).min(7) as usize] += 1;
        }
        leaves
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Categories;

    const X86: u64 = 0x7fff_ffff_f000;

    fn counted(regions: &[(u64, u64, Categories)], existing: &[u64]) -> (Tables, Vec<Leaf>) {
        let mut counter = Counter::new(Geometry::of(4096, X86));
        for (start, end, categories) in regions {
            let huge = categories.contains(Categories::HUGE);
            let region = Region { start: *start, end: *end, categories: *categories };
            counter.add(&region, Mapped { level: usize::from(huge), deposits: huge });
        }
        let leaves = counter.take(Some(existing));
        (counter.tables, leaves)
    }

    #[test]
    fn levels_follow_from_the_size_of_a_page_and_of_the_address_space() {
        let levels = |page, highest| Geometry::of(page, highest).levels();
        assert_eq!(levels(4096, X86), 3);
        // Arm: 39 bits, and pages of 16 and 64 KiB.
        assert_eq!(levels(4096, 0x7f_ffff_f000), 2);
        assert_eq!(levels(16384, 0x7fff_ffff_c000), 2);
        assert_eq!(levels(65536, 0x3ff_ffff_0000), 1);
        assert_eq!(levels(65536, 0xffff_ffff_0000), 2);
        assert_eq!([0, 1, 2].map(|level| Geometry::of(4096, X86).span(level)), [2 << 20, 1 << 30, 512 << 30]);
    }

    #[test]
    fn a_table_that_pages_apart_share_is_one() {
        let present = Categories::PRESENT;
        let (tables, leaves) =
            counted(&[(0x1000, 0x3000, present), (0x5000, 0x6000, present | Categories::FILE)], &[0]);
        assert_eq!((tables.used, tables.empty, tables.entries), ([1, 1, 1], Some(0), 3));
        assert_eq!(leaves, [Leaf { start: 0, level: 0, entries: 3 }]);
    }

    #[test]
    fn what_exists_and_holds_nothing_is_empty() {
        const GIB: u64 = 1 << 30;
        let existing = [0, 2 << 20, GIB, GIB + (4 << 20)];
        let (tables, leaves) = counted(&[(0x1000, 0x2000, Categories::PRESENT)], &existing);
        assert_eq!((tables.used, tables.empty, tables.leading_nowhere()), ([1, 1, 1], Some(3), Some(1)));
        assert_eq!(leaves.iter().map(|leaf| leaf.entries).collect::<Vec<_>>(), [1, 0, 0, 0]);
    }

    #[test]
    fn a_huge_page_has_no_table_but_one_put_by() {
        let huge = Categories::PRESENT | Categories::HUGE;
        let (tables, _) = counted(&[(0, 6 << 20, huge)], &[0, 2 << 20, 4 << 20]);
        assert_eq!((tables.used, tables.deposited, tables.empty), ([0, 1, 1], 3, Some(0)));
    }

    /// Each is one entry of the third level, and Linux tells a page where each table could be.
    #[test]
    fn pages_of_a_gib_have_no_tables_of_lower_levels() {
        const GIB: u64 = 1 << 30;
        let geometry = Geometry::of(4096, X86);
        let mut counter = Counter::new(geometry);
        let categories = Categories::PRESENT | Categories::HUGE | Categories::FILE;
        let region = Region { start: 4 * GIB, end: 6 * GIB, categories };
        counter.add(&region, Mapped { level: geometry.level(GIB), deposits: false });
        let places: Vec<u64> = (4 * GIB..6 * GIB).step_by(2 << 20).collect();
        let leaves = counter.take(Some(&places));
        assert!(leaves.len() == 1024 && leaves.iter().all(|leaf| leaf.table().is_none()));
        let tables = counter.tables;
        assert_eq!((tables.used, tables.deposited, tables.empty), ([0, 0, 1], 0, Some(0)));
        assert_eq!((tables.entries, tables.leading_nowhere()), (0, Some(0)));
    }

    /// Arm's hugetlbfs has pages of several entries: 64 KiB in a table of the lowest level, 32 MiB
    /// in one of the second.
    #[test]
    fn pages_of_several_entries_are_in_a_table_all_the_same() {
        let levels = |page, sizes: [u64; 4]| sizes.map(|size| Geometry::of(page, X86).level(size));
        assert_eq!(levels(4096, [64 << 10, 2 << 20, 32 << 20, 1 << 30]), [0, 1, 1, 2]);
        assert_eq!(levels(65536, [2 << 20, 512 << 20, 16 << 30, 4 << 40]), [0, 1, 1, 2]);
    }

    #[test]
    fn occupancy_is_by_the_eighth() {
        let present = Categories::PRESENT;
        let pages = |table: u64, pages: u64| (table << 21, (table << 21) + pages * 4096, present);
        let (tables, _) = counted(&[pages(0, 1), pages(1, 64), pages(2, 65), pages(3, 512)], &[]);
        assert_eq!(tables.occupancy, [2, 1, 0, 0, 0, 0, 0, 1]);
    }
}
