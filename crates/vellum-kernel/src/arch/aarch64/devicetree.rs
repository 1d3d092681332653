//! What the machine says of itself: the device tree that QEMU leaves at the start of memory (Devicetree Specification).

use crate::arch::paging::{self, PAGE_SIZE, phys_to_virt};
use crate::percpu::MAX_CPUS;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use fdt::Fdt;
use vellum_kernel::boot::{Boot, Kind, MemoryMap};

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
    for node in tree.all_nodes().filter(|node| node.name.starts_with("memory@")) {
        for region in node.reg().into_iter().flatten() {
            let (base, size) = (region.starting_address as u64, region.size.unwrap_or(0) as u64);
            map.push(base.next_multiple_of(PAGE_SIZE), (base + size) & !(PAGE_SIZE - 1), Kind::Usable);
        }
    }
    let (image_start, image_end) = paging::image();
    map.reserve(image_start, image_end, Kind::Kernel);
    map.reserve(address, address + tree.total_size() as u64, Kind::Boot);
    for (index, cpu) in tree.cpus().take(MAX_CPUS).enumerate() {
        NAMES[index].store(cpu.ids().first() as u64, Relaxed);
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
    Boot { map, command_line, archive }
}

fn archive_named(command_line: &str) -> Option<(u64, u64, &str)> {
    let rest = command_line.strip_prefix("archive=")?;
    let (place, rest) = rest.split_once(' ').unwrap_or((rest, ""));
    let (base, size) = place.split_once(',')?;
    let number = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    Some((number(base)?, number(size)?, rest))
}
