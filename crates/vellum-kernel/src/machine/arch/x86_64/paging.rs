//! The kernel half of every address space: the kernel itself, and all physical memory.
//!
//! | addresses | what | by |
//! |---|---|---|
//! | [`DIRECT_MAP`](crate::arch::layout::DIRECT_MAP), up to 512 GiB | physical memory, from 0 on, writable, never executable | pages of 1 GiB |
//! | [`KERNEL_BASE`](crate::arch::layout::KERNEL_BASE) + 2 MiB | the kernel's image, each section with its own rights, the guard pages left out | pages of 4 KiB |
//!
//! Both live in one entry each of a four-level table, or together in the last entry of a five-level one, which is
//! written once here and never again. So an address space gets the kernel half by [`copy_kernel_half`], and no copy can
//! ever be out of date. The user half belongs to the engine. After [`init`] nothing is mapped there, the first page
//! included.

use crate::arch::cpu;
use crate::arch::kernel_map::{GIB, ImageTables, Section, Table, image_to_phys, phys_to_virt};
use crate::arch::layout::DIRECT_MAP_SLOT;
use core::arch::asm;
use vellum::arch::Arch;
use vellum_kernel::boot::{BadBoot, Kind, MemoryMap};
use x86_64::instructions::tlb;
use x86_64::registers::control::{Cr3, Cr3Flags};
use x86_64::structures::paging::{PageTableFlags as Flags, PhysFrame};
use x86_64::{PhysAddr, VirtAddr};

const HUGE_2M: u64 = 2 << 20;
/// How many GiB the direct map reaches on a processor without pages of 1 GiB.
const SMALL_REACH: usize = 4;

/// What an entry says that leads to a table.
const LINK: Flags = Flags::PRESENT.union(Flags::WRITABLE);

/// Returns the entry that leads to a table.
fn link(table: &Table) -> u64 {
    table.address() | LINK.bits()
}

struct Tables {
    /// The root of five levels.
    top: Table,
    /// The root of four levels, or what is below the last entry of `top`.
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

/// Builds the final tables and switches to them. Memory that the direct map cannot reach is taken from `map`.
///
/// # Safety
///
/// To be called once, on the boot processor, after [`cpu::init`], before anything keeps an address of the
/// identity mapping.
///
/// # Errors
///
/// The map has no room for that.
pub unsafe fn init(map: &mut MemoryMap) -> Result<(), BadBoot> {
    let tables = &raw mut TABLES;
    // SAFETY: called once and with one processor, so this is the only reference there ever is; the processor
    // reads the tables, and writes accessed bits to them, only after the last use of it.
    let tables = unsafe { &mut *tables };
    let reach = map_memory(tables, map.top().max(4 * GIB));
    map.reserve(reach, u64::MAX, Kind::Unreachable)?;
    map_image(tables);
    tables.root.0[DIRECT_MAP_SLOT as usize] = link(&tables.direct);
    tables.root.0[511] = link(&tables.high);
    tables.top.0[511] = link(&tables.root);
    // SAFETY: the new tables map the image, which holds this code, its data and its stack, where the old ones
    // do, with the rights that each section needs.
    unsafe { load_root(kernel_root()) };
    // Only now: an entry of the old tables must not stay in the TLB over the switch. They have no global bit,
    // but this way it does not matter.
    cpu::enable_keeping();
    Ok(())
}

/// Fills the direct map up to `top` and returns how far it reaches.
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
            link(directory)
        };
    }
    slots as u64 * GIB
}

/// Maps the image by pages of 4 KiB, each with the rights of its section.
fn map_image(tables: &mut Tables) {
    let leaf = |section, physical| {
        let rights = match section {
            Section::Data => Flags::WRITABLE | Flags::NO_EXECUTE,
            Section::ReadOnly => Flags::NO_EXECUTE,
            Section::Text => Flags::empty(),
        };
        physical | (rights | Flags::PRESENT | Flags::GLOBAL).bits()
    };
    tables.image.fill(0, leaf, |table| table | LINK.bits());
    tables.high.0[510] = link(&tables.image.directory);
}

