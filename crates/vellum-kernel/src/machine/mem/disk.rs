//! A disk to swap to: virtio's block device on PCI (`virtio-blk-pci`), by the driver of the crate `virtio-drivers`.
//!
//! A request takes slots in a row from, or to, frames in a row, whatever their number. Whoever makes it waits for its end by
//! looking, one processor at a time. Nothing of the heap is needed for it: what memory is short for must not wait for memory.

use crate::arch::kernel_map::{phys_to_virt, virt_to_phys};
use crate::arch::pci;
use crate::mem::platform::Host;
use crate::println;
use alloc::alloc::{alloc_zeroed, dealloc};
use core::alloc::Layout;
use core::ptr::NonNull;
use spin::Mutex;
use vellum::addr::{FRAME_SIZE, Pfn};
use vellum::frame::Frames;
use vellum::platform::Trace;
use vellum::swap::{ReadError, Slots, SwapDevice, Unreadable, WriteError};
use virtio_drivers::device::blk::{SECTOR_SIZE, VirtIOBlk};
use virtio_drivers::transport::DeviceType;
use virtio_drivers::transport::pci::{PciTransport, virtio_device_type};
use virtio_drivers::{BufferDirection, Hal, PAGE_SIZE, PhysAddr};

/// Sectors of a slot.
const SECTORS: usize = FRAME_SIZE as usize / SECTOR_SIZE;

/// Memory as the driver wants it, and as the device sees it: by physical addresses, all of it, always.
struct Dma;

fn pages(pages: usize) -> Layout {
    // Never more than some tens.
    Layout::array::<[u8; PAGE_SIZE]>(pages).and_then(|layout| layout.align_to(PAGE_SIZE)).unwrap_or(Layout::new::<()>())
}

// SAFETY: the heap's blocks of whole pages are frames in a row, aligned, the caller's alone, and zeroed here. The direct map
// shows devices below 4 GiB, where `pci::place` puts them.
unsafe impl Hal for Dma {
    fn dma_alloc(count: usize, _: BufferDirection) -> (PhysAddr, NonNull<u8>) {
        let layout = pages(count);
        // SAFETY: a page or more.
        match NonNull::new(unsafe { alloc_zeroed(layout) }).filter(|_| layout.size() > 0) {
            Some(at) => (virt_to_phys(at.as_ptr() as u64), at),
            // The driver knows failure by the address.
            None => (0, NonNull::dangling()),
        }
    }

    unsafe fn dma_dealloc(_: PhysAddr, at: NonNull<u8>, count: usize) -> i32 {
        // SAFETY: from `dma_alloc`, says the caller, with as many pages.
        unsafe { dealloc(at.as_ptr(), pages(count)) };
        0
    }

    unsafe fn mmio_phys_to_virt(address: PhysAddr, _: usize) -> NonNull<u8> {
        NonNull::new(phys_to_virt(address)).unwrap_or(NonNull::dangling())
    }

    unsafe fn share(buffer: NonNull<[u8]>, _: BufferDirection) -> PhysAddr {
        // A stack, a static, or a frame.
        virt_to_phys(buffer.cast::<u8>().as_ptr() as u64)
    }

    unsafe fn unshare(_: PhysAddr, _: NonNull<[u8]>, _: BufferDirection) {}
}

/// The disk.
pub struct Disk {
    driver: Mutex<VirtIOBlk<Dma, PciTransport>>,
    checked: bool,
}

impl Disk {
    /// The first disk of the machine, and how many slots there are on it. Whether checksums are kept of what is there is to be said.
    pub fn find(checked: bool) -> Option<(Self, u32)> {
        let mut root = pci::root();
        let place = pci::find(&root, |info| virtio_device_type(info) == Some(DeviceType::Block))?;
        pci::place(&mut root, place);
        let transport = PciTransport::new::<Dma, _>(&mut root, place)
            .inspect_err(|error| println!("the disk is not what it should be: {error}"));
        let mut driver = VirtIOBlk::new(transport.ok()?).inspect_err(|error| println!("the disk: {error}")).ok()?;
        // Nobody waits for its interrupts.
        driver.disable_interrupts();
        let slots = u32::try_from(driver.capacity() / SECTORS as u64).unwrap_or(u32::MAX);
        Some((Disk { driver: Mutex::new(driver), checked }, slots))
    }

    /// Brings slots in a row into frames in a row, as one request; whether that could be done.
    ///
    /// # Safety
    /// As of [`SwapDevice::read`].
    unsafe fn request(&self, frames: &Frames<'_, Host>, slots: Slots, to: Pfn) -> bool {
        // SAFETY: the frames are the caller's alone.
        let bytes = unsafe { core::slice::from_raw_parts_mut(frames.at(to.addr()).as_ptr(), bytes(slots)) };
        self.driver.lock().read_blocks(slots.first as usize * SECTORS, bytes).is_ok()
    }
}

fn bytes(slots: Slots) -> usize {
    slots.count as usize * FRAME_SIZE as usize
}

impl SwapDevice<Host> for Disk {
    unsafe fn write(&self, frames: &Frames<'_, Host>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: the machine's frames, which nobody writes to meanwhile.
        let bytes = unsafe { core::slice::from_raw_parts(frames.at(from.addr()).as_ptr(), bytes(slots)) };
        self.driver.lock().write_blocks(slots.first as usize * SECTORS, bytes).map_err(|_| WriteError::Failed)
    }

    unsafe fn read(&self, frames: &Frames<'_, Host>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        // SAFETY: by contract.
        if unsafe { self.request(frames, slots, to) } {
            return Ok(());
        }
        // The device doesn't say which sector failed it.
        let each = (0..slots.count).map(|i| (Slots { first: slots.first + i, count: 1 }, to.add(i)));
        for (slot, to) in each {
            // SAFETY: by contract.
            if !unsafe { self.request(frames, slot, to) } {
                return Err(ReadError { slot: slot.first, reason: Unreadable::Failed });
            }
        }
        Ok(())
    }

    unsafe fn forget(&self, _: &Frames<'_, Host>, _: Slots) {}

    fn checked(&self) -> bool {
        self.checked || Host::ENABLED
    }
}
