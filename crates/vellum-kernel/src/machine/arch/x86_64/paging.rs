//! The kernel half of every address space: the kernel's image and the direct map.
//!
//! | addresses | contents | leaf size |
//! |---|---|---|
//! | [`DIRECT_MAP`], up to 512 GiB | physical memory from 0 on, writable, never executable | 1 GiB |
//! | [`vmalloc::START`] | single frames, writable, never executable | 4 KiB |
//! | [`KERNEL_BASE`] + 2 MiB | the kernel's image, each section with its rights | 4 KiB |
//!
//! The guard pages of the kernel's stacks, which lie in the image, are left unmapped.
//!
//! The direct map occupies one entry of a four-level root page table, and the other two share one;
//! with five levels all share the root's last entry. These entries are written once here and never
//! change, so that [`copy_kernel_half`] gives an address space a kernel half that stays current.
//! The user half belongs to the engine. After [`init`] nothing is mapped in the user half, not even
//! the first page.
//!
//! [`DIRECT_MAP`]: crate::arch::layout::DIRECT_MAP
//! [`KERNEL_BASE`]: crate::arch::layout::KERNEL_BASE

use crate::arch::kernel_map::{GIB, ImageTables, Section, Table, image_to_phys, phys_to_virt};
use crate::arch::layout::DIRECT_MAP_SLOT;
use crate::arch::{cpu, vmalloc};
use core::arch::asm;
use vellum::arch::Arch;
use vellum_kernel::boot::{BadBoot, Kind, MemoryMap};
use x86_64::instructions::tlb;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::{PageTableFlags as Flags, PhysFrame};
use x86_64::{PhysAddr, VirtAddr};

const HUGE_2M: u64 = 2 << 20;
/// The size in GiB of the direct map on a CPU without 1 GiB pages.
const SMALL_REACH: usize = 4;

/// The flags of an entry that links a page table.
const LINK: Flags = Flags::PRESENT.union(Flags::WRITABLE);

/// Returns the entry that links the page table at a physical address.
pub fn link(table: u64) -> u64 {
    table | LINK.bits()
}

/// Returns the leaf PTE of the page at a physical address, with the rights of a section.
pub fn leaf(section: Section, physical: u64) -> u64 {
    let rights = match section {
        Section::Data => Flags::WRITABLE | Flags::NO_EXECUTE,
        Section::ReadOnly => Flags::NO_EXECUTE,
        Section::Text => Flags::empty(),
    };
    physical | (rights | Flags::PRESENT | Flags::GLOBAL).bits()
}

struct Tables {
    /// The root with five levels.
    top: Table,
    /// The root with four levels, or the table below the last entry of `top`.
    root: Table,
    direct: Table,
    direct_small: [Table; SMALL_REACH],
    high: Table,
    image: ImageTables,
}

static mut TABLES: Tables = Tables {
    top: Table::EMPTY,
    root: Table::EMPTY,
    direct: Table::EMPTY,
    direct_small: [Table::EMPTY; SMALL_REACH],
    high: Table::EMPTY,
    image: ImageTables::new(),
};

/// Builds the final page tables and loads them. Marks memory beyond the direct map as reserved in
/// `map`.
///
/// # Safety
///
/// Called once, on the boot CPU, after [`cpu::init`]. No pointer into the identity mapping, which
/// this function removes, is used afterwards.
///
/// # Errors
///
/// [`BadBoot`]: the memory map has no free entry for the reservation.
pub unsafe fn init(map: &mut MemoryMap) -> Result<(), BadBoot> {
    let tables = &raw mut TABLES;
    // SAFETY: called once with one CPU running, so this is the only reference ever; the CPU reads
    // the page tables and sets accessed bits in them only after the reference's last use.
    let tables = unsafe { &mut *tables };
    let reach = map_memory(tables, map.top().max(4 * GIB));
    map.reserve(reach, u64::MAX, Kind::Unreachable)?;
    map_image(tables);
    tables.root.0[DIRECT_MAP_SLOT as usize] = link(tables.direct.address());
    tables.root.0[511] = link(tables.high.address());
    tables.top.0[511] = link(tables.root.address());
    // SAFETY: the new page tables map the image, with this code, its data and its stack, at the
    // same addresses as the old ones and with each section's rights.
    unsafe { load_root(kernel_root()) };
    // Enabled only after the switch, so that the TLB keeps no PTE of the old page tables, even if
    // one had the global bit.
    cpu::enable_global_and_pcid();
    Ok(())
}

/// Fills the direct map up to `top`. Returns the end of the memory that it covers.
fn map_memory(tables: &mut Tables, top: u64) -> u64 {
    let rights = Flags::PRESENT | Flags::WRITABLE | Flags::HUGE_PAGE | Flags::GLOBAL | Flags::NO_EXECUTE;
    let wanted = top.div_ceil(GIB) as usize;
    let slots = wanted.min(if cpu::has_1g_pages() { 512 } else { SMALL_REACH });
    for (slot, base) in (0..slots).zip((0..).step_by(GIB as usize)) {
        tables.direct.0[slot] = if cpu::has_1g_pages() {
            base | rights.bits()
        } else {
            let directory = &mut tables.direct_small[slot];
            for (entry, offset) in directory.0.iter_mut().zip((0..).step_by(HUGE_2M as usize)) {
                *entry = (base + offset) | rights.bits();
            }
            link(directory.address())
        };
    }
    slots as u64 * GIB
}

