//! Has the host write dirty pages to its storage (Linux: `write_cache_pages`).
//!
//! A page of an object with a store is dirty from its first change on. A write through a shared VMA
//! faults while the page is clean, because its PTE is not exclusive then ([`Attrs::EXCLUSIVE`]):
//! the fault marks the page, and makes the PTE exclusive and writable under the page table's lock.
//! Writeback goes the other way: it takes the mark from the page, takes both rights from all PTEs
//! that map the page, and only then hands the page to the host. So a page is never clean while a
//! PTE allows writes to it, except between the first two steps; and what is written then is in the
//! frame before the host gets it (INV-22).
//!
//! [`Attrs::EXCLUSIVE`]: crate::arch::Attrs::EXCLUSIVE

mod errors;

use core::mem::ManuallyDrop;
use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

pub(super) use errors::ErrorRecord;
pub use errors::WriteErrors;

use super::index::dirty::{Dirty, NextPage};
use super::index::{Entry, FANOUT, last_node_of};
use super::{Object, ObjectError};
use crate::addr::Pfn;
use crate::frame::Frame;
use crate::machine::Machine;
use crate::memcg::{DirtyChange, MemcgId};
use crate::platform::{Event, Part, Platform, WriteRequest, trace};

/// A pass of writing an object's dirty pages back ([`write_back`](crate::space::write_back)). It
/// goes on where it waited.
#[derive(Clone, Debug)]
pub struct Writeback {
    /// The pages that are left, and after which the pass is done or waits.
    pages: Range<u64>,
    /// The first page of the pass, from which it waits for writes.
    first: u64,
    /// The pass waits for all writes.
    waits: bool,
    /// The pass has started all writes.
    started: bool,
    /// The memcg whose pages the pass has written, if not all are.
    memcg: Option<MemcgId>,
    /// The number of pages that the pass may still have written.
    left: u64,
}

impl Writeback {
    /// A pass that has the dirty ones of `pages` written, and waits for none of them (Linux:
    /// `WB_SYNC_NONE`, `SYNC_FILE_RANGE_WRITE`). It leaves out pages that are being written.
    pub fn start(pages: Range<u64>) -> Self {
        Writeback { first: pages.start, pages, waits: false, started: false, memcg: None, left: u64::MAX }
    }

    /// A pass after which the storage has the contents that `pages` had when it began, or newer
    /// ones (Linux: `WB_SYNC_ALL`, `fsync`).
    pub fn complete(pages: Range<u64>) -> Self {
        Writeback { waits: true, ..Writeback::start(pages) }
    }

    /// Has only pages written that are charged to `memcg` or its descendants, and about `pages` of
    /// them, in pages of the object's size, so that the host can turn to another file
    /// ([`Writeback::rest`]).
    pub fn limited(self, memcg: MemcgId, pages: u64) -> Self {
        Writeback { memcg: Some(memcg), left: pages, ..self }
    }

    /// Returns the first page to which the pass has not come, as it had written what it may; `None`
    /// if it is at its end.
    pub fn rest(&self) -> Option<u64> {
        (self.left == 0).then_some(self.pages.start)
    }
}

/// Dirty pages that are being written from now on, before their PTEs are write-protected and the
/// host is asked.
#[must_use = "the pages stay under writeback until the host has written them"]
pub(crate) struct WriteBatch {
    dirty: Dirty,
    /// The object's size when the batch was made.
    size: u64,
}

impl WriteBatch {
    /// Returns whether a PTE may allow writes to one of the pages.
    pub(crate) fn is_writable(&self) -> bool {
        self.dirty.writable
    }

    /// Returns the pages, in ascending order.
    pub(crate) fn parts(&self) -> &[Part] {
        &self.dirty.parts
    }

    /// Returns the numbers of the first page and of the one after the last.
    pub(crate) fn range(&self) -> Range<u64> {
        let ends = self.parts().first().zip(self.parts().last());
        ends.map_or(0..0, |(first, last)| first.page..last.range().end)
    }
}

impl<'m, P: Platform> Object<'m, P> {
    /// Marks pages as dirty that the host has written to: they differ from the storage from now on.
    /// Called after the write, while the host holds its references to the pages, so that reclaim
    /// does not drop them in between. Does nothing for an object without a store, and for pages
    /// that are not in memory. The host keeps a handle to the object while pages are dirty: with
    /// the object's last reference they are lost.
    pub fn mark_dirty(&self, pages: Range<u64>) {
        if self.head().store.is_none() {
            return;
        }
        let (mut from, end) = (pages.start, pages.end.min(self.size().div_ceil(1 << self.page_shift())));
        while from < end {
            let to = end.min((last_node_of(from) + 1) * FANOUT);
            let mut state = self.lock();
            let mut tally = self.head().tally(self.machine, DirtyChange::Dirtied);
            let changed = (from..to).filter_map(|page| state.index.set_dirty(self.machine.frames(), page, None, false));
            changed.for_each(|changed| tally.add(changed.pfn, changed.was_clean.into()));
            drop(tally);
            drop(state);
            self.machine.platform().resched();
            from = to;
        }
    }
}

