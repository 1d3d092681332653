//! Swap: compressed memory and a disk, as whoever started the machine wished. Both are in use from the start, the memory first; a
//! program may take each out of use and into it again.

use crate::mem::disk::Disk;
use crate::mem::platform::Host;
use crate::mem::spaces;
use crate::mem::{Object, machine};
use alloc::boxed::Box;
use spin::{Mutex, Once};
use vellum::addr::FRAME_SIZE;
use vellum::page_cache::ObjectError;
use vellum::space::FaultError;
use vellum::swap::{Compressed, DetachError, SwapDevice, Usage};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::meta::Device;

/// Where pages may go.
pub struct Store {
    /// The path of its device file.
    pub path: &'static str,
    /// The number of that file.
    pub number: Device,
    /// The priority that it has if nobody gives it one.
    usual: i16,
    device: Box<dyn SwapDevice<Host> + Send>,
    slots: u32,
    /// Which device it is to the engine, while it is in use. Held by who changes that.
    in_use: Mutex<Option<u8>>,
}

static MEMORY: Once<Store> = Once::new();
static DISK: Once<Store> = Once::new();

/// All there are.
pub fn stores() -> impl Iterator<Item = &'static Store> {
    [&MEMORY, &DISK].into_iter().filter_map(Once::get)
}

/// The one of this number.
pub fn find(number: Device) -> Option<&'static Store> {
    stores().find(|store| store.number == number)
}

/// Makes a device of so many bytes of compressed memory, has `announce` make its file, and takes it into use.
///
/// # Errors
///
/// `EINVAL`: there can be none of this size. `ENOMEM`. Those of `announce`.
pub fn init_memory(bytes: u64, announce: impl FnOnce(&Store) -> Result<(), Errno>) -> Result<(), Errno> {
    let slots = u32::try_from(bytes / FRAME_SIZE).ok().filter(|slots| *slots > 0).ok_or(Errno::EINVAL)?;
    let device = Box::new(Compressed::new(machine().frames(), slots).map_err(|_| Errno::ENOMEM)?);
    let number = Device { major: 254, minor: 0 };
    let store = Store { path: "/dev/zram0", number, usual: -1, device, slots, in_use: Mutex::new(None) };
    init(&MEMORY, store, announce)
}

/// Has `announce` make the file of the machine's disk, and takes all of the disk into use; with a checksum of each page, if
/// it is to be `checked`.
///
/// # Errors
///
/// `ENODEV`: there is none. `ENOMEM`. Those of `announce`.
pub fn init_disk(checked: bool, announce: impl FnOnce(&Store) -> Result<(), Errno>) -> Result<(), Errno> {
    let (disk, slots) = Disk::find(checked).filter(|(_, slots)| *slots > 0).ok_or(Errno::ENODEV)?;
    let number = Device { major: 253, minor: 0 };
    let store = Store { path: "/dev/vda", number, usual: -2, device: Box::new(disk), slots, in_use: Mutex::new(None) };
    init(&DISK, store, announce)
}

fn init(
    place: &'static Once<Store>,
    store: Store,
    announce: impl FnOnce(&Store) -> Result<(), Errno>,
) -> Result<(), Errno> {
    announce(&store)?;
    place.call_once(|| store).on(None)
}

impl Store {
    /// Takes it into use, with this priority or its usual one.
    ///
    /// # Errors
    ///
    /// `EBUSY`: it is. `ENOMEM`.
    pub fn on(&'static self, priority: Option<i16>) -> Result<(), Errno> {
        let mut in_use = self.in_use.lock();
        if in_use.is_some() {
            return Err(Errno::EBUSY);
        }
        let priority = priority.unwrap_or(self.usual);
        // SAFETY: only who finds it out of use, under the lock, gets here; and it lives for ever.
        let id = unsafe { machine().swaps().attach(machine().frames(), &*self.device, self.slots, priority) };
        *in_use = Some(id.map_err(|_| Errno::ENOMEM)?);
        Ok(())
    }

    /// Takes it out of use, once everybody has back what is there.
    ///
    /// # Errors
    ///
    /// `EINVAL`: it is in none. It stays in use, if not all can be brought back: `ENOMEM`, or `EIO` if the device failed, and all
    /// that it gave is back.
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

    /// What there is to know of it, if it is in use.
    pub fn usage(&self) -> Option<Usage> {
        // Whoever takes it out of use meanwhile leaves a number that stands for nothing.
        let id = self.in_use.lock().as_ref().copied()?;
        machine().swaps().usage(machine().platform(), id)
    }
}

/// Has a device that is closed emptied, and forgotten.
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
            // Who was forked meanwhile, or is about to end, has some.
            Err(DetachError::InUse(slots)) if slots < left => left = slots,
            Err(_) => return Err(Errno::ENOMEM),
        }
    }
}

/// Bytes of swap in all, those that are free, and those that hold what is in memory too.
pub fn bytes() -> [u64; 3] {
    let bytes =
        |usage: Usage| [usage.slots, usage.slots - usage.used, usage.cached].map(|slots| u64::from(slots) * FRAME_SIZE);
    let add = |sum: [u64; 3], more: [u64; 3]| core::array::from_fn(|i| sum[i] + more[i]);
    stores().filter_map(Store::usage).map(bytes).fold([0; 3], add)
}
