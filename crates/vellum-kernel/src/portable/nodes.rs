//! NUMA nodes: which memory and which CPUs are near each other, as ACPI and device trees describe
//! them.

use core::ops::Range;

/// The most nodes that [`Nodes`] tells apart. Memory and CPUs of any further node count as node
/// 0's.
pub const MAX_NODES: usize = 16;
/// The most ranges of memory, and the most CPUs, that can be assigned to nodes.
const MAX_ENTRIES: usize = 64;

/// The machine's NUMA nodes. Initially node 0 has all memory and CPUs.
#[derive(Clone)]
pub struct Nodes {
    count: usize,
    memory: List<Range<u64>>,
    /// The CPUs, each by the number that firmware uses for it (local APIC ID on x86-64, MPIDR
    /// affinity on AArch64), with its node.
    cpus: List<u64>,
    distances: [[u8; MAX_NODES]; MAX_NODES],
}

/// A list of items, each with its node.
#[derive(Clone)]
struct List<T> {
    slots: [Option<(T, usize)>; MAX_ENTRIES],
    len: usize,
}

impl<T> List<T> {
    fn add(&mut self, item: T, node: usize) {
        if let Some(slot) = self.slots.get_mut(self.len) {
            *slot = Some((item, node));
            self.len += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = &(T, usize)> {
        self.slots.iter().flatten()
    }
}

impl Nodes {
    /// Returns a single node, which has all memory and CPUs.
    pub const fn new() -> Self {
        let mut distances = [[20; MAX_NODES]; MAX_NODES];
        let mut node = 0;
        while node < MAX_NODES {
            distances[node][node] = 10;
            node += 1;
        }
        let (memory, cpus) =
            (List { slots: [const { None }; MAX_ENTRIES], len: 0 }, List { slots: [None; MAX_ENTRIES], len: 0 });
        Self { count: 1, memory, cpus, distances }
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Raises the number of nodes so that `node` exists, and returns `node`. Returns `None`, and
    /// changes nothing, if `node` is not below [`MAX_NODES`].
    fn register(&mut self, node: usize) -> Option<usize> {
        let node = (node < MAX_NODES).then_some(node)?;
        self.count = self.count.max(node + 1);
        Some(node)
    }

    /// Assigns a range of physical memory to a node.
    pub fn add_memory(&mut self, memory: Range<u64>, node: usize) {
        if let Some(node) = self.register(node) {
            self.memory.add(memory, node);
        }
    }

    /// Assigns a CPU to a node. `name`: firmware's number for the CPU.
    pub fn add_cpu(&mut self, name: u64, node: usize) {
        if let Some(node) = self.register(node) {
            self.cpus.add(name, node);
        }
    }

    /// Sets the distance from node `from` to node `to`, in the units of ACPI's SLIT (10: within a
    /// node).
    pub fn set_distance(&mut self, from: usize, to: usize, distance: u8) {
        if let Some(entry) = self.distances.get_mut(from).and_then(|row| row.get_mut(to)) {
            *entry = distance;
        }
    }

    /// Returns the distance from node `from` to node `to`.
    pub fn distance(&self, from: usize, to: usize) -> u8 {
        self.distances.get(from).and_then(|row| row.get(to)).copied().unwrap_or(u8::MAX)
    }

    /// Returns the node of the CPU with firmware's number `name`, or 0 if the CPU is unknown.
    pub fn node_of_cpu(&self, name: u64) -> usize {
        self.cpus.iter().find(|(other, _)| *other == name).map_or(0, |(_, node)| *node)
    }

    /// Splits a range of physical memory into pieces of one node each.
    pub fn split(&self, memory: Range<u64>) -> impl Iterator<Item = (Range<u64>, usize)> {
        let mut rest = memory;
        core::iter::from_fn(move || {
            let start = (!rest.is_empty()).then_some(rest.start)?;
            let here = self.memory.iter().find(|(range, _)| range.contains(&start));
            let next = self.memory.iter().map(|(range, _)| range.start).filter(|border| *border > start).min();
            let end = here.map(|(range, _)| range.end).or(next).unwrap_or(rest.end).min(rest.end);
            rest.start = end;
            Some((start..end, here.map_or(0, |(_, node)| *node)))
        })
    }
}

impl Default for Nodes {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    #[test]
    fn memory_is_split_into_pieces_of_one_node() {
        let mut nodes = Nodes::new();
        assert_eq!(nodes.split(5..90).collect::<Vec<_>>(), [(5..90, 0)]);
        nodes.add_memory(0..20, 1);
        nodes.add_memory(30..50, 2);
        nodes.add_memory(50..80, 1);
        assert_eq!(nodes.count(), 3);
        let expected = [(5..20, 1), (20..30, 0), (30..50, 2), (50..80, 1), (80..90, 0)];
        assert_eq!(nodes.split(5..90).collect::<Vec<_>>(), expected);
        assert_eq!(nodes.split(31..49).collect::<Vec<_>>(), [(31..49, 2)]);
    }

    #[test]
    fn unknown_cpus_are_on_node_0_and_unknown_distances_are_the_default() {
        let mut nodes = Nodes::new();
        nodes.add_cpu(7, 1);
        nodes.add_cpu(8, MAX_NODES);
        nodes.set_distance(0, 1, 33);
        assert_eq!([7, 8, 9].map(|name| nodes.node_of_cpu(name)), [1, 0, 0]);
        assert_eq!((nodes.count(), nodes.distance(0, 1), nodes.distance(1, 0), nodes.distance(1, 1)), (2, 33, 20, 10));
    }
}
