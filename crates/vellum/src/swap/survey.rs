//! What an audit looks at: each slot of a device, with what the engine says of it.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::Swaps;
use super::cluster::SLOTS;
use crate::addr::Pfn;
use crate::frame::Frames;
use crate::platform::Platform;

/// What the engine says of a slot.
pub(crate) struct Slot {
    /// Its number.
    pub(crate) number: u32,
    /// Its references; a free slot has none.
    pub(crate) references: u32,
    /// Whether it may be given out.
    pub(crate) free: bool,
    /// The frame that holds the same.
    pub(crate) copy: Option<Pfn>,
}

impl<P: Platform> Swaps<P> {
    /// Shows the slots in `range`, which begins where a cluster does, of a device, as long as the
    /// device is there. The cluster's lock is held while its slots are shown.
    pub(crate) fn each_slot(&self, frames: &Frames<'_, P>, device: u8, range: Range<u32>, mut visit: impl FnMut(Slot)) {
        for first in range.clone().step_by(SLOTS as usize) {
            let order = self.order(frames.platform());
            if !order.ids().contains(&device) {
                return;
            }
            // SAFETY: it is in the order.
            let slots = unsafe { &self.device(device).slots };
            let index = first / SLOTS;
            let end = range.end.min(slots.len()).saturating_sub(first).min(SLOTS);
            if end > 0 {
                let cluster = slots.lock(frames.platform(), index);
                for slot in 0..end {
                    let references = cluster.references(slot);
                    let copy = slots.copies.get(index).of(&(slot..slot + 1))[0].load(Relaxed);
                    let (free, copy) = (cluster.is_free(slot), Pfn(!copy).some());
                    visit(Slot { number: first + slot, references, free, copy });
                }
            }
            drop(order);
            frames.platform().resched();
        }
    }
}
