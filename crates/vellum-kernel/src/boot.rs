//! What the loader says about the machine: physical memory, the command line, the first files.

use crate::nodes::Nodes;
use core::fmt;

/// Bytes of a page.
const PAGE_SIZE: u64 = 4096;
/// The most regions that a memory map has.
pub const CAPACITY: usize = 64;

/// What a region of physical memory is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Free memory: whole pages, inside the direct map, that nobody uses.
    Usable,
    /// Not memory, or somebody else's.
    Reserved,
    /// ACPI tables: memory that may be used once they have been read.
    AcpiTables,
    /// Memory that the firmware keeps.
    AcpiStorage,
    /// The first MiB.
    Low,
    /// The kernel's image, its stacks and page tables included.
    Kernel,
    /// What the loader put there: its structures, the command line and the archive.
    Boot,
    /// Memory beyond the end of the direct map.
    Unreachable,
}

/// A stretch of physical memory.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The physical address of its first byte.
    pub base: u64,
    /// Its length in bytes.
    pub size: u64,
    /// What it is good for.
    pub kind: Kind,
}

impl Region {
    /// The physical address of the first byte after it.
    pub fn end(&self) -> u64 {
        self.base + self.size
    }
}

/// Physical memory: regions in ascending order that do not overlap.
pub struct MemoryMap {
    regions: [Region; CAPACITY],
    len: usize,
}

impl MemoryMap {
    /// A map of nothing.
    pub const fn new() -> Self {
        Self { regions: [Region { base: 0, size: 0, kind: Kind::Reserved }; CAPACITY], len: 0 }
    }

    /// All regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions[..self.len]
    }

    /// The regions that are free for use.
    pub fn usable(&self) -> impl Iterator<Item = Region> {
        self.regions().iter().copied().filter(|region| region.kind == Kind::Usable)
    }

    /// The physical address of the first byte after the last usable region.
    pub fn top(&self) -> u64 {
        self.usable().last().map_or(0, |region| region.end())
    }

    /// Takes the pages that `start..end` touches from the usable ones.
    pub fn reserve(&mut self, start: u64, end: u64, kind: Kind) {
        let (start, end) = (start & !(PAGE_SIZE - 1), end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX));
        let before = core::mem::take(self);
        for &region in before.regions() {
            let (from, to) = (start.max(region.base), end.min(region.end()));
            if region.kind != Kind::Usable || from >= to {
                self.push(region.base, region.end(), region.kind);
                continue;
            }
            self.push(region.base, from, Kind::Usable);
            self.push(from, to, kind);
            self.push(to, region.end(), Kind::Usable);
        }
    }

    /// Adds a region after all others; an empty one is left out.
    ///
    /// # Panics
    ///
    /// There is no room for it, or it is not after all others.
    pub fn push(&mut self, base: u64, end: u64, kind: Kind) {
        if base >= end {
            return;
        }
        assert!(self.regions().last().is_none_or(|last| last.end() <= base), "memory map out of order");
        assert!(self.len < CAPACITY, "memory map of more than {CAPACITY} regions");
        self.regions[self.len] = Region { base, size: end - base, kind };
        self.len += 1;
    }
}

impl Default for MemoryMap {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Display for MemoryMap {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for Region { base, size, kind } in self.regions() {
            writeln!(f, "  {base:#014x}..{:#014x} {:>9} KiB  {kind:?}", base + size, size >> 10)?;
        }
        write!(f, "  {} KiB usable", self.usable().map(|region| region.size >> 10).sum::<u64>())
    }
}

/// What the loader handed over.
pub struct Boot {
    /// Physical memory.
    pub map: MemoryMap,
    /// Whose it is.
    pub nodes: Nodes,
    /// What the kernel is told; empty when absent or not UTF-8.
    pub command_line: &'static str,
    /// The archive of the first files; empty when absent. It stays where it is.
    pub archive: &'static [u8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn what_is_reserved_is_cut_out_of_what_is_usable_by_whole_pages() {
        let mut map = MemoryMap::new();
        map.push(0, 0x8000, Kind::Usable);
        map.push(0x8000, 0x9000, Kind::Reserved);
        map.push(0xa000, 0xc000, Kind::Usable);
        map.reserve(0x2fff, 0x3001, Kind::Kernel);
        map.reserve(0x7000, 0xa800, Kind::Boot);
        let regions: Vec<_> = map.regions().iter().map(|region| (region.base, region.end(), region.kind)).collect();
        let expected = [
            (0, 0x2000, Kind::Usable),
            (0x2000, 0x4000, Kind::Kernel),
            (0x4000, 0x7000, Kind::Usable),
            (0x7000, 0x8000, Kind::Boot),
            (0x8000, 0x9000, Kind::Reserved),
            (0xa000, 0xb000, Kind::Boot),
            (0xb000, 0xc000, Kind::Usable),
        ];
        assert_eq!(regions, expected);
        assert_eq!(map.top(), 0xc000);
    }
}
