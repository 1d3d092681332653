//! Collapse: a huge folio replaces the small folios of a block of pages (Linux: `collapse_file`).
//!
//! The pages are unmapped first, in all spaces. If nothing but the object refers to them then, they
//! are marked as under writeback ([`super::swap_out`]), and copied with no lock held. A CPU that
//! needs one of them meanwhile waits for the end of the copy. The pages of an object with a store
//! collapse when all are in memory and clean, so that the copy has nothing to write either.

use core::ops::Range;

use super::fill::{NewFolio, shmem_orders};
use super::read::Reads;
use super::{Object, ObjectError, mapping};
use crate::addr::Pfn;
use crate::frame::policy::Advice;
use crate::frame::{Counts, Frame, Frames, HUGE_ORDER};
use crate::memcg::MemcgId;
use crate::platform::{FailPoint, Platform, allows};
use crate::stats::SizeCounter;
use crate::vma::Prot;

/// The largest number of pages of a block.
const PAGES: usize = 1 << HUGE_ORDER;

/// The pages of a block.
#[derive(Clone, Copy, Default)]
pub(crate) struct Survey {
    /// Those that exist.
    pub(crate) pages: u64,
    /// Those of them that are swapped out.
    pub(crate) swapped: u64,
    /// True if all of the block is one huge folio.
    pub(crate) is_huge: bool,
    /// False if there is no page, and no store has any either, or if the block reaches beyond the
    /// end of the object.
    pub(crate) is_fit: bool,
    /// True if the store has pages that are not in memory.
    pub(crate) is_partly_stored: bool,
    /// True if pages are being read or written, or a store does not have their contents, or may
    /// soon not have them: the pages can't be collapsed now.
    pub(crate) is_busy: bool,
}

/// The steps by which the pages of an object are collapsed.
pub(crate) struct Collapses<'o, 'm, P: Platform>(pub(crate) &'o Object<'m, P>);

