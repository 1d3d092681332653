//! Virtio devices on PCI, for the crate `virtio-drivers`: finding one, and its memory.

pub mod folder;

use crate::arch::kernel_map::phys_to_virt;
use crate::arch::pci;
use crate::arch::serial::println;
use crate::arch::vmalloc::virt_to_phys;
use crate::mem::machine;
use core::ptr::NonNull;
use vellum::memcg::MemcgId;
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// DMA memory for the driver. The device uses physical addresses and can reach all memory at any
/// time, so that buffers need no mapping.
pub struct Dma;

/// Returns log2 of the number of frames that are allocated for `count` pages. The driver asks for
/// some tens of pages at most.
fn order(count: usize) -> u8 {
    count.next_power_of_two().ilog2() as u8
}

// SAFETY: the engine's frames are contiguous, and belong to the caller; they are zeroed here. The
// direct map covers device memory below 4 GiB, where `pci::place` puts it.
unsafe impl Hal for Dma {
    fn dma_alloc(count: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let (frames, order) = (machine().frames(), order(count));
        // The driver takes the physical address 0 for a failure.
        let Ok(first) = machine().memcgs().alloc_for_host(frames, MemcgId::ROOT, order) else {
            return (0, NonNull::dangling());
        };
        let at = frames.at(first.addr());
        // SAFETY: the frames were just allocated.
        unsafe { at.write_bytes(0, PAGE_SIZE << order) };
        (first.addr().0, at)
    }

    unsafe fn dma_dealloc(address: PhysAddr, _: NonNull<u8>, count: usize) -> i32 {
        let first = vellum::addr::PhysAddr(address).pfn();
        // SAFETY: the frames came from `dma_alloc` with the same number of pages (the contract of
        // [`Hal`]).
        unsafe { machine().memcgs().free_for_host(machine().frames(), first, order(count)) };
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(phys_to_virt(address)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        // Buffers are on a stack or in a static, which lie in the kernel's image, or in frames of
        // the heap. `virt_to_phys` translates both, and the drivers pass no buffer that is in
        // pieces (`vmalloc::contiguous`).
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
