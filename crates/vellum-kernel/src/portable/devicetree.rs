//! Reads the boot information in a flattened device tree (Devicetree Specification): physical
//! memory, processors, NUMA nodes, the command line, the initramfs.

use crate::boot::{BadBoot, Kind, MAX_REGIONS, MemoryMap};
use crate::nodes::Nodes;
use core::ops::Range;
use dtoolkit::fdt::{Fdt, FdtNode};
use dtoolkit::{Node, Property};

/// The number of bytes at the start of a tree that [`size`] needs.
pub const HEAD: usize = 8;
/// The largest size of a tree in bytes, as in Linux (`Documentation/arch/arm64/booting.rst`).
const MAX_SIZE: u32 = 2 << 20;
/// The most processors that [`read`] records; it ignores further ones.
pub const MAX_PROCESSORS: usize = 64;

/// The contents of a device tree.
pub struct Tree<'t> {
    /// Physical memory, without the tree, the initramfs and the kernel's image.
    pub map: MemoryMap,
    /// The NUMA nodes of memory and processors.
    pub nodes: Nodes,
    /// The kernel's command line; empty when absent.
    pub command_line: &'t str,
    /// The physical range of the initramfs; empty when absent. All of it is memory, which `map` has
    /// as [`Kind::Boot`].
    pub archive: Range<u64>,
    processors: [u64; MAX_PROCESSORS],
    count: usize,
}

impl Tree<'_> {
    /// Returns the number by which firmware identifies each processor (its property `reg`: on
    /// AArch64 the MPIDR affinity), in the order of the tree; at most [`MAX_PROCESSORS`].
    pub fn processors(&self) -> &[u64] {
        &self.processors[..self.count]
    }
}

/// Returns the size of a tree in bytes, from its first [`HEAD`] bytes.
///
/// # Errors
///
/// [`BadBoot::NoTree`]: the bytes are not the start of a tree, or the tree exceeds 2 MiB.
pub fn size(head: &[u8]) -> Result<usize, BadBoot> {
    let Some((magic, size)) = head.get(..HEAD).map(|head| head.split_at(4)) else { return Err(BadBoot::NoTree) };
    let size = size.first_chunk().map_or(0, |size| u32::from_be_bytes(*size));
    if magic == [0xd0, 0x0d, 0xfe, 0xed] && size <= MAX_SIZE { Ok(size as usize) } else { Err(BadBoot::NoTree) }
}

/// Reads a tree, which lies at physical address `at`. `image` is the range of the kernel's image.
///
/// The loader of an ELF kernel passes no initramfs. One can be loaded separately; the command line
/// then begins with `archive=ADDRESS,LENGTH`, both hexadecimal.
///
/// # Errors
///
/// [`BadBoot`]: the tree is malformed, or names memory or an archive that can't exist.
pub fn read(tree: &[u8], at: u64, image: Range<u64>) -> Result<Tree<'_>, BadBoot> {
    let len = tree.len() as u64;
    let tree = Fdt::new(tree).map_err(|_| BadBoot::NoTree)?;
    let mut nodes = Nodes::new();
    let mut map = memory(tree, &mut nodes)?;
    if let Some(distances) = tree.find_node("/distance-map").and_then(|node| node.property("distance-matrix")) {
        for row in distances.value().as_chunks::<12>().0 {
            let [from, to, distance] =
                [0, 4, 8].map(|at| u32::from_be_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]));
            nodes.set_distance(from as usize, to as usize, u8::try_from(distance).unwrap_or(u8::MAX));
        }
    }
    let (mut processors, mut count) = ([0; MAX_PROCESSORS], 0);
    let all = tree.find_node("/cpus").into_iter().flat_map(|cpus| cpus.children());
    for cpu in all.filter(|node| node.name_without_address() == "cpu").take(MAX_PROCESSORS) {
        let Some(name) = first_address(&cpu) else { continue };
        nodes.add_cpu(name, numa_node_of(&cpu));
        processors[count] = name;
        count += 1;
    }
    let chosen = tree.find_node("/chosen").and_then(|node| node.property("bootargs"));
    let mut command_line = chosen.and_then(|line| line.value_as::<&str>().ok()).unwrap_or_default();
    let mut archive = 0..0;
    if let Some((place, rest)) = parse_archive_option(command_line) {
        if !map.is_usable(&place) {
            return Err(BadBoot::Archive(place.start));
        }
        (archive, command_line) = (place, rest);
    }
    map.reserve(image.start, image.end, Kind::Kernel)?;
    map.reserve(at, at.saturating_add(len), Kind::Boot)?;
    map.reserve(archive.start, archive.end, Kind::Boot)?;
    Ok(Tree { map, nodes, command_line, archive, processors, count })
}

