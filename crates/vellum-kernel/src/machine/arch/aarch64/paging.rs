//! The kernel half of every address space: the kernel's image and the direct map. It has page
//! tables of its own (TTBR1_EL1), so that the user half (TTBR0_EL1) belongs to the engine alone.
//!
//! | addresses | contents | leaf size |
//! |---|---|---|
//! | [`DIRECT_MAP`], 512 GiB | physical memory and devices from 0 on, writable, never executable | 1 GiB |
//! | [`vmalloc::START`] | single frames, writable, never executable | 4 KiB |
//! | [`KERNEL_BASE`] + 1 GiB + 2 MiB | the kernel's image, each section with its rights | 4 KiB |
//!
//! The guard pages of the kernel's stacks, which lie in the image, are left unmapped.
//!
//! [`DIRECT_MAP`]: crate::arch::layout::DIRECT_MAP
//! [`KERNEL_BASE`]: crate::arch::layout::KERNEL_BASE

use crate::arch::kernel_map::{GIB, ImageTables, Section, Table, image_to_phys};
use crate::arch::vmalloc;
use core::arch::{asm, global_asm};
use vellum::arch::{Aarch64, Arch};
use vellum_kernel::boot::{BadBoot, Kind, MemoryMap};

/// The bits that every leaf PTE has: accessed, inner shareable.
const LEAF: u64 = 1 << 10 | 3 << 8;
/// The type of a block descriptor, and that of a page or table descriptor.
const BLOCK: u64 = 0b01;
const PAGE: u64 = 0b11;
/// The bits of a leaf PTE that select device memory: index 1 of [`MEMORY_TYPES`]. Normal memory has
/// index 0.
const DEVICE: u64 = 1 << 2;
const READ_ONLY: u64 = 1 << 7;
/// Not executable: by the kernel (PXN), by user mode (UXN).
const PRIVILEGED_NO_EXEC: u64 = 1 << 53;
const USER_NO_EXEC: u64 = 1 << 54;
/// MAIR_EL1: normal write-back memory; device memory with early write acknowledgement.
pub const MEMORY_TYPES: u64 = 0x04 << 8 | 0xff;

/// Memory begins at 1 GiB. Below it are devices, and so are above the top of the memory map.
const FIRST_MEMORY: u64 = GIB;

/// Returns the entry that links the page table at a physical address.
pub fn link(table: u64) -> u64 {
    table | PAGE
}

/// Returns the leaf PTE of the page at a physical address, with the rights of a section.
pub fn leaf(section: Section, physical: u64) -> u64 {
    let rights = match section {
        Section::Data => PRIVILEGED_NO_EXEC,
        Section::ReadOnly => PRIVILEGED_NO_EXEC | READ_ONLY,
        Section::Text => READ_ONLY,
    };
    physical | LEAF | PAGE | USER_NO_EXEC | rights
}

struct Tables {
    root: Table,
    direct: Table,
    high: Table,
    image: ImageTables,
    /// The root of an empty user half.
    empty: Table,
}

static mut TABLES: Tables = Tables {
    root: Table::EMPTY,
    direct: Table::EMPTY,
    high: Table::EMPTY,
    image: ImageTables::new(),
    empty: Table::EMPTY,
};

/// Builds the final page tables and loads them. Marks memory beyond the direct map as reserved in
/// `map`.
///
/// # Safety
///
/// Called once, on the boot CPU. No pointer into the identity mapping, which this function removes,
/// is used afterwards.
///
/// # Errors
///
/// [`BadBoot`]: the memory map has no free entry for the reservation.
pub unsafe fn init(map: &mut MemoryMap) -> Result<(), BadBoot> {
    let tables = &raw mut TABLES;
    // SAFETY: called once with one CPU running, so this is the only reference ever; the CPU reads
    // the page tables only after the reference's last use.
    let tables = unsafe { &mut *tables };
    map.reserve(512 * GIB, u64::MAX, Kind::Unreachable)?;
    let memory = FIRST_MEMORY..map.top().next_multiple_of(GIB).max(FIRST_MEMORY + GIB);
    for (entry, base) in tables.direct.0.iter_mut().zip((0..).step_by(GIB as usize)) {
        let kind = if memory.contains(&base) { 0 } else { DEVICE };
        *entry = base | LEAF | BLOCK | kind | PRIVILEGED_NO_EXEC | USER_NO_EXEC;
    }
    map_image(tables);
    tables.root.0[0] = link(tables.direct.address());
    tables.root.0[511] = link(tables.high.address());
    // SAFETY: the new page tables map the image, with this code, its data and its stack, at the
    // same addresses as the old ones and with each section's rights.
    unsafe { switch_tables() };
    Ok(())
}

/// Switches this CPU from the page tables of [`crate::arch::boot`] to the final ones, with an empty
/// user half.
///
/// # Safety
///
/// The final page tables are complete, interrupts are off, and the user half is the identity
/// mapping.
pub unsafe fn switch_tables() {
    // SAFETY: only the field's address is taken; nothing is read.
    let root = unsafe { &raw const TABLES.root };
    // SAFETY: this function's contract holds for the assembly code, which runs in the identity
    // mapping while no kernel half is loaded.
    unsafe {
        paging_switch(image_to_phys(root as u64), kernel_root(), image_to_phys(paging_switch as *const () as u64));
        load_root(kernel_root());
    }
}

// A TLB must not see two page sizes for one page, so for a moment the kernel half is empty (Arm
// ARM, D8.17.1, "Using break-before-make").
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

