//! Pages come back from swap devices: with as much around them as went out side by side, in one folio that policy allows.
//!
//! The device is read with the object unlocked, into memory that nobody knows yet; references to the slots keep them what they are. If the
//! pages still have the same slots when the object is locked again, that is what they hold.

use core::ops::Range;

use super::fill::NewFolio;
use super::index::Page;
use super::{Contents, Object, ObjectError, owner};
use crate::addr::Pfn;
use crate::frame::HUGE_ORDER;
use crate::machine::Machine;
use crate::memcg::MemcgId;
use crate::platform::Platform;
use crate::stats::{Counter, SizeCounter};
use crate::swap::SwapRun;
use crate::sync::Retries;

/// Pages that are to come back together.
struct Block {
    pages: Range<u64>,
    /// Frames in all, as a power of two.
    order: u8,
    slots: SwapRun,
}

impl<'m, P: Platform> Object<'m, P> {
    /// Have a page in memory that is on a swap device, or is about to go there; charged to `memcg`.
    /// Whoever asks looks again then; `patience` is theirs, of the object's gate.
    ///
    /// # Errors
    /// As of [`Object::page`].
    #[cold]
    pub(super) fn bring_back(&self, page: u64, memcg: MemcgId, patience: &mut Retries<'_>) -> Result<(), ObjectError> {
        let (frames, page_order) = (self.machine.frames(), self.head().page_order);
        let policy = self.machine.policy();
        let mut orders = (policy.objects() | policy.fills()) & ((2 << HUGE_ORDER) - 1);
        let mut folio = NewFolio::new(self.machine, page_order);
        // It may go again before it is looked at.
        patience.retry();
        loop {
            let contents = self.lock();
            let Some(block) = self.block_of(&contents, page, orders) else {
                let held = matches!(contents.index.find(frames, page), Some(Page::Held(_)));
                contents.index.want(frames, page);
                drop(contents);
                if !held {
                    return Ok(());
                }
                // That is not to try, but to wait for one write.
                self.machine.platform().relax();
                continue;
            };
            let Some(pfn) = folio.take(block.order) else {
                drop(contents);
                match folio.provide(block.order, false, memcg) {
                    // Then smaller ones.
                    Err(_) if block.order > page_order => orders &= (1 << block.order) - 1,
                    provided => provided?,
                }
                continue;
            };
            drop(contents);
            match self.read_back(&block, pfn) {
                Brought::Back => return Ok(()),
                Brought::Changed => patience.retry(),
                // Perhaps it is another page that is lost.
                Brought::Lost if block.order > page_order => orders = 0,
                Brought::Lost => return Err(ObjectError::Lost),
            }
        }
    }

    /// Bring back everything that objects have on a swap device, in folios as faults would, charged to their own memcgs: for the host to do
    /// before it detaches the device, as [`AddressSpace::swap_off`] does it for a space.
    ///
    /// # Errors
    /// There is no memory for all of it, and what has not come back is still on the device; or ([`ObjectError::Lost`]) the device does not
    /// give all of it back, and the rest has come.
    ///
    /// [`AddressSpace::swap_off`]: crate::AddressSpace::swap_off
    pub fn swap_off(machine: &'m Machine<'m, P>, device: u8) -> Result<(), ObjectError> {
        let mut result = Ok(());
        let mut at = Self::next_listed(machine, None);
        while let Some(object) = at {
            let mut page = 0;
            let mut patience = Retries::new(&object.head().gate);
            while let Some((there, is)) = object.next_page(page) {
                match is {
                    Page::Held(_) => machine.platform().relax(),
                    Page::Away(its, _) if its == device => {
                        match object.bring_back(there, object.memcg(), &mut patience) {
                            // It is looked at again: perhaps it has gone elsewhere.
                            Ok(()) => {}
                            Err(ObjectError::Lost) => (result, page) = (Err(ObjectError::Lost), there + 1),
                            Err(error) => return Err(error),
                        }
                    }
                    _ => (page, patience) = (there + 1, Retries::new(&object.head().gate)),
                }
                machine.platform().resched();
            }
            at = Self::next_listed(machine, Some(&object));
        }
        result
    }

    /// The first page from `page` on that there is, and whether it is in memory.
    pub(crate) fn next_there(&self, page: u64) -> Option<(u64, bool)> {
        self.next_page(page).map(|(page, is)| (page, is.frame().is_some()))
    }

    /// The first page from `page` on that there is.
    pub(super) fn next_page(&self, page: u64) -> Option<(u64, Page)> {
        self.lock().index.next(self.machine.frames(), page)
    }

    /// The largest block around a page that is on a device, all of it in a row.
    fn block_of(&self, contents: &Contents, page: u64, orders: u32) -> Option<Block> {
        let (frames, page_order) = (self.machine.frames(), self.head().page_order);
        let mut left = orders >> page_order | 1;
        while left != 0 {
            let order = left.ilog2();
            let first = page >> order << order;
            let pages = first..first + (1 << order);
            if let Some(slots) = contents.index.slots(frames, pages.clone(), 1 << page_order) {
                return Some(Block { pages, order: order as u8 + page_order, slots });
            }
            left &= !(1 << order);
        }
        None
    }

    /// Read slots into a folio that nobody else knows, which becomes the object's if they are still those of its pages.
    fn read_back(&self, block: &Block, pfn: Pfn) -> Brought {
        let (machine, frames) = (self.machine, self.machine.frames());
        let (page_order, swaps) = (self.head().page_order, self.machine.swaps());
        let (pages, slots) = (&block.pages, block.slots);
        let same = |contents: &Contents| contents.index.slots(frames, pages.clone(), 1 << page_order) == Some(slots);
        let contents = self.lock();
        let mut brought = Brought::Changed;
        if same(&contents) {
            // SAFETY: the index has references, which stay while it is locked.
            unsafe { swaps.get_transient(machine.platform(), slots) };
            drop(contents);
            // SAFETY: the reference taken above. The folio is nobody else's.
            let read = unsafe { swaps.read(frames, slots, pfn) };
            let mut contents = self.lock();
            if same(&contents) {
                brought = if read.is_ok() { Brought::Back } else { Brought::Lost };
            }
            if let Brought::Back = brought {
                contents.index.bring_back(frames, pages.clone(), pfn, 1 << page_order);
                owner::enter(frames.frame(pfn), self.at, pages.start);
            }
            drop(contents);
            // SAFETY: the reference taken above.
            unsafe { swaps.release(frames, slots) };
        }
        if let Brought::Back = brought {
            let count = slots.slots.count;
            // SAFETY: those of the index, where they are no more.
            unsafe { swaps.release(frames, slots) };
            machine.memcgs().count_swapped(self.memcg(), -i64::from(count));
            machine.count(Counter::ShmemPages, count.into());
            machine.count(Counter::SwapIn, count.into());
            if block.order > page_order {
                machine.count_size(SizeCounter::SwapIn, block.order);
            }
        } else {
            machine.put_folio(pfn, 1 << (block.order - page_order), 0);
        }
        brought
    }
}

/// What became of an attempt to bring pages back.
enum Brought {
    Back,
    /// The device does not give them back.
    Lost,
    /// They are not there any more.
    Changed,
}
