//! What a page is.

use linux_raw_sys::general as abi;

bitflags::bitflags! {
    /// What a page is: the categories of `PAGEMAP_SCAN` (Linux,
    /// `Documentation/admin-guide/mm/pagemap.rst`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Categories: u64 {
        /// A `userfaultfd` watches its VMA for writes without a handler's help.
        const WRITE_WATCHABLE = abi::PAGE_IS_WPALLOWED as u64;
        /// It is not write-protected by a `userfaultfd`: written to, or never watched.
        const WRITTEN = abi::PAGE_IS_WRITTEN as u64;
        /// A file's or shared memory's; else it is anonymous. (Of a page that is not present,
        /// never.)
        const FILE = abi::PAGE_IS_FILE as u64;
        /// In memory.
        const PRESENT = abi::PAGE_IS_PRESENT as u64;
        /// Its entry is neither empty nor present: swapped out, being migrated, or a marker.
        const SWAPPED = abi::PAGE_IS_SWAPPED as u64;
        /// It is the page of zeros that everybody shares.
        const ZERO = abi::PAGE_IS_PFNZERO as u64;
        /// One entry of an upper table maps it.
        const HUGE = abi::PAGE_IS_HUGE as u64;
        /// Written to since `clear_refs` was told to watch that.
        const SOFT_DIRTY = abi::PAGE_IS_SOFT_DIRTY as u64;
        /// Whoever touches it gets a signal (`MADV_GUARD_INSTALL`; from Linux 6.15).
        const GUARD = abi::PAGE_IS_GUARD as u64;
    }
}

impl Categories {
    /// Has an entry that is not empty.
    pub const THERE: Categories = Categories::PRESENT.union(Categories::SWAPPED);
}

/// Pages in a row of the same categories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// The first byte.
    pub start: u64,
    /// The first byte that is no more of it.
    pub end: u64,
    /// Those that were asked for.
    pub categories: Categories,
}

impl Region {
    /// How many bytes.
    pub fn len(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it is none.
    pub fn is_empty(&self) -> bool {
        self.end == self.start
    }
}

/// Which pages to tell of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Query {
    /// Pages that are of all these.
    pub all: Categories,
    /// And of one of these, if there are any.
    pub any: Categories,
    /// What to tell of them. Pages in a row that differ in none of these are one region.
    pub told: Categories,
}

impl Query {
    /// All that have an entry that is not empty, and which of these things they are.
    pub fn there(told: Categories) -> Self {
        Query { all: Categories::empty(), any: Categories::THERE, told }
    }

    /// Whether a page of these categories is asked for.
    pub(crate) fn matches(&self, categories: Categories) -> bool {
        categories.contains(self.all) && (self.any.is_empty() || categories.intersects(self.any))
    }
}
