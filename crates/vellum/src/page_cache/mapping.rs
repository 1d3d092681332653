//! Finds the object of a folio (Linux: `folio->mapping` and `folio->index`), and lists the objects
//! that may have swapped-out pages. Reclaim finds objects this way, since it gets folios from LRU
//! lists.
//!
//! A folio's descriptor names its object as long as the object has any page of the folio, and no
//! longer (INV-16). An object that a folio names may be used under the lock of the machine's list
//! of objects ([`ShmemSwapList`]): the CPU that frees an object first removes all its pages from
//! the index, so that no folio names it any more, and then takes that lock before it frees the
//! head.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;

use super::index::Index;
use super::{Head, Object, head};
use crate::addr::Pfn;
use crate::frame::{Frame, FrameKind, Frames, HUGE_ORDER, flag};
use crate::machine::{Machine, ShmemSwapList};
use crate::platform::Platform;

/// Stores in a folio's descriptor the object to which the folio belongs, and the number of the
/// object's page with which the folio begins.
///
/// Only the low 32 bits of the page number are kept. So from a folio beyond 16 TiB in its object,
/// its page in the object can't be found, and the folio is never swapped out. The caller holds the
/// object's lock.
pub(super) fn set_object<P: Platform>(frame: &Frame, object: &Object<'_, P>, page: u64) {
    let largest = &object.head().largest_folio;
    if largest.load(Relaxed) < frame.order() {
        largest.store(frame.order(), Relaxed);
    }
    frame.set_data(u64::from(object.at.0) << 32 | page & u64::from(u32::MAX));
    if frame.order() == HUGE_ORDER && !frame.has(flag::HUGETLB) {
        object.machine.count(object.head().huge_counter(), 1 << HUGE_ORDER);
    }
}

/// Removes the object from a folio's descriptor.
pub(super) fn clear_object<P: Platform>(machine: &Machine<'_, P>, object: &Head, frame: &Frame) {
    set_no_object(frame);
    if frame.order() == HUGE_ORDER && !frame.has(flag::HUGETLB) {
        machine.count(object.huge_counter(), (1u64 << HUGE_ORDER).wrapping_neg());
    }
}

/// Stores in the descriptor of a new folio that it belongs to no object.
pub(super) fn set_no_object(frame: &Frame) {
    frame.set_data(u64::from(Pfn::NONE.0) << 32);
}

/// Returns the head's frame of the object that a folio's descriptor names.
fn object_of(frame: &Frame) -> Option<Pfn> {
    Pfn((frame.data() >> 32) as u32).some().filter(|_| frame.has(flag::OBJECT))
}

/// Returns whether a folio's descriptor names an object.
pub(crate) fn belongs_to_object(frame: &Frame) -> bool {
    object_of(frame).is_some()
}

/// Returns the number of the object's page with which a folio begins, from the word
/// [`Frame::data`]. Only the low 32 bits of the number are known.
pub(crate) fn folio_index(data: u64) -> u64 {
    data & u64::from(u32::MAX)
}

/// Removes the object from the descriptor of the folio that contains the frame `pfn`, if the
/// object's index has no page of that folio any more. Called under the object's lock after `page`,
/// which begins at `pfn`, and perhaps pages before it, were removed from the index.
pub(super) fn clear_object_if_gone<P: Platform>(
    machine: &Machine<'_, P>,
    object: &Head,
    index: &Index,
    page: u64,
    pfn: Pfn,
) {
    let (frames, page_order) = (machine.frames(), object.page_order);
    let (head, frame) = frames.head(pfn);
    let first = page - u64::from((pfn.0 - head.0) >> page_order);
    let pages = first..first + (1 << (frame.order() - page_order));
    if frame.order() == page_order || !has_page_in(frames, index, pages, head, frame.order()) {
        clear_object(machine, object, frame);
    }
}

/// Returns whether any of an object's `pages` is in the folio of `order` that begins at frame
/// `head`. The caller holds the object's lock.
fn has_page_in<P: Platform>(frames: &Frames<'_, P>, index: &Index, pages: Range<u64>, head: Pfn, order: u8) -> bool {
    let is_in_folio = |pfn: Pfn| pfn.0 & !((1 << order) - 1) == head.0;
    let mut at = pages.start;
    while let Some((page, entry)) = index.next(frames, at)
        && page < pages.end
    {
        if entry.frame().is_some_and(is_in_folio) {
            return true;
        }
        at = page + 1;
    }
    false
}

/// Marks the frame of an initialised object head, so that [`Object::from_head_frame`] finds the
/// object.
pub(super) fn publish_head(head: &Frame) {
    // Orders the writes of the head before the mark; pairs with the acquire fence in
    // `from_head_frame`.
    fence(Release);
    head.set_flag(flag::OBJECT_HEAD);
}

