//! What the machine says of itself: the device tree that QEMU leaves at the start of memory (Devicetree Specification).

use crate::arch::paging::{self, PAGE_SIZE, phys_to_virt};
use crate::percpu::MAX_CPUS;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use fdt::Fdt;
use fdt::node::NodeProperty;
use vellum_kernel::boot::{Boot, CAPACITY, Kind, MemoryMap};
use vellum_kernel::nodes::Nodes;

/// How many processors there are to use.
static COUNT: AtomicUsize = AtomicUsize::new(1);
/// What PSCI calls each of them: its affinity (MPIDR_EL1).
static NAMES: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// What PSCI calls the processors.
pub fn processors() -> impl Iterator<Item = u64> {
    NAMES[..COUNT.load(Relaxed)].iter().map(|name| name.load(Relaxed))
}

/// Reads the tree.
///
/// The loader of a kernel that is an ELF file knows no archive of first files; one can be put into memory beside it, and the
/// command line then begins with `archive=ADDRESS,LENGTH`, both hexadecimal.
///
/// # Safety
///
/// The tree is at this physical address, and nothing has been written since to memory outside the image.
pub unsafe fn read(address: u64) -> Boot {
    // SAFETY: by contract.
    let tree = unsafe { Fdt::from_ptr(phys_to_virt(address)) };
    let tree = tree.unwrap_or_else(|error| panic!("no device tree at {address:#x}: {error:?}"));
    let mut map = MemoryMap::new();
    let mut nodes = Nodes::new();
    let number = |property: Option<NodeProperty<'_>>| property.and_then(NodeProperty::as_usize).unwrap_or(0);
    // In no order, where there are several.
    let (mut regions, mut count) = ([(0, 0); CAPACITY], 0);
    for node in tree.all_nodes().filter(|node| node.name.starts_with("memory@")) {
        for region in node.reg().into_iter().flatten() {
            let (base, size) = (region.starting_address as u64, region.size.unwrap_or(0) as u64);
            nodes.add_memory(base..base + size, number(node.property("numa-node-id")));
            assert!(count < CAPACITY, "memory in more than {CAPACITY} regions");
            regions[count] = (base, base + size);
            count += 1;
        }
    }
    regions[..count].sort_unstable();
    for (base, end) in &regions[..count] {
        map.push(base.next_multiple_of(PAGE_SIZE), end & !(PAGE_SIZE - 1), Kind::Usable);
    }
    if let Some(distances) = tree.find_node("/distance-map").and_then(|node| node.property("distance-matrix")) {
        for row in distances.value.as_chunks::<12>().0 {
            let [from, to, distance] =
                [0, 4, 8].map(|at| u32::from_be_bytes([row[at], row[at + 1], row[at + 2], row[at + 3]]));
            nodes.set_distance(from as usize, to as usize, distance as u8);
        }
    }
    let (image_start, image_end) = paging::image();
    map.reserve(image_start, image_end, Kind::Kernel);
    map.reserve(address, address + tree.total_size() as u64, Kind::Boot);
    for (index, cpu) in tree.cpus().take(MAX_CPUS).enumerate() {
        let name = cpu.ids().first() as u64;
        nodes.add_processor(name, number(cpu.property("numa-node-id")));
        NAMES[index].store(name, Relaxed);
        COUNT.store(index + 1, Relaxed);
    }
    let mut command_line = tree.chosen().bootargs().unwrap_or("");
    let mut archive: &[u8] = &[];
    if let Some((base, size, rest)) = archive_named(command_line) {
        command_line = rest;
        map.reserve(base, base + size, Kind::Boot);
        // SAFETY: the loader put it there, and the memory is kept for good.
        archive = unsafe { core::slice::from_raw_parts(phys_to_virt(base), size as usize) };
    }
    Boot { map, nodes, command_line, archive }
}

fn archive_named(command_line: &str) -> Option<(u64, u64, &str)> {
    let rest = command_line.strip_prefix("archive=")?;
    let (place, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (base, size) = place.split_once(',')?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    Some((number(base)?, number(size)?, rest))
}