/// Reads the memory of all tree nodes, which may list regions in any order.
fn memory(tree: Fdt<'_>, nodes: &mut Nodes) -> Result<MemoryMap, BadBoot> {
    let (mut regions, mut count) = ([(0, 0); MAX_REGIONS], 0);
    for node in tree.root().children().filter(|node| node.name_without_address() == "memory") {
        for region in node.reg().ok().flatten().into_iter().flatten() {
            let (Ok(base), Ok(size)) = (region.address::<u64>(), region.size::<u64>()) else { continue };
            let end = base.checked_add(size).ok_or(BadBoot::Beyond(u64::MAX))?;
            nodes.add_memory(base..end, numa_node_of(&node));
            *regions.get_mut(count).ok_or(BadBoot::TooMany("regions of memory"))? = (base, end);
            count += 1;
        }
    }
    regions[..count].sort_unstable();
    let mut map = MemoryMap::new();
    regions[..count].iter().try_for_each(|(base, end)| map.push(*base, *end, Kind::Usable))?;
    Ok(map)
}

/// Returns the first address in a tree node's `reg`.
fn first_address(node: &FdtNode<'_>) -> Option<u64> {
    node.reg().ok()??.next()?.address().ok()
}

/// Returns the NUMA node to which a tree node belongs; 0 if it names none.
fn numa_node_of(part: &FdtNode<'_>) -> usize {
    part.property("numa-node-id").and_then(|number| number.value_as::<u32>().ok()).unwrap_or(0) as usize
}

