//! The swap devices of a machine, by priority.
//!
//! A folio goes to the device of the highest priority that has a free block of slots for it;
//! devices of equal priority are used in rotation. The list of devices changes rarely, and every
//! CPU that pages out reads it. So it is behind a [`PerCpuLock`], whose readers share no cache
//! line, and each CPU has its own position in the rotation.
//!
//! A reference to a slot keeps its device attached. So the holder of a reference accesses the
//! device without the list's lock: it may count references, and read and write slots, under any
//! lock or none.

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::cache::SwapHints;
use super::paged::Paged;
use super::swap_info::SwapInfo;
use super::{AttachError, DetachError, NoSlots, ReadError, Saturated, Slots, SwapDevice, WriteError};
use crate::addr::Pfn;
use crate::frame::{Frames, OutOfMemory, Zeroable};
use crate::platform::Platform;
use crate::sync::{PerCpuLock, ReadGuard, WriteGuard};

/// The maximum number of devices of a machine, which swap PTEs can name (Linux: `MAX_SWAPFILES`).
pub const MAX_SWAP_DEVICES: usize = 32;

/// The number of slots that are released between two points where the CPU may be rescheduled
/// (INV-11).
const RELEASE_BATCH: u32 = 64;

/// Consecutive slots of one device: the decoded form of a run of swap PTEs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapRun {
    /// The device, below [`MAX_SWAP_DEVICES`].
    pub device: u8,
    /// The slots of that device.
    pub slots: Slots,
}

/// The state of a device (Linux: a line of `/proc/swaps`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// The number of slots.
    pub slots: u32,
    /// The number of slots in use.
    pub used: u32,
    /// The number of slots in use that have a swap-cache page (the sum over all devices is
    /// `SwapCached`).
    pub cached: u32,
    /// The priority: devices of the highest priority are used first.
    pub priority: i16,
    /// True if no slot of the device may be allocated.
    pub closed: bool,
}

/// The attached devices, by falling priority; devices of one priority in the order of attachment
/// (Linux: `swap_active_head`).
pub(super) struct ActiveDevices {
    /// The numbers of the devices: the first `len` elements.
    ids: [u8; MAX_SWAP_DEVICES],
    len: usize,
    /// The hints of all frames: for each frame, the slot of which it may be the swap-cache page.
    /// Allocated while a device is attached.
    pub(super) hints: Option<SwapHints>,
}

impl ActiveDevices {
    /// Returns the numbers of the attached devices.
    pub(super) fn ids(&self) -> &[u8] {
        &self.ids[..self.len]
    }

    /// Allocates the hints of all frames ([`SwapHints`]), if no device is attached yet.
    ///
    /// # Errors
    /// [`AttachError::OutOfMemory`]: there is not enough memory, and none stays allocated.
    fn make_hints<P: Platform>(&mut self, frames: &Frames<'_, P>) -> Result<(), AttachError> {
        if self.hints.is_none() {
            self.hints = Some(SwapHints::new(frames).map_err(|OutOfMemory| AttachError::OutOfMemory)?);
        }
        Ok(())
    }

    /// Inserts a device at a position in the list.
    fn insert(&mut self, at: usize, id: u8) {
        self.ids.copy_within(at..self.len, at + 1);
        self.ids[at] = id;
        self.len += 1;
    }

    /// Removes the device at a position in the list.
    fn remove(&mut self, at: usize) {
        self.ids.copy_within(at + 1..self.len, at);
        self.len -= 1;
    }
}

/// Panics, because a caller passed a number that no attached device has.
#[cold]
fn no_such_device(id: u8) -> ! {
    panic!("swap device {id} is not attached to this machine")
}

/// A CPU's reader count in the lock of the device list, and the CPU's position in the rotation of
/// devices of equal priority. Zeroed memory is a valid value.
#[repr(align(128))]
struct ReaderSlot {
    /// The number of readers that have the list locked and locked it on this CPU.
    readers: AtomicU32,
    /// The number of this CPU's allocations. It selects the device with which the next one begins
    /// among devices of equal priority.
    turn: AtomicU32,
}

// SAFETY: it consists of atomic integers, for which 0 is valid.
unsafe impl Zeroable for ReaderSlot {}

/// The swap devices of a machine.
pub struct Swaps<P: Platform> {
    /// The attached devices.
    active: PerCpuLock<ActiveDevices>,
    /// The devices by number. An element is written only by a CPU that has the list locked for
    /// writing, while the device is not in the list or has no slot in use.
    devices: [UnsafeCell<Option<SwapInfo<P>>>; MAX_SWAP_DEVICES],
    /// The reader counts of the list's lock, by CPU.
    reader_slots: Paged<ReaderSlot>,
}