/// Maps the image by 4 KiB pages with the rights of each section, and links the vmalloc area.
fn map_image(tables: &mut Tables) {
    tables.image.fill(0, leaf, link);
    tables.high.0[510] = link(tables.image.directory.address());
    tables.high.0[vmalloc::SLOT] = link(vmalloc::init(link));
}

/// Checks that the page tables have the number of levels that the command line demands: five after
/// `la57`, else four. Returns the rest of the command line and that number.
///
/// # Errors
///
/// A message: the command line demands five levels, and the CPU has four.
pub fn choose(command_line: &str) -> Result<(&str, Option<u32>), &'static str> {
    let (levels, rest) = match command_line.strip_prefix("la57") {
        Some(rest) => (5, rest.trim_start()),
        None => (4, command_line),
    };
    if cpu::has_five_levels() != (levels == 5) {
        return Err("asked for five levels of page tables, and the processor has four");
    }
    Ok((rest, Some(levels)))
}

/// The page-table format of the user half.
pub type Format = vellum::arch::X86_64;

/// Returns the format with the number of levels that boot chose.
pub fn format() -> Format {
    if cpu::has_five_levels() { Format::five_levels() } else { Format::four_levels() }
}

/// Returns the end of user addresses. The engine's format defines it, so that the kernel refuses
/// exactly what the engine would.
pub fn user_end() -> u64 {
    format().user_end()
}

/// Returns the physical address of the kernel's own root page table, whose user half is empty.
pub fn kernel_root() -> u64 {
    // SAFETY: only the field's address is taken; nothing is read.
    let root = unsafe { if cpu::has_five_levels() { &raw const TABLES.top } else { &raw const TABLES.root } };
    image_to_phys(root as u64)
}

/// Copies the kernel's root entries into the upper half of another root page table.
///
/// # Safety
///
/// `root` is the physical address of a root page table in usable memory, whose upper 256 entries no
/// other code accesses meanwhile. The user half may be in use.
pub unsafe fn copy_kernel_half(root: u64) {
    // SAFETY: `init` was the last to write the kernel's root, whose kernel half never changes; no
    // other code accesses the other root's upper half (this function's contract). Both are pages of
    // 512 entries.
    unsafe {
        let from = phys_to_virt::<u64>(kernel_root()).add(256);
        phys_to_virt::<u64>(root).add(256).copy_from_nonoverlapping(from, 256);
    }
}

/// Loads the root page table at physical address `root` on this CPU, and flushes the user half from
/// its TLB.
///
/// # Safety
///
/// The root's upper half is the kernel's ([`copy_kernel_half`]), and the page table stays valid
/// until another is loaded.
pub unsafe fn load_root(root: u64) {
    let frame = PhysFrame::containing_address(PhysAddr::new(root));
    // SAFETY: the upper half is the same as the loaded one's, so the kernel continues to run; the
    // kernel accesses the user half only inside `cpu::user_access`.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
}

/// Loads a space's root page table at physical address `root` under the TLB tag `tag`, at least 1.
/// With PCIDs, other spaces' translations stay in the TLB, and with `keep` those of this space stay
/// too (Intel SDM, volume 3A, "Process-Context Identifiers (PCIDs)").
///
/// # Safety
///
/// The contract of [`load_root`] holds. With `keep`, the TLB's translations under `tag` agree with
/// the page tables.
pub unsafe fn load_tagged_root(root: u64, tag: u16, keep: bool) {
    if !cpu::has_tags() {
        // SAFETY: this function's contract includes that of `load_root`.
        return unsafe { load_root(root) };
    }
    let value = root | u64::from(tag) | u64::from(keep) << 63;
    // SAFETY: the upper half is the same as the loaded one's, so the kernel continues to run; the
    // other bits are the PCID and, with PCIDs enabled, the no-flush bit.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Makes page-table writes visible to the page-table walks of other CPUs; x86 needs no barrier for
/// that.
pub fn publish() {}

/// Flushes the translations of the pages at these addresses, of any page size, from this CPU's TLB,
/// together with its paging-structure caches of the loaded space (Intel SDM, volume 3A, "Operations
/// that Invalidate TLBs and Paging-Structure Caches").
pub fn flush_pages(addresses: impl Iterator<Item = u64>) {
    for address in addresses {
        // SAFETY: the addresses are canonical, but the checked constructors know four levels only;
        // INVLPG accepts any address.
        tlb::flush(unsafe { VirtAddr::new_unsafe(address) });
    }
}

/// Flushes this CPU's translations of the loaded space's user half. Those of the kernel half are
/// global and stay.
pub fn flush_user() {
    let root: u64;
    // SAFETY: the register is written back unchanged. The no-flush bit reads as 0, so that the
    // write flushes all translations that are not global.
    unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) root, options(nostack, preserves_flags)) };
    let _ = root;
}
