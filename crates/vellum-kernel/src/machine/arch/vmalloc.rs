//! The part of the kernel half that maps single frames at consecutive addresses (Linux: the vmalloc
//! area). Its page tables lie in the image and are never freed, so that only its leaf PTEs change.

use crate::arch::kernel_map::{PAGE_SIZE, image_to_phys};
use crate::arch::layout::{DIRECT_MAP, KERNEL_BASE};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

/// The area's first address: 1 GiB or more below the image, under the same entry of the root.
pub const START: u64 = 0xffff_ffff_0000_0000;
/// The index of the area's entry in the table that links the image's.
pub const SLOT: usize = (START >> 30 & 511) as usize;
/// The number of page tables that map the area. Each maps 2 MiB.
const TABLES: usize = 64;
/// The area's size in pages.
pub const PAGES: usize = TABLES * 512;
/// The bits of a leaf PTE that hold the frame's address.
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// The bit without which the CPU ignores a PTE.
const VALID: u64 = 1;

/// A page table that CPUs walk while its entries change.
#[repr(C, align(4096))]
struct AtomicTable([AtomicU64; 512]);

impl AtomicTable {
    const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }

    fn address(&self) -> u64 {
        image_to_phys(&raw const *self as u64)
    }
}

static DIRECTORY: AtomicTable = AtomicTable::new();
static LEAVES: [AtomicTable; TABLES] = [const { AtomicTable::new() }; TABLES];

/// Links the area's page tables by the entries that `link` returns for their physical addresses.
/// Returns the physical address of the first, which the kernel half is to link at [`SLOT`].
pub fn init(link: impl Fn(u64) -> u64) -> u64 {
    for (entry, table) in DIRECTORY.0.iter().zip(&LEAVES) {
        entry.store(link(table.address()), Relaxed);
    }
    DIRECTORY.address()
}

/// Returns the PTE of a page of the area.
///
/// # Panics
///
/// `page` is [`PAGES`] or more.
fn pte(page: usize) -> &'static AtomicU64 {
    &LEAVES[page / 512].0[page % 512]
}

/// Returns whether an address lies in the area.
pub fn contains(address: u64) -> bool {
    (START..START + PAGES as u64 * PAGE_SIZE).contains(&address)
}

/// Sets the leaf PTE of a page of the area, at which no frame is mapped, and of which no TLB has a
/// translation.
pub fn map(page: usize, leaf: u64) {
    pte(page).store(leaf, Relaxed);
}

/// Unmaps a page of the area. TLBs may still have translations of the frame that was mapped.
pub fn unmap(page: usize) {
    pte(page).fetch_and(!VALID, Relaxed);
}

/// Returns the physical address of the frame that is mapped at a page of the area, or was until
/// [`unmap`].
pub fn frame(page: usize) -> u64 {
    pte(page).load(Relaxed) & ADDRESS
}

/// Returns the physical address of an address in the direct map, the area (at which a frame is
/// mapped) or the image.
pub fn virt_to_phys(address: u64) -> u64 {
    match address {
        KERNEL_BASE.. => image_to_phys(address),
        _ if contains(address) => {
            let offset = address - START;
            frame((offset / PAGE_SIZE) as usize) + offset % PAGE_SIZE
        }
        _ => address - DIRECT_MAP,
    }
}
