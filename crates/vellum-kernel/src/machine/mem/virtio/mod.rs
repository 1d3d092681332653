//! Virtio devices on PCI, for the crate `virtio-drivers`: finding one, and its memory.

pub mod folder;

use crate::arch::kernel_map::{phys_to_virt, virt_to_phys};
use crate::arch::pci;
use crate::arch::serial::println;
use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// DMA memory for the driver. The device uses physical addresses and can reach all memory at any
/// time, so that buffers need no mapping.
pub struct Dma;

/// Returns the layout of `pages` pages, or the empty layout if it would be too large.
fn pages(pages: usize) -> Layout {
    // The driver asks for some tens of pages at most.
    Layout::array::<[u8; PAGE_SIZE]>(pages).and_then(|layout| layout.align_to(PAGE_SIZE)).unwrap_or(Layout::new::<()>())
}

// SAFETY: the heap returns blocks of whole pages as contiguous, aligned frames that belong to the
// caller; they are zeroed here. The direct map covers device memory below 4 GiB, where `pci::place`
// puts it.
unsafe impl Hal for Dma {
    fn dma_alloc(count: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let layout = pages(count);
        // SAFETY: the layout has at least one page, except for the empty one, which is filtered
        // out.
        match NonNull::new(unsafe { alloc_zeroed(layout) }).filter(|_| layout.size() > 0) {
            Some(at) => (virt_to_phys(at.as_ptr() as u64), at),
            // The driver takes the physical address 0 for a failure.
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, count: usize) -> i32 {
        // SAFETY: the block came from `dma_alloc` with the same number of pages (the contract of
        // [`Hal`]).
        unsafe { dealloc(at.as_ptr(), pages(count)) };
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(phys_to_virt(address)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        // Buffers are on a stack or in a static, which lie in the kernel's image, or in a frame,
        // which the direct map covers. `virt_to_phys` translates both.
        virt_to_phys(buffer.cast::<u8>().as_ptr() as u64)
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// Returns the way to the device of this kind at a slot of the machine's first PCI bus.
pub fn find(slot: u8, kind: DeviceType) -> Option<PciTransport> {
    let mut root = pci::root();
    let is_it = |info: &_| virtio_device_type(info) == Some(kind);
    let place = pci::find(&root, |place, info| place.device == slot && is_it(info))?;
    pci::place(&mut root, place);
    PciTransport::new::<Dma, _>(&mut root, place)
        .inspect_err(|error| println!("PCI slot {slot}: the transport cannot be set up: {error}"))
        .ok()
}
