//! Swap devices: compressed memory and a disk, as the machine's options choose. Both are in use
//! from boot, compressed memory with the higher priority; a program may disable and enable each
//! (`swapoff`, `swapon`).

mod disk;

use crate::mem::platform::Host;
use crate::mem::spaces;
use crate::mem::{Object, machine};
use alloc::boxed::Box;
use disk::SwapDisk;
use spin::{Mutex, Once};
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::ObjectError;
use vellum::space::FaultError;
use vellum::swap::{Compressed, DetachError, SwapDevice, Usage};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Device;
use vellum_kernel::parse::SWAP_DISK;

/// A swap device with its device file.
pub struct Store {
    /// The path of the device file.
    pub path: &'static str,
    /// The device number of that file.
    pub number: Device,
    /// The priority if `swapon` gives none.
    usual: i16,
    device: Box<dyn SwapDevice<Host> + Send>,
    slots: u32,
    /// The engine's number of this device while it is in use. `swapon` and `swapoff` hold the lock
    /// for as long as they run.
    in_use: Mutex<Option<u8>>,
}

static MEMORY: Once<Store> = Once::new();
static DISK: Once<Store> = Once::new();

/// Iterates over all swap devices.
pub fn stores() -> impl Iterator<Item = &'static Store> {
    [&MEMORY, &DISK].into_iter().filter_map(Once::get)
}

/// Returns the swap device with a device number.
pub fn find(number: Device) -> Option<&'static Store> {
    stores().find(|store| store.number == number)
}

/// Creates a swap device of `bytes` of compressed memory, has `announce` make its file, and enables
/// it.
///
/// # Errors
///
/// `EINVAL`: `bytes` is less than a page or too large. `ENOMEM`. The errors of `announce`.
pub fn init_memory(bytes: u64, announce: impl FnOnce(&Store) -> Result<(), Errno>) -> Result<(), Errno> {
    let slots = u32::try_from(bytes / FRAME_SIZE).ok().filter(|slots| *slots > 0).ok_or(Errno::EINVAL)?;
    let device = Box::new(Compressed::new(machine().frames(), slots).map_err(|_| Errno::ENOMEM)?);
    let number = Device { major: 254, minor: 0 };
    let store = Store { path: "/dev/zram0", number, usual: -1, device, slots, in_use: Mutex::new(None) };
    init(&MEMORY, store, announce)
}

/// Has `announce` make the file of the machine's disk, and enables all of the disk for swap. With
/// `checked`, the engine keeps a checksum of each page.
///
/// # Errors
///
/// `ENODEV`: the machine has no disk. `ENOMEM`. The errors of `announce`.
pub fn init_disk(checked: bool, announce: impl FnOnce(&Store) -> Result<(), Errno>) -> Result<(), Errno> {
    let (disk, slots) = SwapDisk::find(SWAP_DISK, checked).filter(|(_, slots)| *slots > 0).ok_or(Errno::ENODEV)?;
    let number = Device { major: 253, minor: 0 };
    let store = Store { path: "/dev/vda", number, usual: -2, device: Box::new(disk), slots, in_use: Mutex::new(None) };
    init(&DISK, store, announce)
}

/// Has `announce` make a device's file, stores the device in `place` and enables it. On failure of
/// `announce` the device is dropped.
fn init(
    place: &'static Once<Store>,
    store: Store,
    announce: impl FnOnce(&Store) -> Result<(), Errno>,
) -> Result<(), Errno> {
    announce(&store)?;
    place.call_once(|| store).on(None)
}

impl Store {
    /// Enables the device, with the given priority or its usual one (`swapon`).
    ///
    /// # Errors
    ///
    /// `EBUSY`: it is enabled already. `ENOMEM`.
    pub fn on(&'static self, priority: Option<i16>) -> Result<(), Errno> {
        let mut in_use = self.in_use.lock();
        if in_use.is_some() {
            return Err(Errno::EBUSY);
        }
        let priority = priority.unwrap_or(self.usual);
        // SAFETY: the lock is held and the device is not in use, so it is attached once; and it
        // lives forever.
        let id = unsafe { machine().swaps().attach(machine().frames(), &*self.device, self.slots, priority) };
        *in_use = Some(id.map_err(|_| Errno::ENOMEM)?);
        Ok(())
    }

    /// Disables the device once all its pages are back in memory (`swapoff`).
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is not enabled. It stays enabled if pages remain: `ENOMEM` if memory is short,
    /// `EIO` if the device failed to read some; all others are in memory then.
    pub fn off(&self) -> Result<(), Errno> {
        let mut in_use = self.in_use.lock();
        let id = in_use.ok_or(Errno::EINVAL)?;
        let (swaps, platform) = (machine().swaps(), machine().platform());
        swaps.close(platform, id).map_err(|_| Errno::EINVAL)?;
        let emptied = empty(id);
        match emptied {
            Ok(()) => *in_use = None,
            Err(_) => swaps.open(platform, id).map_err(|_| Errno::EINVAL)?,
        }
        emptied
    }

    /// Returns the device's usage, or `None` if it is not enabled.
    pub fn usage(&self) -> Option<Usage> {
        // After a `swapoff` meanwhile, the number is stale and `usage` returns `None`.
        let id = self.in_use.lock().as_ref().copied()?;
        machine().swaps().usage(machine().platform(), id)
    }
}

/// Swaps in all pages of a device that takes no new ones, and detaches it. Repeats while the number
/// of slots in use falls.
fn empty(id: u8) -> Result<(), Errno> {
    let mut left = u32::MAX;
    loop {
        let mut lost = false;
        for space in spaces::all() {
            match space.engine.swap_off(id) {
                Ok(()) => {}
                Err(FaultError::Poisoned(_)) => lost = true,
                Err(_) => return Err(Errno::ENOMEM),
            }
        }
        match Object::swap_off(machine(), id) {
            Ok(()) => {}
            Err(ObjectError::Lost) => lost = true,
            Err(_) => return Err(Errno::ENOMEM),
        }
        if lost {
            return Err(Errno::EIO);
        }
        match machine().swaps().detach(machine().frames(), id) {
            Ok(()) => return Ok(()),
            // A space that is being forked or is ending still has slots, and will soon have fewer:
            // repeat.
            Err(DetachError::InUse(slots)) if slots < left => left = slots,
            Err(_) => return Err(Errno::ENOMEM),
        }
    }
}

/// Returns the bytes of all swap, the bytes free, and the bytes of slots whose page is also in the
/// swap cache.
pub fn bytes() -> [u64; 3] {
    let bytes =
        |usage: Usage| [usage.slots, usage.slots - usage.used, usage.cached].map(|slots| u64::from(slots) * FRAME_SIZE);
    let add = |sum: [u64; 3], more: [u64; 3]| core::array::from_fn(|i| sum[i] + more[i]);
    stores().filter_map(Store::usage).map(bytes).fold([0; 3], add)
}
