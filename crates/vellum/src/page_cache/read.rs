//! Reads pages from the host's storage (Linux: `filemap_read_folio`).
//!
//! A page that is missing from an object with a store is inserted as *reading*: its frame is in the
//! index, and no CPU maps it or takes a reference to it. Then the host gets a request for the page
//! and its neighbours, with no lock held. When the host ends the request, pages that were read are
//! in memory, and pages that were not are missing again. A page that was removed from the object
//! meanwhile stays removed; the request's own reference keeps its frame for the device.

mod readahead;
mod window;

use core::mem::ManuallyDrop;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use arrayvec::ArrayVec;

pub use readahead::Readahead;
pub(crate) use window::Hints;

use readahead::NewlyUsed;

use super::fill::{NewFolio, SpareNodes};
use super::index::{Entry, FANOUT, FreedNodes, NextHole, last_node_of};
use super::{LockedState, MAX_SIZE, Object, ObjectError, head, mapping, remove};
use crate::addr::Pfn;
use crate::frame::policy::Advice;
use crate::frame::{HUGE_ORDER, flag};
use crate::machine::Machine;
use crate::memcg::{DirtyChange, LruList, MemcgId};
use crate::platform::{Event, MAX_REQUEST_FOLIOS, Platform, ReadRequest, trace};
use crate::stats::Counter;
use crate::sync::Retries;

impl<'m, P: Platform> Object<'m, P> {
    /// Records an access of an opener to `pages`, which it reads next, and has the host read those
    /// of them that are missing, and the pages ahead that the opener's accesses lead to, into
    /// folios that are charged to `memcg`. Waits for none of them. Does nothing for an object
    /// without a store.
    ///
    /// # Errors
    /// There is no memory for all pages, or `memcg` is at its limit. Some may be being read then.
    pub fn read_ahead(&self, opener: &mut Readahead, pages: Range<u64>, memcg: MemcgId) -> Result<(), ObjectError> {
        if self.head().store.is_none() {
            return Ok(());
        }
        let _pinned = self.pin_memcg(memcg)?;
        let (used, ahead) = (opener.newly_used(&pages), opener.access(pages.clone()));
        let read = core::iter::once(pages)
            .chain(ahead)
            .try_for_each(|pages| Reads(self).read_missing(pages, Advice::None, memcg));
        Reads(self).note_use(used);
        read
    }
}

/// Ends a request that [`Storage::read`](crate::platform::Storage::read) took: the first `read`
/// of its pages have their contents, and the others were not read. The pages that were read can
/// be used from now on. A task that waits for another page finds it missing when it tries
/// again, so that it is read again; the host reports the error to the task that waits for the
/// first page that was not read. May free the object, so no spin lock is held.
///
/// # Safety
/// The request came from this machine. The pages that were read have their contents, and no
/// device writes to the request's frames any more.
pub unsafe fn finish_read<'m, P: Platform>(machine: &'m Machine<'m, P>, request: ReadRequest, read: u64) {
    // SAFETY: the request has a reference to the object.
    let failed = unsafe { &head(machine, request.object).failed_read };
    let pages = request.pages();
    if read < pages.end - pages.start {
        failed.store(pages.start + read, Relaxed);
    } else if pages.contains(&failed.load(Relaxed)) {
        failed.store(u64::MAX, Relaxed);
    }
    end(machine, request, read, false);
}

/// Ends a request: the first `read` of its pages have their contents, which, with `dirty`, differ
/// from the storage; the others are removed. No spin lock is held.
pub(super) fn end<'m, P: Platform>(machine: &'m Machine<'m, P>, request: ReadRequest, read: u64, dirty: bool) {
    // The handle takes over the request's reference.
    let object = Object { machine, at: request.object };
    debug_assert_eq!(object.serial(), request.serial);
    let mut first = request.first;
    let end_of_read = first.saturating_add(read);
    for &(head, order) in &request.folios {
        let frames = machine.frames();
        let step = 1u32 << request.page_order;
        let pages = first..first + (1 << (order - request.page_order));
        first = pages.end;
        let failed = end_of_read.clamp(pages.start, pages.end)..pages.end;
        let (mut removed, mut nodes) = (0, FreedNodes::new());
        {
            let mut state = object.lock();
            let dirtied = state.index.end_read(frames, pages.start..failed.start, (head, step), dirty);
            object.head().tally(machine, DirtyChange::Dirtied).add(head, dirtied);
            for page in failed.clone() {
                let pfn = head.add((page - pages.start) as u32 * step);
                if state.index.find(frames, page) == Some(Entry::Reading(pfn)) {
                    state.index.remove(frames, page, &mut nodes);
                    removed += 1;
                }
            }
            if removed > 0 {
                mapping::clear_object_if_gone(machine, object.head(), &state.index, pages.start, head);
            }
        }
        machine.count(object.head().pages_counter(), (u64::from(removed) << request.page_order).wrapping_neg());
        machine.put_folio(head, 1 + removed, 0);
        remove::free_nodes(machine, nodes);
        machine.platform().resched();
    }
}