/// Parses the `archive=` option at the start of a command line. Returns the archive's range and the
/// rest of the line.
fn parse_archive_option(command_line: &str) -> Option<(Range<u64>, &str)> {
    let rest = command_line.strip_prefix("archive=")?;
    let (place, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (base, size) = place.split_once(',')?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let base = number(base)?;
    Some((base..base.checked_add(number(size)?)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// A builder of trees.
    #[derive(Default)]
    struct Builder {
        structure: Vec<u8>,
        strings: Vec<u8>,
    }

    impl Builder {
        fn word(&mut self, word: u32) {
            self.structure.extend(word.to_be_bytes());
        }

        fn text(&mut self, text: &[u8]) {
            self.structure.extend(text);
            self.structure.resize(self.structure.len().next_multiple_of(4), 0);
        }

        fn property(&mut self, name: &str, value: &[u8]) {
            [3, value.len() as u32, self.strings.len() as u32].into_iter().for_each(|word| self.word(word));
            self.text(value);
            self.strings.extend(name.bytes().chain([0]));
        }

        fn words(&mut self, name: &str, words: &[u32]) {
            self.property(name, &words.iter().flat_map(|word| word.to_be_bytes()).collect::<Vec<u8>>());
        }

        fn node(&mut self, name: &str, fill: impl FnOnce(&mut Builder)) {
            self.word(1);
            self.text(&[name.as_bytes(), &[0]].concat());
            fill(self);
            self.word(2);
        }

        fn finish(mut self) -> Vec<u8> {
            self.word(9);
            let (structure, strings) = (self.structure.len() as u32, self.strings.len() as u32);
            let header = [0xd00d_feed, 56 + structure + strings, 56, 56 + structure, 40, 17, 16, 0, strings, structure];
            let mut tree: Vec<u8> = header.iter().flat_map(|word: &u32| word.to_be_bytes()).collect();
            tree.extend([0; 16]);
            tree.extend(self.structure);
            tree.extend(self.strings);
            tree
        }
    }

    /// Builds a tree with two NUMA nodes of 16 MiB and a processor each, at 1 GiB and above.
    fn tree(command_line: &str) -> Vec<u8> {
        let mut builder = Builder::default();
        builder.node("", |root| {
            root.words("#address-cells", &[2]);
            root.words("#size-cells", &[2]);
            root.node("memory@41000000", |memory| {
                memory.words("reg", &[0, 0x4100_0000, 0, 0x100_0000]);
                memory.words("numa-node-id", &[1]);
            });
            root.node("memory@40000000", |memory| memory.words("reg", &[0, 0x4000_0000, 0, 0x100_0000]));
            root.node("cpus", |cpus| {
                cpus.words("#address-cells", &[1]);
                cpus.words("#size-cells", &[0]);
                cpus.node("cpu-map", |_| ());
                cpus.node("cpu@0", |cpu| cpu.words("reg", &[0]));
                cpus.node("cpu@100", |cpu| {
                    cpu.words("reg", &[0x100]);
                    cpu.words("numa-node-id", &[1]);
                });
            });
            root.node("distance-map", |map| map.words("distance-matrix", &[0, 1, 21, 1, 0, 300]));
            root.node("chosen", |chosen| chosen.property("bootargs", &[command_line.as_bytes(), &[0]].concat()));
        });
        builder.finish()
    }

    #[test]
    fn a_tree_is_read() {
        let bytes = tree("archive=40800000,1001 run apart");
        assert_eq!(size(&bytes), Ok(bytes.len()));
        let found = read(&bytes, 0x4000_0000, 0x4020_0000..0x4030_0000).unwrap();
        assert_eq!((found.command_line, found.archive.clone()), ("run apart", 0x4080_0000..0x4080_1001));
        assert_eq!((found.processors(), found.nodes.count()), (&[0, 0x100][..], 2));
        assert_eq!([0, 0x100].map(|name| found.nodes.node_of_cpu(name)), [0, 1]);
        assert_eq!((found.nodes.distance(0, 1), found.nodes.distance(1, 0)), (21, 255));
        let regions: Vec<_> =
            found.map.regions().iter().map(|region| (region.base, region.end(), region.kind)).collect();
        let expected = [
            (0x4000_0000, 0x4000_1000, Kind::Boot),
            (0x4000_1000, 0x4020_0000, Kind::Usable),
            (0x4020_0000, 0x4030_0000, Kind::Kernel),
            (0x4030_0000, 0x4080_0000, Kind::Usable),
            (0x4080_0000, 0x4080_2000, Kind::Boot),
            (0x4080_2000, 0x4100_0000, Kind::Usable),
            (0x4100_0000, 0x4200_0000, Kind::Usable),
        ];
        assert_eq!(regions, expected);
    }

    #[test]
    fn an_archive_outside_memory_is_refused() {
        for place in ["40fffff0,1000", "0,1000", "40000000,ffffffffffffffff", "40000000,0"] {
            let bytes = tree(&std::format!("archive={place} run"));
            let refused = read(&bytes, 0x4000_0000, 0..0).err();
            // An invalid option stays a part of the command line.
            let expected = if place.ends_with('f') { None } else { place.split_once(',').map(|(at, _)| at) };
            let at = expected.map(|at| BadBoot::Archive(u64::from_str_radix(at, 16).unwrap()));
            assert_eq!(refused, at, "{place}");
        }
    }
}
