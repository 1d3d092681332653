//! Reads the loader's structures in memory through the library's parsers (`vellum_kernel::pvh`,
//! `vellum_kernel::acpi`).

use crate::arch::kernel_map::{image, phys_to_virt};
use core::ops::Range;
use vellum_kernel::acpi::{self, PhysicalMemory};
use vellum_kernel::boot::{BadBoot, Boot, MemoryMap};
use vellum_kernel::nodes::Nodes;
pub use vellum_kernel::pvh::COMMAND_LINE;
use vellum_kernel::pvh::{self, StartInfo};

/// Physical memory below 1 GiB, which the direct map covers as soon as paging is on.
struct First(());

impl PhysicalMemory for First {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        const REACH: u64 = 1 << 30;
        address.checked_add(len as u64).filter(|end| *end <= REACH)?;
        // SAFETY: the direct map covers the range, and by the contract of [`read`], which makes the
        // only value of this type, no code writes there.
        Some(unsafe { core::slice::from_raw_parts(phys_to_virt(address), len) })
    }
}

/// Reads the loader's structures through the direct map. Returns the boot information and the
/// address of ACPI's root pointer.
///
/// # Safety
///
/// `start_info` is the physical address that the loader passed, and nothing has been written to
/// memory outside the image since. All the structures lie in the first GiB, where all known loaders
/// put them.
///
/// # Errors
///
/// [`BadBoot`]: the structures are malformed, or name memory or an archive that can't exist.
pub unsafe fn read(start_info: u64) -> Result<(Boot, u64), BadBoot> {
    static MEMORY: First = First(());
    let (start, end) = image();
    let StartInfo { map, command_line, archive, rsdp } = pvh::read(&MEMORY, start_info, start..end)?;
    // SAFETY: the range is memory that the map reserves permanently.
    let archive = unsafe { slice(archive) };
    Ok((Boot { map, nodes: Nodes::new(), command_line, archive }, rsdp))
}

/// Returns the bytes of a physical range.
///
/// # Safety
///
/// The range is memory that is never written again.
unsafe fn slice(range: Range<u64>) -> &'static [u8] {
    // SAFETY: the caller names memory that is never written again, and the direct map covers it.
    unsafe { core::slice::from_raw_parts(phys_to_virt(range.start), (range.end - range.start) as usize) }
}

/// The physical memory that the memory map lists, for the ACPI parser to read.
struct Memory<'b>(&'b MemoryMap);

impl PhysicalMemory for Memory<'_> {
    fn bytes(&self, address: u64, len: usize) -> Option<&[u8]> {
        const REACH: u64 = 4 << 30;
        let end = address.checked_add(len as u64).filter(|end| *end <= REACH)?;
        let known = self.0.regions().iter().any(|region| region.base <= address && end <= region.end());
        // SAFETY: the direct map covers all addresses below 4 GiB; by the contract of
        // [`read_nodes`] no code writes there yet.
        known.then(|| unsafe { core::slice::from_raw_parts(phys_to_virt(address), len) })
    }
}

/// Reads the NUMA nodes from the firmware's ACPI tables, if there are any. `rsdp` is the address of
/// their root pointer.
///
/// # Safety
///
/// The final page tables are loaded, and nothing has been written to memory outside the image since
/// boot.
pub unsafe fn read_nodes(rsdp: u64, boot: &mut Boot) {
    // A failure is ignored: without readable ACPI tables the machine has one node.
    let _ = acpi::read(&Memory(&boot.map), rsdp, &mut boot.nodes);
}
