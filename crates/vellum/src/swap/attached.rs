//! A device in use: what is kept of its slots.

use super::checksums::Checksums;
use super::{ReadError, SlotAllocator, Slots, SwapDevice, WriteError};
use crate::addr::Pfn;
use crate::frame::{Frames, OutOfMemory};
use crate::platform::{Event, Platform, trace};

#[must_use]
pub(super) struct Attached<P: Platform> {
    pub(super) slots: SlotAllocator,
    pub(super) priority: i16,
    checksums: Option<Checksums>,
    /// Lives until it is detached: the contract of [`Attached::new`]. (Its lifetime is not part of the type, because a machine that
    /// may be told of shorter ones could not be used where one of a longer life is wanted.)
    device: *const (dyn SwapDevice<P> + 'static),
}

impl<P: Platform> Attached<P> {
    /// # Errors
    /// There is not enough memory; nothing of it is taken then.
    ///
    /// # Safety
    /// Nobody else uses the device, and it lives as long as this is used.
    pub(super) unsafe fn new(
        frames: &Frames<'_, P>,
        device: &dyn SwapDevice<P>,
        slots: u32,
        priority: i16,
    ) -> Result<Self, OutOfMemory> {
        let checksums = if device.checked() { Some(Checksums::new(frames, slots)?) } else { None };
        let slots = match SlotAllocator::new(frames, slots) {
            Ok(slots) => slots,
            Err(error) => {
                checksums.into_iter().for_each(|checksums| checksums.free(frames));
                return Err(error);
            }
        };
        // SAFETY: it lives as long as it is used here, says the caller.
        let device =
            unsafe { core::mem::transmute::<*const dyn SwapDevice<P>, *const (dyn SwapDevice<P> + 'static)>(device) };
        Ok(Attached { slots, priority, checksums, device })
    }

    /// Give up what was kept.
    pub(super) fn free(self, frames: &Frames<'_, P>) {
        self.slots.free(frames);
        self.checksums.into_iter().for_each(|checksums| checksums.free(frames));
    }

    fn device(&self) -> &dyn SwapDevice<P> {
        // SAFETY: it lives as long as this.
        unsafe { &*self.device }
    }

    /// See [`SwapDevice::write`].
    ///
    /// # Errors
    /// [`WriteError`]; the slots hold nothing then.
    ///
    /// # Safety
    /// As of [`SwapDevice::write`].
    pub(super) unsafe fn write(&self, frames: &Frames<'_, P>, slots: Slots, from: Pfn) -> Result<(), WriteError> {
        trace(frames.platform(), || Event::DeviceIo);
        // SAFETY: by contract.
        unsafe { self.device().write(frames, slots, from) }?;
        if let Some(checksums) = &self.checksums {
            // SAFETY: nobody writes to the frames, by contract.
            unsafe { checksums.keep(frames, slots, from) };
        }
        Ok(())
    }

    /// See [`SwapDevice::read`].
    ///
    /// # Errors
    /// [`ReadError`] names the first slot whose contents don't come back, or come back as something else.
    ///
    /// # Safety
    /// As of [`SwapDevice::read`].
    pub(super) unsafe fn read(&self, frames: &Frames<'_, P>, slots: Slots, to: Pfn) -> Result<(), ReadError> {
        trace(frames.platform(), || Event::DeviceIo);
        // SAFETY: by contract.
        unsafe { self.device().read(frames, slots, to) }?;
        match &self.checksums {
            // SAFETY: the frames are the caller's alone, by contract.
            Some(checksums) => unsafe { checksums.compare(frames, slots, to) },
            None => Ok(()),
        }
    }

    /// See [`SwapDevice::forget`].
    ///
    /// # Safety
    /// As of [`SwapDevice::forget`].
    pub(super) unsafe fn forget(&self, frames: &Frames<'_, P>, slots: Slots) {
        // SAFETY: by contract.
        unsafe { self.device().forget(frames, slots) };
    }
}
