//! Swaps memory out, run by run: writes a write-protected run ([`super::pageout`]) to a swap device
//! in naturally aligned blocks, and replaces its PTEs by swap entries. Pages that the swap cache
//! has are on a swap device already, and are not written.

use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, SwapEntry};
use crate::frame::HUGE_ORDER;
use crate::platform::Platform;
use crate::stats::Counter;
use crate::swap::{NoSlots, SwapRun, WriteError};
use crate::table::Run;
use crate::tlb::Gather;

use super::pageout::{OutOfRoom, PagedOut, PageoutTarget, WriteProtected, slots_at};
use super::{ISOLATION_BATCH, Pageout};
use crate::space::ground::{More, Pieces, Rest};

/// The number of slots whose pages are added to the swap cache between two calls of `resched`
/// (INV-11).
const SLOTS_PER_RESCHED: u32 = 128;

/// Log2 of the bytes whose folios of objects [`Pageout::pageout_range`] takes before it looks for
/// anonymous ones: what a batch of folios of 64 KiB has, so that one flush serves several page
/// tables.
const OBJECTS_SHIFT: u32 = FRAME_SHIFT + 4 + ISOLATION_BATCH.ilog2();

impl<'s, 'm, P: Platform> Pageout<'s, 'm, P> {
    /// Pages out the folios in `rest` that only this space maps, anonymous ones and those of
    /// objects (`MADV_PAGEOUT`). Folios that can't be paged out stay. Faults may run at the same
    /// time.
    pub(in crate::space) fn pageout_range(self, rest: &mut Rest, more: More<'_>) {
        let (all, mut objects_end) = (rest.left, rest.left.start);
        let window = self.arch().level_shift(2).max(OBJECTS_SHIFT);
        Pieces::of(self.space).each_table(rest, more, |part| {
            // These first, as the other walk then finds no PTEs of theirs.
            if part.start >= objects_end {
                let objects = all.around(part.start, window);
                objects_end = objects.end;
                self.pageout_objects(objects);
            }
            self.pageout(&[*part], None, None);
            true
        });
    }

    /// Writes a write-protected run to a swap device, in naturally aligned blocks as large as free
    /// slots can be found, and makes its PTEs swap entries. Pages in the swap cache have slots and
    /// are not written again. With `isolated`, the caller has isolated the folios, and shared ones
    /// are added to the swap cache, so that the other spaces that map them need not write them.
    ///
    /// A block that the device fails to write stays in memory. Without free slots, or at the
    /// memcg's swap limit, the rest of the run stays. The caller holds no lock.
    pub(super) fn swap_out(
        self,
        protected: &WriteProtected,
        isolated: bool,
        gather: &mut Gather<'_, 'm, P>,
    ) -> PagedOut {
        let run = &protected.run;
        let arch = self.arch();
        let machine = self.machine();
        let min_order = (arch.level_shift(run.level) - FRAME_SHIFT) as u8;
        let range = run.range(arch);
        // An exclusive page becomes exclusive again if it can't be paged out, so it must not get
        // into the swap cache.
        let was_exclusive = run.attrs(arch).contains(Attrs::EXCLUSIVE);
        let (mut swapped, mut max_order, mut at) = (0, HUGE_ORDER, range.start);
        while at < range.end {
            let (pfn, frames) = (self.frame_at(run, at), ((range.end - at) >> FRAME_SHIFT) as u32);
            if !was_exclusive && let Some(slots) = machine.swaps().slots_of(machine.frames(), pfn, frames, min_order) {
                let block = VirtRange { start: at, end: at + ((slots.slots.count as u64) << FRAME_SHIFT) };
                swapped += self.finish(protected, block, PageoutTarget::Swap(slots), gather);
                at = block.end;
                self.platform().resched();
                continue;
            }
            let aligned = (at >> FRAME_SHIFT).trailing_zeros() as u8;
            let rest = VirtRange { start: at, ..range };
            let room = machine.memcgs().swap_room(self.space.memcg());
            let fits = match (rest.len() >> FRAME_SHIFT).min(room).checked_ilog2() {
                Some(fits) if fits >= min_order as u32 => fits as u8,
                _ => {
                    swapped += self.finish(protected, rest, PageoutTarget::Keep, gather);
                    return PagedOut { pages: swapped, room: Err(OutOfRoom) };
                }
            };
            let order = max_order.min(aligned).min(fits).max(min_order);
            let slots = match machine.swaps().allocate(self.platform(), order) {
                Ok(slots) => slots,
                Err(NoSlots::Scattered) if order > min_order => {
                    max_order = order - 1;
                    continue;
                }
                // This freed slots that only the swap cache used, so there may be room now.
                Err(_) if machine.swaps().reclaim_cached_slots(machine.frames()) > 0 => continue,
                Err(_) => {
                    swapped += self.finish(protected, rest, PageoutTarget::Keep, gather);
                    return PagedOut { pages: swapped, room: Err(OutOfRoom) };
                }
            };
            let block = VirtRange { start: at, end: at + (1 << (order as u32 + FRAME_SHIFT)) };
            // SAFETY: the slots were allocated just now. The run is write-protected and flushed,
            // and its PTEs are not made writable again before `finish`, so no CPU writes to the
            // frames.
            match unsafe { machine.swaps().write(machine.frames(), slots, pfn) } {
                Ok(()) => {
                    machine.memcgs().use_swap_room(self.space.memcg(), 1 << order);
                    if isolated && protected.shared && !was_exclusive {
                        // SAFETY: this CPU has a reference to each slot, and as it has isolated the
                        // folios, no other CPU adds them to the cache. They have the contents that
                        // were written just now, and no PTE maps them as exclusive.
                        let cache = |part, pfn| unsafe { machine.swaps().add_to_cache(machine.frames(), part, pfn) };
                        for first in (0..slots.slots.count).step_by(SLOTS_PER_RESCHED as usize) {
                            let count = SLOTS_PER_RESCHED.min(slots.slots.count - first);
                            let part = slots_at(slots, u64::from(first) << FRAME_SHIFT, count);
                            // An error does no harm: the other spaces that map these pages do not
                            // find them in the swap cache, and write them to slots of their own.
                            let _ = cache(part, pfn.add(first));
                            self.platform().resched();
                        }
                    }
                    let pages = self.finish(protected, block, PageoutTarget::Swap(slots), gather);
                    machine.count(Counter::SwapOut, pages);
                    swapped += pages;
                }
                Err(error) => {
                    // SAFETY: no swap entry and no swap-cache page was made of these slots.
                    unsafe { machine.swaps().release(machine.frames(), slots) };
                    if error == WriteError::NoMemory {
                        if machine.swaps().reclaim_cached_slots(machine.frames()) > 0 {
                            continue;
                        }
                        swapped += self.finish(protected, rest, PageoutTarget::Keep, gather);
                        return PagedOut { pages: swapped, room: Err(OutOfRoom) };
                    }
                    self.finish(protected, block, PageoutTarget::Keep, gather);
                }
            }
            at = block.end;
            self.platform().resched();
        }
        PagedOut { pages: swapped, room: Ok(()) }
    }

    /// Returns the swap entry for the first of `slots`, to which the pages of a run were written.
    /// The swap entries keep the run's uffd-wp and soft-dirty bits.
    pub(super) fn swap_pte(self, run: &Run, slots: SwapRun) -> u64 {
        let arch = self.arch();
        arch.swap_pte(SwapEntry {
            device: slots.device,
            slot: (slots.slots.first >> arch.page_order()) as u64,
            attrs: run.attrs(arch) & (Attrs::UFFD_WP | Attrs::SOFT_DIRTY),
        })
    }
}
