//! Pages go to swap devices: held, written, settled.
//!
//! A folio that nobody has but its object and who has isolated it is *held*: nobody gets a page of it, so nobody writes to it, and no lock
//! is held while its contents are written. Then slots take its place in the index, by the page. Whoever wants a page meanwhile says so
//! and waits: it stays then, and so does what can't be written. Nothing is kept in memory of what has gone, and nothing on the device of
//! what has come back.

use core::ops::Range;

use arrayvec::ArrayVec;

use super::{Object, owner};
use crate::addr::Pfn;
use crate::frame::{Counts, Frame, HUGE_ORDER};
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::Counter;
use crate::swap::{NoSlots, Slots, SwapRun, WriteError};

/// There is no room for more.
pub(crate) struct NoRoom;

impl<P: Platform> Object<'_, P> {
    /// Write a folio that the caller has isolated, and that nobody maps, to slots, in naturally aligned blocks as large as are to be had.
    /// What is written leaves the object's memory; the caller still has his reference. If somebody else has the folio, or wants it
    /// meanwhile, it stays.
    pub(crate) fn swap_out(&self, head: Pfn, frame: &Frame) -> Result<(), NoRoom> {
        let page_order = self.head().page_order;
        let (first, order) = (owner::page_of(frame.data()), frame.order());
        if order > HUGE_ORDER {
            return Ok(());
        }
        self.list();
        let pages = first..first + (1 << (order - page_order));
        if !self.hold(pages.clone(), head, frame) {
            return Ok(());
        }
        let (mut at, mut largest) = (0, HUGE_ORDER);
        while at < 1 << order {
            let rest = first + u64::from(at >> page_order)..pages.end;
            let Some((block, slots)) = self.room(at, order, &mut largest) else {
                self.settle(rest, head.add(at), None);
                return Err(NoRoom);
            };
            let part = rest.start..rest.start + (1 << (block - page_order));
            // SAFETY: the slots were allocated just now. The frames are held: nobody gets them before they are settled, and nobody has
            // them, but for who has isolated them.
            let written = unsafe { self.machine.swaps().write(self.machine.frames(), slots, head.add(at)) };
            let stays = match written {
                Ok(()) => self.settle(part, head.add(at), Some(slots)),
                Err(error) => {
                    // SAFETY: nobody else has seen these slots.
                    unsafe { self.machine.swaps().release(self.machine.frames(), slots) };
                    if error == WriteError::NoMemory {
                        if self.machine.swaps().reclaim_cached_slots(self.machine.frames()) > 0 {
                            continue;
                        }
                        self.settle(rest, head.add(at), None);
                        return Err(NoRoom);
                    }
                    true
                }
            };
            if stays {
                // Then so does the rest: the folio is not free without all of it.
                self.settle(rest, head.add(at), None);
                return Ok(());
            }
            at += 1 << block;
            self.machine.platform().resched();
        }
        Ok(())
    }

    /// Slots for a naturally aligned block of a folio, from `at` on: of which order.
    fn room(&self, at: u32, order: u8, largest: &mut u8) -> Option<(u8, SwapRun)> {
        let (machine, page_order) = (self.machine, self.head().page_order);
        loop {
            let left = machine.memcgs().swap_room(self.memcg());
            let fits = left.checked_ilog2().filter(|fits| *fits >= u32::from(page_order))?;
            let wanted = (*largest).min(order).min(at.trailing_zeros() as u8).min(fits as u8).max(page_order);
            match machine.swaps().allocate(machine.platform(), wanted) {
                Ok(slots) => return Some((wanted, slots)),
                Err(NoSlots::Scattered) if wanted > page_order => *largest = wanted - 1,
                // What is in memory too makes room.
                Err(_) if machine.swaps().reclaim_cached_slots(machine.frames()) > 0 => {}
                Err(_) => return None,
            }
        }
    }

    /// From here on nobody gets these pages, which are in a folio that nobody has but the object and the caller. If somebody has, it is
    /// not held.
    fn hold(&self, pages: Range<u64>, head: Pfn, frame: &Frame) -> bool {
        let frames = self.machine.frames();
        let step = 1 << self.head().page_order;
        if self.head().gate.is_closed() {
            return false;
        }
        let mut contents = self.lock();
        let held = contents.index.hold(frames, pages.clone(), head, step);
        let alone = frame.counts() == Counts { refs: held + 1, maps: 0 };
        if held > 0 && alone && allows(self.machine.platform(), FailPoint::Unpinned) {
            return true;
        }
        let _ = contents.index.settle(frames, pages, (head, step), None, |_, _| ());
        false
    }

    /// Pages that were held go to slots, or stay, if there are none or somebody wants them: whether somebody does. Slots that nothing became
    /// of are given up.
    fn settle(&self, pages: Range<u64>, first: Pfn, slots: Option<SwapRun>) -> bool {
        let (machine, frames) = (self.machine, self.machine.frames());
        let step = 1u32 << self.head().page_order;
        let mut unused = ArrayVec::<u16, { 1 << HUGE_ORDER }>::new();
        let mut went = 0;
        let wanted = self.lock().index.settle(frames, pages, (first, step), slots, |at, away| match away {
            true => went += 1,
            false => unused.push(at as u16),
        });
        for (at, run) in unused.iter().flat_map(|at| slots.map(|run| (u32::from(*at), run))) {
            let slots = Slots { first: run.slots.first + at * step, count: step };
            // SAFETY: allocated by the caller, and not in the index.
            unsafe { machine.swaps().release(frames, SwapRun { slots, ..run }) };
        }
        if went > 0 {
            let count = went * step;
            machine.memcgs().use_swap_room(self.memcg(), count.into());
            machine.memcgs().count_swapped(self.memcg(), count.into());
            machine.count(Counter::ShmemPages, u64::from(count).wrapping_neg());
            machine.count(Counter::SwapOut, count.into());
            let (head, frame) = frames.head(first);
            machine.put_refs(head, frame, went);
        }
        wanted
    }
}
