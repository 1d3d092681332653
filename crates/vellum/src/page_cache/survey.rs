//! What an audit looks at: an object's index, node by node, and the spaces that map it.

use core::sync::atomic::Ordering::Relaxed;

use super::index::Page;
use super::{DENIED, Object, owner};
use crate::addr::Pfn;
use crate::platform::{Platform, SpaceId};

/// A node of an object's index.
pub(crate) struct Node {
    /// Its frame.
    pub(crate) at: Pfn,
    /// The entries that its descriptor counts.
    pub(crate) counted: u32,
    /// The entries that it has.
    pub(crate) found: u32,
}

/// Where a page of an object is.
#[derive(Clone, Copy)]
pub(crate) enum There {
    /// In memory: its first frame, and whether that frame's folio names the object and the page.
    Memory(Pfn, bool),
    /// On a swap device: which, and its first slot.
    Swap(u8, u32),
}

impl<P: Platform> Object<'_, P> {
    /// Returns the frame that the object begins in.
    pub(crate) fn frame(&self) -> Pfn {
        self.at
    }

    /// Shows the nodes of the index, and the pages. The object's lock is held while those of one
    /// node are shown, and given back in between.
    pub(crate) fn survey(&self, node: &mut dyn FnMut(Node), page: &mut dyn FnMut(There)) {
        let frames = self.machine.frames();
        let shift = self.head().page_order;
        let mut from = Some(0);
        while let Some(first) = from {
            let mut show_page = |number: u64, there: Page| match there {
                Page::Away(device, slot) => page(There::Swap(device, slot)),
                Page::Here(pfn) | Page::Held(pfn) => {
                    let (head, frame) = frames.head(pfn);
                    let begin = number.wrapping_sub(u64::from(pfn.0 - head.0) >> shift);
                    let same = (begin ^ owner::page_of(frame.data())) as u32 == 0;
                    page(There::Memory(pfn, same && self.is_of(frame)));
                }
            };
            let mut show_node = |at, counted, found| node(Node { at, counted, found });
            from = self.lock().index.survey(frames, first, &mut show_node, &mut show_page);
            self.machine.platform().resched();
        }
    }

    /// Returns how many VMAs of a space map the object, by its own account.
    pub(crate) fn vmas_of(&self, space: SpaceId) -> u64 {
        self.next_mapping(space).filter(|(found, _)| *found == space).map_or(0, |(_, vmas)| vmas)
    }

    /// Returns how many VMAs map the object, by its own account.
    pub(crate) fn vmas(&self) -> u64 {
        let (mut vmas, mut from) = (0, SpaceId(0));
        while let Some((space, of)) = self.next_mapping(from) {
            (vmas, from) = (vmas + of, SpaceId(space.0 + 1));
            self.machine.platform().resched();
        }
        vmas
    }

    /// Returns how many of these VMAs are shared and may write, by its own account.
    pub(crate) fn writers(&self) -> u64 {
        self.head().writers.load(Relaxed) & !DENIED
    }

    /// Returns how many references there are, VMAs and handles together, this handle included.
    pub(crate) fn references(&self) -> u64 {
        self.head().refs.load(Relaxed)
    }

    /// Returns how many frames the object has beside its index and its pages: its head, and rows of
    /// mappers.
    pub(crate) fn own_frames(&self) -> u64 {
        1 + self.lock().mappers.rows(self.machine.frames())
    }
}
