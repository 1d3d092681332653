//! What the loader says about the machine: physical memory, the command line, the first files.

use crate::nodes::Nodes;
use core::fmt;
use core::ops::Range;

/// Bytes of a page.
const PAGE_SIZE: u64 = 4096;
/// No format of page tables leads to a physical address of more bits: what lies beyond is no
/// memory.
const PHYSICAL_BITS: u32 = 52;
/// The most regions that a memory map has.
pub const MAX_REGIONS: usize = 64;

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
    AcpiNvs,
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
    regions: [Region; MAX_REGIONS],
    len: usize,
}

impl MemoryMap {
    /// A map of nothing.
    pub const fn new() -> Self {
        Self { regions: [Region { base: 0, size: 0, kind: Kind::Reserved }; MAX_REGIONS], len: 0 }
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

    /// Returns whether one usable region has all of `range`, which is not empty.
    pub fn is_usable(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.usable().any(|region| region.base <= range.start && range.end <= region.end())
    }

    /// Takes the pages that `start..end` touches from the usable ones.
    ///
    /// # Errors
    ///
    /// [`BadBoot::TooMany`]; the map is incomplete then.
    pub fn reserve(&mut self, start: u64, end: u64, kind: Kind) -> Result<(), BadBoot> {
        let (start, end) = (start & !(PAGE_SIZE - 1), end.checked_next_multiple_of(PAGE_SIZE).unwrap_or(u64::MAX));
        let before = core::mem::take(self);
        for &region in before.regions() {
            let (from, to) = (start.max(region.base), end.min(region.end()));
            if region.kind != Kind::Usable || from >= to {
                self.push(region.base, region.end(), region.kind)?;
                continue;
            }
            self.push(region.base, from, Kind::Usable)?;
            self.push(from, to, kind)?;
            self.push(to, region.end(), Kind::Usable)?;
        }
        Ok(())
    }

    /// Adds a region after all others. An empty one is left out, and so is the part of a page at
    /// either end of a usable one.
    ///
    /// # Errors
    ///
    /// [`BadBoot::Overlap`]: it is not after all others. [`BadBoot::Beyond`]. [`BadBoot::TooMany`].
    pub fn push(&mut self, base: u64, end: u64, kind: Kind) -> Result<(), BadBoot> {
        if end > 1 << PHYSICAL_BITS {
            return Err(BadBoot::Beyond(end));
        }
        let (base, end) = match kind {
            // Nothing overflows: `base` is below `end`, or the region is empty.
            Kind::Usable => (base.min(end).next_multiple_of(PAGE_SIZE), end & !(PAGE_SIZE - 1)),
            _ => (base, end),
        };
        if base >= end {
            return Ok(());
        }
        if self.regions().last().is_some_and(|last| last.end() > base) {
            return Err(BadBoot::Overlap(base));
        }
        let place = self.regions.get_mut(self.len).ok_or(BadBoot::TooMany("regions of memory"))?;
        *place = Region { base, size: end - base, kind };
        self.len += 1;
        Ok(())
    }
}

/// Why the kernel can't use what the loader handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadBoot {
    /// There is no PVH start info with a memory map.
    NoStartInfo,
    /// There is no device tree, or not a sound one.
    NoTree,
    /// A structure lies, by its address, where no memory can be read.
    Unreadable(u64),
    /// A region of memory begins before the end of the one before it.
    Overlap(u64),
    /// A region of memory ends where no memory can be.
    Beyond(u64),
    /// More of these than there is room for.
    TooMany(&'static str),
    /// The archive of first files, at this address, is not in usable memory.
    Archive(u64),
    /// The command line has no end.
    CommandLine,
}

impl fmt::Display for BadBoot {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BadBoot::NoStartInfo => write!(f, "the loader handed over no PVH start info with a memory map"),
            BadBoot::NoTree => write!(f, "the loader handed over no sound device tree"),
            BadBoot::Unreadable(at) => {
                write!(f, "the loader handed over a structure at {at:#x}, where no memory can be read")
            }
            BadBoot::Overlap(at) => {
                write!(f, "memory map: the region at {at:#x} begins before the end of the one before it")
            }
            BadBoot::Beyond(end) => {
                write!(f, "memory map: a region ends at {end:#x}, beyond {PHYSICAL_BITS} bits of addresses")
            }
            BadBoot::TooMany(what) => write!(f, "the loader handed over too many {what}"),
            BadBoot::Archive(at) => write!(f, "the archive of first files at {at:#x} is not in usable memory"),
            BadBoot::CommandLine => write!(f, "the command line has no end"),
        }
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
        map.push(0, 0x8000, Kind::Usable).unwrap();
        map.push(0x8000, 0x9000, Kind::Reserved).unwrap();
        map.push(0xa000, 0xc000, Kind::Usable).unwrap();
        map.reserve(0x2fff, 0x3001, Kind::Kernel).unwrap();
        map.reserve(0x7000, 0xa800, Kind::Boot).unwrap();
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
        assert!(
            map.is_usable(&(0xb000..0xb001)) && !map.is_usable(&(0xafff..0xb001)) && !map.is_usable(&(0xb000..0xb000))
        );
    }

    #[test]
    fn a_reservation_that_splits_needs_room() {
        let mut map = MemoryMap::new();
        for at in 0..MAX_REGIONS as u64 {
            map.push(at << 16, (at << 16) + 0x3000, Kind::Usable).unwrap();
        }
        assert!(matches!(map.reserve(0x1000, 0x2000, Kind::Boot), Err(BadBoot::TooMany(_))));
    }

    #[test]
    fn a_region_that_overlaps_or_has_no_room_is_refused() {
        let mut map = MemoryMap::new();
        map.push(0x1001, 0x3fff, Kind::Usable).unwrap();
        assert_eq!(map.top(), 0x3000);
        assert_eq!(map.push(0x2000, 0x5000, Kind::Reserved), Err(BadBoot::Overlap(0x2000)));
        assert_eq!(map.push(0x4000, u64::MAX, Kind::Usable), Err(BadBoot::Beyond(u64::MAX)));
        for at in 4..67 {
            map.push(at << 12, (at << 12) + 1, Kind::Reserved).unwrap();
        }
        assert!(matches!(map.push(1 << 30, 1 << 31, Kind::Usable), Err(BadBoot::TooMany(_))));
        map.push(0, 0, Kind::Usable).unwrap();
        map.reserve(0x1000, 0x3000, Kind::Boot).unwrap();
        assert_eq!((map.usable().count(), map.top()), (0, 0));
    }
}
