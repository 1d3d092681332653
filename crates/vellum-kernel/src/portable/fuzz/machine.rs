//! Fuzz targets for the tables that describe the machine.

use crate::boot::{Kind, MAX_REGIONS, MemoryMap};
use crate::nodes::{MAX_NODES, Nodes};
use crate::{acpi as tables, devicetree as tree, pvh as loader};
use core::ops::Range;
use std::vec::Vec;

/// The assumed physical range of the kernel's image.
const IMAGE: Range<u64> = 0x20_0000..0x30_0000;

/// Reads ACPI's tables in memory that is the input. The root pointer is at 0.
pub fn acpi(bytes: &[u8]) {
    let mut nodes = Nodes::new();
    let _ = tables::read(&bytes, 0, &mut nodes);
    check_nodes(&nodes);
}

/// Reads the structures of a PVH loader in memory that is the input. The start info is at 0. Checks
/// that the memory map marks no memory of the loader's structures or the kernel as usable.
pub fn pvh(bytes: &[u8]) {
    let Ok(found) = loader::read(&bytes, 0, IMAGE) else { return };
    check_map(&found.map);
    let word = |at: usize| u64::from_le_bytes(bytes[at..][..8].try_into().unwrap());
    let (table, entries) = (word(40), word(48) & u64::from(u32::MAX));
    let (line, len) = (word(24), found.command_line.len() as u64);
    // The parser has read all of these ranges, so no sum overflows. An empty table may be at any
    // address.
    let taken = [0..56, IMAGE, table..table + entries * 24, line..line + len, found.archive.clone()];
    for taken in taken.into_iter().filter(|taken| !taken.is_empty()) {
        assert!(!found.map.usable().any(|region| region.base < taken.end && taken.start < region.end()), "{taken:x?}");
    }
    assert!(found.archive.is_empty() || found.archive.start >= found.map.regions()[0].base);
}

/// Reads a device tree at 1 GiB. Checks that the memory map marks no memory of the tree or the
/// initramfs as usable.
pub fn devicetree(bytes: &[u8]) {
    let _ = tree::size(bytes);
    let Ok(found) = tree::read(bytes, 1 << 30, IMAGE) else { return };
    assert_eq!(tree::size(bytes).ok(), Some(bytes.len()).filter(|len| *len <= 2 << 20));
    check_map(&found.map);
    check_nodes(&found.nodes);
    assert!(found.processors().len() <= tree::MAX_PROCESSORS);
    let archive = found.archive;
    assert!(!found.map.usable().any(|region| region.base < archive.end && archive.start < region.end()));
    let has = |kind| found.map.regions().iter().any(|region| region.kind == kind);
    assert!(archive.is_empty() || has(Kind::Boot) || has(Kind::Kernel));
}

/// Checks that regions are in ascending order and do not overlap, and that usable ones are whole
/// pages.
fn check_map(map: &MemoryMap) {
    let regions = map.regions();
    assert!(regions.len() <= MAX_REGIONS && regions.iter().all(|region| region.base < region.end()));
    assert!(regions.windows(2).all(|pair| pair[0].end() <= pair[1].base), "{map}");
    assert!(map.usable().all(|region| region.base % 4096 == 0 && region.size % 4096 == 0));
}

/// Checks that each byte of memory and each processor belongs to exactly one existing node.
fn check_nodes(nodes: &Nodes) {
    assert!((1..=MAX_NODES).contains(&nodes.count()));
    assert!((0..300).all(|name| nodes.node_of_cpu(name) < nodes.count()));
    let pieces: Vec<_> = nodes.split(0x1000..u64::MAX).take(1000).collect();
    assert_eq!((pieces[0].0.start, pieces.last().map(|(range, _)| range.end)), (0x1000, Some(u64::MAX)));
    assert!(pieces.windows(2).all(|pair| pair[0].0.end == pair[1].0.start));
    assert!(pieces.iter().all(|(range, node)| !range.is_empty() && *node < nodes.count()));
}
