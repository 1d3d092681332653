//! Walks an object's index and reads its counters, for an audit; counts the pages of a range.

use core::ops::Range;
use core::sync::atomic::Ordering::Relaxed;

use super::index::Entry;
use super::{DENIED, Object, PageCounts, mapping};
use crate::addr::Pfn;
use crate::platform::{Platform, SpaceId};

/// A node of an object's index.
pub(crate) struct IndexNode {
    /// The node's frame.
    pub(crate) at: Pfn,
    /// The number of entries in use, as the node's descriptor counts them.
    pub(crate) counted: u32,
    /// The number of entries in use, as found in the node.
    pub(crate) found: u32,
}

/// The state of a page with respect to the host's storage. A page that stays in memory while it is
/// dirty is neither.
#[derive(Clone, Copy, Default)]
pub(crate) struct PageState {
    /// The page differs from the storage.
    pub(crate) is_dirty: bool,
    /// The page is being written to the storage.
    pub(crate) is_writing: bool,
}

/// The location of a page of an object.
#[derive(Clone, Copy)]
pub(crate) enum PageLocation {
    /// The page is in memory.
    Memory {
        /// The page's first frame.
        pfn: Pfn,
        /// True if the descriptor of the page's folio names this object and page (INV-16).
        is_named: bool,
        /// The page with respect to the storage.
        state: PageState,
    },
    /// The page is on a swap device.
    Swap {
        /// The number of the device.
        device: u8,
        /// The page's first slot.
        slot: u32,
    },
}

impl PageCounts {
    /// Counts those of `pages` that an object has (Linux: `cachestat`). Takes the object's lock for
    /// one node of the index at a time, so pages that come or go meanwhile count or not.
    pub fn of<P: Platform>(object: &Object<'_, P>, pages: Range<u64>) -> Self {
        let (mut counts, mut from) = (PageCounts::default(), pages.start);
        let mut add = |page: u64, entry: Entry, state: PageState| {
            if page < pages.end {
                let is_resident = entry.frame().is_some();
                counts.resident += u64::from(is_resident);
                counts.swapped += u64::from(!is_resident);
                counts.dirty += u64::from(state.is_dirty);
                counts.writing += u64::from(state.is_writing);
            }
        };
        while from < pages.end {
            let next = object.lock().index.survey(object.machine.frames(), from, &mut |_| (), &mut add);
            let Some(next) = next else { break };
            from = next;
            object.machine.platform().resched();
        }
        counts
    }
}

/// The view of an object for an audit, which compares the object's counts with its own.
pub(crate) struct ObjectSurvey<'o, 'm, P: Platform>(&'o Object<'m, P>);

impl<'m, P: Platform> Object<'m, P> {
    /// Returns the audit's view of the object.
    pub(crate) fn survey(&self) -> ObjectSurvey<'_, 'm, P> {
        ObjectSurvey(self)
    }
}

impl<P: Platform> ObjectSurvey<'_, '_, P> {
    /// Returns the frame of the object's head.
    pub(crate) fn frame(&self) -> Pfn {
        self.0.at
    }

    /// Calls `node` for each node of the index and `page` for each page. The object's lock is held
    /// while one node is visited, so the callbacks must not sleep. It is released between two
    /// nodes, where `resched` is called (INV-11).
    pub(crate) fn walk(&self, node: &mut dyn FnMut(IndexNode), page: &mut dyn FnMut(PageLocation)) {
        let frames = self.0.machine.frames();
        let shift = self.0.head().page_order;
        let mut from = Some(0);
        while let Some(first) = from {
            let mut report_page = |number: u64, entry: Entry, state: PageState| match entry {
                Entry::Swapped { device, slot } => page(PageLocation::Swap { device, slot }),
                Entry::Resident(pfn) | Entry::Writeback(pfn) | Entry::Reading(pfn) => {
                    let (head, frame) = frames.head(pfn);
                    let folio_start = number.wrapping_sub(u64::from(pfn.0 - head.0) >> shift);
                    // The descriptor has only the low 32 bits of the page number.
                    let is_same_page = (folio_start ^ mapping::folio_index(frame.data())) as u32 == 0;
                    let is_named = is_same_page && self.0.owns(frame);
                    let state = if self.0.head().writes_to_store() { state } else { PageState::default() };
                    page(PageLocation::Memory { pfn, is_named, state });
                }
            };
            from = self.0.lock().index.survey(frames, first, node, &mut report_page);
            self.0.machine.platform().resched();
        }
    }

    /// Returns the number of a space's VMAs that map the object, as the list of mappers counts
    /// them.
    pub(crate) fn vma_count_in(&self, space: SpaceId) -> u64 {
        self.0.next_mapping(space).filter(|mapper| mapper.space == space).map_or(0, |mapper| mapper.vmas)
    }

    /// Returns the number of all VMAs that map the object, as the list of mappers counts them.
    pub(crate) fn vma_count(&self) -> u64 {
        let (mut vmas, mut from) = (0, SpaceId(0));
        while let Some(mapper) = self.0.next_mapping(from) {
            (vmas, from) = (vmas + mapper.vmas, SpaceId(mapper.space.0 + 1));
            self.0.machine.platform().resched();
        }
        vmas
    }

    /// Returns the number of writable shared VMAs, as the object counts them.
    pub(crate) fn writers(&self) -> u64 {
        self.0.head().writers.load(Relaxed) & !DENIED
    }

    /// Returns the number of references of VMAs and handles, this handle included.
    pub(crate) fn references(&self) -> u64 {
        self.0.head().refs.load(Relaxed)
    }

    /// Returns the number of frames for the object's head and the list of its mappers, without its
    /// index and pages.
    pub(crate) fn own_frames(&self) -> u64 {
        let mut state = self.0.lock();
        1 + state.reserved.frames() + state.mappers.extra_frames(self.0.machine.frames())
    }
}