/// Maps the image by 4 KiB pages with the rights of each section, and links the vmalloc area.
fn map_image(tables: &mut Tables) {
    tables.image.fill(FIRST_MEMORY, leaf, link);
    tables.high.0[510] = link(tables.image.directory.address());
    tables.high.0[vmalloc::SLOT] = link(vmalloc::init(link));
}

/// Returns the command line unchanged, and `None` as the number of page-table levels, which can't
/// be chosen on AArch64.
///
/// # Errors
///
/// None.
pub fn choose(command_line: &str) -> Result<(&str, Option<u32>), &'static str> {
    Ok((command_line, None))
}

/// The page-table format of the user half.
pub type Format = Aarch64;

/// Returns the format for this CPU. It changes the contiguous bit of live PTEs in place only if the
/// CPU supports that (ID_AA64MMFR2_EL1.BBM) and is known not to abort then, as QEMU's own CPU is.
pub fn format() -> Format {
    /// The MIDR_EL1 of QEMU's CPU `max`, without variant and revision.
    const QEMU_MAX: u64 = 0x000f_0510;
    let known = read_register!("midr_el1") & 0xff0f_fff0 == QEMU_MAX;
    let format = Aarch64::granule_4k();
    if known && read_register!("id_aa64mmfr2_el1") >> 52 & 15 >= 2 { format.with_bbm2() } else { format }
}

/// Returns TCR_EL1 without the physical address size: both halves have the same format, and ASIDs
/// have 16 bits.
pub const fn control() -> u64 {
    let user = Aarch64::granule_4k().tcr_el1();
    let (size, write_back, inner_shareable, granule) = (16 << 16, 0b01 << 24 | 0b01 << 26, 0b11 << 28, 0b10 << 30);
    user | size | write_back | inner_shareable | granule | 1 << 36
}

/// Returns the end of user addresses, which depends on the format only, not on the CPU.
pub fn user_end() -> u64 {
    Aarch64::granule_4k().user_end()
}

/// Returns the physical address of the root of an empty user half.
pub fn kernel_root() -> u64 {
    // SAFETY: only the field's address is taken; nothing is read.
    image_to_phys(unsafe { &raw const TABLES.empty } as u64)
}

/// Copies the kernel half into a root page table: unnecessary here, because TTBR1_EL1 maps it in
/// every space.
///
/// # Safety
///
/// None here: only the x86-64 function of this name writes to the page table.
pub unsafe fn copy_kernel_half(_root: u64) {}

/// Loads the empty user half at physical address `root` on this CPU.
///
/// # Safety
///
/// The page table stays valid until another is loaded.
pub unsafe fn load_root(root: u64) {
    // SAFETY: the kernel half has page tables of its own, and nothing is cached under ASID 0, which
    // only the empty user half uses.
    unsafe { write_register!("ttbr0_el1", root) };
}

/// Loads the page tables with the root at physical address `root` as a space's user half, under the
/// TLB tag (ASID) `tag`, at least 1. Other spaces' translations stay in the TLB; with `keep` those
/// of this space stay too.
///
/// # Safety
///
/// The page table stays valid until another is loaded. With `keep`, the TLB's translations under
/// `tag` agree with the page tables.
pub unsafe fn load_tagged_root(root: u64, tag: u16, keep: bool) {
    let tag = u64::from(tag) << 48;
    if !keep {
        // `tag` may be that of the space that is loaded now, whose translations the CPU could cache
        // again after the flush below. So load the empty user half first. SAFETY: it maps nothing.
        unsafe { load_root(kernel_root()) };
        // SAFETY: flushing translations breaks nothing.
        unsafe { asm!("dsb ishst", "tlbi aside1, {}", "dsb nsh", in(reg) tag, options(nostack, preserves_flags)) };
    }
    // SAFETY: the caller keeps the page table valid; the kernel accesses the user half only inside
    // `cpu::user_access`.
    unsafe { write_register!("ttbr0_el1", root | tag) };
}

/// Returns the loaded space's tag, in the position that `tlbi` takes it.
fn tag() -> u64 {
    read_register!("ttbr0_el1") & !((1 << 48) - 1)
}

/// Makes page-table writes visible to the page-table walks of other CPUs, before those are
/// notified.
pub fn publish() {
    // SAFETY: a barrier.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
}

/// Flushes the translations of the pages at these addresses, of any page size, from this CPU's TLB,
/// together with cached table entries that lead to them (Arm ARM, D8.17, "TLB maintenance").
pub fn flush_pages(addresses: impl Iterator<Item = u64>) {
    let tag = tag();
    publish();
    for address in addresses {
        let page = tag | address >> 12 & ((1 << 44) - 1);
        // SAFETY: flushing translations breaks nothing.
        unsafe { asm!("tlbi vae1, {}", in(reg) page, options(nostack, preserves_flags)) };
    }
    // SAFETY: barriers.
    unsafe { asm!("dsb nsh", "isb", options(nostack, preserves_flags)) };
}

/// Flushes this CPU's translations of the loaded space's user half.
pub fn flush_user() {
    // SAFETY: flushing translations breaks nothing.
    unsafe { asm!("dsb ishst", "tlbi aside1, {}", "dsb nsh", "isb", in(reg) tag(), options(nostack, preserves_flags)) };
}

/// Flushes all translations of this CPU.
pub fn flush_all() {
    // SAFETY: flushing translations breaks nothing.
    unsafe { asm!("dsb ishst", "tlbi vmalle1", "dsb nsh", "isb", options(nostack, preserves_flags)) };
}
