//! The swap devices of a machine: the one of the highest priority that has room gets what is swapped out, several of one
//! priority in turn.
//!
//! Which devices there are changes rarely and is asked for by every CPU all the time; so it is behind a lock whose readers share
//! no line, and each CPU takes turns by itself. The lock is not held while a device works: who has a reference to a slot keeps
//! its device attached.

use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::paged::Paged;
use super::{ReadError, Saturated, SlotAllocator, Slots, SwapDevice, WriteError};
use crate::addr::Pfn;
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;
use crate::sync::{PerCpuLock, ReadGuard};

/// The most devices that a machine may have: an entry names one of so many.
pub const DEVICES: usize = 32;

/// Slots in a row, and whose they are: what a run of entries says of memory that is swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRun {
    /// The device, below [`DEVICES`].
    pub device: u8,
    /// Its slots.
    pub slots: Slots,
}

/// Why there is no block of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSlots {
    /// All slots are in use, or there are none.
    Full,
    /// What is free lies scattered: there may be smaller blocks.
    Scattered,
}

impl core::fmt::Display for NoSlots {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            NoSlots::Full => "all swap slots are in use",
            NoSlots::Scattered => "free swap slots lie scattered",
        })
    }
}

impl core::error::Error for NoSlots {}

/// Why a device is not attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttachError {
    /// There are [`DEVICES`] already.
    TooMany,
    /// There is no memory for the counts of its slots.
    OutOfMemory,
}

impl core::fmt::Display for AttachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AttachError::TooMany => write!(f, "there are {DEVICES} swap devices already"),
            AttachError::OutOfMemory => write!(f, "no memory for the counts of a swap device's slots"),
        }
    }
}

impl core::error::Error for AttachError {}

/// Why a device stays attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetachError {
    /// There is no such device.
    Unknown(u8),
    /// It has not been closed.
    Open,
    /// So many of its slots are in use.
    InUse(u32),
}

impl core::fmt::Display for DetachError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            DetachError::Unknown(id) => write!(f, "there is no swap device {id}"),
            DetachError::Open => write!(f, "the swap device is not closed"),
            DetachError::InUse(slots) => write!(f, "{slots} slots of the swap device are in use"),
        }
    }
}

impl core::error::Error for DetachError {}

/// What there is to know of a device (`/proc/swaps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its slots.
    pub slots: u32,
    /// Those in use.
    pub used: u32,
    /// Its priority: the highest is used first.
    pub priority: i16,
    /// Whether nothing more goes there.
    pub closed: bool,
}

struct Attached<'p, P: Platform> {
    slots: SlotAllocator,
    device: &'p dyn SwapDevice<P>,
    priority: i16,
}

struct Table<'p, P: Platform> {
    devices: [Option<Attached<'p, P>>; DEVICES],
    /// Those that are attached, by falling priority, of one priority by age.
    order: [u8; DEVICES],
    len: usize,
}

impl<'p, P: Platform> Table<'p, P> {
    fn find(&self, id: u8) -> Option<&Attached<'p, P>> {
        self.devices.get(id as usize)?.as_ref()
    }

    /// A device that somebody has a slot of.
    #[inline]
    fn device(&self, id: u8) -> &Attached<'p, P> {
        match self.find(id) {
            Some(attached) => attached,
            None => no_such_device(id),
        }
    }

    fn in_order(&self) -> &[u8] {
        &self.order[..self.len]
    }

    fn insert(&mut self, id: u8, attached: Attached<'p, P>) {
        let at = self.in_order().iter().take_while(|other| self.device(**other).priority >= attached.priority).count();
        self.order.copy_within(at..self.len, at + 1);
        self.order[at] = id;
        self.len += 1;
        self.devices[id as usize] = Some(attached);
    }

    fn remove(&mut self, id: u8) -> Option<Attached<'p, P>> {
        let at = self.in_order().iter().position(|other| *other == id)?;
        self.order.copy_within(at + 1..self.len, at);
        self.len -= 1;
        self.devices[id as usize].take()
    }
}

