//! Audits swap slots: compares the references of a slot with the PTEs, objects' pages and
//! swap-cache pages that name the slot.

use core::ops::Range;

use super::Audit;
use super::discrepancy::Quantity;
use crate::addr::VirtRange;
use crate::arch::{Arch, Kind};
use crate::frame::HUGE_ORDER;
use crate::page_cache::PageLocation;
use crate::platform::Platform;
use crate::space::{AddressSpace, Ptes};
use crate::swap::MAX_SWAP_DEVICES;

impl<'m, P: Platform> Audit<'_, 'm, P> {
    /// Compares the references of each swap slot with the number of PTEs and objects' pages that
    /// name the slot, plus one if the slot has a swap-cache page (INV-15). Handles as many slots at
    /// a time as the array of counts has elements, with one walk of all page tables each time.
    pub(super) fn check_slots<'s>(&mut self, spaces: impl Iterator<Item = &'s AddressSpace<'m, P>> + Clone)
    where
        'm: 's,
    {
        let (machine, swaps) = (self.machine, self.machine.swaps());
        // The number of slots counted at a time: a multiple of the cluster size, because
        // `each_slot` must begin at a cluster.
        let room = (self.counts.len() as u32).min(1 << 31) >> HUGE_ORDER << HUGE_ORDER;
        for device in 0..MAX_SWAP_DEVICES as u8 {
            let Some(usage) = swaps.usage(machine.platform(), device) else { continue };
            let (mut used, mut free) = (0, 0);
            for first in (0..usage.slots).step_by(room as usize) {
                let window = first..usage.slots.min(first.saturating_add(room));
                self.counts.fill(0);
                spaces.clone().for_each(|space| self.count_ptes(space, device, &window));
                self.each_object(|audit, object| {
                    let pages = 1 << object.page_order();
                    object.survey().walk(&mut |_| (), &mut |page| {
                        if let PageLocation::Swap { device: on, slot } = page {
                            audit.count_slots((on == device).then_some(slot..slot + pages), &window);
                        }
                    });
                });
                swaps.each_slot(machine.frames(), device, window, |slot| {
                    let names = self.counts[(slot.number - first) as usize];
                    let found = u64::from(names) + u64::from(slot.cached_page.is_some());
                    self.compare(Quantity::Slot(device, slot.number), slot.references.into(), found);
                    used += u64::from(slot.references > 0);
                    free += u64::from(slot.is_free);
                });
            }
            self.compare(Quantity::SlotsUsed(device), usage.used.into(), used);
            self.compare(Quantity::SlotsFree(device), (usage.slots - usage.used).into(), free);
        }
    }

    /// Adds the PTEs of a space that name swap slots of a device to the counts of these slots, if
    /// they are in `window`.
    fn count_ptes(&mut self, space: &AddressSpace<'m, P>, device: u8, window: &Range<u32>) {
        space.runs(VirtRange { start: 0, end: space.arch().user_end() }, |run| {
            if run.kind == Kind::Swap {
                let slots = Ptes::of(space).swap_slots(run);
                let range = slots.slots.first..slots.slots.first + slots.slots.count;
                self.count_slots((slots.device == device).then_some(range), window);
            }
        });
    }

    /// Adds one to the count of each of `slots` that is in `window`. Does nothing for `None`.
    fn count_slots(&mut self, slots: Option<Range<u32>>, window: &Range<u32>) {
        let Some(slots) = slots else { return };
        let part = slots.start.max(window.start)..slots.end.min(window.end);
        part.for_each(|slot| self.counts[(slot - window.start) as usize] += 1);
    }
}
