//! The counters of a space, and the peak of its resident set.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use crate::addr::Pfn;
use crate::machine::Machine;
use crate::memcg::{MemcgId, Refused};
use crate::platform::Platform;
use crate::stats::{SLOT_FRAMES, SLOTS, SpaceSlot, SpaceSlots, resident};

/// The largest resident set of a space, in pages of 4 KiB, that [`PeakRss::note`] has seen (Linux:
/// `hiwater_rss`).
#[derive(Default)]
pub(in crate::space) struct PeakRss(AtomicU64);

impl PeakRss {
    /// Raises the peak to the size of the resident set now, if that is larger, and returns the
    /// peak. An operation calls this before it makes the resident set smaller.
    pub(in crate::space) fn note(&self, slots: &SpaceSlots<'_>) -> u64 {
        let now = resident(slots);
        self.0.fetch_max(now, Relaxed).max(now)
    }
}

/// The frames that hold the [`SpaceSlot`]s of a space: for each CPU, its share of the space's
/// counters and its reader count of the VMA lock. The frames are charged to the memcg in which the
/// space was created.
pub(in crate::space) struct SlotFrames([Pfn; SLOT_FRAMES]);

impl SlotFrames {
    /// Allocates frames for the [`SpaceSlot`]s of all CPUs of the machine.
    ///
    /// # Errors
    /// There is no memory. Nothing is allocated.
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

    /// Returns the slots in the frames.
    pub(in crate::space) fn slots<'m, P: Platform>(&self, machine: &'m Machine<'m, P>) -> SpaceSlots<'m> {
        SpaceSlots::new(machine.platform().count(), |i| {
            let first = machine.frames().at(self.0[i].addr());
            // SAFETY: the frame was allocated zeroed, zeros are valid slots, slots consist of
            // atomics, and `SLOTS` of them fit into a frame. The frame is freed only after the last
            // use of the slots: when the space is dropped, or when its creation fails.
            unsafe { first.cast::<[SpaceSlot; SLOTS]>().as_ref() }
        })
    }

    fn iter(&self) -> impl Iterator<Item = Pfn> {
        self.0.into_iter().filter(|pfn| *pfn != Pfn::NONE)
    }

    /// Returns the number of frames.
    pub(in crate::space) fn len(&self) -> usize {
        self.iter().count()
    }

    /// Frees the frames. The caller ensures that no slot is used after this.
    pub(in crate::space) fn free<P: Platform>(&self, machine: &Machine<'_, P>) {
        for pfn in self.iter() {
            // SAFETY: the frames belong to the space alone, and the caller ensures that it does not
            // use them any more. `false`: the frames are not known to be zeroed.
            unsafe { machine.memcgs().free(machine.frames(), pfn, 0, false) };
        }
    }
}
