//! Reads pages back from swap devices (Linux: `shmem_swapin_folio`). A page and its neighbours in
//! consecutive slots are read together, into one folio of an order that policy permits.
//!
//! The device is read with the object unlocked, into a folio that no other CPU can reach;
//! references to the slots keep their contents. If the pages still have the same slots when the
//! object is locked again, the folio replaces the slots in the index.

use core::ops::Range;

use super::fill::{NewFolio, shmem_orders};
use super::index::Entry;
use super::{LockedState, Object, ObjectError, mapping};
use crate::addr::Pfn;
use crate::frame::HUGE_ORDER;
use crate::frame::policy::Advice;
use crate::machine::Machine;
use crate::memcg::MemcgId;
use crate::platform::Platform;
use crate::stats::{Counter, SizeCounter};
use crate::swap::SwapRun;
use crate::sync::Retries;

/// A page that exists in an object.
pub(crate) struct ExistingPage {
    /// The page's number.
    pub(crate) page: u64,
    /// True if the page is in memory, false if it is on a swap device or being read.
    pub(crate) is_resident: bool,
}

/// Swapped-out pages that are read back together.
struct SwappedPages {
    /// The pages, naturally aligned.
    pages: Range<u64>,
    /// The order of the folio that holds them.
    order: u8,
    /// The slots of the pages, which are consecutive.
    slots: SwapRun,
}

impl<'m, P: Platform> Object<'m, P> {
    /// Reads a swapped-out page back, charged to `memcg`. If the page is under writeback, marks it
    /// as wanted, so that it stays in memory, and waits for the end of writeback. On success the
    /// caller looks the page up again. `retries` counts the caller's lookups. After too many it
    /// closes the object's gate, so that no page of the object is paged out before the caller has
    /// looked its page up (INV-21). No lock is held.
    ///
    /// # Errors
    /// As for [`Object::page`].
    #[cold]
    pub(super) fn swap_in(&self, page: u64, memcg: MemcgId, retries: &mut Retries<'_>) -> Result<(), ObjectError> {
        let (frames, page_order) = (self.machine.frames(), self.head().page_order);
        let policy = self.machine.policy();
        let shmem = shmem_orders(self, Advice::Huge).any();
        let mut orders = (shmem | policy.memory_orders()) & ((2 << HUGE_ORDER) - 1);
        let mut folio = NewFolio::new(self);
        // Counts a retry, because the page may be paged out again before the caller looks it up.
        retries.retry();
        loop {
            let state = self.lock();
            let Some(swapped) = SwapIn(self).swapped_around(&state, page, orders) else {
                let under_writeback = matches!(state.index.find(frames, page), Some(Entry::Writeback(_)));
                state.index.mark_wanted(frames, page);
                drop(state);
                if !under_writeback {
                    return Ok(());
                }
                // Counts no retry: the wait ends with the one write that is under way.
                self.machine.platform().relax();
                continue;
            };
            let Some(pfn) = folio.take(swapped.order) else {
                drop(state);
                match folio.provide(swapped.order, false, memcg) {
                    // No memory for a large folio: tries again with a smaller one.
                    Err(_) if swapped.order > page_order => orders &= (1 << swapped.order) - 1,
                    provided => provided?,
                }
                continue;
            };
            drop(state);
            match SwapIn(self).read_slots(&swapped, pfn) {
                SwapInResult::Done => return Ok(()),
                SwapInResult::Changed => retries.retry(),
                // The page that can't be read may be a neighbour: tries again with `page` alone.
                SwapInResult::Lost if swapped.order > page_order => orders = 0,
                SwapInResult::Lost => return Err(ObjectError::Lost),
            }
        }
    }

    /// Reads back all pages that objects have on a swap device, in folios of the orders that a page
    /// fault would use, charged to the objects' memcgs (Linux: `shmem_unuse`). A host calls this
    /// before it detaches the device, and [`AddressSpace::swap_off`] for each space.
    ///
    /// # Errors
    /// Fails if there is no memory for all pages; the pages not read back are still on the device.
    /// Fails with [`ObjectError::Lost`] if the device can't return some pages; all other pages have
    /// been read back then.
    ///
    /// [`AddressSpace::swap_off`]: crate::AddressSpace::swap_off
    pub fn swap_off(machine: &'m Machine<'m, P>, device: u8) -> Result<(), ObjectError> {
        let mut result = Ok(());
        let mut at = Self::next_with_swap(machine, None);
        while let Some(object) = at {
            let mut page = 0;
            let mut retries = Retries::new(&object.head().gate);
            while let Some((number, entry)) = object.next_page(page) {
                match entry {
                    Entry::Writeback(_) => machine.platform().relax(),
                    Entry::Swapped { device: entry_device, .. } if entry_device == device => {
                        match object.swap_in(number, object.memcg(), &mut retries) {
                            // The same page is looked up again, because it may have been swapped
                            // out again, even to another device.
                            Ok(()) => {}
                            Err(ObjectError::Lost) => (result, page) = (Err(ObjectError::Lost), number + 1),
                            Err(error) => return Err(error),
                        }
                    }
                    _ => (page, retries) = (number + 1, Retries::new(&object.head().gate)),
                }
                machine.platform().resched();
            }
            at = Self::next_with_swap(machine, Some(&object));
        }
        result
    }

