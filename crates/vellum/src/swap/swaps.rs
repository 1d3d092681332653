//! The swap devices of a machine: the one of the highest priority that has room gets what is swapped out, several of one
//! priority in turn.
//!
//! Which devices there are changes rarely and is asked for by every CPU that swaps out; so it is behind a lock whose readers
//! share no line, and each CPU takes turns by itself. Who has a reference to a slot keeps its device attached, and needs no lock to
//! reach it: so references may be counted, and slots be written and read, under any lock or none.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::attached::Attached;
use super::cache::Places;
use super::paged::Paged;
use super::{AttachError, DetachError, NoSlots, ReadError, Saturated, Slots, SwapDevice, WriteError};
use crate::addr::Pfn;
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;
use crate::sync::{PerCpuLock, ReadGuard, WriteGuard};

/// The most devices that a machine may have: an entry names one of so many.
pub const DEVICES: usize = 32;

/// Slots that are given up in one go: after so many the CPU may do something else.
const PART: u32 = 64;

/// Slots in a row, and whose they are: what a run of entries says of memory that is swapped out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRun {
    /// The device, below [`DEVICES`].
    pub device: u8,
    /// Its slots.
    pub slots: Slots,
}

/// What there is to know of a device (`/proc/swaps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Its slots.
    pub slots: u32,
    /// Those in use.
    pub used: u32,
    /// Of these, how many have the same contents as memory that is in use too (all of them: `SwapCached`).
    pub cached: u32,
    /// Its priority: the highest is used first.
    pub priority: i16,
    /// Whether nothing more goes there.
    pub closed: bool,
}

/// Those that are attached, by falling priority, of one priority by age.
pub(super) struct Order {
    ids: [u8; DEVICES],
    len: usize,
    /// There when there is a device.
    pub(super) places: Option<Places>,
}

impl Order {
    pub(super) fn ids(&self) -> &[u8] {
        &self.ids[..self.len]
    }

    fn make_places<P: Platform>(&mut self, frames: &Frames<'_, P>) -> Result<(), AttachError> {
        if self.places.is_none() {
            self.places = Some(Places::new(frames).map_err(|OutOfMemory| AttachError::OutOfMemory)?);
        }
        Ok(())
    }

    fn insert(&mut self, at: usize, id: u8) {
        self.ids.copy_within(at..self.len, at + 1);
        self.ids[at] = id;
        self.len += 1;
    }

    fn remove(&mut self, at: usize) {
        self.ids.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }
}

#[cold]
fn no_such_device(id: u8) -> ! {
    panic!("{id} is not a swap device of this machine")
}

/// A CPU's way to the order, and its turn among devices of one priority. Zeroed memory is a valid one.
#[repr(align(128))]
struct Door {
    readers: AtomicU32,
    turn: AtomicU32,
}

// SAFETY: atomics only; aligned to 128 bytes.
unsafe impl Zeroable for Door {}

/// A machine's swap devices.
pub struct Swaps<P: Platform> {
    order: PerCpuLock<Order>,
    /// Written by who has the order for writing, and finds that a device is not in it, or has no slot in use.
    devices: [UnsafeCell<Option<Attached<P>>>; DEVICES],
    doors: Paged<Door>,
}

// SAFETY: devices are shared like the `&dyn SwapDevice` that they are made of, which is `Sync`, and whoever writes one is alone
// with it: see the field.
unsafe impl<P: Platform> Sync for Swaps<P> {}
// SAFETY: so are they used from whatever thread has this.
unsafe impl<P: Platform> Send for Swaps<P> {}

