//! Reads the boot information of a PVH loader: physical memory, the command line, the initramfs.
//!
//! The structures are those of Xen's `xen/include/public/arch-x86/hvm/start_info.h`, version 1,
//! which QEMU fills in. [`read`] extracts what the kernel needs, and reserves what stays in use.

use crate::acpi::{PhysicalMemory, read_le};
use crate::boot::{BadBoot, Kind, MemoryMap};
use core::ops::Range;

const MAGIC: u64 = 0x336e_c578;
/// The sizes in bytes of the start info, of an entry of its memory map, and of a module.
const START_INFO: usize = 56;
const ENTRY: usize = 24;
const MODULE: usize = 32;
/// The offset in the start info of the command line's address.
pub const COMMAND_LINE: usize = 24;
/// The most entries of a memory map, and the most modules. Linux's loaders pass 128 entries and one
/// module.
const MAX_ITEMS: u64 = 1024;
/// The longest command line in bytes, without its NUL, as in Linux.
const MAX_COMMAND_LINE: u64 = 2048;
/// The end of low memory, which has BIOS data, option ROMs and the frame buffer, whatever the
/// memory map says.
const LOW_MEMORY_END: u64 = 1 << 20;

/// The contents of the loader's structures.
pub struct StartInfo<'m> {
    /// Physical memory, without the loader's structures and the kernel's image.
    pub map: MemoryMap,
    /// The kernel's command line; empty when absent or not UTF-8.
    pub command_line: &'m str,
    /// The physical range of the first module, which is the initramfs; empty when absent. All of it
    /// is memory, which `map` has as [`Kind::Boot`].
    pub archive: Range<u64>,
    /// The physical address of ACPI's root pointer.
    pub rsdp: u64,
}

/// Reads the loader's structures at physical address `at`. `image` is the range of the kernel's
/// image.
///
/// # Errors
///
/// [`BadBoot`]: the structures are malformed, or name memory or an archive that can't exist.
pub fn read<'m>(memory: &'m impl PhysicalMemory, at: u64, image: Range<u64>) -> Result<StartInfo<'m>, BadBoot> {
    let info = element(memory, at, 0, START_INFO)?;
    let number = |at: usize| read_le::<4>(info, at).unwrap_or_default();
    let address = |at: usize| read_le::<8>(info, at).unwrap_or_default();
    if number(0) != MAGIC || number(4) < 1 {
        return Err(BadBoot::NoStartInfo);
    }
    let (modules, list) = (number(12), address(16));
    let (entries, table) = (number(48), address(40));
    if entries > MAX_ITEMS || modules > MAX_ITEMS {
        return Err(BadBoot::TooMany("entries of the memory map, or modules"));
    }
    let mut map = MemoryMap::new();
    for index in 0..entries {
        let entry = element(memory, table, index, ENTRY)?;
        let region = range(entry)?;
        let kind = match read_le::<4>(entry, 16) {
            Some(1) => Kind::Usable,
            Some(3) => Kind::AcpiTables,
            Some(4) => Kind::AcpiNvs,
            _ => Kind::Reserved,
        };
        map.push(region.start, region.end, kind)?;
    }
    // Check that the modules are in usable memory before anything is reserved: the reservation of a
    // module makes its memory not usable.
    let mut archive = 0..0;
    for index in (0..modules).rev() {
        archive = range(element(memory, list, index, MODULE)?)?;
        if !archive.is_empty() && !map.is_usable(&archive) {
            return Err(BadBoot::Archive(archive.start));
        }
    }
    map.reserve(0, LOW_MEMORY_END, Kind::Low)?;
    map.reserve(image.start, image.end, Kind::Kernel)?;
    // The sums don't overflow: all these ranges were read above, so they lie in existing memory.
    let mut reserve = |start: u64, size: u64| map.reserve(start, start + size, Kind::Boot);
    reserve(at, START_INFO as u64)?;
    reserve(table, entries * ENTRY as u64)?;
    reserve(list, modules * MODULE as u64)?;
    for index in 0..modules {
        let module = range(element(memory, list, index, MODULE)?)?;
        reserve(module.start, module.end - module.start)?;
    }
    let mut command_line = "";
    if address(COMMAND_LINE) != 0 {
        let line = string(memory, address(COMMAND_LINE))?;
        reserve(address(COMMAND_LINE), line.len() as u64 + 1)?;
        command_line = str::from_utf8(line).unwrap_or_default();
    }
    Ok(StartInfo { map, command_line, archive, rsdp: address(32) })
}

