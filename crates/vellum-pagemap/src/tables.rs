//! Counts page tables: those in use, and those that hold nothing.
//!
//! A process's page tables are listed nowhere, but the pages in them are. A page table is in use if
//! any PTE in its range is not none. So the page tables in use at each level are the distinct
//! ranges that pages lie in, over the whole process, as VMAs may share a table. Linux deposits one
//! more page table for each huge anonymous page, for its later split. The remainder of what Linux
//! counts (`VmPTE`) is empty. Empty last-level page tables are found one by one
//! ([`crate::Pagemap::tables`]).

use crate::Region;

/// The geometry of an address space: the page size, and the span of a page table at each level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    page: u64,
    levels: usize,
}

/// Levels that Linux counts in `VmPTE`: PTE, PMD and PUD tables.
pub const LEVELS: usize = 3;

impl Geometry {
    /// Returns the geometry of this machine's page tables, with pages of `page` bytes, for a
    /// process whose highest address is `highest`.
    pub fn of(page: u64, highest: u64) -> Self {
        let bits = u64::BITS - highest.leading_zeros();
        // Each level translates as many bits as PTEs fit into a page. Linux does not count the
        // root, and has fewer levels if the kernel was built for a smaller address space.
        let per_level = page.ilog2() - 3;
        let levels = bits.max(39).saturating_sub(page.ilog2()).div_ceil(per_level) as usize;
        Geometry { page, levels: levels.saturating_sub(1).clamp(1, LEVELS) }
    }

    /// Returns the page size in bytes.
    pub fn page(&self) -> u64 {
        self.page
    }

    /// Returns the number of PTEs in a page table.
    pub fn entries(&self) -> u64 {
        self.page / 8
    }

    /// Returns the bytes of addresses that a page table of `level` spans; level 0 is the last
    /// level.
    pub fn span(&self, level: usize) -> u64 {
        self.page * self.entries().pow(level as u32 + 1)
    }

    /// Returns the level whose PTEs map pages of this size, or parts of them: AArch64 maps a page
    /// of some hugetlbfs sizes by several PTEs, which form a cont block.
    pub(crate) fn level(&self, page: u64) -> usize {
        (0..LEVELS - 1).find(|level| page < self.span(*level)).unwrap_or(LEVELS - 1)
    }

    /// Returns the number of levels whose page tables Linux counts in `VmPTE`: all but the root, at
    /// most [`LEVELS`].
    pub fn levels(&self) -> usize {
        self.levels
    }
}

/// Last-level page tables by occupancy: the number of those that hold up to 1/8 of their PTEs, up
/// to 2/8, and so on.
pub type Occupancy = [u64; 8];

/// A process's page tables, by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tables {
    /// The number of page tables in use at each level, the last level first. A page table is in use
    /// if a page in its range has a PTE that is not none.
    pub used: [u64; LEVELS],
    /// Page tables deposited for huge PTEs.
    pub deposited: u64,
    /// Empty last-level page tables. `None`: this kernel does not report them.
    pub empty: Option<u64>,
    /// The number of page tables at each upper level that lead to a last-level page table, empty or
    /// not, or to a huge PTE.
    pub leading: [u64; LEVELS],
    /// Occupancy of the last-level page tables in use.
    pub occupancy: Occupancy,
    /// Last-level PTEs that are not none.
    pub entries: u64,
}

impl Tables {
    /// Returns the number of page tables in use or deposited.
    pub fn needed(&self) -> u64 {
        self.used.iter().sum::<u64>() + self.deposited
    }

    /// Adds the counts of `other`, whose page tables span other addresses.
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

    /// Returns the number of upper page tables that lead only to empty ones. `None`: this kernel
    /// does not report empty page tables.
    pub fn leading_nowhere(&self) -> Option<u64> {
        let nowhere = |level: usize| self.leading[level] - self.used[level];
        self.empty.map(|_| (1..LEVELS).map(nowhere).sum())
    }
}

/// The kind of PTE that maps a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    /// The level of the PTEs.
    pub(crate) level: usize,
    /// True if Linux deposits a last-level page table for each of these PTEs, for a later split.
    pub(crate) deposits: bool,
}

/// A last-level page table and its occupancy, or the huge PTE in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// The first address that it spans.
    pub(crate) start: u64,
    /// The level of the PTEs that map these addresses: 0, or more for a huge PTE.
    pub(crate) level: usize,
    /// The number of base pages that are mapped.
    pub(crate) entries: u64,
}

