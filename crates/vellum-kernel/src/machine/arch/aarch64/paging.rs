//! The kernel half of every address space: the kernel itself, and all physical memory. It has tables of its own (TTBR1_EL1),
//! so that the user half (TTBR0_EL1) is the engine's alone.
//!
//! | addresses | what | by |
//! |---|---|---|
//! | [`DIRECT_MAP`](crate::arch::layout::DIRECT_MAP), 512 GiB | physical memory, and devices, from 0 on, writable, never executable | blocks of 1 GiB |
//! | [`KERNEL_BASE`](crate::arch::layout::KERNEL_BASE) + 1 GiB + 2 MiB | the kernel's image, each section with its own rights, the guard pages left out | pages of 4 KiB |

use crate::arch::kernel_map::{GIB, ImageTables, Section, Table, image_to_phys};
use core::arch::{asm, global_asm};
use vellum::arch::{Aarch64, Arch};
use vellum_kernel::boot::{BadBoot, Kind, MemoryMap};

/// What every valid entry has that leads nowhere else: accessed, inner shareable.
const LEAF: u64 = 1 << 10 | 3 << 8;
/// A valid entry that is a block, and one that is a page or a table.
const BLOCK: u64 = 0b01;
const PAGE: u64 = 0b11;
/// The memory types, as [`MEMORY_TYPES`] says.
const DEVICE: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 7;
/// Not executable: by the kernel, by user mode.
const PRIVILEGED_NO_EXEC: u64 = 1 << 53;
const USER_NO_EXEC: u64 = 1 << 54;
/// MAIR_EL1: normal memory, write-back; device memory, whose writes may be acknowledged early.
pub const MEMORY_TYPES: u64 = 0x04 << 8 | 0xff;

/// Memory begins at 1 GiB; below are devices, and above what the map says.
const FIRST_MEMORY: u64 = GIB;
/// Returns the entry that leads to a table.
fn link(table: &Table) -> u64 {
    table.address() | PAGE
}

struct Tables {
    root: Table,
    direct: Table,
    high: Table,
    image: ImageTables,
    /// The root of a user half in which there is nothing.
    empty: Table,
}

static mut TABLES: Tables = Tables {
    root: Table::EMPTY,
    direct: Table::EMPTY,
    high: Table::EMPTY,
    image: ImageTables::new(),
    empty: Table::EMPTY,
};

/// Builds the final tables and switches to them. Memory that the direct map cannot reach is taken from `map`.
///
/// # Safety
///
/// To be called once, on the boot processor, before anything keeps an address of the identity mapping.
///
/// # Errors
///
/// The map has no room for that.
pub unsafe fn init(map: &mut MemoryMap) -> Result<(), BadBoot> {
    let tables = &raw mut TABLES;
    // SAFETY: called once and with one processor, so this is the only reference there ever is; the processor
    // reads the tables only after the last use of it.
    let tables = unsafe { &mut *tables };
    map.reserve(512 * GIB, u64::MAX, Kind::Unreachable)?;
    let memory = FIRST_MEMORY..map.top().next_multiple_of(GIB).max(FIRST_MEMORY + GIB);
    for (entry, base) in tables.direct.0.iter_mut().zip((0..).step_by(GIB as usize)) {
        let kind = if memory.contains(&base) { 0 } else { DEVICE };
        *entry = base | LEAF | BLOCK | kind | PRIVILEGED_NO_EXEC | USER_NO_EXEC;
    }
    map_image(tables);
    tables.root.0[0] = link(&tables.direct);
    tables.root.0[511] = link(&tables.high);
    // SAFETY: the new tables map the image, which holds this code, its data and its stack, where the old ones
    // do, with the rights that each section needs.
    unsafe { adopt() };
    Ok(())
}

/// Has this processor leave the tables of [`crate::arch::boot`] for the final ones, with nothing in the user half.
///
/// # Safety
///
/// The final tables are there, interrupts are off, and the user half is the identity mapping.
pub unsafe fn adopt() {
    // SAFETY: only the field's address is taken; nothing is read.
    let root = unsafe { &raw const TABLES.root };
    // SAFETY: by contract. The code runs in the identity mapping while there is no kernel half.
    unsafe {
        paging_switch(image_to_phys(root as u64), kernel_root(), image_to_phys(paging_switch as *const () as u64));
        load_root(kernel_root());
    }
}

// A page must not have two sizes in a TLB: so there is a moment without any (Arm ARM, D8.17.1, "Using break-before-make").
global_asm!(
    r#"
    .section .text.paging, "ax", @progbits
paging_switch:                          // (the new root, an empty one, the physical address of this)
    add     x2, x2, #16
    br      x2
    nop
    nop
    msr     ttbr1_el1, x1
    isb
    tlbi    vmalle1
    dsb     nsh
    isb
    msr     ttbr1_el1, x0
    isb
    ret
    "#
);

unsafe extern "C" {
    fn paging_switch(root: u64, empty: u64, here: u64);
}

