//! Audits the descriptors of all frames, the LRU lists, and the swap cache.

use super::discrepancy::{Discrepancy, Quantity};
use super::{Audit, each_block};
use crate::frame::{FrameKind, flag};
use crate::memcg::LruList;
use crate::page_cache::belongs_to_object;
use crate::platform::Platform;

impl<P: Platform> Audit<'_, '_, P> {
    /// Compares the mapcount in each folio's descriptor with the number of PTEs that the audit
    /// found for the folio. Compares the numbers of free frames, page tables and partially mapped
    /// folios with the engine's counts.
    pub(super) fn check_frames(&mut self) {
        let (machine, mut free, mut tables, mut partial, mut huge) = (self.machine, 0, 0, 0, 0);
        each_block(machine, |pfn, frame, state| match state.kind() {
            FrameKind::Free | FrameKind::Cached => free += 1 << state.order(),
            FrameKind::Table => tables += 1 << state.order(),
            FrameKind::Folio if !state.has(flag::ZERO_FOLIO) => {
                let (counted, found) = (frame.counts().maps, self.count_of(pfn));
                self.compare(Quantity::Mappings(pfn), counted.into(), found.into());
                match state.has(flag::HUGETLB) {
                    true => huge += 1,
                    false => self.sums.folios += 1 << state.order(),
                }
                partial += u64::from(state.has(flag::PARTIALLY_MAPPED));
            }
            FrameKind::Tail => (self.report)(Discrepancy::StrayFrame { pfn, kind: state.kind() }),
            FrameKind::Folio | FrameKind::Private | FrameKind::Reserved => {}
        });
        let frames = machine.frames();
        self.compare(Quantity::FreeFrames, frames.free_frames(), free);
        self.compare(Quantity::PageTables, self.sums.tables, tables);
        let pool = machine.huge_pool().counts();
        self.compare(Quantity::HugePagesInUse, pool.total - pool.free, huge);
        let deferred = |id| machine.memcgs().usage(frames, id).map_or(0, |usage| usage.deferred);
        let deferred = machine.memcgs().all().map(deferred).sum();
        self.compare(Quantity::PartiallyMapped, deferred, partial);
    }

    /// Compares each folio's refcount with its mappings plus the entries of page-cache objects'
    /// indexes that name its pages; the audit has counted both before (INV-2). Adds up the
    /// references beyond these, which are pins.
    pub(super) fn check_references(&mut self) {
        each_block(self.machine, |pfn, frame, state| {
            if state.kind() != FrameKind::Folio || state.has(flag::ZERO_FOLIO) {
                return;
            }
            let (counts, maps) = (frame.counts(), self.count_of(pfn));
            if counts.refs == 0 || counts.refs < maps {
                (self.report)(Discrepancy::TooFewReferences { pfn, refs: counts.refs, maps });
            }
            self.sums.pinned += u64::from(counts.refs.saturating_sub(maps));
            if belongs_to_object(frame) && maps <= counts.maps {
                (self.report)(Discrepancy::WrongObject { pfn });
            }
        });
    }

    /// Walks each LRU list. Compares the number of folios and pages on it with the list's own
    /// counts, and the pages on all lists with the pages of folios in use (INV-9).
    pub(super) fn check_lists(&mut self) {
        let (frames, memcgs, mut sum) = (self.machine.frames(), self.machine.memcgs(), 0);
        for id in memcgs.all() {
            memcgs.lru(frames).each_list(id, |list, counted, listed| {
                let (mut pages, mut folios) = (0, 0);
                for (pfn, frame) in listed {
                    let is_listed_here = frames.kind_at(pfn) == FrameKind::Folio && LruList::of(frame) == Some(list);
                    if !is_listed_here || folios > counted.folios {
                        (self.report)(Discrepancy::WrongList { pfn, list });
                        break;
                    }
                    (pages, folios) = (pages + (1 << frame.order()), folios + 1);
                }
                for (counted, found) in [(counted.pages, pages), (counted.folios, folios)] {
                    if counted != found {
                        (self.report)(Discrepancy::Differs { what: Quantity::LruList(id, list), counted, found });
                    }
                }
                sum += pages;
            });
        }
        self.compare(Quantity::LruPages, self.sums.folios, sum);
    }

    /// Compares the number of pages in the swap cache with the swap devices' counts of such pages.
    /// Checks that the folio of each of these pages is in use and marked as having swap-cache
    /// pages.
    pub(super) fn check_swap_cache(&mut self) {
        let (frames, swaps) = (self.machine.frames(), self.machine.swaps());
        let mut found = 0;
        swaps.each_cached_page(frames, |pfn| {
            found += 1;
            let (head, frame) = frames.head(pfn);
            if frames.kind_at(head) != FrameKind::Folio || !frame.has(flag::SWAP_CACHED) || frame.counts().refs == 0 {
                (self.report)(Discrepancy::NotSwapCached { pfn });
            }
        });
        let cached = (0..crate::swap::MAX_SWAP_DEVICES as u8).filter_map(|id| swaps.usage(frames.platform(), id));
        self.compare(Quantity::SwapCache, cached.map(|usage| u64::from(usage.cached)).sum(), found);
    }
}
