//! The kernel half of every address space, as far as it is alike on all architectures: the kernel's
//! image, and the direct map of physical memory. `paging` of an architecture builds the tables.

use crate::arch::layout::{DIRECT_MAP, KERNEL_BASE};
use crate::arch::stack;

/// Bytes of the smallest page.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes of a gibibyte.
pub const GIB: u64 = 1 << 30;
/// The number of tables of 2 MiB each that map the image.
const IMAGE_TABLES: usize = 8;

// The edges of the image's sections, from the linker script. Only their addresses mean anything.
unsafe extern "C" {
    static __text_start: u8;
    static __rodata_start: u8;
    static __data_start: u8;
    static __kernel_end: u8;
}

/// Returns the physical addresses of the kernel's image: the first byte, and the first byte after.
pub fn image() -> (u64, u64) {
    (image_to_phys(&raw const __text_start as u64), image_to_phys(&raw const __kernel_end as u64))
}

/// Returns the physical address of what lies in the image.
pub fn image_to_phys(address: u64) -> u64 {
    address - KERNEL_BASE
}

/// Returns the address at which the direct map shows a physical address. Before `paging::init` the
/// direct map shows only what the tables of `boot` map; after it, all that the memory map calls
/// usable, and the devices.
pub fn phys_to_virt<T>(address: u64) -> *mut T {
    debug_assert!(address < 512 * GIB);
    (DIRECT_MAP + address) as *mut T
}

/// Returns the physical address of what the direct map shows, or of what lies in the image.
pub fn virt_to_phys(address: u64) -> u64 {
    if address >= KERNEL_BASE { image_to_phys(address) } else { address - DIRECT_MAP }
}

/// A page table that lies in the image.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
pub struct Table(pub [u64; 512]);

impl Table {
    /// A table that maps nothing.
    pub const EMPTY: Self = Self([0; 512]);

    /// Returns the table's physical address.
    pub fn address(&self) -> u64 {
        image_to_phys(&raw const *self as u64)
    }
}

/// A section of the image, by the rights of its pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// Executable.
    Text,
    /// Neither executable nor writable.
    ReadOnly,
    /// Writable.
    Data,
}

/// The tables that map the image.
pub struct ImageTables {
    /// The table of level 1, which leads to the others.
    pub directory: Table,
    pages: [Table; IMAGE_TABLES],
}

impl ImageTables {
    /// Returns tables that map nothing.
    pub const fn new() -> Self {
        Self { directory: Table::EMPTY, pages: [Table::EMPTY; IMAGE_TABLES] }
    }

    /// Maps the image by pages, and leaves out the guard pages of stacks. The tables map physical
    /// addresses from `from` on. `leaf` returns the PTE of a page of a section at a physical
    /// address, and `link` the entry for the table at one.
    pub fn fill(&mut self, from: u64, leaf: impl Fn(Section, u64) -> u64, link: impl Fn(u64) -> u64) {
        let [text, rodata, data] =
            [&raw const __text_start, &raw const __rodata_start, &raw const __data_start].map(|edge| edge as u64);
        for page in (text..&raw const __kernel_end as u64).step_by(PAGE_SIZE as usize) {
            let section = match page {
                page if stack::is_guard(page) => continue,
                page if page >= data => Section::Data,
                page if page >= rodata => Section::ReadOnly,
                _ => Section::Text,
            };
            let physical = image_to_phys(page);
            let index = ((physical - from) / PAGE_SIZE) as usize;
            self.pages[index / 512].0[index % 512] = leaf(section, physical);
        }
        for (entry, table) in self.directory.0.iter_mut().zip(&self.pages) {
            *entry = link(table.address());
        }
    }
}
