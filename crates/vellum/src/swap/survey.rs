//! Enumeration of a device's slots for the audit.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::Swaps;
use super::cluster::SLOTS;
use crate::addr::Pfn;
use crate::frame::Frames;
use crate::platform::Platform;

/// The engine's record of a slot.
pub(crate) struct Slot {
    /// The slot's number.
    pub(crate) number: u32,
    /// The number of references; 0 for a free slot.
    pub(crate) references: u32,
    /// True if the slot may be allocated.
    pub(crate) is_free: bool,
    /// The frame of the slot's swap-cache page, if it has one.
    pub(crate) cached_page: Option<Pfn>,
}

impl<P: Platform> Swaps<P> {
    /// Calls `visit` for the slots of a device in `range`, which begins at a cluster, as long as
    /// the device is attached. The cluster's lock is held while its slots are visited; the CPU may
    /// be rescheduled between two clusters.
    pub(crate) fn each_slot(&self, frames: &Frames<'_, P>, device: u8, range: Range<u32>, mut visit: impl FnMut(Slot)) {
        for first in range.clone().step_by(SLOTS as usize) {
            let active = self.active(frames.platform());
            if !active.ids().contains(&device) {
                return;
            }
            // SAFETY: the device is in the list, which this CPU has locked.
            let slots = unsafe { &self.device(device).slots };
            let index = first / SLOTS;
            let end = range.end.min(slots.len()).saturating_sub(first).min(SLOTS);
            if end > 0 {
                let cluster = slots.lock(frames.platform(), index);
                for slot in 0..end {
                    let references = cluster.references(slot);
                    let cached = slots.cached_frames.get(index).of(&(slot..slot + 1))[0].load(Relaxed);
                    let (is_free, cached_page) = (cluster.is_free(slot), Pfn(!cached).some());
                    visit(Slot { number: first + slot, references, is_free, cached_page });
                }
            }
            drop(active);
            frames.platform().resched();
        }
    }
}