impl<'m, P: Platform> Collapses<'_, 'm, P> {
    /// Returns the pages of the block that has a page.
    pub(crate) fn block(&self, page: u64) -> Range<u64> {
        let order = HUGE_ORDER.saturating_sub(self.0.page_order());
        let first = page >> order << order;
        first..first + (1 << order)
    }

    /// Returns the orders of folios, as a bit set, that policy wants in the parts that a VMA with
    /// this advice and protection maps. An object with a store follows the settings of anonymous
    /// memory where the VMA has a program's text or advice for huge folios (Linux collapses text
    /// alone: `file_thp_enabled`).
    pub(crate) fn orders(&self, advice: Advice, prot: Prot) -> u32 {
        match self.0.head().store {
            None => shmem_orders(self.0, advice).any(),
            Some(_) if advice == Advice::Huge || prot.contains(Prot::EXEC) => self.0.machine.policy().orders(advice),
            Some(_) => 0,
        }
    }

    /// Returns the present pages of a block. Takes the object's lock.
    pub(crate) fn survey(&self, block: Range<u64>) -> Survey {
        let (object, frames) = (self.0, self.0.machine.frames());
        let pages = block.end - block.start;
        let mut found = [Pfn::NONE; PAGES];
        let state = object.lock();
        let (swapped, is_busy) = state.index.frames_of(frames, block.clone(), &mut found);
        let resident = || found.iter().filter_map(|pfn| pfn.some());
        let is_huge = resident().filter(|pfn| frames.head(*pfn).1.order() >= HUGE_ORDER).count() as u64 == pages;
        let has_store = object.head().store.is_some();
        let (missing, pages) = (pages - resident().count() as u64 - swapped, resident().count() as u64 + swapped);
        let is_fit = object.is_inside(state.size, block.end - 1) && (pages > 0 || has_store);
        // A page that was swapped out differs from the storage.
        let is_busy = is_busy || has_store && swapped > 0;
        Survey { pages, swapped, is_huge, is_fit, is_partly_stored: has_store && missing > 0, is_busy }
    }

    /// Has the host read the missing pages of a block of an object with a store, into one huge
    /// folio if no page is there.
    ///
    /// # Errors
    /// [`ObjectError::Pending`]: a page is being read now. Others as for [`Object::page`].
    pub(crate) fn read(&self, block: Range<u64>, memcg: MemcgId) -> Result<(), ObjectError> {
        let _pinned = self.0.pin_memcg(memcg)?;
        Reads(self.0).read_missing(block.clone(), Advice::Huge, memcg)?;
        let state = self.0.lock();
        match state.index.first_reading(self.0.machine.frames(), block) {
            Some(page) => Err(Reads(self.0).wait_for(&state, page)),
            None => Ok(()),
        }
    }

    /// Reads the swapped-out pages of a block back.
    ///
    /// # Errors
    /// As for [`Object::page`].
    pub(crate) fn swap_in(&self, block: Range<u64>) -> Result<(), ObjectError> {
        let mut at = block.start;
        while let Some((page, entry)) = self.0.next_page(at).filter(|(page, _)| *page < block.end) {
            if entry.frame().is_none() {
                drop(self.0.page(page)?);
            }
            at = page + 1;
            self.0.machine.platform().resched();
        }
        Ok(())
    }

    /// Replaces the folios of a block, whose pages no PTE maps any more, by a huge one that is
    /// charged to `memcg`. Returns false, and changes nothing, if other references to them exist,
    /// or if pages of the block come or go meanwhile. No lock is held.
    ///
    /// # Errors
    /// There is no memory, or `memcg` is at its limit.
    pub(crate) fn replace(&self, block: Range<u64>, memcg: MemcgId) -> Result<bool, ObjectError> {
        let (object, machine) = (self.0, self.0.machine);
        let frames = machine.frames();
        let _pinned = object.pin_memcg(memcg)?;
        let mut new = NewFolio::new(object);
        new.provide(HUGE_ORDER, false, memcg)
            .inspect_err(|_| machine.count_size(SizeCounter::CollapseFailed, HUGE_ORDER))?;
        let (mut old, mut sorted) = ([Pfn::NONE; PAGES], [Pfn::NONE; PAGES]);
        let old = &mut old[..(block.end - block.start) as usize];
        if !self.begin(block.clone(), old, &mut sorted) {
            return Ok(false);
        }
        let Some(to) = new.take(HUGE_ORDER) else { return Ok(false) };
        let step = 1 << object.page_order();
        let mut at = to;
        let is_run = |a: &Pfn, b: &Pfn| match a.some() {
            Some(pfn) => *b == pfn.add(step),
            None => b.some().is_none(),
        };
        for run in old.chunk_by(is_run) {
            let count = run.len() as u32 * step;
            match run[0].some() {
                // SAFETY: the new folio belongs to this call alone. `begin` took references to the
                // old ones, so that they are not freed.
                Some(from) => unsafe { frames.copy(from, at, count) },
                // SAFETY: the new folio belongs to this call alone.
                None => unsafe { frames.zero(at, count) },
            }
            at = at.add(count);
            machine.platform().resched();
        }
        let mut state = object.lock();
        let inserted = state.index.end_copy(frames, block.clone(), old, (to, step));
        if inserted.is_some() {
            mapping::set_object(frames.frame(to), object, block.start);
            folios_of(frames, &sorted).for_each(|(_, frame, _)| mapping::clear_object(machine, object.head(), frame));
        }
        drop(state);
        for (head, _, pages) in folios_of(frames, &sorted) {
            machine.put_folio(head, 1 + if inserted.is_some() { pages } else { 0 }, 0);
        }
        let Some(inserted) = inserted else {
            machine.put_folio(to, 1 << (HUGE_ORDER - object.page_order()), 0);
            return Ok(false);
        };
        machine.count(object.head().pages_counter(), (u64::from(inserted)) << object.page_order());
        machine.count_size(SizeCounter::Collapsed, HUGE_ORDER);
        Ok(true)
    }

    /// Begins the copy of a block's pages, whose frames it returns in `old`, and in ascending order
    /// in `sorted`, and takes a reference to each of their folios. Returns false, with nothing
    /// changed, if any reference exists except those of the index, or a page is not in memory; also
    /// while the object's gate is closed: a fault then waits for a page that was paged out too
    /// often (INV-21). Takes the object's lock.
    fn begin(&self, block: Range<u64>, old: &mut [Pfn], sorted: &mut [Pfn; PAGES]) -> bool {
        let (object, frames) = (self.0, self.0.machine.frames());
        let state = object.lock();
        let (swapped, is_busy) = state.index.frames_of(frames, block.clone(), old);
        if object.head().gate.is_closed() || swapped > 0 || is_busy {
            return false;
        }
        sorted[..old.len()].copy_from_slice(old);
        sorted.sort_unstable();
        let is_unshared = |(_, frame, pages): (_, &Frame, _)| frame.counts() == Counts { refs: pages, maps: 0 };
        if !folios_of(frames, sorted).all(is_unshared) || !allows(object.machine.platform(), FailPoint::Unpinned) {
            return false;
        }
        for (head, frame, _) in folios_of(frames, sorted) {
            let _ = frames.get_counts(head, frame, 1, 0);
        }
        state.index.begin_copy(frames, block);
        true
    }
}

/// Returns the folios of pages with these frames, in ascending order: the first frame of each, its
/// descriptor, and the number of its pages among these. A folio's pages may lie apart in the block,
/// with another folio between them, and have consecutive places in this order.
fn folios_of<'f, 'm, P: Platform>(
    frames: &'f Frames<'m, P>,
    sorted: &'f [Pfn; PAGES],
) -> impl Iterator<Item = (Pfn, &'m Frame, u32)> + use<'f, 'm, P> {
    let mut rest = sorted.iter().filter_map(|pfn| pfn.some()).map(|pfn| frames.head(pfn)).peekable();
    core::iter::from_fn(move || {
        let (head, frame) = rest.next()?;
        let mut pages = 1;
        while rest.next_if(|next| next.0 == head).is_some() {
            pages += 1;
        }
        Some((head, frame, pages))
    })
}