/// Maps the image by pages of 4 KiB, each with the rights of its section.
fn map_image(tables: &mut Tables) {
    let leaf = |section, physical| {
        let rights = match section {
            Section::Data => PRIVILEGED_NO_EXEC,
            Section::ReadOnly => PRIVILEGED_NO_EXEC | READ_ONLY,
            Section::Text => READ_ONLY,
        };
        physical | LEAF | PAGE | USER_NO_EXEC | rights
    };
    tables.image.fill(FIRST_MEMORY, leaf, |table| table | PAGE);
    tables.high.0[510] = link(&tables.image.directory);
}

/// Returns the command line: there is one kind of tables, and so no number of levels to report.
///
/// # Errors
///
/// None.
pub fn choose(command_line: &str) -> Result<(&str, Option<u32>), &'static str> {
    Ok((command_line, None))
}

/// The format of the user half's tables.
pub type Format = Aarch64;

/// The same, as the processor is: whether it lets the contiguous bit of live leaves change in place, and is known not to abort
/// then (ID_AA64MMFR2_EL1.BBM; QEMU's own CPU).
pub fn format() -> Format {
    /// MIDR_EL1 without variant and revision.
    const QEMU_MAX: u64 = 0x000f_0510;
    let known = read_register!("midr_el1") & 0xff0f_fff0 == QEMU_MAX;
    let format = Aarch64::granule_4k();
    if known && read_register!("id_aa64mmfr2_el1") >> 52 & 15 >= 2 { format.with_bbm2() } else { format }
}

/// What TCR_EL1 says but for the size of physical addresses: both halves alike, address-space identifiers of 16 bits.
pub const fn control() -> u64 {
    let user = Aarch64::granule_4k().tcr_el1();
    let (size, write_back, inner_shareable, granule) = (16 << 16, 0b01 << 24 | 0b01 << 26, 0b11 << 28, 0b10 << 30);
    user | size | write_back | inner_shareable | granule | 1 << 36
}

/// Returns the first address that user mode can't have: that of the format, whatever the processor
/// adds to it.
pub fn user_end() -> u64 {
    Aarch64::granule_4k().user_end()
}

/// The physical address of the root of a user half in which there is nothing.
pub fn kernel_root() -> u64 {
    // SAFETY: only the field's address is taken; nothing is read.
    image_to_phys(unsafe { &raw const TABLES.empty } as u64)
}

/// Makes the kernel reachable from another root table: it is, always.
///
/// # Safety
///
/// None is broken here: other architectures have something to promise.
pub unsafe fn copy_kernel_half(_root: u64) {}

/// Makes this processor translate user addresses through the table at physical address `root`, in which there is nothing.
///
/// # Safety
///
/// The table stays one until another is loaded.
pub unsafe fn load_root(root: u64) {
    // SAFETY: the kernel half has tables of its own; and nothing is cached under identifier 0, which is for this alone.
    unsafe { write_register!("ttbr0_el1", root) };
}

/// The same for a space with a tag, 1 or more: nothing is dropped of other spaces, and of this one only if not to `keep` it.
///
/// # Safety
///
/// The table stays one until another is loaded. What is kept is true of the tables.
pub unsafe fn load_tagged_root(root: u64, tag: u16, keep: bool) {
    let tag = u64::from(tag) << 48;
    if !keep {
        // The tag may be that of the space that is loaded, of whose tables nothing may come to be
        // cached under it any more. Nothing is under identifier 0.
        // SAFETY: nothing is there.
        unsafe { load_root(kernel_root()) };
        // SAFETY: dropping translations breaks nothing.
        unsafe { asm!("dsb ishst", "tlbi aside1, {}", "dsb nsh", in(reg) tag, options(nostack, preserves_flags)) };
    }
    // SAFETY: by contract; what user memory holds, the kernel touches only under `cpu::user_access`.
    unsafe { write_register!("ttbr0_el1", root | tag) };
}

/// The tag of the space that is loaded, where invalidations want it.
fn tag() -> u64 {
    read_register!("ttbr0_el1") & !((1 << 48) - 1)
}

/// Has the tables, as they are written, be what other processors' translations see, before those are told.
pub fn publish() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
}

/// Drops this processor's translations of the pages at these addresses, of whatever size, and all it holds of the tables that
/// lead to them (Arm ARM, D8.17, "TLB maintenance").
pub fn flush_pages(addresses: impl Iterator<Item = u64>) {
    let tag = tag();
    publish();
    for address in addresses {
        let page = tag | address >> 12 & ((1 << 44) - 1);
        // SAFETY: dropping translations breaks nothing.
        unsafe { asm!("tlbi vae1, {}", in(reg) page, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb nsh", "isb", options(nostack, preserves_flags)) };
}

/// Drops all this processor's translations of the user half of the space that is loaded.
pub fn flush_user() {
    // SAFETY: dropping translations breaks nothing.
    unsafe { asm!("dsb ishst", "tlbi aside1, {}", "dsb nsh", "isb", in(reg) tag(), options(nostack, preserves_flags)) };
}

/// Drops all this processor's translations.
pub fn flush_all() {
    // SAFETY: as above.
    unsafe { asm!("dsb ishst", "tlbi vmalle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}