    /// Returns the first page from `page` on that exists. Takes the object's lock.
    pub(crate) fn next_existing(&self, page: u64) -> Option<ExistingPage> {
        let is_resident = |entry| matches!(entry, Entry::Resident(_) | Entry::Writeback(_));
        self.next_page(page).map(|(page, entry)| ExistingPage { page, is_resident: is_resident(entry) })
    }

    /// Returns the number of the first page from `page` on that exists, with its entry. Takes the
    /// object's lock.
    pub(super) fn next_page(&self, page: u64) -> Option<(u64, Entry)> {
        self.lock().index.next(self.machine.frames(), page)
    }
}

/// The steps by which an object reads pages back from swap.
struct SwapIn<'o, 'm, P: Platform>(&'o Object<'m, P>);

impl<P: Platform> SwapIn<'_, '_, P> {
    /// Returns the largest naturally aligned range of pages that contains `page` and is in
    /// consecutive slots of one device. The range has one of `orders` (a bit set of orders in
    /// frames), or is `page` alone. Returns `None` if the page is not swapped out.
    fn swapped_around(&self, state: &LockedState, page: u64, orders: u32) -> Option<SwappedPages> {
        let (frames, page_order) = (self.0.machine.frames(), self.0.head().page_order);
        let mut left = orders >> page_order | 1;
        while left != 0 {
            let order = left.ilog2();
            let first = page >> order << order;
            let pages = first..first + (1 << order);
            if let Some(slots) = state.index.swap_run(frames, pages.clone(), 1 << page_order) {
                return Some(SwappedPages { pages, order: order as u8 + page_order, slots });
            }
            left &= !(1 << order);
        }
        None
    }

    /// Reads slots into a folio that no other CPU can reach. If the pages still have these slots
    /// afterwards, the folio replaces the slots in the index; otherwise the folio is freed.
    fn read_slots(&self, swapped: &SwappedPages, pfn: Pfn) -> SwapInResult {
        let (machine, frames) = (self.0.machine, self.0.machine.frames());
        let (page_order, swaps) = (self.0.head().page_order, self.0.machine.swaps());
        let (pages, slots) = (&swapped.pages, swapped.slots);
        let is_unchanged =
            |state: &LockedState| state.index.swap_run(frames, pages.clone(), 1 << page_order) == Some(slots);
        let state = self.0.lock();
        let mut result = SwapInResult::Changed;
        if is_unchanged(&state) {
            // SAFETY: the index has references to the slots, and is locked.
            unsafe { swaps.get_transient(machine.platform(), slots) };
            drop(state);
            // SAFETY: the reference taken above keeps the slots. The folio belongs to this call
            // alone.
            let read = unsafe { swaps.read(frames, slots, pfn) };
            let mut state = self.0.lock();
            if is_unchanged(&state) {
                result = if read.is_ok() { SwapInResult::Done } else { SwapInResult::Lost };
            }
            if let SwapInResult::Done = result {
                // The storage has not what was in swap.
                let dirty = self.0.head().store.is_some();
                state.index.swap_in(frames, pages.clone(), (pfn, 1 << page_order), dirty);
                mapping::set_object(frames.frame(pfn), self.0, pages.start);
            }
            drop(state);
            // SAFETY: gives up the reference that `get_transient` took above.
            unsafe { swaps.release(frames, slots) };
        }
        if let SwapInResult::Done = result {
            let count = slots.slots.count;
            // SAFETY: gives up the references of the index, which no longer names the slots.
            unsafe { swaps.release(frames, slots) };
            machine.memcgs().count_swapped(self.0.memcg(), -i64::from(count));
            machine.count(self.0.head().pages_counter(), count.into());
            machine.count(Counter::SwapIn, count.into());
            if swapped.order > page_order {
                machine.count_size(SizeCounter::SwapIn, swapped.order);
            }
        } else {
            machine.put_folio(pfn, 1 << (swapped.order - page_order), 0);
        }
        result
    }
}

/// The result of an attempt to read pages back.
enum SwapInResult {
    /// The pages are in memory.
    Done,
    /// The device can't return the pages.
    Lost,
    /// The pages no longer have these slots.
    Changed,
}