/// Returns the time at which a fault last let a program write to a page of the object through a
/// shared mapping, in nanoseconds ([`Clock::now_ns`](crate::platform::Clock::now_ns)), if there was
/// such a fault since the last call. Later writes through the same PTE take no fault; those to a
/// page of a store do again once the page was written back. A host sets the time of the file's last
/// change by this (Linux: `file_update_time` in `page_mkwrite`). Takes no lock.
pub fn take_mapped_write<P: Platform>(object: &Object<'_, P>) -> Option<u64> {
    let at = &object.head().mapped_write;
    if at.load(Relaxed) == 0 { None } else { Some(at.swap(0, Relaxed)).filter(|at| *at != 0) }
}

/// The steps by which an object has its dirty pages written.
pub(crate) struct Writes<'o, 'm, P: Platform>(pub(crate) &'o Object<'m, P>);

impl<'m, P: Platform> Writes<'_, 'm, P> {
    /// Returns true if the object has a store, so that the first write to a clean page must fault.
    pub(crate) fn are_tracked(&self) -> bool {
        self.0.head().store.is_some()
    }

    /// Notes that a fault lets a program write through a shared mapping ([`take_mapped_write`]).
    pub(crate) fn note_mapped_write(&self) {
        let now = self.0.machine.platform().now_ns().max(1);
        self.0.head().mapped_write.store(now, Relaxed);
    }

    /// Marks pages as dirty that PTEs which map the frames from `pfn` on may change from now on, up
    /// to the first that is not in its frame. Returns the number of pages marked. The caller holds
    /// the lock of the PTEs' page table. Takes the object's lock.
    pub(crate) fn allow_write(&self, pages: Range<u64>, pfn: Pfn) -> u64 {
        let (frames, step) = (self.0.machine.frames(), 1 << self.0.page_order());
        let mut state = self.0.lock();
        let (mut marked, mut dirtied) = (0, 0u64);
        for (page, i) in pages.zip(0..) {
            let Some(changed) = state.index.set_dirty(frames, page, Some(pfn.add(i * step)), true) else { break };
            marked += 1;
            dirtied += u64::from(changed.was_clean);
        }
        drop(state);
        self.0.head().tally(self.0.machine, DirtyChange::Dirtied).add(pfn, dirtied);
        marked
    }

    /// Returns the next pages that a pass has written, or `None` at the pass's end. With
    /// `unmapped`, the pass covers the pages of this folio, and also ends if a PTE maps the folio.
    /// Finds none in an object whose changes stay in memory. Takes the object's lock, for one index
    /// node at a time (INV-11).
    ///
    /// # Errors
    /// [`ObjectError::Pending`]: the pass waits for the write of this page.
    /// [`ObjectError::TooManyReferences`].
    pub(crate) fn next_write(
        &self,
        pass: &mut Writeback,
        unmapped: Option<&Frame>,
    ) -> Result<Option<WriteBatch>, ObjectError> {
        let frames = self.0.machine.frames();
        if !self.0.head().writes_to_store() {
            return Ok(None);
        }
        while !pass.started {
            if pass.left == 0 {
                return Ok(None);
            }
            let mut state = self.0.lock();
            // PTEs get an object's pages under its lock.
            if unmapped.is_some_and(|folio| folio.counts().maps != 0) {
                return Ok(None);
            }
            let next = match state.index.next_dirty(frames, pass.pages.start) {
                NextPage::At(page) if page < pass.pages.end => page,
                NextPage::NotBelow(page) if page < pass.pages.end => {
                    drop(state);
                    pass.pages.start = page;
                    self.0.machine.platform().resched();
                    continue;
                }
                _ => {
                    pass.started = true;
                    pass.pages.start = pass.first;
                    break;
                }
            };
            if state.index.is_writing(frames, next) {
                if pass.waits {
                    pass.pages.start = next;
                    return Err(ObjectError::pending(self.0, next));
                }
                pass.pages.start = next + 1;
                continue;
            }
            let is_of_pass = |pfn| pass.memcg.is_none_or(|memcg| self.0.machine.is_charged_below(pfn, memcg));
            if !state.index.find(frames, next).and_then(Entry::frame).is_some_and(is_of_pass) {
                pass.pages.start = next + 1;
                continue;
            }
            let end = pass.pages.end.min((last_node_of(next) + 1) * FANOUT);
            let mut failed = None;
            let dirty = state.index.begin_write(frames, next..end, 1 << self.0.page_order(), |pfn| {
                let (head, frame) = frames.head(pfn);
                if unmapped.is_some_and(|folio| !core::ptr::eq(folio, frame)) || !is_of_pass(pfn) {
                    return false;
                }
                failed = frames.get_counts_checked(head, frame, 1, 0).err();
                failed.is_none()
            });
            let size = state.size;
            drop(state);
            let batch = WriteBatch { dirty, size };
            if batch.parts().is_empty() {
                return failed.map_or(Ok(None), |error| Err(error.into()));
            }
            pass.pages.start = batch.range().end.max(next);
            pass.left = pass.left.saturating_sub(batch.parts().iter().map(|part| u64::from(part.pages)).sum());
            return Ok(Some(batch));
        }
        while pass.waits {
            let state = self.0.lock();
            match state.index.next_writing(frames, pass.pages.start) {
                NextPage::At(page) if page < pass.pages.end => {
                    pass.pages.start = page;
                    return Err(ObjectError::pending(self.0, page));
                }
                NextPage::NotBelow(page) if page < pass.pages.end => pass.pages.start = page,
                _ => break,
            }
            drop(state);
            self.0.machine.platform().resched();
        }
        Ok(None)
    }

    /// Hands pages to the host, in a request for each range without a hole. No PTE allows writes to
    /// them that was not made after they were taken. No lock is held.
    pub(crate) fn write(&self, batch: WriteBatch) {
        let page_order = self.0.page_order();
        let mut tally = self.0.head().tally(self.0.machine, DirtyChange::WriteBegan);
        batch.parts().iter().for_each(|part| tally.add(part.pfn, part.pages.into()));
        drop(tally);
        for parts in batch.parts().chunk_by(|a, b| a.range().end == b.page) {
            // The request has this reference to the object.
            let _ = ManuallyDrop::new(self.0.clone());
            trace(self.0.machine.platform(), || Event::DeviceIo);
            self.0.machine.platform().write(WriteRequest {
                object: self.0.at,
                serial: self.0.serial(),
                tag: self.0.tag(),
                page_order,
                size: batch.size,
                parts: parts.iter().copied().collect(),
            });
        }
    }
}

