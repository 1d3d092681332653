//! Whose a folio is: which object has it, and where. What reclaim begins with, which knows folios only.
//!
//! A folio names its object as long as that has some of it. So whoever finds an object named may use it, if he keeps it from ending
//! meanwhile: who ends one takes all that name it out of its index first, and then the lock of the objects that have something on swap
//! devices ([`Objects`]), under which others look.

use core::ops::Range;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use core::sync::atomic::fence;

use super::index::Index;
use super::{Object, head};
use crate::addr::Pfn;
use crate::frame::{Frame, FrameKind, Frames, flag};
use crate::machine::{Machine, ShmemSwapList};
use crate::platform::Platform;

/// A folio is an object's: its first page is this one there. (Of a page's number 32 bits are kept: a folio beyond 16 TiB is not found by
/// it, and stays in memory.)
pub(super) fn enter(frame: &Frame, object: Pfn, page: u64) {
    frame.set_data(u64::from(object.0) << 32 | page & u64::from(u32::MAX));
}

/// A folio is no object's.
pub(super) fn leave(frame: &Frame) {
    frame.set_data(u64::from(Pfn::NONE.0) << 32);
}

/// The object that a folio names, if it names one.
fn object_of(frame: &Frame) -> Option<Pfn> {
    Pfn((frame.data() >> 32) as u32).some().filter(|_| frame.has(flag::OBJECT))
}

/// Returns whether a folio names an object.
pub(crate) fn names_object(frame: &Frame) -> bool {
    object_of(frame).is_some()
}

/// Where a folio begins in its object, by what it says ([`Frame::data`]).
pub(crate) fn page_of(data: u64) -> u64 {
    data & u64::from(u32::MAX)
}

/// A page has left the index, which was in this frame, with others before it: if nothing of its folio is left there, the folio is no
/// object's.
pub(super) fn left<P: Platform>(frames: &Frames<'_, P>, index: &Index, page: u64, pfn: Pfn, page_order: u8) {
    let (head, frame) = frames.head(pfn);
    let first = page - u64::from((pfn.0 - head.0) >> page_order);
    let pages = first..first + (1 << (frame.order() - page_order));
    if frame.order() == page_order || !has_some(frames, index, pages, head, frame.order()) {
        leave(frame);
    }
}

/// Whether some of these pages are in a folio.
fn has_some<P: Platform>(frames: &Frames<'_, P>, index: &Index, pages: Range<u64>, head: Pfn, order: u8) -> bool {
    let its = |pfn: Pfn| pfn.0 & !((1 << order) - 1) == head.0;
    let mut at = pages.start;
    while let Some((page, there)) = index.next(frames, at)
        && page < pages.end
    {
        if there.frame().is_some_and(its) {
            return true;
        }
        at = page + 1;
    }
    false
}

/// Marks the frame of a head that has just been written: [`Object::at`] finds the object from now
/// on.
pub(super) fn mark(head: &Frame) {
    // The head is written before the mark is.
    fence(Release);
    head.set_flag(flag::HEAD);
}

impl<'m, P: Platform> Object<'m, P> {
    /// Returns the object whose head is in a frame, with a reference; `None` if there is none, or
    /// it is ending.
    pub(crate) fn at(machine: &'m Machine<'m, P>, at: Pfn) -> Option<Self> {
        let _objects = machine.shmem_swap_list().lock(machine.platform());
        let state = machine.frames().get(at)?.state();
        if state.kind() != FrameKind::Private || !state.has(flag::HEAD) {
            return None;
        }
        fence(Acquire);
        // SAFETY: `mark` says that the head is written; the CPU that ends the object clears the
        // mark under the lock that is held here, and frees the head after that.
        Self::keep(machine, unsafe { head(machine, at) }, at)
    }

    /// The object that a folio names, to which the caller has a reference; none, if it is ending.
    pub(crate) fn of(machine: &'m Machine<'m, P>, frame: &Frame) -> Option<Self> {
        let _objects = machine.shmem_swap_list().lock(machine.platform());
        let at = object_of(frame)?;
        // SAFETY: a folio in its index names it, and who ends it gives the frame back only under the lock that is held here, after none
        // does any more.
        Self::keep(machine, unsafe { head(machine, at) }, at)
    }

    /// Whether a folio names this object.
    pub(crate) fn is_of(&self, frame: &Frame) -> bool {
        object_of(frame) == Some(self.at)
    }

    /// Whether nobody else has the object, nor any VMA.
    pub(crate) fn is_last(&self) -> bool {
        self.head().refs.load(Relaxed) == 1
    }

    /// A reference, unless the last one is gone.
    fn keep(machine: &'m Machine<'m, P>, head: &super::Head, at: Pfn) -> Option<Self> {
        let more = |refs: u64| (refs > 0).then_some(refs + 1);
        head.refs.fetch_update(AcqRel, Acquire, more).ok().map(|_| Object { machine, at })
    }

    /// It may have something on swap devices from now on: it is found by who empties them.
    pub(super) fn list(&self) {
        let mut objects = self.machine.shmem_swap_list().lock(self.machine.platform());
        if self.head().listed.swap(true, Relaxed) {
            return;
        }
        let first = core::mem::replace(&mut objects.first, self.at);
        self.head().links[0].store(Pfn::NONE.0, Relaxed);
        self.head().links[1].store(first.0, Relaxed);
        if let Some(first) = first.some() {
            // SAFETY: on the list, whose lock is held.
            unsafe { head(self.machine, first) }.links[0].store(self.at.0, Relaxed);
        }
    }

    /// The first object that may have something on swap devices, or the one after this, if they are not ending.
    pub(super) fn next_listed(machine: &'m Machine<'m, P>, after: Option<&Self>) -> Option<Self> {
        let objects = machine.shmem_swap_list().lock(machine.platform());
        let mut at = after.map_or(objects.first, |object| Pfn(object.head().links[1].load(Relaxed)));
        while let Some(pfn) = at.some() {
            // SAFETY: on the list, whose lock is held.
            let head = unsafe { head(machine, pfn) };
            if let Some(object) = Self::keep(machine, head, pfn) {
                return Some(object);
            }
            at = Pfn(head.links[1].load(Relaxed));
        }
        None
    }
}

/// An object that has ended, and that no folio names, is about to be freed: nobody looks at it any more.
pub(super) fn unlist<P: Platform>(machine: &Machine<'_, P>, at: Pfn) {
    let mut objects = machine.shmem_swap_list().lock(machine.platform());
    machine.frames().frame(at).clear_flag(flag::HEAD);
    // SAFETY: the caller's alone.
    let this = unsafe { head(machine, at) };
    if !this.listed.load(Relaxed) {
        return;
    }
    let [before, after] = [0, 1].map(|i| Pfn(this.links[i].load(Relaxed)));
    match before.some() {
        // SAFETY: on the list, whose lock is held; as is the next.
        Some(before) => unsafe { head(machine, before) }.links[1].store(after.0, Relaxed),
        None => *objects = ShmemSwapList { first: after },
    }
    if let Some(after) = after.some() {
        // SAFETY: as above.
        unsafe { head(machine, after) }.links[0].store(before.0, Relaxed);
    }
}
