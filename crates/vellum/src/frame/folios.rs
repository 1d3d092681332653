//! The folios that frames in a row belong to.

use super::{Frame, Frames};
use crate::addr::Pfn;
use crate::platform::Platform;

/// See [`Frames::folios`].
pub(crate) struct Folios<'f, 'p, P: Platform> {
    frames: &'f Frames<'p, P>,
    at: Pfn,
    left: u32,
    /// Descriptors that stand in one piece, and where among them that of `at` is; perhaps behind them.
    row: &'p [Frame],
    index: usize,
    /// Of the last one: the order, and what that is in frames.
    order: u8,
    size: u32,
}

impl<'p, P: Platform> Frames<'p, P> {
    /// The folios that frames in a row belong to, in order: of each the head, its descriptor, and how many of the frames are
    /// its. All of them are folios' and stay so meanwhile, but for those that were shown.
    #[inline(always)]
    pub(crate) fn folios(&self, pfn: Pfn, count: u32) -> Folios<'_, 'p, P> {
        Folios { frames: self, at: pfn, left: count, row: &[], index: 0, order: 0, size: 1 }
    }
}

/// Out of line, so that a processor goes on to the next folio without having waited for what this one says of its size.
#[cold]
#[inline(never)]
fn size_of(order: u8) -> u32 {
    1 << order
}

impl<'p, P: Platform> Folios<'_, 'p, P> {
    /// Of the one that the first frame is only a part of.
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
        let frame = match self.row.get(self.index) {
            Some(frame) => frame,
            None => {
                (self.row, self.index) = (self.frames.stretch(self.at, self.left), 0);
                self.row.first()?
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