/// Ends a request that [`Storage::write`](crate::platform::Storage::write) took: the first
/// `written` of its pages are in the storage, and the others could not be written. That failure
/// is recorded for all openers ([`WriteErrors::check`](super::WriteErrors::check)). May free the
/// object, so no spin lock is held.
///
/// # Safety
/// The request came from this machine, and no device reads the request's frames any more.
pub unsafe fn finish_write<'m, P: Platform>(machine: &'m Machine<'m, P>, request: WriteRequest, written: u64) {
    let pages = request.pages();
    // The handle takes over the request's reference.
    let object = Object { machine, at: request.object };
    debug_assert_eq!(object.serial(), request.serial);
    if written < pages.end - pages.start {
        object.head().write_errors.record();
    }
    let frames = machine.frames();
    let mut tally = object.head().tally(machine, DirtyChange::WriteEnded);
    for part in request.parts {
        object.lock().index.end_write(frames, &part, 1 << request.page_order);
        tally.add(part.pfn, part.pages.into());
        machine.put_folio(frames.head(part.pfn).0, 1, 0);
        machine.platform().resched();
    }
}

impl WriteErrors {
    /// Returns what a new opener of the file has seen of failed writes: all of them, but for those
    /// since the last that any opener saw.
    pub fn of<P: Platform>(object: &Object<'_, P>) -> Self {
        object.head().write_errors.seen()
    }

    /// Reports writes of the object to the storage that failed since the opener last asked (Linux:
    /// `file_check_and_advance_wb_err`). A host calls it at the end of `fsync` and `msync`.
    ///
    /// # Errors
    /// [`ObjectError::NotWritten`]: a write failed. The pages are clean all the same, and the
    /// storage may have their old contents.
    pub fn check<P: Platform>(&mut self, object: &Object<'_, P>) -> Result<(), ObjectError> {
        if object.head().write_errors.show(self) { Err(ObjectError::NotWritten) } else { Ok(()) }
    }
}