impl<P: Platform> Swaps<P> {
    /// None yet. What each CPU needs is taken here, for good.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new(frames: &Frames<'_, P>) -> Result<Self, OutOfMemory> {
        let doors = Paged::new(frames, frames.platform().count() as u32)?;
        let order = PerCpuLock::new(Order { ids: [0; DEVICES], len: 0, places: None });
        Ok(Swaps { order, devices: [const { UnsafeCell::new(None) }; DEVICES], doors })
    }

    #[inline]
    fn door(&self, platform: &P) -> &Door {
        self.doors.get(platform.current() as u32)
    }

    pub(super) fn order<'a>(&'a self, platform: &P) -> ReadGuard<'a, Order> {
        self.order.read(platform, &self.door(platform).readers)
    }

    fn change<'a>(&'a self, platform: &P) -> WriteGuard<'a, Order> {
        self.order.write(platform, (0..self.doors.len()).map(|cpu| &self.doors.get(cpu).readers))
    }

    /// A device.
    ///
    /// # Safety
    /// As long as the answer is used, it is in the order, which the caller has, or somebody has a reference to one of its slots.
    #[inline]
    pub(super) unsafe fn device(&self, id: u8) -> &Attached<P> {
        // SAFETY: nobody writes it: that takes the order for writing, and that no slot is in use.
        match self.devices.get(id as usize).and_then(|device| unsafe { (*device.get()).as_ref() }) {
            Some(attached) => attached,
            None => no_such_device(id),
        }
    }

    /// A device that may be there, and where in the order.
    fn find<'a>(&'a self, order: &'a Order, id: u8) -> Result<(usize, &'a Attached<P>), DetachError> {
        let at = order.ids().iter().position(|other| *other == id).ok_or(DetachError::Unknown(id))?;
        // SAFETY: it is in the order, which is borrowed as long.
        Ok((at, unsafe { self.device(id) }))
    }

    /// Take a device of so many slots into use; which one it is from now on.
    ///
    /// # Errors
    /// [`AttachError`], and nothing is changed.
    ///
    /// # Safety
    /// Nobody else uses the device, and it lives, until it is detached again or the machine is used for the last time.
    pub unsafe fn attach(
        &self,
        frames: &Frames<'_, P>,
        device: &dyn SwapDevice<P>,
        slots: u32,
        priority: i16,
    ) -> Result<u8, AttachError> {
        // SAFETY: it lives as long as it is used here, says the caller.
        let attached = unsafe { Attached::new(frames, device, slots, priority) };
        let attached = attached.map_err(|OutOfMemory| AttachError::OutOfMemory)?;
        let mut order = self.change(frames.platform());
        let unused = (0..DEVICES as u8).find(|id| !order.ids().contains(id)).ok_or(AttachError::TooMany);
        let id = match unused.and_then(|id| order.make_places(frames).map(|()| id)) {
            Ok(id) => id,
            Err(error) => {
                drop(order);
                attached.free(frames);
                return Err(error);
            }
        };
        // SAFETY: these are in the order.
        let before = |other: &&u8| unsafe { self.device(**other) }.priority >= priority;
        let at = order.ids().iter().take_while(before).count();
        // SAFETY: it is not in the order, and has no slots that anybody could have.
        unsafe { *self.devices[id as usize].get() = Some(attached) };
        order.insert(at, id);
        Ok(id)
    }

    /// From the return of this call on, nothing more goes to a device; what is there stays, to be brought back.
    ///
    /// # Errors
    /// There is no such device.
    pub fn close(&self, platform: &P, id: u8) -> Result<(), DetachError> {
        self.find(&self.order(platform), id)?.1.slots.close(platform);
        Ok(())
    }

    /// Undo [`Swaps::close`].
    ///
    /// # Errors
    /// There is no such device.
    pub fn open(&self, platform: &P, id: u8) -> Result<(), DetachError> {
        self.find(&self.order(platform), id)?.1.slots.open();
        Ok(())
    }

    /// Forget a device that is closed, and of which no slot is in use any more, but for those that hold what is in memory.
    ///
    /// # Errors
    /// [`DetachError`], and nothing is changed.
    pub fn detach(&self, frames: &Frames<'_, P>, id: u8) -> Result<(), DetachError> {
        self.trim_device(frames, id);
        let mut order = self.change(frames.platform());
        let (at, attached) = self.find(&order, id)?;
        match attached.slots.len() - attached.slots.free_slots() {
            _ if !attached.slots.is_closed() => return Err(DetachError::Open),
            0 => {}
            used => return Err(DetachError::InUse(used)),
        }
        order.remove(at);
        // SAFETY: nobody else has the order, no slot is in use, and `attached` is used for the last time above.
        let removed = unsafe { (*self.devices[id as usize].get()).take() };
        let places = if order.len == 0 { order.places.take() } else { None };
        drop(order);
        if let Some(attached) = removed {
            attached.free(frames);
        }
        if let Some(places) = places {
            places.free(frames);
        }
        Ok(())
    }

    /// What there is to know of a device.
    pub fn usage(&self, platform: &P, id: u8) -> Option<Usage> {
        let order = self.order(platform);
        let (_, Attached { slots, priority, .. }) = self.find(&order, id).ok()?;
        let used = slots.len() - slots.free_slots();
        let cached = slots.cached.load(Relaxed);
        Some(Usage { slots: slots.len(), used, cached, priority: *priority, closed: slots.is_closed() })
    }

    /// Slots of all devices.
    pub(crate) fn slots(&self, platform: &P) -> u64 {
        let order = self.order(platform);
        // SAFETY: they are in the order.
        order.ids().iter().map(|id| u64::from(unsafe { self.device(*id) }.slots.len())).sum()
    }

    /// Whether anything may go to a device: because it has a slot left, or one that holds what is in memory.
    pub fn has_room(&self, platform: &P) -> bool {
        let order = self.order(platform);
        // SAFETY: they are in the order.
        let slots = |id: &u8| unsafe { &self.device(*id).slots };
        let room = |id: &u8| !slots(id).is_closed() && slots(id).free_slots() > 0 || slots(id).cached.load(Relaxed) > 0;
        order.ids().iter().any(room)
    }

    /// A naturally aligned block of `1 << wanted` slots, each of which the caller has a reference to.
    ///
    /// # Errors
    /// [`NoSlots`]: who wants a large block may do with smaller ones, of which there may be some.
    #[inline]
    pub fn allocate(&self, platform: &P, wanted: u8) -> Result<SwapRun, NoSlots> {
        let door = self.door(platform);
        let turn = door.turn.fetch_add(1, Relaxed) as usize;
        let order = self.order.read(platform, &door.readers);
        // SAFETY: asked of those in the order only.
        let device = |id: u8| unsafe { self.device(id) };
        for equal in order.ids().chunk_by(|a, b| device(*a).priority == device(*b).priority) {
            for i in 0..equal.len() {
                let id = equal[(turn + i) % equal.len()];
                if let Some(slots) = device(id).slots.allocate(platform, wanted) {
                    return Ok(SwapRun { device: id, slots });
                }
            }
        }
        let some = |id: &u8| {
            let slots = &device(*id).slots;
            !slots.is_closed() && slots.free_slots() > 0
        };
        Err(if wanted > 0 && order.ids().iter().any(some) { NoSlots::Scattered } else { NoSlots::Full })
    }

    /// Adds a reference to each slot of a run, for a swap entry to keep.
    ///
    /// # Errors
    /// [`Saturated`]: one of them has 2^31 references. Nothing is changed.
    ///
    /// # Panics
    /// If there are no such slots: numbers that no caller can supply. (As all that follows.)
    ///
    /// # Safety
    /// Somebody has a reference to each slot, and keeps it meanwhile.
    #[inline]
    pub unsafe fn duplicate(&self, platform: &P, run: SwapRun) -> Result<(), Saturated> {
        // SAFETY: by contract.
        unsafe { self.device(run.device) }.slots.duplicate(platform, run.slots)
    }

    /// Adds a reference to each slot of a run until the caller has read it: so nothing else goes
    /// there meanwhile, and no lock needs to be held while a device works. It can't be refused.
    ///
    /// # Safety
    /// Each slot has a reference meanwhile.
    #[inline]
    pub(crate) unsafe fn hold(&self, platform: &P, run: SwapRun) {
        // SAFETY: by contract.
        unsafe { self.device(run.device) }.slots.hold(platform, run.slots);
    }

    /// Give up a reference to each slot of a run. Those that had no other are free then. If they
    /// are more than 64, the caller holds no spin lock.
    ///
    /// # Safety
    /// The caller has these references. Whoever reads or writes one of the slots has another.
    #[inline]
    pub unsafe fn release(&self, frames: &Frames<'_, P>, run: SwapRun) {
        let Slots { mut first, count } = run.slots;
        let end = first + count;
        loop {
            // SAFETY: the caller has references, at least to those that are left.
            let attached = unsafe { self.device(run.device) };
            let part = Slots { first, count: (end - first).min(PART) };
            // SAFETY: nobody has a reference to these slots any more, and nobody gets one before
            // they are free.
            attached.slots.release(frames.platform(), part, |dead| unsafe { attached.forget(frames, dead) });
            first += part.count;
            if first == end {
                return;
            }
            frames.platform().resched();
        }
    }

    /// Returns the highest reference count among these slots.
    ///
    /// # Safety
    /// Somebody has one to each, and keeps it meanwhile.
    pub unsafe fn references(&self, platform: &P, run: SwapRun) -> u32 {
        // SAFETY: by contract.
        unsafe { self.device(run.device) }.slots.references(platform, run.slots)
    }

    /// See [`SwapDevice::write`].
    ///
    /// # Errors
    /// [`WriteError`]; the slots hold nothing then.
    ///
    /// # Safety
    /// As of [`SwapDevice::write`]; the caller has a reference to each slot.
    pub unsafe fn write(&self, frames: &Frames<'_, P>, run: SwapRun, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: by contract.
        unsafe { self.device(run.device).write(frames, run.slots, from) }
    }

    /// See [`SwapDevice::read`].
    ///
    /// # Errors
    /// [`ReadError`] names the first slot whose contents don't come back, or, where checksums are kept, come back as something else.
    ///
    /// # Safety
    /// As of [`SwapDevice::read`]; the caller has a reference to each slot.
    pub unsafe fn read(&self, frames: &Frames<'_, P>, run: SwapRun, to: Pfn) -> Result<(), ReadError> {
        // SAFETY: by contract.
        unsafe { self.device(run.device).read(frames, run.slots, to) }
    }
}