/// Returns element `index` of an array of structures of `size` bytes.
fn element(memory: &impl PhysicalMemory, array: u64, index: u64, size: usize) -> Result<&[u8], BadBoot> {
    let at = array.checked_add(index * size as u64);
    at.and_then(|at| memory.bytes(at, size)).ok_or(BadBoot::Unreadable(array))
}

/// Returns the range that a structure's first two fields describe: an address and a length.
fn range(structure: &[u8]) -> Result<Range<u64>, BadBoot> {
    let [start, len] = [0, 8].map(|at| read_le::<8>(structure, at).unwrap_or_default());
    Ok(start..start.checked_add(len).ok_or(BadBoot::Beyond(u64::MAX))?)
}

/// Returns the bytes from an address up to the first NUL.
fn string(memory: &impl PhysicalMemory, at: u64) -> Result<&[u8], BadBoot> {
    for len in 0..=MAX_COMMAND_LINE {
        let last = at.checked_add(len).and_then(|at| memory.bytes(at, 1)).ok_or(BadBoot::Unreadable(at))?;
        if last == [0] {
            return memory.bytes(at, len as usize).ok_or(BadBoot::Unreadable(at));
        }
    }
    Err(BadBoot::CommandLine)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// Builds start info at 0, with memory from 64 KiB to 4 MiB and a module in it.
    fn memory() -> Vec<u8> {
        let mut ram = std::vec![0; 0x200];
        let mut put = |at: usize, words: &[u64]| {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            ram[at..at + bytes.len()].copy_from_slice(&bytes);
        };
        put(0, &[MAGIC | 1 << 32, 1 << 32, 0x100, 0x180, 0x1c0, 0x40, 3]);
        put(0x40, &[0x1_0001, 0x3f_0000, 1, 0x40_1000, 0x1000, 2, 0x40_2000, 0x1000, 3]);
        put(0x100, &[0x20_0000, 0x1234, 0, 0]);
        ram[0x180..0x18a].copy_from_slice(b"run apart\0");
        ram
    }

    #[test]
    fn structures_are_read_and_reserved() {
        let ram = memory();
        let ram = ram.as_slice();
        let found = read(&ram, 0, 0x10_8000..0x11_0000).unwrap();
        assert_eq!((found.command_line, found.archive.clone(), found.rsdp), ("run apart", 0x20_0000..0x20_1234, 0x1c0));
        let regions: Vec<_> =
            found.map.regions().iter().map(|region| (region.base, region.end(), region.kind)).collect();
        let expected = [
            (0x1_1000, 0x10_0000, Kind::Low),
            (0x10_0000, 0x10_8000, Kind::Usable),
            (0x10_8000, 0x11_0000, Kind::Kernel),
            (0x11_0000, 0x20_0000, Kind::Usable),
            (0x20_0000, 0x20_2000, Kind::Boot),
            (0x20_2000, 0x40_0000, Kind::Usable),
            (0x40_1000, 0x40_2000, Kind::Reserved),
            (0x40_2000, 0x40_3000, Kind::AcpiTables),
        ];
        assert_eq!(regions, expected);
    }

    #[test]
    fn malformed_structures_are_errors() {
        let with = |at: usize, word: u64| {
            let mut ram = memory();
            ram[at..at + 8].copy_from_slice(&word.to_le_bytes());
            read(&&ram[..], 0, 0..0).err()
        };
        assert_eq!(with(0, 0), Some(BadBoot::NoStartInfo));
        assert_eq!(with(40, u64::MAX), Some(BadBoot::Unreadable(u64::MAX)), "the memory map");
        assert!(matches!(with(48, u32::MAX.into()), Some(BadBoot::TooMany(_))));
        assert_eq!(with(0x48, u64::MAX), Some(BadBoot::Beyond(u64::MAX)), "base and size overflow");
        assert_eq!(with(0x58, 0x2_0000), Some(BadBoot::Overlap(0x2_0000)));
        assert_eq!(with(0x108, 0x20_0001), Some(BadBoot::Archive(0x20_0000)), "beyond its region");
        assert_eq!(with(0x108, u64::MAX), Some(BadBoot::Beyond(u64::MAX)));
        assert_eq!(with(24, 1 << 40), Some(BadBoot::Unreadable(1 << 40)), "the command line");
    }
}
