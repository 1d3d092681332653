//! Formats the memory statistics of cgroups.

use crate::mem::machine;
use crate::mem::memcgs::{ROOT, Table, counters, table, usage};
use alloc::vec::Vec;
use core::fmt::Write;
use vellum::addr::FRAME_SIZE;
use vellum::memcg::{LruList, MemcgId};
use vellum_kernel::errno::Errno;
use vellum_kernel::proc::Text as Words;

/// Numbers of pages on LRU lists.
#[derive(Clone, Copy, Default)]
pub struct Listed {
    /// Anonymous pages on the evictable lists.
    pub anonymous: u64,
    /// Pages of shared memory and of files in memory on the evictable lists.
    pub shared: u64,
    /// Pages of files with a store on the evictable lists: those that are not active.
    pub inactive_files: u64,
    /// And those that are.
    pub active_files: u64,
    /// Pages on the unevictable lists.
    pub unevictable: u64,
}

impl Listed {
    fn add(&mut self, lists: &[u64; LruList::COUNT]) {
        self.anonymous += lists[LruList::Anon as usize] + lists[LruList::Lazyfree as usize];
        self.shared += lists[LruList::Shmem as usize];
        self.inactive_files += lists[LruList::File as usize];
        self.active_files += lists[LruList::ActiveFile as usize];
        self.unevictable += lists[LruList::Unevictable as usize];
    }

    /// Returns the pages of the page cache.
    pub fn objects(&self) -> u64 {
        self.shared + self.inactive_files + self.active_files
    }

    /// Returns these numbers under their names in `memory.stat`.
    fn rows(&self) -> [(&'static str, u64); 8] {
        [
            ("anon", self.anonymous + self.unevictable),
            ("file", self.objects()),
            ("shmem", self.shared),
            ("inactive_anon", 0),
            ("active_anon", self.anonymous + self.shared),
            ("inactive_file", self.inactive_files),
            ("active_file", self.active_files),
            ("unevictable", self.unevictable),
        ]
    }
}

/// Returns a group's pages on LRU lists, of one node or of all.
fn listed_below(table: &Table, group: u32, node: Option<usize>) -> Listed {
    let (groups, frames) = (machine().memcgs(), machine().frames());
    let mut sum = Listed::default();
    for engine in table.below(group) {
        let lists = match node {
            Some(node) => groups.listed_on(frames, engine, node),
            None => groups.usage(frames, engine).map(|usage| usage.lru),
        };
        // The group may have been removed meanwhile.
        let _ = lists.map(|lists| sum.add(&lists));
    }
    sum
}

/// Returns the pages on the LRU lists of all groups.
pub fn listed() -> Listed {
    listed_below(&table(), ROOT, None)
}

/// Returns the pages on one node's LRU lists.
pub fn listed_on(node: usize) -> Listed {
    listed_below(&table(), ROOT, Some(node))
}

/// Returns the contents of `memory.numa_stat`: the page counts of `memory.stat` for each NUMA node.
pub fn by_node(group: u32) -> Result<Vec<u8>, Errno> {
    let table = table();
    let rows_of = |node| listed_below(&table, group, Some(node)).rows();
    let nodes: Vec<_> = (0..machine().frames().nodes()).map(rows_of).collect();
    drop(table);
    Words::of(|text| {
        Listed::default().rows().iter().enumerate().try_for_each(|(row, (name, _))| {
            text.write_str(name)?;
            (0..).zip(&nodes).try_for_each(|(node, rows)| write!(text, " N{node}={}", rows[row].1 * FRAME_SIZE))?;
            text.write_str("\n")
        })
    })
}

/// Returns the contents of `memory.stat`. A group is charged for anonymous memory, for the page
/// cache, and for kernel memory: page tables, VMA nodes, nodes of page-cache indices, per-CPU
/// counts of address spaces, and (`percpu`) the lruvecs of its child groups.
pub fn of(group: u32, engine: MemcgId) -> Result<Vec<u8>, Errno> {
    let (listed, cached) = {
        let table = table();
        let mut groups = Vec::new();
        groups.try_reserve_exact(table.most()).map_err(|_| Errno::ENOMEM)?;
        groups.extend(table.below(group));
        (listed_below(&table, group, None), machine().swap_cached(|of| groups.contains(&of)))
    };
    let usage = usage(engine)?;
    let charged = usage.charged;
    let others = charged.saturating_sub(listed.anonymous + listed.unevictable + listed.objects());
    let counters = counters(engine)?;
    let rows = listed.rows().into_iter().chain([
        ("kernel", others),
        ("percpu", usage.lruvecs),
        ("file_dirty", counters.dirty),
        ("file_writeback", counters.writing),
        ("swapcached", cached),
    ]);
    Words::of(|text| rows.into_iter().try_for_each(|(name, pages)| writeln!(text, "{name} {}", pages * FRAME_SIZE)))
}