/// Checks that the tables are as the command line asks. Returns the rest of the command line, and the number of levels.
///
/// # Errors
///
/// They are not.
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

/// The format of the user half's tables.
pub type Format = vellum::arch::X86_64;

/// The same, as settled at boot.
pub fn format() -> Format {
    if cpu::has_five_levels() { Format::five_levels() } else { Format::four_levels() }
}

/// Returns the first address that user mode can't have. The engine says which: what it would refuse
/// is refused here too.
pub fn user_end() -> u64 {
    format().user_end()
}

/// The physical address of the kernel's own root table, whose user half is empty.
pub fn kernel_root() -> u64 {
    // SAFETY: only the field's address is taken; nothing is read.
    let root = unsafe { if cpu::has_five_levels() { &raw const TABLES.top } else { &raw const TABLES.root } };
    image_to_phys(root as u64)
}

/// Makes the kernel reachable from another root table, by writing the upper half of its entries.
///
/// # Safety
///
/// `root` is the physical address of a page in usable memory, used as a top-level table, whose upper 256
/// entries nobody else reads or writes meanwhile. The user half may be in use.
pub unsafe fn copy_kernel_half(root: u64) {
    // SAFETY: `init` was the last to write the kernel's root, and the kernel half of it never changes; the
    // other table is the caller's by contract. Both are pages of 512 entries.
    unsafe {
        let from = phys_to_virt::<u64>(kernel_root()).add(256);
        phys_to_virt::<u64>(root).add(256).copy_from_nonoverlapping(from, 256);
    }
}

/// Makes this processor translate through the table at physical address `root`, and drops what its TLB holds
/// of the user half.
///
/// # Safety
///
/// The table's upper half is the kernel's ([`copy_kernel_half`]), and the table stays one until another is
/// loaded.
pub unsafe fn load_root(root: u64) {
    let frame = PhysFrame::containing_address(PhysAddr::new(root));
    // SAFETY: the upper half is the same as that of the table in use, so the kernel goes on as it was; what
    // the user half maps, the kernel touches only under `cpu::user_access`.
    unsafe { Cr3::write(frame, Cr3Flags::empty()) };
}

/// The same for a space with a tag, 1 or more: where the processor has tags, nothing is dropped of other spaces, and of this
/// one only if not to `keep` it (Intel SDM, volume 3A, "Process-Context Identifiers (PCIDs)").
///
/// # Safety
///
/// As of [`load_root`]. What is kept is true of the tables.
pub unsafe fn load_tagged_root(root: u64, tag: u16, keep: bool) {
    if !cpu::has_tags() {
        // SAFETY: by contract.
        return unsafe { load_root(root) };
    }
    let value = root | u64::from(tag) | u64::from(keep) << 63;
    // SAFETY: as in `load_root`; the bits are a tag and, with tags on, the wish to keep.
    unsafe { asm!("mov cr3, {}", in(reg) value, options(nostack, preserves_flags)) };
}

/// Has the tables, as they are written, be what other processors' translations see: they are.
pub fn publish() {}

/// Drops this processor's translations of the pages at these addresses, of whatever size, and all it holds of the tables of
/// the space that is loaded (Intel SDM, volume 3A, "Operations that Invalidate TLBs and Paging-Structure Caches").
pub fn flush_pages(addresses: impl Iterator<Item = u64>) {
    for address in addresses {
        // SAFETY: never a bad address, and the constructors that check know four levels only; INVLPG takes any.
        tlb::flush(unsafe { VirtAddr::new_unsafe(address) });
    }
}

/// Drops all this processor's translations of the user half of the space that is loaded. Those of the kernel half are
/// global, and stay.
pub fn flush_user() {
    let root: u64;
    // SAFETY: the register is written as it was; the bit that would keep translations reads as 0.
    unsafe { asm!("mov {0}, cr3", "mov cr3, {0}", out(reg) root, options(nostack, preserves_flags)) };
    let _ = root;
}
