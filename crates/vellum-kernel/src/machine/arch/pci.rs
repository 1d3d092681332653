//! PCI: finds devices on the first bus and assigns addresses to their registers.

use crate::arch::devices::{CONFIGURATION, FIRST_PCI_LINE, MEMORY_WINDOW};
use crate::arch::kernel_map::phys_to_virt;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use spin::{Mutex, MutexGuard, Once};
use virtio_drivers::transport::pci::bus::{
    BarInfo, Cam, Command, DeviceFunction, DeviceFunctionInfo, MemoryBarType, MmioCam, PciRoot,
};

/// The machine's PCI buses.
pub type Root = PciRoot<MmioCam<'static>>;

/// Locks the machine's PCI buses.
pub fn root() -> MutexGuard<'static, Root> {
    static ROOT: Once<Mutex<Root>> = Once::new();
    let root = || {
        // SAFETY: the machine has the PCI configuration space at this address, the direct map
        // covers it permanently, and the closure runs once.
        Mutex::new(PciRoot::new(unsafe { MmioCam::new(phys_to_virt(CONFIGURATION), Cam::Ecam) }))
    };
    ROOT.call_once(root).lock()
}

/// Returns the first device on the first bus that satisfies `is_it`.
pub fn find(root: &Root, is_it: impl Fn(DeviceFunction, &DeviceFunctionInfo) -> bool) -> Option<DeviceFunction> {
    root.enumerate_bus(0).find(|(place, info)| is_it(*place, info)).map(|(place, _)| place)
}

/// Assigns memory addresses to a device's BARs, regardless of the firmware's assignment, and
/// enables memory decoding and bus mastering. Each call assigns further addresses. The caller has
/// the buses locked.
pub fn place(root: &mut Root, device: DeviceFunction) {
    static NEXT: AtomicU64 = AtomicU64::new(MEMORY_WINDOW);
    let mut next = NEXT.load(Relaxed);
    let regions = root.bars(device).unwrap_or_default();
    for (index, region) in (0..).zip(regions) {
        let Some(BarInfo::Memory { address_type, size, .. }) = region else { continue };
        next = next.next_multiple_of(size);
        match address_type {
            MemoryBarType::Width64 => root.set_bar_64(device, index, next),
            MemoryBarType::Width32 | MemoryBarType::Below1MiB => root.set_bar_32(device, index, next as u32),
        }
        next += size;
    }
    NEXT.store(next, Relaxed);
    root.set_command(device, Command::MEMORY_SPACE | Command::BUS_MASTER);
}

/// Returns the interrupt line of the device at a slot of the first bus. Four slots have a line
/// each, and so on in turn.
pub fn line(slot: u8) -> u32 {
    FIRST_PCI_LINE + u32::from(slot) % 4
}