/// The steps by which an object has the host read its pages.
pub(super) struct Reads<'o, 'm, P: Platform>(pub(super) &'o Object<'m, P>);

impl<'m, P: Platform> Reads<'_, 'm, P> {
    /// Inserts the first of `pages` that are missing as being read, in folios that are charged to
    /// `memcg`, and returns the request for them, which the caller ends ([`end`]). Returns `None`
    /// if the first page exists. The pages may lie beyond the end of the object. No lock is held.
    ///
    /// # Errors
    /// There is no memory for the first page, or `memcg` is at its limit.
    pub(super) fn begin(&self, pages: Range<u64>, memcg: MemcgId) -> Result<Option<ReadRequest>, ObjectError> {
        let missing = self.next_missing(pages.clone(), MAX_SIZE).filter(|(missing, _)| missing.start == pages.start);
        let Some((missing, nodes)) = missing else { return Ok(None) };
        let mut spare = SpareNodes::new(self.0.machine);
        spare.provide(nodes, self.0.memcg())?;
        let mut folios = NewFolios::new(self.0);
        let pages = folios.provide(missing, Advice::None, memcg)?;
        Ok(self.insert_reading((pages, None), folios, &mut spare, MAX_SIZE))
    }

    /// Returns the error of an operation that needs a page which is being read, and marks the page
    /// as wanted. The caller holds the object's lock.
    pub(super) fn wait_for(&self, state: &LockedState, page: u64) -> ObjectError {
        state.index.mark_wanted(self.0.machine.frames(), page);
        ObjectError::pending(self.0, page)
    }

    /// Ends what [`Reads::wait_for`] began, when the page was found. The caller holds the object's
    /// lock.
    #[inline]
    pub(super) fn end_wait(&self, state: &LockedState, page: u64) {
        if self.0.head().store.is_some() {
            state.index.clear_wanted(self.0.machine.frames(), page);
        }
    }

    /// Has the host read a missing page, and missing pages around it ([`Reads::missing_around`]),
    /// into folios that are charged to `memcg`. On success the host has read the page at once, or
    /// another CPU has changed it meanwhile, and the caller looks it up again; `retries` counts
    /// these lookups. No lock is held.
    ///
    /// # Errors
    /// [`ObjectError::Pending`]: the page is being read now. Others as for [`Object::page`].
    #[cold]
    pub(super) fn start(
        &self,
        page: u64,
        hints: Hints,
        memcg: MemcgId,
        retries: &mut Retries<'_>,
    ) -> Result<(), ObjectError> {
        retries.retry();
        let Some((pages, nodes)) = self.missing_around(page, hints) else { return Ok(()) };
        let mut spare = SpareNodes::new(self.0.machine);
        spare.provide(nodes, self.0.memcg())?;
        let mut folios = NewFolios::new(self.0);
        let mut first = pages.start;
        let planned = loop {
            match folios.provide(first..pages.end, hints.folios, memcg) {
                Ok(got) if got.end > page => break got,
                // A request does not have room for all pages before the wanted one: tries with as
                // many as it has.
                Ok(got) if folios.folios.is_full() => first = (page + 1 - (got.end - got.start)).clamp(first + 1, page),
                Err(error) if first == page => return Err(error),
                // There is no memory for them: tries without them.
                Ok(_) | Err(_) => first = page,
            }
        };
        match self.insert_reading((planned, Some(page)), folios, &mut spare, 0) {
            None => Ok(()),
            Some(request) => {
                self.ask(request);
                self.was_read(page)
            }
        }
    }

    /// Returns whether the host has read a page at once, as a disk in memory does.
    ///
    /// # Errors
    /// [`ObjectError::Pending`]: it has not, or it failed to.
    fn was_read(&self, page: u64) -> Result<(), ObjectError> {
        match self.0.lock().index.find(self.0.machine.frames(), page) {
            Some(Entry::Resident(_)) => Ok(()),
            _ => Err(ObjectError::pending(self.0, page)),
        }
    }

    /// Returns the missing pages around `page` to read with it ([`window`]), within the object, and
    /// the number of index nodes that inserting them needs: where huge folios are advised all pages
    /// of one, if all are missing; only `page` if one of the others could not be read, so that it
    /// does not share their failure. Returns `None` if `page` exists, or lies beyond the end. Takes
    /// the object's lock.
    fn missing_around(&self, page: u64, hints: Hints) -> Option<(Range<u64>, usize)> {
        let (state, frames, head) = (self.0.lock(), self.0.machine.frames(), self.0.head());
        let is_missing = |page: &u64| state.index.find(frames, *page).is_none() && head.is_stored(&state, *page);
        if !is_missing(&page) {
            return None;
        }
        let huge = u32::from(HUGE_ORDER.saturating_sub(head.page_order));
        let block = window::block_around(page, huge);
        let is_huge = hints.folios == Advice::Huge
            && head.is_stored(&state, block.end - 1)
            && state.index.missing_run(frames, block.clone()) == 1 << huge;
        let exists = |page| state.index.find(frames, page).is_some();
        let pages = if is_huge {
            block
        } else {
            let window = window::around(page, hints, exists);
            let start = (window.start..page).rev().take_while(is_missing).last().unwrap_or(page);
            start..(page..window.end).take_while(is_missing).last().unwrap_or(page) + 1
        };
        let has_failed = pages.contains(&head.failed_read.load(Relaxed));
        Some((if has_failed { page..page + 1 } else { pages }, state.index.missing_nodes(frames, page)))
    }

    /// Has the host read the missing ones of `pages`, as far as these lie within the object, into
    /// folios that policy and this advice permit. No lock is held.
    ///
    /// # Errors
    /// As for [`Object::read_ahead`].
    pub(super) fn read_missing(&self, pages: Range<u64>, advice: Advice, memcg: MemcgId) -> Result<(), ObjectError> {
        let mut at = pages.start;
        while let Some((missing, nodes)) = self.next_missing(at..pages.end, 0) {
            let mut spare = SpareNodes::new(self.0.machine);
            spare.provide(nodes, self.0.memcg())?;
            let mut folios = NewFolios::new(self.0);
            let missing = folios.provide(missing, advice, memcg)?;
            at = missing.end;
            if let Some(request) = self.insert_reading((missing, None), folios, &mut spare, 0) {
                self.ask(request);
            }
            self.0.machine.platform().resched();
        }
        Ok(())
    }

    /// Records a use of the folios in which an opener begins to use pages (Linux:
    /// `folio_mark_accessed`). The second use of a folio makes it active. No lock is held.
    fn note_use(&self, used: NewlyUsed) {
        let (machine, frames) = (self.0.machine, self.0.machine.frames());
        let mut at = used.pages.start;
        while at < used.pages.end {
            let state = self.0.lock();
            let Some(pfn) = state.index.find(frames, at).and_then(Entry::frame) else { return };
            let (head, frame) = frames.head(pfn);
            let page_order = self.0.page_order();
            let begins_before = pfn != head && at == used.pages.start && used.continues;
            at += u64::from((1 << frame.order()) - (pfn.0 - head.0)) >> page_order;
            let was_used = begins_before || frame.has(flag::REFERENCED) || frame.set_flag(flag::REFERENCED);
            let is_second = was_used && !begins_before && !frame.has(flag::ACTIVE);
            if is_second && frames.get_counts_checked(head, frame, 1, 0).is_ok() {
                drop(state);
                frame.clear_flag(flag::REFERENCED);
                frame.set_flag(flag::ACTIVE);
                machine.lru().relist(head, Some(LruList::File), LruList::ActiveFile);
                machine.put_folio(head, 1, 0);
            }
        }
    }

    /// Returns the first of `pages` that are missing, as far as they follow each other and have
    /// their entries in one index node, and the number of index nodes that inserting them needs, as
    /// if the object's size were at least `size` bytes. Returns `None` if none of `pages` is
    /// missing. Takes the object's lock, for one index node at a time (INV-11).
    fn next_missing(&self, pages: Range<u64>, size: u64) -> Option<(Range<u64>, usize)> {
        let frames = self.0.machine.frames();
        let mut at = pages.start;
        loop {
            let state = self.0.lock();
            let end = pages.end.min(state.size.max(size).div_ceil(1 << self.0.page_shift()));
            if at >= end {
                return None;
            }
            match state.index.next_hole(frames, at..end) {
                NextHole::At(first) => {
                    let end = end.min((last_node_of(first) + 1) * FANOUT);
                    let count = state.index.missing_run(frames, first..end);
                    return Some((first..first + count, state.index.missing_nodes(frames, first)));
                }
                NextHole::NotBelow(next) => at = next,
            }
            drop(state);
            self.0.machine.platform().resched();
        }
    }

    /// Inserts folios for `pages`, which then are being read, and returns the request for them.
    /// Marks the page `wanted`, one of them, as wanted, if there is one. Returns `None`, with
    /// nothing changed, if one of the pages exists by now, is on hold, lies beyond the end of the
    /// object, whose size counts as at least `size` bytes, or needs more index nodes. Takes the
    /// object's lock.
    fn insert_reading(
        &self,
        (pages, wanted): (Range<u64>, Option<u64>),
        mut folios: NewFolios<'_, 'm, P>,
        spare: &mut SpareNodes<'m, P>,
        size: u64,
    ) -> Option<ReadRequest> {
        let (machine, frames) = (self.0.machine, self.0.machine.frames());
        let page_order = self.0.head().page_order;
        let mut state = self.0.lock();
        let size = state.size.max(size);
        let is_missing = pages.end <= state.held_from
            && state.index.missing_run(frames, pages.clone()) == pages.end - pages.start
            && pages.end.checked_sub(1).is_some_and(|last| self.0.is_inside(size, last));
        if !is_missing || state.index.missing_nodes(frames, pages.start) > spare.count() {
            return None;
        }
        let mut at = pages.start;
        for &(pfn, order) in &folios.folios {
            mapping::set_object(frames.frame(pfn), self.0, at);
            let _ = frames.get_counts(pfn, frames.frame(pfn), 1, 0);
            let pages_of_folio = at..at + (1 << (order - page_order));
            at = pages_of_folio.end;
            state.index.insert(frames, pages_of_folio, (Entry::Reading(pfn), 1 << page_order), || spare.take());
        }
        wanted.into_iter().for_each(|page| state.index.mark_wanted(frames, page));
        drop(state);
        machine.count(self.0.head().pages_counter(), (pages.end - pages.start) << page_order);
        // The request has this reference to the object.
        let _ = ManuallyDrop::new(self.0.clone());
        Some(ReadRequest {
            object: self.0.at,
            serial: self.0.serial(),
            tag: self.0.tag(),
            first: pages.start,
            page_order,
            folios: core::mem::take(&mut folios.folios),
        })
    }

    /// Hands a request to the host.
    fn ask(&self, request: ReadRequest) {
        trace(self.0.machine.platform(), || Event::DeviceIo);
        self.0.machine.platform().read(request);
    }
}

