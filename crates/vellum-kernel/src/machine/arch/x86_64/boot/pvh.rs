//! The loader's structures in memory, read by the library (`vellum_kernel::pvh`,
//! `vellum_kernel::acpi`).

use crate::arch::kernel_map::{image, phys_to_virt};
use core::ops::Range;
use vellum_kernel::acpi::{self, Physical};
use vellum_kernel::boot::{BadBoot, Boot, MemoryMap};
use vellum_kernel::nodes::Nodes;
pub use vellum_kernel::pvh::COMMAND_LINE;
use vellum_kernel::pvh::{self, StartInfo};

/// The first GiB, which the direct map shows from the first instruction on.
struct First(());

impl Physical for First {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        const REACH: u64 = 1 << 30;
        address.checked_add(len as u64).filter(|end| *end <= REACH)?;
        // SAFETY: the direct map shows all of it, and by contract of [`read`], without which there
        // is no value of this type, nobody writes there.
        Some(unsafe { core::slice::from_raw_parts(phys_to_virt(address), len) })
    }
}

/// Reads the loader's structures, through the direct map; and returns the address of ACPI's root
/// pointer beside them.
///
/// # Safety
///
/// `start_info` is the physical address that the loader passed, and nothing has been written since to memory
/// outside the image. All of the structures lie in the first GiB, where every loader known puts them.
///
/// # Errors
///
/// [`BadBoot`]: the structures are unsound, or name memory or an archive that can't be.
pub unsafe fn read(start_info: u64) -> Result<(Boot, u64), BadBoot> {
    static MEMORY: First = First(());
    let (start, end) = image();
    let StartInfo { map, command_line, archive, rsdp } = pvh::read(&MEMORY, start_info, start..end)?;
    // SAFETY: it is memory, by the map, which keeps it for good.
    let archive = unsafe { slice(archive) };
    Ok((Boot { map, nodes: Nodes::new(), command_line, archive }, rsdp))
}

/// # Safety
///
/// The range is memory, and nobody ever writes there.
unsafe fn slice(range: Range<u64>) -> &'static [u8] {
    // SAFETY: by contract.
    unsafe { core::slice::from_raw_parts(phys_to_virt(range.start), (range.end - range.start) as usize) }
}

/// What is in memory, for who reads ACPI's tables.
struct Memory<'b>(&'b MemoryMap);

impl Physical for Memory<'_> {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        const REACH: u64 = 4 << 30;
        let end = address.checked_add(len as u64).filter(|end| *end <= REACH)?;
        let known = self.0.regions().iter().any(|region| region.base <= address && end <= region.end());
        // SAFETY: the direct map shows all below 4 GiB; by contract of [`read_nodes`] nobody writes there yet.
        known.then(|| unsafe { core::slice::from_raw_parts(phys_to_virt(address), len) })
    }
}

/// Learns of nodes from the firmware's tables, if there are any. `rsdp` is the address of their
/// root pointer.
///
/// # Safety
///
/// The final page tables are loaded, and nothing has been written to memory outside the image since
/// the kernel began.
pub unsafe fn read_nodes(rsdp: u64, boot: &mut Boot) {
    // Where there are no tables, there is one node.
    let _ = acpi::read(&Memory(&boot.map), rsdp, &mut boot.nodes);
}
