//! Moves folios to an end of an LRU list, in batches.
//!
//! Folios that one call of `madvise` moves were mostly faulted in one after the other, so they are
//! neighbours on the list of one lruvec. A [`ListMove`] collects folios without a lock. Then it
//! takes the lruvec's lock once, and moves a stretch of neighbours with writes at its two ends
//! only.

use core::mem;

use arrayvec::ArrayVec;

use super::lruvec::{Lruvec, LruvecId};
use super::{LruList, Memcgs};
use crate::addr::Pfn;
use crate::frame::{Cut, Frames, ListEnd, flag};
use crate::platform::Platform;
use crate::sync::SpinGuard;

/// The maximum number of ranges of frames that are collected.
const RANGES: usize = 64;

/// A move of folios from one LRU list to an end of another list of the same lruvec, or of the same
/// list. Folios that move to the list of lazyfree folios become lazyfree.
pub(crate) struct ListMove {
    from: LruList,
    to: LruList,
    end: ListEnd,
    /// The pages of the folios that were marked lazyfree.
    lazyfree: u64,
    /// The frames of the collected folios: the first frame and the number of frames.
    folios: ArrayVec<(Pfn, u32), RANGES>,
}

impl ListMove {
    /// Makes a move without folios.
    pub(crate) fn new(from: LruList, to: LruList, end: ListEnd) -> Self {
        ListMove { from, to, end, lazyfree: 0, folios: ArrayVec::new() }
    }

    /// Adds the folios of `count` contiguous frames, all of which the caller has references to
    /// until [`ListMove::finish`]. The caller adds no folio twice. If there is no room for another
    /// range, moves the folios before it.
    #[inline]
    pub(crate) fn add<P: Platform>(&mut self, memcgs: &Memcgs<'_>, frames: &Frames<'_, P>, first: Pfn, count: u32) {
        match self.folios.last_mut() {
            Some((pfn, len)) if pfn.add(*len) == first => *len += count,
            _ => {
                if self.folios.is_full() {
                    self.finish(memcgs, frames);
                }
                self.folios.push((first, count));
            }
        }
    }

    /// Moves the folios that are on the list `from`. A folio that another CPU has isolated is on no
    /// list and is not moved: that CPU puts it on the list where it belongs by then
    /// ([`LruList::evictable`]). Takes the lock of each lruvec.
    pub(crate) fn finish<P: Platform>(&mut self, memcgs: &Memcgs<'_>, frames: &Frames<'_, P>) {
        let (ends, to_lazyfree) = ([self.from, self.to], self.to == LruList::Lazyfree);
        let mut locked: Option<(LruvecId, SpinGuard<'_, Lruvec, P>)> = None;
        let (mut cut, mut cut_pages) = (Cut::default(), 0);
        for (first, count) in self.folios.drain(..) {
            for (head, frame, pages) in frames.folios(first, count) {
                if to_lazyfree && !frame.set_flag(flag::LAZYFREE) {
                    self.lazyfree += u64::from(pages);
                }
                let lruvec = LruvecId::unpack(frame.lruvec());
                if let Some((last, lists)) = &mut locked
                    && *last != lruvec
                {
                    lists.relist_all(frames, &mem::take(&mut cut), ends, self.end, mem::take(&mut cut_pages));
                    locked = None;
                }
                let (_, lists) = locked.get_or_insert_with(|| (lruvec, memcgs.lruvec(lruvec).lock(frames.platform())));
                if frame.lruvec() != lruvec.pack(Some(self.from)) {
                    continue;
                }
                if !cut.extend(head, frame) {
                    lists.relist_all(frames, &cut, ends, self.end, mem::take(&mut cut_pages));
                    cut = Cut::one(head, frame);
                }
                cut_pages += pages;
                frame.set_lruvec(lruvec.pack(Some(self.to)));
            }
        }
        if let Some((_, lists)) = &mut locked {
            lists.relist_all(frames, &cut, ends, self.end, cut_pages);
        }
    }

    /// Returns the number of pages of the folios that the move marked lazyfree.
    pub(crate) fn new_lazyfree_pages(&self) -> u64 {
        self.lazyfree
    }
}
