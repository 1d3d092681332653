//! Writes pages to swap devices (Linux: `shmem_writeout`).
//!
//! Pageout of a folio that only its object and the reclaimer refer to begins *writeback* in the
//! object's index: from then on no other CPU can map its pages or take a reference, so no CPU
//! writes to it (INV-16). The contents are written with no lock held. Then swap entries replace the
//! pages in the index, one by one. A CPU that needs a page during writeback marks it as wanted and
//! waits. A page that is wanted, or that can't be written, stays in memory. A page that was swapped
//! out has no swap-cache page in memory, and a page that was read back has no swap slot any more.

use core::ops::Range;

use arrayvec::ArrayVec;

use super::{Object, mapping};
use crate::addr::Pfn;
use crate::frame::{Counts, Frame, HUGE_ORDER};
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::Counter;
use crate::swap::{NoSlots, Slots, SwapRun, WriteError};

/// The error of a pageout that found no free swap slots.
pub(crate) struct NoSwapSpace;

/// The steps by which an object writes a folio to swap.
pub(super) struct SwapOut<'o, 'm, P: Platform>(pub(super) &'o Object<'m, P>);

impl<P: Platform> SwapOut<'_, '_, P> {
    /// Writes an isolated folio (one that reclaim took off its LRU list), which no PTE maps, to
    /// swap slots, in naturally aligned ranges as large as free slots permit (Linux: `pageout`).
    /// Pages that were written leave the object; the caller keeps its own reference to the folio. A
    /// page stays in memory if there are other references to its folio, or if a CPU wants the page
    /// during writeback. No lock is held on entry.
    ///
    /// # Errors
    /// [`NoSwapSpace`]: there are no free slots or no memory for a compressed page, or the memcg's
    /// swap limit is reached. The pages not written yet stay in memory.
    pub(super) fn swap_out(&self, head: Pfn, frame: &Frame) -> Result<(), NoSwapSpace> {
        let page_order = self.0.head().page_order;
        let (first, order) = (mapping::folio_index(frame.data()), frame.order());
        if order > HUGE_ORDER {
            return Ok(());
        }
        self.0.list_as_swapped();
        let pages = first..first + (1 << (order - page_order));
        if !self.begin_writeback(pages.clone(), head, frame) {
            return Ok(());
        }
        let (mut at, mut largest) = (0, HUGE_ORDER);
        while at < 1 << order {
            let rest = first + u64::from(at >> page_order)..pages.end;
            let Some(slots) = self.allocate_slots(at, order, &mut largest) else {
                self.end_writeback(rest, head.add(at), None);
                return Err(NoSwapSpace);
            };
            let count = slots.slots.count;
            let part = rest.start..rest.start + u64::from(count >> page_order);
            // SAFETY: the slots were just allocated. The frames are under writeback: until its end
            // no CPU takes a reference to them. No references exist except those of the index and
            // of the caller, which isolated the folio.
            let written = unsafe { self.0.machine.swaps().write(self.0.machine.frames(), slots, head.add(at)) };
            let stays_in_memory = match written {
                Ok(()) => self.end_writeback(part, head.add(at), Some(slots)),
                Err(error) => {
                    // SAFETY: the slots were allocated here and are not in the index.
                    unsafe { self.0.machine.swaps().release(self.0.machine.frames(), slots) };
                    if error == WriteError::NoMemory {
                        if self.0.machine.swaps().reclaim_cached_slots(self.0.machine.frames()) > 0 {
                            continue;
                        }
                        self.end_writeback(rest, head.add(at), None);
                        return Err(NoSwapSpace);
                    }
                    true
                }
            };
            if stays_in_memory {
                // The rest stays in memory too: a folio is only freed as a whole, so writing the
                // rest would free no memory.
                self.end_writeback(rest, head.add(at), None);
                return Ok(());
            }
            at += count;
            self.0.machine.platform().resched();
        }
        Ok(())
    }

