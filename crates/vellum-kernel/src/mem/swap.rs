//! Swap: one device, which is compressed memory, as large as whoever started the machine wished. It is in use from the start, and a
//! program may take it out of use and into it again.

use crate::files;
use crate::mem::machine;
use crate::mem::reclaim::spaces_of;
use crate::task::process as processes;
use spin::{Mutex, Once};
use vellum::addr::FRAME_SIZE;
use vellum::swap::{Compressed, DetachError, Usage};
use vellum_kernel::errno::Errno;
use vellum_kernel::fs::Kind;
use vellum_kernel::fs::meta::Device;

/// The device's file.
pub const PATH: &str = "/dev/zram0";
/// The device's number.
pub const NUMBER: Device = Device { major: 254, minor: 0 };
/// The priority of what nobody gives one to.
pub const USUAL: i16 = -1;

struct Disk {
    memory: Compressed,
    slots: u32,
}

static DISK: Once<Disk> = Once::new();
/// Which device it is to the engine, while it is in use. Held by who changes that.
static IN_USE: Mutex<Option<u8>> = Mutex::new(None);

/// Makes a device of so many bytes, and takes it into use.
///
/// # Errors
///
/// `EINVAL`: there can be none of this size. `ENOMEM`.
pub fn init(bytes: u64) -> Result<(), Errno> {
    let slots = u32::try_from(bytes / FRAME_SIZE).ok().filter(|slots| *slots > 0).ok_or(Errno::EINVAL)?;
    DISK.try_call_once(|| Compressed::new(machine().frames(), slots).map(|memory| Disk { memory, slots }))
        .map_err(|_| Errno::ENOMEM)?;
    files::from_root(|view| view.make(PATH.as_bytes(), Kind::Block, 0o600, NUMBER, &[]))?;
    on(USUAL)
}

/// Takes the device into use.
///
/// # Errors
///
/// `EBUSY`: it is. `EINVAL`: there is none. `ENOMEM`.
pub fn on(priority: i16) -> Result<(), Errno> {
    let mut in_use = IN_USE.lock();
    let disk = DISK.get().ok_or(Errno::EINVAL)?;
    if in_use.is_some() {
        return Err(Errno::EBUSY);
    }
    // SAFETY: only who finds it out of use, under the lock, gets here; and it lives for ever.
    let id = unsafe { machine().swaps().attach(machine().frames(), &disk.memory, disk.slots, priority) };
    *in_use = Some(id.map_err(|_| Errno::ENOMEM)?);
    Ok(())
}

/// Takes the device out of use, once everybody has back what is there.
///
/// # Errors
///
/// `EINVAL`: it is in none. `ENOMEM`: not all can be brought back; it stays in use.
pub fn off() -> Result<(), Errno> {
    let mut in_use = IN_USE.lock();
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

/// Has a device that is closed emptied, and forgotten.
fn empty(id: u8) -> Result<(), Errno> {
    let mut left = u32::MAX;
    loop {
        for space in spaces_of(processes::all()) {
            space.engine.swap_off(id).map_err(|_| Errno::ENOMEM)?;
        }
        match machine().swaps().detach(machine().frames(), id) {
            Ok(()) => return Ok(()),
            // Who was forked meanwhile, or is about to end, has some.
            Err(DetachError::InUse(slots)) if slots < left => left = slots,
            Err(_) => return Err(Errno::ENOMEM),
        }
    }
}

/// What there is to know of the device, if it is in use.
pub fn usage() -> Option<Usage> {
    // Whoever takes it out of use meanwhile leaves a number that stands for nothing.
    let id = IN_USE.lock().as_ref().copied()?;
    machine().swaps().usage(machine().platform(), id)
}

/// Bytes of swap in all, and those that are free.
pub fn bytes() -> [u64; 2] {
    let pages = usage().map_or([0; 2], |usage| [usage.slots, usage.slots - usage.used]);
    pages.map(|pages| u64::from(pages) * FRAME_SIZE)
}
