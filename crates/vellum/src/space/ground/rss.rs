//! The counters of a space, and the peak of its resident set.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::addr::Pfn;
use crate::machine::Machine;
use crate::memcg::{MemcgId, Refused};
use crate::platform::Platform;
use crate::stats::{SLOT_FRAMES, SLOTS, SpaceSlot, SpaceSlots, resident};

/// The largest resident set that a space has had, in pages of 4 KiB, as far as it was looked at
/// (Linux: `hiwater_rss`).
#[derive(Default)]
pub(in crate::space) struct PeakRss(AtomicU64);

impl PeakRss {
    /// Notes the resident set, before an operation makes it smaller. Returns the peak.
    pub(in crate::space) fn note(&self, slots: &SpaceSlots<'_>) -> u64 {
        let now = resident(slots);
        self.0.fetch_max(now, Relaxed).max(now)
    }
}

/// The frames of a space's slots, charged to the memcg that it was made in.
pub(in crate::space) struct SlotFrames([Pfn; SLOT_FRAMES]);

impl SlotFrames {
    pub(in crate::space) fn new<P: Platform>(machine: &Machine<'_, P>, memcg: MemcgId) -> Result<Self, Refused> {
        let mut frames = SlotFrames([Pfn::NONE; SLOT_FRAMES]);
        for at in 0..machine.platform().count().div_ceil(SLOTS) {
            match machine.memcgs().alloc(machine.frames(), memcg, 0, true) {
                Ok((pfn, _)) => frames.0[at] = pfn,
                Err(why) => {
                    frames.free(machine);
                    return Err(why);
                }
            }
        }
        Ok(frames)
    }

    pub(in crate::space) fn slots<'m, P: Platform>(&self, machine: &'m Machine<'m, P>) -> SpaceSlots<'m> {
        SpaceSlots::new(machine.platform().count(), |i| {
            let first = machine.frames().at(self.0[i].addr());
            // SAFETY: a frame of zeros, which are valid slots and made of atomics, as many as fill
            // a frame. It is given back after the last use of the slots only: when the space is
            // dropped, or could not be made.
            unsafe { first.cast::<[SpaceSlot; SLOTS]>().as_ref() }
        })
    }

    fn iter(&self) -> impl Iterator<Item = Pfn> {
        self.0.into_iter().filter(|pfn| *pfn != Pfn::NONE)
    }

    pub(in crate::space) fn len(&self) -> usize {
        self.iter().count()
    }

    pub(in crate::space) fn free<P: Platform>(&self, machine: &Machine<'_, P>) {
        for pfn in self.iter() {
            // SAFETY: the space's own, which nobody has any more. They may hold counts.
            unsafe { machine.memcgs().free(machine.frames(), pfn, 0, false) };
        }
    }
}
