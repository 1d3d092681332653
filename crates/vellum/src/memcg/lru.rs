//! The LRU lists and the deferred-split queues, as reclaim and faults use them: each method takes
//! the lock of the lruvec that has the folio.

use super::isolate::Isolator;
use super::lruvec::{IsolateLimit, ListSize, PerCpuLruvec};
use super::{LruList, LruvecId, MemcgId, Memcgs};
use crate::addr::Pfn;
use crate::frame::{Frame, Frames, HUGE_ORDER, flag};
use crate::platform::Platform;

/// A view of the lruvecs of all memcgs: their LRU lists and deferred-split queues.
pub(crate) struct Lru<'a, 'p, P: Platform> {
    memcgs: &'a Memcgs<'p>,
    frames: &'a Frames<'p, P>,
}

impl<P: Platform> Clone for Lru<'_, '_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for Lru<'_, '_, P> {}

impl<'p> Memcgs<'p> {
    /// Returns the view of the lruvecs of all memcgs.
    #[inline]
    pub(crate) fn lru<'a, P: Platform>(&'a self, frames: &'a Frames<'p, P>) -> Lru<'a, 'p, P> {
        Lru { memcgs: self, frames }
    }
}

impl<'a, 'p, P: Platform> Lru<'a, 'p, P> {
    /// Isolates folios from the old end of a lruvec's list: see `Lruvec::isolate`. Takes the
    /// lruvec's lock. Returns the number of pages isolated.
    pub(crate) fn isolate(
        self,
        lruvec: LruvecId,
        list: LruList,
        limit: IsolateLimit,
        take: impl FnMut(Pfn, &'p Frame, u32) -> bool,
    ) -> u64 {
        let isolate = |at: &PerCpuLruvec| at.lock(self.frames.platform()).isolate(self.frames, list, limit, take);
        self.memcgs.with_lruvec(self.frames, lruvec, isolate).unwrap_or(0)
    }

    /// Returns a value that isolates folios one after the other, and holds no lock yet.
    pub(crate) fn isolator(self) -> Isolator<'a, 'p, P> {
        Isolator::new(self.frames, self.memcgs)
    }

    /// Isolates the anonymous folio whose first frame is `pfn`, if it is on a list from which
    /// folios are reclaimed: removes it from the list and takes a reference. The frame may be any
    /// frame: the caller has no reference, and found no PTE that maps it. Takes the lruvec's lock.
    /// Returns the folio's descriptor and its number of pages; `None` if it is no such folio, or is
    /// larger than 2 MiB.
    ///
    /// A descriptor names a list only as long as the folio is on that list. So the word that was
    /// read without a lock names the lock under which the same word is proof.
    pub(crate) fn isolate_at(self, pfn: Pfn) -> Option<(&'p Frame, u32)> {
        let frame = self.frames.get(pfn)?;
        let packed = frame.lruvec();
        LruList::unpack(packed).filter(|list| matches!(list, LruList::Anon | LruList::Lazyfree))?;
        let isolate = |at: &PerCpuLruvec| {
            let mut lists = at.lock(self.frames.platform());
            if frame.lruvec() != packed {
                return None;
            }
            let state = frame.state();
            let isolates = state.order() <= HUGE_ORDER && !state.has(flag::OBJECT);
            if !isolates || !self.frames.try_get(pfn, frame, 1, 0) {
                return None;
            }
            lists.remove(self.frames, (pfn, frame), packed)?;
            Some((frame, 1 << state.order()))
        };
        self.memcgs.with_lruvec(self.frames, LruvecId::unpack(packed), isolate).flatten()
    }

    /// Moves a folio to the young end of the list `to`, if it is on the list `from`. `from` is
    /// `None` if the caller has isolated the folio, and now puts it back. The caller has a
    /// reference. Takes the lruvec's lock.
    ///
    /// With a list `from`, a folio that another CPU has isolated is on no list and is not moved:
    /// that CPU puts it on the list where it belongs by then ([`LruList::evictable`]).
    pub(crate) fn relist(self, pfn: Pfn, from: Option<LruList>, to: LruList) {
        let frame = self.frames.frame(pfn);
        let mut lists = self.memcgs.lruvec(LruvecId::unpack(frame.lruvec())).lock(self.frames.platform());
        if LruList::of(frame) == from {
            lists.relist(self.frames, pfn, to);
        }
    }

    /// Returns the number of pages on a lruvec's list. Takes the lruvec's lock.
    pub(crate) fn list_pages(self, lruvec: LruvecId, list: LruList) -> u64 {
        let pages = |at: &PerCpuLruvec| at.lock(self.frames.platform()).pages()[list as usize];
        self.memcgs.with_lruvec(self.frames, lruvec, pages).unwrap_or(0)
    }

    /// Passes each LRU list of a memcg's own lruvecs to `visit`: the list, its counted size, and
    /// its folios, the oldest first. Holds the lruvec's lock while `visit` runs.
    pub(crate) fn each_list(
        self,
        id: MemcgId,
        mut visit: impl FnMut(LruList, ListSize, &mut dyn Iterator<Item = (Pfn, &'p Frame)>),
    ) {
        self.memcgs.each_used_lruvec(self.frames, id, |lruvec| {
            let lists = lruvec.lock(self.frames.platform());
            for list in LruList::ALL {
                let (counted, mut listed) = lists.listed(self.frames, list);
                visit(list, counted, &mut listed);
            }
        });
    }

    /// Returns the lruvecs of a memcg and its descendants that have memory of `node`, or, without a
    /// node, all of them.
    pub(crate) fn lruvecs_on(self, id: MemcgId, node: Option<usize>) -> impl Iterator<Item = LruvecId> {
        self.memcgs
            .descendants(id)
            .flat_map(move |memcg| self.frames.lruvecs_on(node).map(move |index| LruvecId { memcg, index }))
    }

    /// Takes up to `folios` folios off the old end of a lruvec's deferred-split queue (Linux:
    /// `deferred_split_scan`). Takes a reference to each, and passes its head to `take`. Takes the
    /// lruvec's lock.
    pub(crate) fn take_deferred(self, lruvec: LruvecId, folios: usize, mut take: impl FnMut(Pfn, &'p Frame)) {
        self.memcgs.with_lruvec(self.frames, lruvec, |at| {
            let mut lists = at.lock(self.frames.platform());
            let mut left = folios;
            for (tail, _) in lists.deferred.iter_rev(self.frames) {
                if left == 0 {
                    break;
                }
                let head = Pfn(tail.0 - 1);
                let frame = self.frames.frame(head);
                // The CPU that dropped a folio's last reference removes it from the queue. A CPU
                // that has isolated a folio relies on being the only one that can find it, so an
                // isolated folio is skipped as well.
                if LruvecId::is_listed(frame.lruvec()) && self.frames.try_get(head, frame, 1, 0) {
                    lists.deferred.remove(self.frames, tail);
                    frame.clear_flag(flag::PARTIALLY_MAPPED);
                    take(head, frame);
                    left -= 1;
                }
            }
        });
    }

    /// Isolates a folio: removes it from its LRU list. Takes no reference: the caller's reference
    /// becomes that of the isolation. Takes the lruvec's lock. Returns whether the folio was on a
    /// list; if not, another CPU has isolated it.
    pub(crate) fn isolate_folio(self, head: Pfn) -> bool {
        let frame = self.frames.frame(head);
        let mut lists = self.memcgs.lruvec(LruvecId::unpack(frame.lruvec())).lock(self.frames.platform());
        lists.remove(self.frames, (head, frame), frame.lruvec()).is_some()
    }

    /// Queues a folio to be split if it is partially mapped, and not queued already. Callers use
    /// this after they mapped only a part of a folio, or failed to split one. The caller has a
    /// reference. Takes the lruvec's lock. Returns whether the folio was queued now and not before.
    pub(crate) fn defer_if_partial(self, head: Pfn) -> bool {
        let frame = self.frames.frame(head);
        let mut lists = self.memcgs.lruvec(LruvecId::unpack(frame.lruvec())).lock(self.frames.platform());
        let maps = frame.counts().maps;
        let new = maps != 0 && maps < 1 << frame.order() && !frame.set_flag(flag::PARTIALLY_MAPPED);
        if new {
            lists.deferred.push(self.frames, head.add(1), self.frames.frame(head.add(1)));
        }
        new
    }

    /// Returns the number of folios on a lruvec's deferred-split queue. Takes the lruvec's lock.
    pub(crate) fn deferred(self, lruvec: LruvecId) -> u32 {
        self.memcgs.with_lruvec(self.frames, lruvec, |at| at.lock(self.frames.platform()).deferred.len()).unwrap_or(0)
    }
}
