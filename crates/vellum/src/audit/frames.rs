//! Audits the descriptors of all frames, the LRU lists, and the swap cache.

use super::discrepancy::{Discrepancy, Quantity};
use super::{Audit, each_block};
use crate::frame::{FrameKind, flag};
use crate::memcg::LruList;
use crate::page_cache::belongs_to_object;
use crate::platform::Platform;

impl<P: Platform> Audit<'_, '_, P> {
    /// Compares the mappings in each folio's descriptor with the PTEs that were found, and the
    /// numbers of free frames, page tables and partially mapped folios with the engine's counts.
    pub(super) fn check_frames(&mut self) {
        let (machine, mut free, mut tables, mut partial) = (self.machine, 0, 0, 0);
        each_block(machine, |pfn, frame, state| match state.kind() {
            FrameKind::Free | FrameKind::Cached => free += 1 << state.order(),
            FrameKind::Table => tables += 1 << state.order(),
            FrameKind::Folio if !state.has(flag::ZERO_FOLIO) => {
                let (counted, found) = (frame.counts().maps, self.count_of(pfn));
                self.compare(Quantity::Mappings(pfn), counted.into(), found.into());
                self.sums.folios += 1 << state.order();
                partial += u64::from(state.has(flag::PARTIALLY_MAPPED));
            }
            FrameKind::Tail => (self.report)(Discrepancy::StrayFrame { pfn, kind: state.kind() }),
            FrameKind::Folio | FrameKind::Private | FrameKind::Reserved => {}
        });
        let frames = machine.frames();
        self.compare(Quantity::FreeFrames, frames.free_frames(), free);
        self.compare(Quantity::PageTables, self.sums.tables, tables);
        let deferred = |id| machine.memcgs().usage(frames, id).map_or(0, |usage| usage.deferred);
        let deferred = machine.memcgs().all().map(deferred).sum();
        self.compare(Quantity::PartiallyMapped, deferred, partial);
    }

    /// Compares the references of each folio with its mappings and the pages of objects that it is,
    /// which the audit has counted before (INV-2). Sums up the pins.
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

    /// Follows each LRU list, and compares the folios on them with the lists' own counts and with
    /// the folios in use (INV-9).
    pub(super) fn check_lists(&mut self) {
        let (frames, memcgs, mut sum) = (self.machine.frames(), self.machine.memcgs(), 0);
        for id in memcgs.all() {
            memcgs.each_list(frames, id, |list, counted, listed| {
                let (mut pages, mut folios) = (0, 0);
                for (pfn, frame) in listed {
                    let is_listed_here = frame.kind() == FrameKind::Folio && LruList::of(frame) == Some(list);
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

    /// Compares the number of pages that the swap cache names with the devices' counts of them, and
    /// checks that each of these pages is in a folio with swap-cache pages.
    pub(super) fn check_swap_cache(&mut self) {
        let (frames, swaps) = (self.machine.frames(), self.machine.swaps());
        let mut found = 0;
        swaps.each_cached_page(frames, |pfn| {
            found += 1;
            let (_, frame) = frames.head(pfn);
            if frame.kind() != FrameKind::Folio || !frame.has(flag::SWAP_CACHED) || frame.counts().refs == 0 {
                (self.report)(Discrepancy::NotSwapCached { pfn });
            }
        });
        let cached = (0..crate::swap::MAX_SWAP_DEVICES as u8).filter_map(|id| swaps.usage(frames.platform(), id));
        self.compare(Quantity::SwapCache, cached.map(|usage| u64::from(usage.cached)).sum(), found);
    }
}
