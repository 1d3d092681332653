//! The device tree that QEMU leaves at the start of memory, read by the library
//! (`vellum_kernel::devicetree`).

use crate::arch::kernel_map::{image, phys_to_virt};
use crate::arch::percpu::MAX_CPUS;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use vellum_kernel::boot::{BadBoot, Boot};
use vellum_kernel::devicetree::{self, HEAD, Tree};

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
/// # Safety
///
/// The tree is at this physical address, in the first 2 GiB, and nothing has been written since to
/// memory outside the image.
///
/// # Errors
///
/// [`BadBoot`]: the tree is unsound, or names memory or an archive that can't be.
pub unsafe fn read(address: u64) -> Result<Boot, BadBoot> {
    // SAFETY: by contract it is memory, which the direct map shows, and what of it is a tree's is
    // kept for good. The rest of a tree that says how large it is follows on its head.
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
    // SAFETY: the loader put it into memory, by the map, which keeps it for good.
    let archive = unsafe { core::slice::from_raw_parts(phys_to_virt(archive.start), len) };
    Ok(Boot { map, nodes, command_line, archive })
}
