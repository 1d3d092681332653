//! The folios that frames in a row belong to.

use super::{Frame, Frames};
use crate::addr::Pfn;
use crate::platform::Platform;

/// See [`Frames::folios`].
pub(crate) struct Folios<'f, 'p, P: Platform> {
    frames: &'f Frames<'p, P>,
    at: Pfn,
    left: u32,
    /// Descriptors from `at` on that stand in one piece; not all there are.
    here: &'p [Frame],
}

impl<'p, P: Platform> Frames<'p, P> {
    /// The folios that frames in a row belong to, in order: of each the head, its descriptor, and how many of the frames are
    /// its. All of them are folios' and stay so meanwhile, but for those that were shown.
    #[inline(always)]
    pub(crate) fn folios(&self, pfn: Pfn, count: u32) -> Folios<'_, 'p, P> {
        Folios { frames: self, at: pfn, left: count, here: &[] }
    }
}

impl<'p, P: Platform> Iterator for Folios<'_, 'p, P> {
    type Item = (Pfn, &'p Frame, u32);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        if self.here.is_empty() {
            self.here = self.frames.stretch(self.at, self.left);
        }
        let frame = self.here.first()?;
        let (at, order) = (self.at, frame.order());
        let skip = at.0 & ((1 << order) - 1);
        let pages = ((1 << order) - skip).min(self.left);
        let (head, frame) = if skip == 0 { (at, frame) } else { self.frames.head(at) };
        self.here = self.here.get(pages as usize..).unwrap_or_default();
        (self.at, self.left) = (at.add(pages), self.left - pages);
        Some((head, frame, pages))
    }
}
