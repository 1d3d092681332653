//! Reads the device tree, which QEMU leaves at the start of memory, through the library's parser
//! (`vellum_kernel::devicetree`).

use crate::arch::kernel_map::{image, phys_to_virt};
use crate::arch::percpu::MAX_CPUS;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use vellum_kernel::boot::{BadBoot, Boot};
use vellum_kernel::devicetree::{self, HEAD, Tree};

/// The number of CPUs that the kernel uses: those in the device tree, at most [`MAX_CPUS`].
static COUNT: AtomicUsize = AtomicUsize::new(1);
/// The affinity (MPIDR_EL1) of each CPU, by its place in the device tree. PSCI calls name a CPU by
/// it.
static NAMES: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// Iterates over the CPUs' affinities.
pub fn processors() -> impl Iterator<Item = u64> {
    NAMES[..COUNT.load(Relaxed)].iter().map(|name| name.load(Relaxed))
}

/// Reads the device tree at the physical address `address`.
///
/// # Safety
///
/// The tree is in the first 2 GiB, and nothing has been written to memory outside the kernel's
/// image since boot.
///
/// # Errors
///
/// [`BadBoot`]: the tree is malformed, or names memory or an archive that can't exist.
pub unsafe fn read(address: u64) -> Result<Boot, BadBoot> {
    // SAFETY: the tree lies in the first 2 GiB (this function's contract), which the direct map
    // covers, and the memory map reserves its range permanently. The tree's body follows its
    // header, which contains the size.
    let bytes = |len: usize| -> &'static [u8] { unsafe { core::slice::from_raw_parts(phys_to_virt(address), len) } };
    let tree = bytes(devicetree::size(bytes(HEAD))?);
    let (start, end) = image();
    let tree = devicetree::read(tree, address, start..end)?;
    for (name, known) in NAMES.iter().zip(tree.processors()) {
        name.store(*known, Relaxed);
    }
    COUNT.store(tree.processors().len().clamp(1, MAX_CPUS), Relaxed);
    let Tree { map, nodes, command_line, archive, .. } = tree;
    let len = (archive.end - archive.start) as usize;
    // SAFETY: the loader put the archive into memory that the map reserves permanently.
    let archive = unsafe { core::slice::from_raw_parts(phys_to_virt(archive.start), len) };
    Ok(Boot { map, nodes, command_line, archive })
}