// SAFETY: a `SwapInfo` is shared like the `&dyn SwapDevice` in it, which is `Sync`. A CPU that
// writes an element of `devices` has exclusive access to it, as the field's documentation says.
unsafe impl<P: Platform> Sync for Swaps<P> {}
// SAFETY: moving the value to another thread gives that thread only accesses that it already had by
// reference, because the type is `Sync`.
unsafe impl<P: Platform> Send for Swaps<P> {}

impl<P: Platform> Swaps<P> {
    /// Creates the state of a machine without devices. Its per-CPU memory is allocated here, and
    /// stays allocated.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory.
    pub fn new(frames: &Frames<'_, P>) -> Result<Self, OutOfMemory> {
        let reader_slots = Paged::new(frames, frames.platform().count() as u32)?;
        let active = PerCpuLock::new(ActiveDevices { ids: [0; MAX_SWAP_DEVICES], len: 0, hints: None });
        Ok(Swaps { active, devices: [const { UnsafeCell::new(None) }; MAX_SWAP_DEVICES], reader_slots })
    }

    /// Returns the current CPU's reader count and its position in the rotation of devices.
    #[inline]
    fn reader_slot(&self, platform: &P) -> &ReaderSlot {
        self.reader_slots.get(platform.current() as u32)
    }