#[cold]
fn no_such_device(id: u8) -> ! {
    panic!("{id} is not a swap device of this machine")
}

/// A CPU's way to the table, and its turn among devices of one priority. Zeroed memory is a valid one.
#[repr(align(128))]
struct Door {
    readers: AtomicU32,
    turn: AtomicU32,
}

// SAFETY: atomics only; aligned to 128 bytes.
unsafe impl Zeroable for Door {}

/// A machine's swap devices.
pub struct Swaps<'p, P: Platform> {
    table: PerCpuLock<Table<'p, P>>,
    doors: Paged<Door>,
}

impl<'p, P: Platform> Swaps<'p, P> {
    /// None yet. What each CPU needs is taken here, for good.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(frames: &Frames<'_, P>) -> Result<Self, OutOfMemory> {
        let doors = Paged::new(frames, frames.platform().count() as u32)?;
        let table = Table { devices: [const { None }; DEVICES], order: [0; DEVICES], len: 0 };
        Ok(Swaps { table: PerCpuLock::new(table), doors })
    }

    #[inline]
    fn door(&self, platform: &P) -> &Door {
        self.doors.get(platform.current() as u32)
    }

    #[inline]
    fn table<'a>(&'a self, platform: &P) -> ReadGuard<'a, Table<'p, P>> {
        self.table.read(platform, &self.door(platform).readers)
    }

    fn all_readers(&self) -> impl Iterator<Item = &AtomicU32> {
        (0..self.doors.len()).map(|cpu| &self.doors.get(cpu).readers)
    }

    /// Take a device of so many slots into use; which one it is from now on.
    ///
    /// # Errors
    /// [`AttachError`], and nothing is changed.
    ///
    /// # Safety
    /// Nobody else uses the device until it is detached again.
    pub unsafe fn attach(
        &self,
        frames: &Frames<'_, P>,
        device: &'p dyn SwapDevice<P>,
        slots: u32,
        priority: i16,
    ) -> Result<u8, AttachError> {
        let slots = SlotAllocator::new(frames, slots).map_err(|OutOfMemory| AttachError::OutOfMemory)?;
        let mut table = self.table.write(frames.platform(), self.all_readers());
        let Some(id) = table.devices.iter().position(Option::is_none) else {
            drop(table);
            slots.free(frames);
            return Err(AttachError::TooMany);
        };
        table.insert(id as u8, Attached { slots, device, priority });
        Ok(id as u8)
    }

    /// From the return of this call on, nothing more goes to a device; what is there stays, to be brought back.
    ///
    /// # Errors
    /// There is no such device.
    pub fn close(&self, platform: &P, id: u8) -> Result<(), DetachError> {
        let table = self.table(platform);
        table.find(id).ok_or(DetachError::Unknown(id))?.slots.close(platform);
        Ok(())
    }

    /// Undo [`Swaps::close`].
    ///
    /// # Errors
    /// There is no such device.
    pub fn open(&self, platform: &P, id: u8) -> Result<(), DetachError> {
        let table = self.table(platform);
        table.find(id).ok_or(DetachError::Unknown(id))?.slots.open();
        Ok(())
    }

    /// Forget a device that is closed, and of which no slot is in use any more.
    ///
    /// # Errors
    /// [`DetachError`], and nothing is changed.
    pub fn detach(&self, frames: &Frames<'_, P>, id: u8) -> Result<(), DetachError> {
        let mut table = self.table.write(frames.platform(), self.all_readers());
        let slots = &table.find(id).ok_or(DetachError::Unknown(id))?.slots;
        match slots.len() - slots.free_slots() {
            _ if !slots.is_closed() => return Err(DetachError::Open),
            0 => {}
            used => return Err(DetachError::InUse(used)),
        }
        let removed = table.remove(id);
        drop(table);
        if let Some(attached) = removed {
            attached.slots.free(frames);
        }
        Ok(())
    }

    /// What there is to know of a device.
    pub fn usage(&self, platform: &P, id: u8) -> Option<Usage> {
        let table = self.table(platform);
        let Attached { slots, priority, .. } = table.find(id)?;
        let used = slots.len() - slots.free_slots();
        Some(Usage { slots: slots.len(), used, priority: *priority, closed: slots.is_closed() })
    }

    /// A naturally aligned block of `1 << order` slots, each of which the caller has a reference to.
    ///
    /// # Errors
    /// [`NoSlots`]: who wants a large block may do with smaller ones, of which there may be some.
    #[inline]
    pub fn allocate(&self, platform: &P, order: u8) -> Result<SwapRun, NoSlots> {
        let door = self.door(platform);
        let turn = door.turn.fetch_add(1, Relaxed) as usize;
        let table = self.table.read(platform, &door.readers);
        let priority = |id: u8| table.device(id).priority;
        for equal in table.in_order().chunk_by(|a, b| priority(*a) == priority(*b)) {
            for i in 0..equal.len() {
                let device = equal[(turn + i) % equal.len()];
                if let Some(slots) = table.device(device).slots.allocate(platform, order) {
                    return Ok(SwapRun { device, slots });
                }
            }
        }
        let some = |id: &u8| {
            let slots = &table.device(*id).slots;
            !slots.is_closed() && slots.free_slots() > 0
        };
        Err(if order > 0 && table.in_order().iter().any(some) { NoSlots::Scattered } else { NoSlots::Full })
    }

    /// One more reference to each slot of a run. Somebody has one to each, and keeps it meanwhile.
    ///
    /// # Errors
    /// [`Saturated`], and nothing is changed.
    ///
    /// # Panics
    /// If there are no such slots: numbers that no caller can supply. (As all that follows.)
    #[inline]
    pub fn duplicate(&self, platform: &P, run: SwapRun) -> Result<(), Saturated> {
        self.table(platform).device(run.device).slots.duplicate(platform, run.slots)
    }

    /// Give up a reference to each slot of a run. Those that had no other are free then.
    ///
    /// # Safety
    /// The caller has these references. Whoever reads or writes one of the slots has another.
    #[inline]
    pub unsafe fn release(&self, frames: &Frames<'_, P>, run: SwapRun) {
        let table = self.table(frames.platform());
        let Attached { slots, device, .. } = table.device(run.device);
        // SAFETY: nobody has a reference to these slots any more, and nobody gets one before they are free.
        slots.release(frames.platform(), run.slots, |dead| unsafe { device.forget(frames, dead) });
    }

    /// How many references there are to a slot.
    pub fn references(&self, platform: &P, device: u8, slot: u32) -> u8 {
        self.table(platform).device(device).slots.references(platform, slot)
    }

    /// See [`SwapDevice::write`].
    ///
    /// # Errors
    /// [`WriteError`]; the slots hold nothing then.
    ///
    /// # Safety
    /// As of [`SwapDevice::write`]; the caller has a reference to each slot.
    pub unsafe fn write(&self, frames: &Frames<'_, P>, run: SwapRun, from: Pfn) -> Result<(), WriteError> {
        let device = self.table(frames.platform()).device(run.device).device;
        // SAFETY: by contract.
        unsafe { device.write(frames, run.slots, from) }
    }

    /// See [`SwapDevice::read`].
    ///
    /// # Errors
    /// [`ReadError`] names the first slot whose contents don't come back.
    ///
    /// # Safety
    /// As of [`SwapDevice::read`]; the caller has a reference to each slot.
    pub unsafe fn read(&self, frames: &Frames<'_, P>, run: SwapRun, to: Pfn) -> Result<(), ReadError> {
        let device = self.table(frames.platform()).device(run.device).device;
        // SAFETY: by contract.
        unsafe { device.read(frames, run.slots, to) }
    }
}
