//! The boot information that the loader passes: physical memory, the command line, the initramfs.

use crate::nodes::Nodes;
use core::fmt;
use core::ops::Range;

/// The size of a page in bytes.
const PAGE_SIZE: u64 = 4096;
/// The most bits of a physical address that any page-table format can map; nothing beyond is
/// memory.
const PHYSICAL_BITS: u32 = 52;
/// The most regions of a memory map.
pub const MAX_REGIONS: usize = 64;

/// The kind of a region of physical memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Free memory: whole pages, inside the direct map.
    Usable,
    /// No memory, or memory in use by the firmware or a device.
    Reserved,
    /// ACPI tables: memory that may be reused once they have been read.
    AcpiTables,
    /// Memory that the firmware keeps (ACPI non-volatile storage).
    AcpiNvs,
    /// The first MiB, which a PC's firmware and devices use whatever the loader's map states.
    Low,
    /// The kernel's image, with its stacks and page tables.
    Kernel,
    /// The loader's data: its structures, the command line and the initramfs.
    Boot,
    /// Memory beyond the end of the direct map.
    Unreachable,
}

/// A range of physical memory of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// The physical address of the first byte.
    pub base: u64,
    /// The length in bytes.
    pub size: u64,
    /// The kind of memory.
    pub kind: Kind,
}

impl Region {
    /// Returns the physical address after the last byte.
    pub fn end(&self) -> u64 {
        self.base + self.size
    }
}

/// The map of physical memory: regions in ascending order that do not overlap.
pub struct MemoryMap {
    regions: [Region; MAX_REGIONS],
    len: usize,
}

impl MemoryMap {
    /// Creates an empty map.
    pub const fn new() -> Self {
        Self { regions: [Region { base: 0, size: 0, kind: Kind::Reserved }; MAX_REGIONS], len: 0 }
    }

    /// Returns all regions.
    pub fn regions(&self) -> &[Region] {
        &self.regions[..self.len]
    }

    /// Returns the usable regions.
    pub fn usable(&self) -> impl Iterator<Item = Region> {
        self.regions().iter().copied().filter(|region| region.kind == Kind::Usable)
    }

    /// Returns the physical address after the last usable region; 0 if there is none.
    pub fn top(&self) -> u64 {
        self.usable().last().map_or(0, |region| region.end())
    }

    /// Returns whether one usable region contains all of `range`. Returns false for an empty range.
    pub fn is_usable(&self, range: &Range<u64>) -> bool {
        !range.is_empty() && self.usable().any(|region| region.base <= range.start && range.end <= region.end())
    }

    /// Reserves the usable pages that `start..end` touches: makes them a region of `kind`.
    ///
    /// # Errors
    ///
    /// [`BadBoot::TooMany`]: the map has no room for another region, and is incomplete now.
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

    /// Appends a region. Skips an empty one. Shrinks a usable one to the whole pages inside.
    ///
    /// # Errors
    ///
    /// [`BadBoot::Overlap`]: the region begins before the end of the last one. [`BadBoot::Beyond`]:
    /// it ends beyond 2^52. [`BadBoot::TooMany`]: the map has no room for another region.
    pub fn push(&mut self, base: u64, end: u64, kind: Kind) -> Result<(), BadBoot> {
        if end > 1 << PHYSICAL_BITS {
            return Err(BadBoot::Beyond(end));
        }
        let (base, end) = match kind {
            // Nothing overflows: `end` is at most 2^52.
            Kind::Usable => (base.min(end).next_multiple_of(PAGE_SIZE), end & !(PAGE_SIZE - 1)),
            _ => (base, end),
        };
        if base >= end {
            return Ok(());
        }
        if self.regions().last().is_some_and(|last| last.end() > base) {
            return Err(BadBoot::Overlap(base));
        }
        let slot = self.regions.get_mut(self.len).ok_or(BadBoot::TooMany("regions of memory"))?;
        *slot = Region { base, size: end - base, kind };
        self.len += 1;
        Ok(())
    }
}

/// The reason why the kernel can't use the boot information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadBoot {
    /// There is no PVH start info with a memory map.
    NoStartInfo,
    /// There is no valid device tree.
    NoTree,
    /// The structure at this address is not in readable memory.
    Unreadable(u64),
    /// The memory region at this address begins before the end of the one before it.
    Overlap(u64),
    /// A memory region ends at this address, beyond all addresses that page tables can map.
    Beyond(u64),
    /// There are more items of this name (as in the message) than the kernel has room for.
    TooMany(&'static str),
    /// The initramfs at this address is not in usable memory.
    Archive(u64),
    /// The command line has no NUL within the longest length that the kernel accepts.
    CommandLine,
}

impl fmt::Display for BadBoot {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            BadBoot::NoStartInfo => write!(f, "the loader passed no PVH start info with a memory map"),
            BadBoot::NoTree => write!(f, "the loader passed no valid device tree"),
            BadBoot::Unreadable(at) => {
                write!(f, "the loader passed a structure at {at:#x}, which is not in readable memory")
            }
            BadBoot::Overlap(at) => {
                write!(f, "memory map: the region at {at:#x} begins before the end of the one before it")
            }
            BadBoot::Beyond(end) => {
                write!(f, "memory map: a region ends at {end:#x}, beyond {PHYSICAL_BITS} bits of addresses")
            }
            BadBoot::TooMany(what) => write!(f, "the loader passed too many {what}"),
            BadBoot::Archive(at) => write!(f, "the initramfs at {at:#x} is not in usable memory"),
            BadBoot::CommandLine => write!(f, "the command line has no terminating NUL"),
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

/// The boot information.
pub struct Boot {
    /// Physical memory.
    pub map: MemoryMap,
    /// The NUMA nodes of memory and CPUs.
    pub nodes: Nodes,
    /// The kernel's command line; empty when absent or not UTF-8.
    pub command_line: &'static str,
    /// The initramfs, a cpio archive, where the loader put it; empty when absent.
    pub archive: &'static [u8],
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn reserving_splits_usable_regions_at_page_boundaries() {
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
    fn splitting_a_region_of_a_full_map_is_an_error() {
        let mut map = MemoryMap::new();
        for at in 0..MAX_REGIONS as u64 {
            map.push(at << 16, (at << 16) + 0x3000, Kind::Usable).unwrap();
        }
        assert!(matches!(map.reserve(0x1000, 0x2000, Kind::Boot), Err(BadBoot::TooMany(_))));
    }

    #[test]
    fn overlapping_regions_and_regions_beyond_the_capacity_are_refused() {
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
