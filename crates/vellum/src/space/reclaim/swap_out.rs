//! Memory goes to a swap device, by the run: what is held ([`super::evict`]) is written in
//! naturally aligned blocks, unless a slot has it already, and its entries become swap entries.

use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, SwapEntry};
use crate::frame::HUGE_ORDER;
use crate::platform::Platform;
use crate::stats::Counter;
use crate::swap::{NoSlots, SwapRun, WriteError};
use crate::table::Run;
use crate::tlb::Gather;

use super::Pageout;
use super::pageout::{Fate, OutOfRoom, Sent, WriteProtected, part_of};
use crate::space::ground::{More, Pieces, Rest};

/// Slots that get copies between two points where the CPU may do something else.
const CACHED: u32 = 128;

impl<'s, 'm, P: Platform, A: Arch> Pageout<'s, 'm, P, A> {
    /// Evict what a range has that nobody else maps (Linux: `MADV_PAGEOUT`). What can't go stays.
    pub(in crate::space) fn pageout_range(self, rest: &mut Rest, more: More<'_>) {
        Pieces::of(self.space).each_table(rest, more, |part| {
            self.pageout(&[*part], None, None);
            self.pageout_objects(part);
            true
        });
    }

    /// Write what is held, in naturally aligned blocks as large as slots are to be had, and turn
    /// its entries into swap entries; what has slots already ([`crate::swap`]'s `cache`) is not
    /// written again. How many pages went, and whether there is room for more: if not, what was not
    /// written stays.
    pub(super) fn swap_out(self, held: &WriteProtected, isolated: bool, gather: &mut Gather<'_, 'm, P>) -> Sent {
        let run = &held.run;
        let arch = self.arch();
        let machine = self.machine();
        let smallest = (arch.level_shift(run.level) - FRAME_SHIFT) as u8;
        let range = run.range(arch);
        // What somebody had as his own may be his own again before it is settled, if it can't go.
        let own = run.attrs(arch).contains(Attrs::EXCLUSIVE);
        let (mut went, mut largest, mut at) = (0, HUGE_ORDER, range.start);
        while at < range.end {
            let (pfn, frames) = (self.frame_at(run, at), ((range.end - at) >> FRAME_SHIFT) as u32);
            if !own && let Some(slots) = machine.swaps().slots_of(machine.frames(), pfn, frames, smallest) {
                let block = VirtRange { start: at, end: at + ((slots.slots.count as u64) << FRAME_SHIFT) };
                went += self.finish(held, block, Fate::Swap(slots), gather);
                at = block.end;
                self.platform().resched();
                continue;
            }
            let aligned = (at >> FRAME_SHIFT).trailing_zeros() as u8;
            let rest = VirtRange { start: at, ..range };
            let room = machine.memcgs().swap_room(self.space.memcg());
            let fits = match (rest.len() >> FRAME_SHIFT).min(room).checked_ilog2() {
                Some(fits) if fits >= smallest as u32 => fits as u8,
                _ => return Sent { pages: went + self.finish(held, rest, Fate::Stay, gather), room: Err(OutOfRoom) },
            };
            let order = largest.min(aligned).min(fits).max(smallest);
            let slots = match machine.swaps().allocate(self.platform(), order) {
                Ok(slots) => slots,
                Err(NoSlots::Scattered) if order > smallest => {
                    largest = order - 1;
                    continue;
                }
                // What is in memory too makes room.
                Err(_) if machine.swaps().reclaim_cached_slots(machine.frames()) > 0 => continue,
                Err(_) => {
                    return Sent { pages: went + self.finish(held, rest, Fate::Stay, gather), room: Err(OutOfRoom) };
                }
            };
            let block = VirtRange { start: at, end: at + (1 << (order as u32 + FRAME_SHIFT)) };
            // SAFETY: the slots were allocated just now. The frames are held: whoever might have
            // written to them has lost the right before a flush, and won't have it back before they
            // are settled.
            match unsafe { machine.swaps().write(machine.frames(), slots, pfn) } {
                Ok(()) => {
                    machine.memcgs().use_swap_room(self.space.memcg(), 1 << order);
                    if isolated && held.shared && !own {
                        // SAFETY: the caller has a reference to each slot, and who has isolated
                        // folios has them alone. They hold what was written just now, and are
                        // nobody's own. If it can't be, others write them again.
                        let cache = |part, pfn| unsafe { machine.swaps().add_to_cache(machine.frames(), part, pfn) };
                        for first in (0..slots.slots.count).step_by(CACHED as usize) {
                            let count = CACHED.min(slots.slots.count - first);
                            let part = part_of(slots, u64::from(first) << FRAME_SHIFT, count);
                            let _ = cache(part, pfn.add(first));
                            self.platform().resched();
                        }
                    }
                    let pages = self.finish(held, block, Fate::Swap(slots), gather);
                    machine.count(Counter::SwapOut, pages);
                    went += pages;
                }
                Err(error) => {
                    // SAFETY: nobody else has seen these slots.
                    unsafe { machine.swaps().release(machine.frames(), slots) };
                    if error == WriteError::NoMemory {
                        if machine.swaps().reclaim_cached_slots(machine.frames()) > 0 {
                            continue;
                        }
                        return Sent {
                            pages: went + self.finish(held, rest, Fate::Stay, gather),
                            room: Err(OutOfRoom),
                        };
                    }
                    self.finish(held, block, Fate::Stay, gather);
                }
            }
            at = block.end;
            self.platform().resched();
        }
        Sent { pages: went, room: Ok(()) }
    }

    /// The first of the swap entries that a run becomes.
    pub(super) fn swap_pte(self, now: &Run, slots: SwapRun) -> u64 {
        let arch = self.arch();
        arch.swap_pte(SwapEntry {
            device: slots.device,
            slot: (slots.slots.first >> arch.page_order()) as u64,
            attrs: now.attrs(arch) & (Attrs::UFFD_WP | Attrs::SOFT_DIRTY),
        })
    }
}
