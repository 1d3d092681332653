//! The parts of the kernel half of an address space that are the same on all architectures: the
//! kernel's image and the direct map of physical memory; the third part is
//! [`vmalloc`](crate::arch::vmalloc). The architecture's `paging` builds the page tables.

use crate::arch::layout::{DIRECT_MAP, KERNEL_BASE};
use crate::arch::stack;

/// Bytes per base page.
pub const PAGE_SIZE: u64 = 4096;
/// Bytes per GiB.
pub const GIB: u64 = 1 << 30;
/// The number of page tables that map the image. Each maps 2 MiB.
const IMAGE_TABLES: usize = 8;

// The bounds of the image's sections, from the linker script. Only the symbols' addresses are used.
unsafe extern "C" {
    static __text_start: u8;
    static __rodata_start: u8;
    static __data_start: u8;
    static __kernel_end: u8;
}

/// Returns the physical address range of the kernel's image: the first byte, and the byte after the
/// last.
pub fn image() -> (u64, u64) {
    (image_to_phys(&raw const __text_start as u64), image_to_phys(&raw const __kernel_end as u64))
}

/// Returns the physical address of a virtual address inside the image.
pub fn image_to_phys(address: u64) -> u64 {
    address - KERNEL_BASE
}

/// Returns the address of a physical address in the direct map. Before `paging::init` the direct
/// map covers only what the boot page tables map; afterwards it covers all usable memory and the
/// devices.
pub fn phys_to_virt<T>(address: u64) -> *mut T {
    debug_assert!(address < 512 * GIB);
    (DIRECT_MAP + address) as *mut T
}

/// A page table that lies in the image.
#[repr(C, align(4096))]
#[derive(Clone, Copy)]
pub struct Table(pub [u64; 512]);

impl Table {
    /// A page table without entries.
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

/// The page tables that map the image.
pub struct ImageTables {
    /// The level 1 table, which links the others.
    pub directory: Table,
    pages: [Table; IMAGE_TABLES],
}

impl ImageTables {
    /// Returns page tables without entries.
    pub const fn new() -> Self {
        Self { directory: Table::EMPTY, pages: [Table::EMPTY; IMAGE_TABLES] }
    }

    /// Maps the image page by page, and leaves the guard pages of stacks unmapped. The page tables
    /// cover physical addresses from `from` on. `leaf` returns the PTE of a page in a section, and
    /// `link` the entry that links a page table, each by physical address.
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
