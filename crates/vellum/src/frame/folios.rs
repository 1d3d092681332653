//! Iterates over the folios of a contiguous range of frames.

use super::{Frame, FrameState, Frames, prefetch};
use crate::addr::Pfn;
use crate::platform::Platform;

/// The distance, in folios, to the folio whose descriptor is prefetched.
const PREFETCH_AHEAD: u32 = 16;

/// The iterator that [`Frames::folios`] returns.
pub(crate) struct Folios<'f, 'p, P: Platform> {
    /// The machine's frames.
    frames: &'f Frames<'p, P>,
    /// The next frame.
    at: Pfn,
    /// The number of frames that are left.
    left: u32,
    /// The descriptors of some frames of the range, up to the end of a section.
    descriptors: &'p [Frame],
    /// The index in `descriptors` of the descriptor of `at`; at or beyond the end, the next
    /// section's descriptors must be looked up.
    index: usize,
    /// The order of the previous folio.
    order: u8,
    /// The size of the previous folio in frames.
    size: u32,
}

impl<'p, P: Platform> Frames<'p, P> {
    /// Iterates over the folios of `count` contiguous frames, in ascending order. Each item is the
    /// folio's head, the head's descriptor, and the number of the frames in the range that belong
    /// to the folio.
    ///
    /// All the frames belong to folios, which the caller keeps from being freed until the iterator
    /// has passed them.
    #[inline(always)]
    pub(crate) fn folios(&self, pfn: Pfn, count: u32) -> Folios<'_, 'p, P> {
        Folios { frames: self, at: pfn, left: count, descriptors: &[], index: 0, order: 0, size: 1 }
    }
}

/// Returns the size in frames of a folio of this order. Out of line, so that the caller branches on
/// a changed order instead of computing the size from each descriptor. The processor predicts that
/// the order stays the same, and goes on to the next folio before the load of this folio's order
/// has completed.
#[cold]
#[inline(never)]
fn size_of(order: u8) -> u32 {
    1 << order
}

impl<'p, P: Platform> Folios<'_, 'p, P> {
    /// Returns the number of frames that the iterator has not passed yet.
    #[inline]
    pub(crate) fn left(&self) -> u32 {
        self.left
    }

    /// Passes whole folios to `f`, from the next one on, at most `most`, as long as they are alike,
    /// which is that the state words of their heads are equal, and `f` returns true. The iterator
    /// then is at the folio that differs, or for which `f` returned false. `f` gets the state, the
    /// head, the head's descriptor, and the folio's size in frames. Returns the number of folios
    /// for which `f` returned true.
    ///
    /// A short loop, with what depends on the state outside. The descriptors of the next folios
    /// are prefetched: hardware recognises ascending descriptors, but begins anew in each page of
    /// them. Those beyond the range are not prefetched, because another CPU may be writing to them.
    #[inline(always)]
    pub(crate) fn while_alike(&mut self, most: u32, mut f: impl FnMut(FrameState, Pfn, &'p Frame, u32) -> bool) -> u32 {
        if self.index >= self.descriptors.len() && self.left != 0 {
            (self.descriptors, self.index) = (self.frames.descriptors(self.at, self.left), 0);
        }
        let here = self.descriptors.get(self.index..).unwrap_or_default();
        let Some(first) = here.first() else { return 0 };
        let state = first.state();
        let size = 1u32 << state.order();
        if self.at.0 & (size - 1) != 0 {
            return 0;
        }
        let (mut head, before) = (self.at, self.left);
        for folio in here.chunks_exact(size as usize).take(most as usize) {
            let frame = &folio[0];
            if (head.0 - self.at.0 + PREFETCH_AHEAD * size) < before {
                prefetch(core::ptr::from_ref(frame).wrapping_add((PREFETCH_AHEAD * size) as usize));
            }
            if frame.state() != state || !f(state, head, frame, size) {
                break;
            }
            head = head.add(size);
        }
        let done = head.0 - self.at.0;
        self.index += done as usize;
        (self.at, self.left) = (head, before - done);
        done / size
    }

    /// Returns the head of the first folio of the range, if the range begins inside that folio.
    #[cold]
    fn head(&self) -> (Pfn, &'p Frame) {
        self.frames.head(self.at)
    }
}

impl<'p, P: Platform> Iterator for Folios<'_, 'p, P> {
    type Item = (Pfn, &'p Frame, u32);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let frame = match self.descriptors.get(self.index) {
            Some(frame) => frame,
            None => {
                (self.descriptors, self.index) = (self.frames.descriptors(self.at, self.left), 0);
                self.descriptors.first()?
            }
        };
        if frame.order() != self.order {
            self.order = frame.order();
            self.size = size_of(self.order);
        }
        let (at, skip) = (self.at, self.at.0 & (self.size - 1));
        let pages = (self.size - skip).min(self.left);
        let (head, frame) = if skip == 0 { (at, frame) } else { self.head() };
        self.index += pages as usize;
        (self.at, self.left) = (at.add(pages), self.left - pages);
        Some((head, frame, pages))
    }
}