impl<'m, P: Platform> Object<'m, P> {
    /// Returns the object whose head is in a frame, with a reference; `None` if the frame holds no
    /// head or the object has no references any more. Takes the lock of the machine's list of
    /// objects.
    pub(crate) fn from_head_frame(machine: &'m Machine<'m, P>, at: Pfn) -> Option<Self> {
        let _objects = machine.shmem_swap_list().lock(machine.platform());
        let state = machine.frames().get(at)?.state();
        if state.kind() != FrameKind::Private || !state.has(flag::OBJECT_HEAD) {
            return None;
        }
        fence(Acquire);
        // SAFETY: the mark implies that the head is initialised; the CPU that frees the object
        // clears the mark under the lock that is held here, and frees the head after that.
        Self::try_get(machine, unsafe { head(machine, at) }, at)
    }

    /// Returns the object that a folio's descriptor names, with a reference; `None` if it names no
    /// object, or one without references. The caller has a reference to the folio. Takes the lock
    /// of the machine's list of objects.
    pub(crate) fn from_folio(machine: &'m Machine<'m, P>, frame: &Frame) -> Option<Self> {
        let _objects = machine.shmem_swap_list().lock(machine.platform());
        let at = object_of(frame)?;
        // SAFETY: the folio names the object. The CPU that frees the object first removes all its
        // pages, so that no folio names it, then takes the lock that is held here, and only then
        // frees the head.
        Self::try_get(machine, unsafe { head(machine, at) }, at)
    }

    /// Returns whether a folio's descriptor names this object.
    pub(crate) fn owns(&self, frame: &Frame) -> bool {
        object_of(frame) == Some(self.at)
    }

    /// Returns whether this handle is the only reference: no other handle and no VMA exists.
    pub(crate) fn is_sole_reference(&self) -> bool {
        self.head().refs.load(Relaxed) == 1
    }

    /// Takes a reference unless the last one was dropped. The caller holds the lock of the
    /// machine's list of objects, which keeps the head from being freed.
    fn try_get(machine: &'m Machine<'m, P>, head: &super::Head, at: Pfn) -> Option<Self> {
        let add_ref = |refs: u64| (refs > 0).then_some(refs + 1);
        head.refs.fetch_update(AcqRel, Acquire, add_ref).ok().map(|_| Object { machine, at })
    }

    /// Puts the object on the machine's list of objects that may have swapped-out pages (Linux:
    /// `shmem_swaplist`), if it is not on the list yet. The object stays on the list until it is
    /// freed.
    pub(super) fn list_as_swapped(&self) {
        let mut objects = self.machine.shmem_swap_list().lock(self.machine.platform());
        if self.head().listed.swap(true, Relaxed) {
            return;
        }
        let first = core::mem::replace(&mut objects.first, self.at);
        self.head().links[0].store(Pfn::NONE.0, Relaxed);
        self.head().links[1].store(first.0, Relaxed);
        if let Some(first) = first.some() {
            // SAFETY: the object is on the list, whose lock is held, and it is freed only after it
            // was taken off.
            unsafe { head(self.machine, first) }.links[0].store(self.at.0, Relaxed);
        }
    }

    /// Returns the first object on the list of objects that may have swapped-out pages, or the one
    /// after `after`, with a reference. Objects without references are skipped. Takes the list's
    /// lock.
    pub(super) fn next_with_swap(machine: &'m Machine<'m, P>, after: Option<&Self>) -> Option<Self> {
        let objects = machine.shmem_swap_list().lock(machine.platform());
        let mut at = after.map_or(objects.first, |object| Pfn(object.head().links[1].load(Relaxed)));
        while let Some(pfn) = at.some() {
            // SAFETY: the object is on the list, whose lock is held, and it is freed only after it
            // was taken off.
            let head = unsafe { head(machine, pfn) };
            if let Some(object) = Self::try_get(machine, head, pfn) {
                return Some(object);
            }
            at = Pfn(head.links[1].load(Relaxed));
        }
        None
    }
}

/// Takes an object that has neither pages nor references off the list of objects that may have
/// swapped-out pages, and clears the mark of its head's frame. Neither the list nor a frame leads
/// to the object afterwards, so the caller may free it.
pub(super) fn unlist<P: Platform>(machine: &Machine<'_, P>, at: Pfn) {
    let mut objects = machine.shmem_swap_list().lock(machine.platform());
    machine.frames().frame(at).clear_flag(flag::OBJECT_HEAD);
    // SAFETY: the object has no references, so it belongs to the caller alone, which has not freed
    // it.
    let this = unsafe { head(machine, at) };
    if !this.listed.load(Relaxed) {
        return;
    }
    let [previous, next] = [0, 1].map(|i| Pfn(this.links[i].load(Relaxed)));
    match previous.some() {
        // SAFETY: both neighbours are on the list, whose lock is held, and are freed only after
        // they were taken off.
        Some(previous) => unsafe { head(machine, previous) }.links[1].store(next.0, Relaxed),
        None => *objects = ShmemSwapList { first: next },
    }
    if let Some(next) = next.some() {
        // SAFETY: the next object is on the list, whose lock is held, and is freed only after it
        // was taken off.
        unsafe { head(machine, next) }.links[0].store(previous.0, Relaxed);
    }
}
