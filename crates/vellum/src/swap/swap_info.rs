//! An attached swap device with its slots and checksums (Linux: `swap_info_struct`).

use super::checksums::Checksums;
use super::{ReadError, SlotAllocator, Slots, SwapDevice, WriteError};
use crate::addr::Pfn;
use crate::frame::{Frames, OutOfMemory};
use crate::platform::{Event, Platform, trace};

/// An attached swap device.
#[must_use]
pub(super) struct SwapInfo<P: Platform> {
    /// The allocator of the device's slots.
    pub(super) slots: SlotAllocator,
    /// The device's priority: devices of higher priority are used first.
    pub(super) priority: i16,
    /// The checksums of the slots' contents, if the device keeps any.
    checksums: Option<Checksums>,
    /// The device, which lives until it is detached: the contract of [`SwapInfo::new`]. Its
    /// lifetime is not part of the type: otherwise a machine with a shorter-lived device could not
    /// be passed where a longer lifetime is required.
    device: *const (dyn SwapDevice<P> + 'static),
}

impl<P: Platform> SwapInfo<P> {
    /// Allocates the state of a device of `slots` slots.
    ///
    /// # Errors
    /// [`OutOfMemory`]: there is not enough memory, and none stays allocated.
    ///
    /// # Safety
    /// No other code uses the device, and the device lives as long as this value is used.
    pub(super) unsafe fn new(
        frames: &Frames<'_, P>,
        device: &dyn SwapDevice<P>,
        slots: u32,
        priority: i16,
    ) -> Result<Self, OutOfMemory> {
        let checksums = if device.has_checksums() { Some(Checksums::new(frames, slots)?) } else { None };
        let slots = match SlotAllocator::new(frames, slots) {
            Ok(slots) => slots,
            Err(error) => {
                checksums.into_iter().for_each(|checksums| checksums.free(frames));
                return Err(error);
            }
        };
        // SAFETY: the device lives as long as the new value is used (this contract).
        let device =
            unsafe { core::mem::transmute::<*const dyn SwapDevice<P>, *const (dyn SwapDevice<P> + 'static)>(device) };
        Ok(SwapInfo { slots, priority, checksums, device })
    }

    /// Frees the memory of the slots and checksums. The device itself is not touched.
    pub(super) fn free(self, frames: &Frames<'_, P>) {
        self.slots.free(frames);
        self.checksums.into_iter().for_each(|checksums| checksums.free(frames));
    }

    /// Returns the device.
    fn device(&self) -> &dyn SwapDevice<P> {
        // SAFETY: the device lives as long as this value, by the contract of `new`.
        unsafe { &*self.device }
    }

    /// Writes frames to slots, and records their checksums: see [`SwapDevice::write`].
    ///
    /// # Errors
    /// [`WriteError`]; the slots then have no contents, and stay in use.
    ///
    /// # Safety
    /// As for [`SwapDevice::write`].
    pub(super) unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        trace(frames.platform(), || Event::DeviceIo);
        // SAFETY: the caller guarantees the conditions of [`SwapDevice::write`] (this contract).
        unsafe { self.device().write(frames, slots, from) }?;
        if let Some(checksums) = &self.checksums {
            // SAFETY: nothing writes to the frames during the call (contract of
            // [`SwapDevice::write`]).
            unsafe { checksums.store(frames, slots, from) };
        }
        Ok(())
    }

    /// Reads slots into frames, and compares the frames' checksums with the recorded ones: see
    /// [`SwapDevice::read`].
    ///
    /// # Errors
    /// [`ReadError`] names the first slot that cannot be read, or whose contents are damaged.
    ///
    /// # Safety
    /// As for [`SwapDevice::read`].
    pub(super) unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        trace(frames.platform(), || Event::DeviceIo);
        // SAFETY: the caller guarantees the conditions of [`SwapDevice::read`] (this contract).
        unsafe { self.device().read(frames, slots, to) }?;
        match &self.checksums {
            // SAFETY: the caller has exclusive access to the frames (contract of
            // [`SwapDevice::read`]).
            Some(checksums) => unsafe { checksums.compare(frames, slots, to) },
            None => Ok(()),
        }
    }

    /// Drops the contents of slots: see [`SwapDevice::forget`].
    ///
    /// # Safety
    /// As for [`SwapDevice::forget`].
    pub(super) unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots) {
        // SAFETY: the caller guarantees the conditions of [`SwapDevice::forget`] (this contract).
        unsafe { self.device().forget(frames, slots) };
    }
}
