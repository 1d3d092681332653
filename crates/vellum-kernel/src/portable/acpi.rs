//! Reads the NUMA nodes from ACPI's tables (ACPI specification: "Root System Description Pointer",
//! "Extended System Description Table", "System Resource Affinity Table (SRAT)", "System Locality
//! Information Table (SLIT)").

use crate::nodes::Nodes;

/// The size in bytes of the header of every table.
const HEADER: usize = 36;
/// The most tables of the root table that [`read`] looks at.
const MAX_TABLES: usize = 64;
/// The flag that firmware sets in an SRAT entry whose processor or memory range is present.
const ENABLED: u32 = 1;

/// Physical memory, as the parsers of firmware tables read it.
pub trait PhysicalMemory {
    /// Returns the `len` bytes at a physical address, or `None` if they can't be read.
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]>;
}

/// A slice is memory that begins at address 0.
impl PhysicalMemory for &[u8] {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(address).ok()?;
        self.get(start..start.checked_add(len)?)
    }
}

/// Returns the little-endian number of `N` bytes at offset `at`, or `None` beyond the end.
pub(crate) fn read_le<const N: usize>(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    word[..N].copy_from_slice(bytes.get(at..at + N)?);
    Some(u64::from_le_bytes(word))
}

/// Returns the table at an address, with its header.
fn table(memory: &impl PhysicalMemory, address: u64) -> Option<&[u8]> {
    let len = read_le::<4>(memory.bytes(address, HEADER)?, 4)? as usize;
    memory.bytes(address, len.max(HEADER))
}

/// Adds to `nodes` what the tables behind the root pointer (RSDP) at address `root` describe. Skips
/// tables that can't be read. Returns `None` if the root pointer or the root table can't be read.
pub fn read(memory: &impl PhysicalMemory, root: u64, nodes: &mut Nodes) -> Option<()> {
    let pointer = memory.bytes(root, 36).or_else(|| memory.bytes(root, 20)).filter(|at| at.starts_with(b"RSD PTR "))?;
    // Since revision 2 addresses have 64 bits.
    let wide = pointer[15] >= 2;
    let list = table(memory, if wide { read_le::<8>(pointer, 24) } else { read_le::<4>(pointer, 16) }?)?;
    let entries = list[HEADER..].chunks_exact(if wide { 8 } else { 4 });
    for entry in entries.take(MAX_TABLES) {
        let address = if wide { read_le::<8>(entry, 0) } else { read_le::<4>(entry, 0) };
        let Some(table) = address.and_then(|address| table(memory, address)) else { continue };
        match &table[..4] {
            b"SRAT" => read_affinities(table, nodes),
            b"SLIT" => read_distances(table, nodes),
            _ => None,
        };
    }
    Some(())
}

/// Reads the SRAT: entries, each with a type and a length, that assign memory and processors to
/// nodes.
fn read_affinities(table: &[u8], nodes: &mut Nodes) -> Option<()> {
    let mut at = HEADER + 12;
    loop {
        let len = usize::from(*table.get(at + 1)?);
        let entry = table.get(at..at + len.max(2))?;
        let enabled = |at| read_le::<4>(entry, at).is_some_and(|flags| flags as u32 & ENABLED != 0);
        match entry[0] {
            // A local APIC. The lowest byte of its node number is apart from the other three.
            0 if enabled(4) => {
                let node = read_le::<1>(entry, 2)? | read_le::<3>(entry, 9)? << 8;
                nodes.add_cpu(read_le::<1>(entry, 3)?, node as usize);
            }
            1 if enabled(28) => {
                let (base, len) = (read_le::<8>(entry, 8)?, read_le::<8>(entry, 16)?);
                nodes.add_memory(base..base.saturating_add(len), read_le::<4>(entry, 2)? as usize);
            }
            // A local x2APIC.
            2 if enabled(12) => nodes.add_cpu(read_le::<4>(entry, 8)?, read_le::<4>(entry, 4)? as usize),
            _ => {}
        }
        at += len.max(2);
    }
}