impl Leaf {
    /// Returns the number of PTEs that are not none, or `None` for a huge PTE.
    pub(crate) fn table(&self) -> Option<u64> {
        (self.level == 0).then_some(self.entries)
    }
}

/// Counts the page tables of pages that it receives in ascending order.
#[derive(Debug)]
pub(crate) struct Counter {
    geometry: Geometry,
    pub(crate) tables: Tables,
    /// The number (address divided by span) of the last page table in use at each level.
    last: [Option<u64>; LEVELS],
    last_leading: [Option<u64>; LEVELS],
    /// Last-level page tables and huge PTEs since the last [`Counter::take`].
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

    /// Adds a region of pages whose PTEs are not none.
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

    /// Completes a range, all of whose pages the caller has added. `existing` has the starts of all
    /// its last-level page tables, if the kernel reports them. Returns the page tables and huge
    /// PTEs of the range in ascending order, empty page tables included.
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
    fn levels_follow_from_page_and_address_space_sizes() {
        let levels = |page, highest| Geometry::of(page, highest).levels();
        assert_eq!(levels(4096, X86), 3);
        // AArch64: 39-bit addresses, and pages of 16 and 64 KiB.
        assert_eq!(levels(4096, 0x7f_ffff_f000), 2);
        assert_eq!(levels(16384, 0x7fff_ffff_c000), 2);
        assert_eq!(levels(65536, 0x3ff_ffff_0000), 1);
        assert_eq!(levels(65536, 0xffff_ffff_0000), 2);
        assert_eq!([0, 1, 2].map(|level| Geometry::of(4096, X86).span(level)), [2 << 20, 1 << 30, 512 << 30]);
    }

    #[test]
    fn pages_that_share_a_table_count_it_once() {
        let present = Categories::PRESENT;
        let (tables, leaves) =
            counted(&[(0x1000, 0x3000, present), (0x5000, 0x6000, present | Categories::FILE)], &[0]);
        assert_eq!((tables.used, tables.empty, tables.entries), ([1, 1, 1], Some(0), 3));
        assert_eq!(leaves, [Leaf { start: 0, level: 0, entries: 3 }]);
    }

    #[test]
    fn existing_tables_without_pages_are_empty() {
        const GIB: u64 = 1 << 30;
        let existing = [0, 2 << 20, GIB, GIB + (4 << 20)];
        let (tables, leaves) = counted(&[(0x1000, 0x2000, Categories::PRESENT)], &existing);
        assert_eq!((tables.used, tables.empty, tables.leading_nowhere()), ([1, 1, 1], Some(3), Some(1)));
        assert_eq!(leaves.iter().map(|leaf| leaf.entries).collect::<Vec<_>>(), [1, 0, 0, 0]);
    }

    #[test]
    fn a_huge_pte_has_a_deposited_table_only() {
        let huge = Categories::PRESENT | Categories::HUGE;
        let (tables, _) = counted(&[(0, 6 << 20, huge)], &[0, 2 << 20, 4 << 20]);
        assert_eq!((tables.used, tables.deposited, tables.empty), ([0, 1, 1], 3, Some(0)));
    }

    /// Each 1 GiB page is one PTE of the third level, and Linux reports a page where each
    /// last-level page table could be.
    #[test]
    fn gigantic_pages_have_no_lower_tables() {
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

    /// AArch64's hugetlbfs maps 64 KiB and 32 MiB pages by cont blocks, of the last and of the
    /// second level.
    #[test]
    fn cont_block_pages_belong_to_the_level_of_their_ptes() {
        let levels = |page, sizes: [u64; 4]| sizes.map(|size| Geometry::of(page, X86).level(size));
        assert_eq!(levels(4096, [64 << 10, 2 << 20, 32 << 20, 1 << 30]), [0, 1, 1, 2]);
        assert_eq!(levels(65536, [2 << 20, 512 << 20, 16 << 30, 4 << 40]), [0, 1, 1, 2]);
    }

    #[test]
    fn occupancy_is_counted_in_eighths() {
        let present = Categories::PRESENT;
        let pages = |table: u64, pages: u64| (table << 21, (table << 21) + pages * 4096, present);
        let (tables, _) = counted(&[pages(0, 1), pages(1, 64), pages(2, 65), pages(3, 512)], &[]);
        assert_eq!(tables.occupancy, [2, 1, 0, 0, 0, 0, 0, 1]);
    }
}