    /// Locks the list of devices for reading.
    pub(super) fn active<'a>(&'a self, platform: &P) -> ReadGuard<'a, ActiveDevices> {
        self.active.read(platform, &self.reader_slot(platform).readers)
    }

    /// Locks the list of devices for writing.
    fn active_mut<'a>(&'a self, platform: &P) -> WriteGuard<'a, ActiveDevices> {
        self.active.write(platform, (0..self.reader_slots.len()).map(|cpu| &self.reader_slots.get(cpu).readers))
    }

    /// Returns an attached device.
    ///
    /// # Panics
    /// If there is no such device.
    ///
    /// # Safety
    /// While the result is used, the device is in the list, which the caller has locked, or one of
    /// its slots has a reference.
    #[inline]
    pub(super) unsafe fn device(&self, id: u8) -> &SwapInfo<P> {
        // SAFETY: no CPU writes the element while the result is used. A write requires the list's
        // lock for writing, and that the device is not in the list or has no slot in use.
        match self.devices.get(id as usize).and_then(|device| unsafe { (*device.get()).as_ref() }) {
            Some(info) => info,
            None => no_such_device(id),
        }
    }

    /// Returns the position of device `id` in the list.
    ///
    /// # Errors
    /// [`DetachError::Unknown`]: it is not attached.
    fn position(active: &ActiveDevices, id: u8) -> Result<usize, DetachError> {
        active.ids().iter().position(|other| *other == id).ok_or(DetachError::Unknown(id))
    }

    /// Returns device `id`.
    ///
    /// # Errors
    /// [`DetachError::Unknown`]: it is not attached.
    fn find<'a>(&'a self, active: &'a ActiveDevices, id: u8) -> Result<&'a SwapInfo<P>, DetachError> {
        Self::position(active, id)?;
        // SAFETY: the device is in the list, whose guard is borrowed for as long as the result.
        Ok(unsafe { self.device(id) })
    }

    /// Attaches a device of `slots` slots (Linux: `swapon`). Returns its number, by which swap PTEs
    /// name it.
    ///
    /// # Errors
    /// [`AttachError`]; nothing is changed.
    ///
    /// # Safety
    /// No other code uses the device. It lives until it is detached, or until the last use of the
    /// machine.
    pub unsafe fn attach(
        &self,
        frames: &Frames<'_, P>,
        device: &dyn SwapDevice<P>,
        slots: u32,
        priority: i16,
    ) -> Result<u8, AttachError> {
        // SAFETY: no other code uses the device, and it lives until it is detached or the machine
        // is no longer used (this contract).
        let info = unsafe { SwapInfo::new(frames, device, slots, priority) };
        let info = info.map_err(|OutOfMemory| AttachError::OutOfMemory)?;
        let mut active = self.active_mut(frames.platform());
        let unused = (0..MAX_SWAP_DEVICES as u8).find(|id| !active.ids().contains(id)).ok_or(AttachError::TooMany);
        let id = match unused.and_then(|id| active.make_hints(frames).map(|()| id)) {
            Ok(id) => id,
            Err(error) => {
                drop(active);
                info.free(frames);
                return Err(error);
            }
        };
        // SAFETY: these devices are in the list, which this CPU has locked.
        let is_before = |other: &&u8| unsafe { self.device(**other) }.priority >= priority;
        let at = active.ids().iter().take_while(is_before).count();
        // SAFETY: this CPU has locked the list of active devices for writing. `id` is not in the
        // list, and no swap PTE or object names a swap slot of device `id`. So no other CPU borrows
        // this element of `devices`.
        unsafe { *self.devices[id as usize].get() = Some(info) };
        active.insert(at, id);
        Ok(id)
    }

    /// Stops allocation on a device: when this returns, no CPU allocates slots of it any more.
    /// Slots in use stay in use, and can be swapped in.
    ///
    /// # Errors
    /// [`DetachError::Unknown`]: the device is not attached.
    pub fn close(&self, platform: &P, id: u8) -> Result<(), DetachError> {
        self.find(&self.active(platform), id)?.slots.close(platform);
        Ok(())
    }

    /// Allows allocation again after [`Swaps::close`].
    ///
    /// # Errors
    /// [`DetachError::Unknown`]: the device is not attached.
    pub fn open(&self, platform: &P, id: u8) -> Result<(), DetachError> {
        self.find(&self.active(platform), id)?.slots.open();
        Ok(())
    }

    /// Detaches a closed device that has no slot in use (the second half of Linux's `swapoff`;
    /// swapping in is [`AddressSpace::swap_off`](crate::space::AddressSpace::swap_off)). Slots to
    /// which only swap-cache pages refer are freed first.
    ///
    /// # Errors
    /// [`DetachError`]; the device stays attached.
    pub fn detach(&self, frames: &Frames<'_, P>, id: u8) -> Result<(), DetachError> {
        self.reclaim_cached_slots_of(frames, id);
        let mut active = self.active_mut(frames.platform());
        let at = Self::position(&active, id)?;
        // SAFETY: the device is in the list, which this CPU has locked for writing.
        let info = unsafe { self.device(id) };
        match info.slots.len() - info.slots.free_slots() {
            _ if !info.slots.is_closed() => return Err(DetachError::Open),
            0 => {}
            used => return Err(DetachError::InUse(used)),
        }
        active.remove(at);
        // SAFETY: this CPU has the list locked for writing, no slot is in use, and `info` is not
        // used any more.
        let removed = unsafe { (*self.devices[id as usize].get()).take() };
        let hints = if active.len == 0 { active.hints.take() } else { None };
        drop(active);
        if let Some(info) = removed {
            info.free(frames);
        }
        if let Some(hints) = hints {
            hints.free(frames);
        }
        Ok(())
    }

    /// Returns the state of a device, or `None` if it is not attached.
    pub fn usage(&self, platform: &P, id: u8) -> Option<Usage> {
        let active = self.active(platform);
        let SwapInfo { slots, priority, .. } = self.find(&active, id).ok()?;
        let used = slots.len() - slots.free_slots();
        let cached = slots.cached.load(Relaxed);
        Some(Usage { slots: slots.len(), used, cached, priority: *priority, closed: slots.is_closed() })
    }

    /// Returns the number of slots of all devices.
    pub(crate) fn total_slots(&self, platform: &P) -> u64 {
        let active = self.active(platform);
        // SAFETY: the devices are in the list, which this CPU has locked.
        active.ids().iter().map(|id| u64::from(unsafe { self.device(*id) }.slots.len())).sum()
    }

    /// Returns true if a page may be swapped out: an open device has a free slot, or a slot can be
    /// reclaimed because a swap-cache page exists for it.
    pub fn has_room(&self, platform: &P) -> bool {
        let active = self.active(platform);
        // SAFETY: the devices are in the list, which this CPU has locked.
        let slots = |id: &u8| unsafe { &self.device(*id).slots };
        let has_room =
            |id: &u8| !slots(id).is_closed() && slots(id).free_slots() > 0 || slots(id).cached.load(Relaxed) > 0;
        active.ids().iter().any(has_room)
    }

    /// Allocates a naturally aligned block of `1 << order` slots, from the device of the highest
    /// priority that has one. The caller gets a reference to each slot.
    ///
    /// # Errors
    /// [`NoSlots`]. After [`NoSlots::Scattered`] a smaller block may be available.
    #[inline]
    pub fn allocate(&self, platform: &P, order: u8) -> Result<SwapRun, NoSlots> {
        let reader_slot = self.reader_slot(platform);
        let turn = reader_slot.turn.fetch_add(1, Relaxed) as usize;
        let active = self.active.read(platform, &reader_slot.readers);
        // SAFETY: the closure is called only for devices in the list, which this CPU has locked.
        let device = |id: u8| unsafe { self.device(id) };
        for peers in active.ids().chunk_by(|a, b| device(*a).priority == device(*b).priority) {
            for i in 0..peers.len() {
                let id = peers[(turn + i) % peers.len()];
                if let Some(slots) = device(id).slots.allocate(platform, order) {
                    return Ok(SwapRun { device: id, slots });
                }
            }
        }
        let has_free_slot = |id: &u8| {
            let slots = &device(*id).slots;
            !slots.is_closed() && slots.free_slots() > 0
        };
        Err(if order > 0 && active.ids().iter().any(has_free_slot) { NoSlots::Scattered } else { NoSlots::Full })
    }

    /// Adds a reference to each slot of `run`, for a swap PTE (Linux: `swap_duplicate`).
    ///
    /// # Errors
    /// [`Saturated`]: a slot has 2^31 references. Nothing is changed then.
    ///
    /// # Panics
    /// If there is no such device or slot. Every function of [`Swaps`] that gets a [`SwapRun`]
    /// panics in this case.
    ///
    /// # Safety
    /// Each slot has a reference, and keeps it during the call.
    #[inline]
    pub unsafe fn duplicate(&self, platform: &P, run: SwapRun) -> Result<(), Saturated> {
        // SAFETY: the slots have references during the call (this contract).
        unsafe { self.device(run.device) }.slots.duplicate(platform, run.slots)
    }

    /// Adds a transient reference to each slot of `run`, for the time of a read: it keeps the slot
    /// from being freed, so the caller need not hold a lock while the device works. Never fails.
    /// [`Swaps::release`] drops the references.
    ///
    /// # Safety
    /// Each slot has another reference during the call.
    #[inline]
    pub(crate) unsafe fn get_transient(&self, platform: &P, run: SwapRun) {
        // SAFETY: the slots have references during the call (this contract).
        unsafe { self.device(run.device) }.slots.get_transient(platform, run.slots);
    }

    /// Drops a reference to each slot of `run` (Linux: `swap_free`). The device forgets the
    /// contents of slots without other references, and these become free. For more than 64 slots
    /// the caller holds no spin lock, because the CPU may be rescheduled.
    ///
    /// # Safety
    /// The caller owns these references. A CPU that reads or writes one of the slots has another
    /// reference.
    #[inline]
    pub unsafe fn release(&self, frames: &Frames<'_, P>, run: SwapRun) {
        let Slots { mut first, count } = run.slots;
        let end = first + count;
        loop {
            // SAFETY: the caller has a reference to each slot that is not released yet, which keeps
            // the device attached.
            let info = unsafe { self.device(run.device) };
            let part = Slots { first, count: (end - first).min(RELEASE_BATCH) };
            // SAFETY: the slots in `dead` have no reference any more, and get none before they are
            // free, so no other CPU accesses them.
            info.slots.release(frames.platform(), part, |dead| unsafe { info.forget(frames, dead) });
            first += part.count;
            if first == end {
                return;
            }
            frames.platform().resched();
        }
    }

    /// Returns the highest reference count among the slots of `run`.
    ///
    /// # Safety
    /// Each slot has a reference, and keeps it during the call.
    pub unsafe fn max_references(&self, platform: &P, run: SwapRun) -> u32 {
        // SAFETY: the slots have references during the call (this contract).
        unsafe { self.device(run.device) }.slots.max_references(platform, run.slots)
    }

    /// Writes the frames from `from` on to slots: see [`SwapDevice::write`]. Waits for the device;
    /// the caller holds no lock.
    ///
    /// # Errors
    /// [`WriteError`]; the slots then have no contents, and stay in use.
    ///
    /// # Safety
    /// As for [`SwapDevice::write`]; the caller has a reference to each slot.
    pub unsafe fn write(&self, frames: &Frames<'_, P>, run: SwapRun, from: Pfn) -> Result<(), WriteError> {
        // SAFETY: the caller has a reference to each slot, and guarantees the conditions of
        // [`SwapDevice::write`] (this contract).
        unsafe { self.device(run.device).write(frames, run.slots, from) }
    }

    /// Reads slots into the frames from `to` on: see [`SwapDevice::read`]. Waits for the device;
    /// the caller holds no lock.
    ///
    /// # Errors
    /// [`ReadError`] names the first slot that cannot be read, or, where checksums are kept, whose
    /// contents are damaged.
    ///
    /// # Safety
    /// As for [`SwapDevice::read`]; the caller has a reference to each slot.
    pub unsafe fn read(&self, frames: &Frames<'_, P>, run: SwapRun, to: Pfn) -> Result<(), ReadError> {
        // SAFETY: the caller has a reference to each slot, and guarantees the conditions of
        // [`SwapDevice::read`] (this contract).
        unsafe { self.device(run.device).read(frames, run.slots, to) }
    }
}