/// Reads the SLIT: a square matrix with the distance, one byte, from each node to each.
fn read_distances(table: &[u8], nodes: &mut Nodes) -> Option<()> {
    let count = read_le::<8>(table, HEADER)? as usize;
    let distances = table[HEADER + 8..].chunks_exact(count.max(1)).take(count).enumerate();
    for (from, row) in distances {
        row.iter().enumerate().for_each(|(to, distance)| nodes.set_distance(from, to, *distance));
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn table(name: &[u8], contents: &[&[u8]]) -> Vec<u8> {
        let contents = contents.concat();
        let mut table = name.to_vec();
        table.extend((HEADER as u32 + contents.len() as u32).to_le_bytes());
        table.resize(HEADER, 0xee);
        table.extend(contents);
        table
    }

    fn memory(node: u8, base: u64, len: u64, flags: u8) -> Vec<u8> {
        let mut entry = std::vec![1, 40, node, 0, 0, 0, 0, 0];
        entry.extend([base.to_le_bytes(), len.to_le_bytes()].concat());
        entry.extend([0, 0, 0, 0, flags, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        entry
    }

    /// Builds tables behind a root pointer of either revision.
    fn tables(wide: bool) -> Vec<u8> {
        let affinities = table(
            b"SRAT",
            &[
                &[0; 12],
                &[0, 16, 0, 3, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &[0, 16, 1, 4, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                // Not present.
                &[0, 16, 2, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                // An unknown type.
                &[77, 5, 1, 1, 1],
                &[2, 24, 0, 0, 2, 0, 0, 0, 0x55, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
                &memory(0, 0, 0xa0000, 1),
                &memory(1, 0x1_0000_0000, 0x4000, 1),
                &memory(2, 0x2_0000_0000, 0x4000, 0),
            ],
        );
        let distances = table(b"SLIT", &[&3u64.to_le_bytes(), &[10, 21, 31, 22, 10, 32, 23, 33, 10]]);
        let other = table(b"APIC", &[&[1, 2, 3]]);
        let mut ram = std::vec![0; 64];
        let mut put = |bytes: &[u8]| {
            ram.extend(bytes);
            (ram.len() - bytes.len()) as u64
        };
        let address = |at: u64| if wide { at.to_le_bytes().to_vec() } else { (at as u32).to_le_bytes().to_vec() };
        let mut list: Vec<Vec<u8>> = [other, affinities, distances].iter().map(|table| address(put(table))).collect();
        list.push(address(1 << 30));
        let list: Vec<&[u8]> = list.iter().map(Vec::as_slice).collect();
        let list = put(&table(if wide { b"XSDT" } else { b"RSDT" }, &list));
        ram[..8].copy_from_slice(b"RSD PTR ");
        ram[15] = if wide { 2 } else { 0 };
        let at = if wide { 24 } else { 16 };
        ram[at..at + address(list).len()].copy_from_slice(&address(list));
        ram
    }

    #[test]
    fn nodes_are_read_from_srat_and_slit() {
        for wide in [false, true] {
            let mut nodes = Nodes::new();
            assert_eq!(read(&&tables(wide)[..], 0, &mut nodes), Some(()));
            assert_eq!(nodes.count(), 3);
            assert_eq!([3, 4, 5, 0x155].map(|name| nodes.node_of_cpu(name)), [0, 1, 0, 2]);
            let pieces: Vec<_> = nodes.split(0x1000..0x3_0000_0000).filter(|(_, node)| *node > 0).collect();
            assert_eq!(pieces, [(0x1_0000_0000..0x1_0000_4000, 1)]);
            assert_eq!([(0, 1), (1, 0), (2, 1), (2, 2)].map(|(a, b)| nodes.distance(a, b)), [21, 22, 33, 10]);
        }
    }

    /// Truncated tables, and tables with any one byte changed, are read without a panic.
    #[test]
    fn truncated_and_corrupt_tables_do_not_panic() {
        let whole = tables(true);
        for end in 0..whole.len() {
            let mut nodes = Nodes::new();
            read(&&whole[..end], 0, &mut nodes);
            for byte in [0, 1, 0xff] {
                let mut ram = whole.clone();
                ram[end] = byte;
                read(&&ram[..], 0, &mut Nodes::new());
            }
        }
        assert_eq!(read(&&[0; 100][..], 0, &mut Nodes::new()), None);
    }
}