/// Folios that are to be read, allocated before the object is locked, as [`NewFolio`] describes.
/// They stay in their place until the request has them. Dropping this value frees them.
struct NewFolios<'o, 'm, P: Platform> {
    object: &'o Object<'m, P>,
    /// The first frame and the order of each folio, in the order of the file.
    folios: ArrayVec<(Pfn, u8), MAX_REQUEST_FOLIOS>,
}

impl<'o, 'm, P: Platform> NewFolios<'o, 'm, P> {
    /// Creates a value without folios.
    fn new(object: &'o Object<'m, P>) -> Self {
        NewFolios { object, folios: ArrayVec::new() }
    }

    /// Allocates folios for `pages`, each as large as policy permits, or the advice of the VMA for
    /// which they are read, and memory allows, and frees those that were present. Returns the pages
    /// for which there is memory, which begin with the first of `pages`.
    ///
    /// # Errors
    /// There is no memory for the first page.
    fn provide(&mut self, pages: Range<u64>, advice: Advice, memcg: MemcgId) -> Result<Range<u64>, ObjectError> {
        self.put_back();
        let (machine, page_order) = (self.object.machine, self.object.head().page_order);
        let huge = if advice == Advice::Huge { 1 << HUGE_ORDER } else { 0 };
        let mut orders = (machine.policy().file_orders() | huge) >> page_order | 1;
        let mut at = pages.start;
        while at < pages.end && !self.folios.is_full() {
            // The largest order that is aligned at the page, and fits before the end.
            let most = at.trailing_zeros().min((pages.end - at).ilog2()).min(orders.ilog2());
            let order = (orders & ((2 << most) - 1)).ilog2();
            let mut folio = NewFolio::new(self.object);
            let is_refault = machine.is_refault(self.object.serial(), at, memcg);
            if is_refault {
                folio.activate();
            }
            match folio.provide(order as u8 + page_order, false, memcg) {
                Ok(()) => {
                    if is_refault {
                        machine.count(Counter::FileRefaults, 1 << (order as u8 + page_order));
                    }
                    self.folios.extend(folio.take_any());
                    at += 1 << order;
                }
                // No memory for a large folio: tries again with a smaller one.
                Err(_) if order > 0 => orders &= (1 << order) - 1,
                Err(error) if at == pages.start => return Err(error),
                Err(_) => break,
            }
        }
        Ok(pages.start..at)
    }

    /// Frees the folios that are present.
    fn put_back(&mut self) {
        let page_order = self.object.head().page_order;
        for (pfn, order) in self.folios.drain(..) {
            self.object.machine.put_folio(pfn, 1 << (order - page_order), 0);
        }
    }
}

impl<P: Platform> Drop for NewFolios<'_, '_, P> {
    fn drop(&mut self) {
        self.put_back();
    }
}
