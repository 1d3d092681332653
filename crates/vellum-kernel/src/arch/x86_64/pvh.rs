//! What the loader says about the machine: physical memory, and the command line.
//!
//! The structures are those of Xen's `xen/include/public/arch-x86/hvm/start_info.h`, version 1, which QEMU fills
//! in. They lie in ordinary memory; [`read`] takes what is needed out of them and marks what stays in use.

use crate::arch::paging::{self, PAGE_SIZE, phys_to_virt};
use core::ffi::CStr;
use vellum_kernel::acpi::{self, Physical};
use vellum_kernel::boot::{Boot, Kind, MemoryMap};
use vellum_kernel::nodes::Nodes;

const MAGIC: u32 = 0x336e_c578;
/// Below lie the BIOS data area, option ROMs and the frame buffer, whatever the memory map says.
const LOW_MEMORY: u64 = 1 << 20;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    modules: u32,
    module_list: u64,
    command_line: u64,
    rsdp: u64,
    memory_map: u64,
    memory_map_entries: u32,
    reserved: u32,
}

/// Where in the start info the address of the command line is.
pub const COMMAND_LINE: usize = core::mem::offset_of!(StartInfo, command_line);

#[repr(C)]
#[derive(Clone, Copy)]
struct MemoryMapEntry {
    base: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Module {
    base: u64,
    size: u64,
    command_line: u64,
    reserved: u64,
}

/// Reads the loader's structures, through the direct map.
///
/// # Safety
///
/// `start_info` is the physical address that the loader passed, and nothing has been written since to memory
/// outside the image. All of the structures lie in the first GiB, where every loader known puts them.
pub unsafe fn read(start_info: u64) -> Boot {
    // SAFETY: by contract, this and all below it: each structure was put there by the loader, and lies in
    // mapped memory that nobody writes. Nothing promises alignment, so the reads do not ask for it.
    let info = unsafe { phys_to_virt::<StartInfo>(start_info).read_unaligned() };
    assert!(info.magic == MAGIC && info.version >= 1, "no PVH start info with a memory map at {start_info:#x}");
    let mut map = MemoryMap::new();
    for index in 0..u64::from(info.memory_map_entries) {
        let address = info.memory_map + index * size_of::<MemoryMapEntry>() as u64;
        // SAFETY: as above.
        let entry = unsafe { phys_to_virt::<MemoryMapEntry>(address).read_unaligned() };
        let (base, end) = (entry.base, entry.base + entry.size);
        match entry.kind {
            1 => map.push(base.next_multiple_of(PAGE_SIZE), end & !(PAGE_SIZE - 1), Kind::Usable),
            3 => map.push(base, end, Kind::AcpiTables),
            4 => map.push(base, end, Kind::AcpiStorage),
            _ => map.push(base, end, Kind::Reserved),
        }
    }
    let (image_start, image_end) = paging::image();
    map.reserve(0, LOW_MEMORY, Kind::Low);
    map.reserve(image_start, image_end, Kind::Kernel);
    let mut keep = |start: u64, size: usize| map.reserve(start, start + size as u64, Kind::Boot);
    keep(start_info, size_of::<StartInfo>());
    keep(info.memory_map, info.memory_map_entries as usize * size_of::<MemoryMapEntry>());
    keep(info.module_list, info.modules as usize * size_of::<Module>());
    let mut archive: &[u8] = &[];
    for index in 0..u64::from(info.modules) {
        let address = info.module_list + index * size_of::<Module>() as u64;
        // SAFETY: as above.
        let module = unsafe { phys_to_virt::<Module>(address).read_unaligned() };
        keep(module.base, module.size as usize);
        if index == 0 {
            // SAFETY: as above, and kept for good.
            archive = unsafe { core::slice::from_raw_parts(phys_to_virt(module.base), module.size as usize) };
        }
    }
    let mut command_line = c"";
    if info.command_line != 0 {
        // SAFETY: as above; the loader ends it with a zero byte, and it is kept for good.
        command_line = unsafe { CStr::from_ptr(phys_to_virt(info.command_line)) };
        keep(info.command_line, command_line.count_bytes() + 1);
    }
    Boot { map, nodes: Nodes::new(), command_line: command_line.to_str().unwrap_or(""), archive }
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

/// Learns of nodes from the firmware's tables, if there are any.
///
/// # Safety
///
/// `start_info` is the physical address that the loader passed; the final tables are loaded, and nothing has been written since to
/// memory outside the image.
pub unsafe fn read_nodes(start_info: u64, boot: &mut Boot) {
    // SAFETY: by contract, as in [`read`].
    let info = unsafe { phys_to_virt::<StartInfo>(start_info).read_unaligned() };
    // Where there are no tables, there is one node.
    let _ = acpi::read(&Memory(&boot.map), info.rsdp, &mut boot.nodes);
}
