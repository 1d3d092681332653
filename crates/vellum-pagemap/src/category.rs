//! Page categories and queries of `PAGEMAP_SCAN`.

use linux_raw_sys::general as abi;

bitflags::bitflags! {
    /// The categories of a page that `PAGEMAP_SCAN` reports (Linux,
    /// `Documentation/admin-guide/mm/pagemap.rst`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Categories: u64 {
        /// The page's VMA is registered with a `userfaultfd` for asynchronous write protection.
        const WRITE_WATCHABLE = abi::PAGE_IS_WPALLOWED as u64;
        /// The page is not write-protected by a `userfaultfd`: it was written to, or never
        /// registered.
        const WRITTEN = abi::PAGE_IS_WRITTEN as u64;
        /// The page is a file's or shared memory's; without this it is anonymous. Never set for a
        /// page that is not present.
        const FILE = abi::PAGE_IS_FILE as u64;
        /// The page is present in memory.
        const PRESENT = abi::PAGE_IS_PRESENT as u64;
        /// The PTE is neither none nor present: a swap entry, a migration entry, or a marker.
        const SWAPPED = abi::PAGE_IS_SWAPPED as u64;
        /// The page is the shared zero page.
        const ZERO = abi::PAGE_IS_PFNZERO as u64;
        /// The page is mapped by a huge PTE (a leaf above the last level).
        const HUGE = abi::PAGE_IS_HUGE as u64;
        /// The page was written to since `clear_refs` last cleared the soft-dirty bits.
        const SOFT_DIRTY = abi::PAGE_IS_SOFT_DIRTY as u64;
        /// An access to the page raises SIGSEGV (`MADV_GUARD_INSTALL`; Linux 6.15 and later).
        const GUARD = abi::PAGE_IS_GUARD as u64;
    }
}

impl Categories {
    /// `PRESENT` and `SWAPPED`. A page has one of the two exactly if its PTE is not none.
    pub const NONEMPTY: Categories = Categories::PRESENT.union(Categories::SWAPPED);
}

/// A range of consecutive pages with equal categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first address.
    pub start: u64,
    /// The end of the range, exclusive.
    pub end: u64,
    /// The categories of the pages, as far as the query returns them.
    pub categories: Categories,
}

impl Region {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Returns whether the region has no pages.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}

/// A `PAGEMAP_SCAN` query: the pages that match, and the categories to return of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// A matching page has all of these categories.
    pub all: Categories,
    /// A matching page has at least one of these categories, unless the set is empty.
    pub any: Categories,
    /// The categories that are returned. Consecutive pages that differ in none of these form one
    /// region.
    pub returned: Categories,
}

impl Query {
    /// Returns the query for all pages whose PTE is not none, with these categories returned.
    pub fn nonempty(returned: Categories) -> Self {
        Query { all: Categories::empty(), any: Categories::NONEMPTY, returned }
    }

    /// Returns whether a page of these categories matches.
    pub(crate) fn matches(&self, categories: Categories) -> bool {
        categories.contains(self.all) && (self.any.is_empty() || categories.intersects(self.any))
    }
}