    /// Allocates slots for a naturally aligned range that begins at frame `at` of a folio of
    /// `order`. The range is as large as `largest`, the free slots and the memcg's swap limit
    /// permit. If there is no free block of order `largest`, lowers `largest` to the order of the
    /// block found. Returns `None` at the swap limit or without free slots.
    fn allocate_slots(&self, at: u32, order: u8, largest: &mut u8) -> Option<SwapRun> {
        let (machine, page_order) = (self.0.machine, self.0.head().page_order);
        loop {
            let left = machine.memcgs().swap_room(self.0.memcg());
            let fits = left.checked_ilog2().filter(|fits| *fits >= u32::from(page_order))?;
            let order_wanted = (*largest).min(order).min(at.trailing_zeros() as u8).min(fits as u8).max(page_order);
            match machine.swaps().allocate(machine.platform(), order_wanted) {
                Ok(slots) => return Some(slots),
                Err(NoSlots::Scattered) if order_wanted > page_order => *largest = order_wanted - 1,
                // Tries again, because `reclaim_cached_slots` has freed slots to which only their
                // swap-cache pages referred.
                Err(_) if machine.swaps().reclaim_cached_slots(machine.frames()) > 0 => {}
                Err(_) => return None,
            }
        }
    }

    /// Begins writeback of pages of a folio (INV-16). Returns `false`, with nothing changed, if any
    /// reference exists except those of the index and the caller's. Also returns `false` while the
    /// object's gate is closed: a fault closes it when pageout has removed the fault's page too
    /// often, and no page of the object is paged out until the fault has its page (INV-21). Takes
    /// the object's lock.
    fn begin_writeback(&self, pages: Range<u64>, head: Pfn, frame: &Frame) -> bool {
        let frames = self.0.machine.frames();
        let step = 1 << self.0.head().page_order;
        if self.0.head().gate.is_closed() {
            return false;
        }
        let mut state = self.0.lock();
        let started = state.index.begin_writeback(frames, pages.clone(), head, step);
        let is_unshared = frame.counts() == Counts { refs: started + 1, maps: 0 };
        if started > 0 && is_unshared && allows(self.0.machine.platform(), FailPoint::Unpinned) {
            return true;
        }
        let _ = state.index.end_writeback(frames, pages, (head, step), None, |_, _| ());
        false
    }

    /// Ends writeback of pages. If `slots` is given and no CPU wants any of the pages, these become
    /// swapped out; otherwise they stay in memory. Returns whether a CPU wanted a page. Releases
    /// the slots that were not assigned to a page, and drops the index's references to the frames
    /// of pages that were swapped out. Takes the object's lock.
    fn end_writeback(&self, pages: Range<u64>, first: Pfn, slots: Option<SwapRun>) -> bool {
        let (machine, frames) = (self.0.machine, self.0.machine.frames());
        let step = 1u32 << self.0.head().page_order;
        let mut unused = ArrayVec::<u16, { 1 << HUGE_ORDER }>::new();
        let mut swapped = 0;
        let mut state = self.0.lock();
        let page = pages.start;
        let is_wanted =
            state.index.end_writeback(frames, pages, (first, step), slots, |at, is_swapped| match is_swapped {
                true => swapped += 1,
                false => unused.push(at as u16),
            });
        if swapped > 0 {
            mapping::clear_object_if_gone(machine, self.0.head(), &state.index, page, first);
        }
        drop(state);
        for (at, run) in unused.iter().flat_map(|at| slots.map(|run| (u32::from(*at), run))) {
            let slots = Slots { first: run.slots.first + at * step, count: step };
            // SAFETY: the caller allocated the slots, and the index does not name those of this
            // page.
            unsafe { machine.swaps().release(frames, SwapRun { slots, ..run }) };
        }
        if swapped > 0 {
            let count = swapped * step;
            machine.memcgs().use_swap_room(self.0.memcg(), count.into());
            machine.memcgs().count_swapped(self.0.memcg(), count.into());
            machine.count(self.0.head().pages_counter(), u64::from(count).wrapping_neg());
            machine.count(Counter::SwapOut, count.into());
            let (head, frame) = frames.head(first);
            machine.put_refs(head, frame, swapped);
        }
        is_wanted
    }
}
