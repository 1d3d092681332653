//! Finds the pages that a fault maps at once (Linux: `filemap_map_pages`).

use core::ops::Range;

use arrayvec::ArrayVec;

use super::fill::FolioLimits;
use super::index::Entry;
use super::read::Hints;
use super::{LockedState, Object, ObjectError};
use crate::addr::Pfn;
use crate::frame::TooManyReferences;
use crate::memcg::MemcgId;
use crate::platform::Platform;

/// Log2 of the number of pages around the accessed one that a fault maps with it, wherever their
/// frames lie (Linux: `fault_around_bytes`, 64 KiB).
pub(crate) const AROUND_ORDER: u8 = 4;
/// The largest number of runs of frames that a fault maps: each has a page around the accessed one.
const MAX_RUNS: usize = 1 << AROUND_ORDER;

/// Contiguous frames of one or more pages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FrameRun {
    /// The first frame.
    pub(crate) pfn: Pfn,
    /// The number of pages.
    pub(crate) pages: u32,
}

/// Contiguous pages of an object, each with a reference and a mapping for the caller.
#[must_use = "its references and mappings leak unless they are mapped or put back"]
#[derive(Debug)]
pub(crate) struct PagesToMap {
    /// The number of the first page in the object.
    pub(crate) first: u64,
    /// The frames of the pages, as long runs as there are.
    pub(crate) runs: ArrayVec<FrameRun, MAX_RUNS>,
}

impl PagesToMap {
    /// Returns the number of pages.
    pub(crate) fn count(&self) -> u32 {
        self.runs.iter().map(|run| run.pages).sum()
    }

    /// Adds pages that follow the last ones.
    fn push(&mut self, run: FrameRun, step: u32) {
        match self.runs.last_mut() {
            Some(last) if last.pfn.add(last.pages * step) == run.pfn => last.pages += run.pages,
            _ => self.runs.push(run),
        }
    }

    /// Drops the references and mappings that [`Object::pages_to_map`] took, for pages that the
    /// fault did not map.
    pub(crate) fn put_back<P: Platform>(&self, object: &Object<'_, P>) {
        self.runs.iter().for_each(|run| run.put_back(object));
    }
}

impl FrameRun {
    fn put_back<P: Platform>(self, object: &Object<'_, P>) {
        for (head, _, count) in object.machine.frames().folios(self.pfn, self.pages << object.page_order()) {
            object.machine.put_folio(head, count, count);
        }
    }

    /// Gets a reference and a mapping for each page.
    ///
    /// # Errors
    /// A folio has too many of them; the run has got none then.
    fn get<P: Platform>(self, object: &Object<'_, P>) -> Result<(), TooManyReferences> {
        let (frames, page_order) = (object.machine.frames(), object.page_order());
        let mut taken = 0;
        for (head, frame, count) in frames.folios(self.pfn, self.pages << page_order) {
            if let Err(error) = frames.get_counts_checked(head, frame, count, count) {
                FrameRun { pages: taken >> page_order, ..self }.put_back(object);
                return Err(error);
            }
            taken += count;
        }
        Ok(())
    }
}

impl<P: Platform> Object<'_, P> {
    /// Returns a page for a fault to map, with the neighbours that are in memory without a gap
    /// (Linux: fault-around), whatever their frames. All neighbours lie in `window`, and also in
    /// `around`, which has the page and at most 2^[`AROUND_ORDER`] pages, or in the page's own
    /// folio. If the page does not exist, inserts a zeroed folio, charged to `memcg`, as large as
    /// policy allows where a VMA has this advice; without `inserts` inserts nothing. Returns `None`
    /// if the page lies beyond the end of the object, or if it does not exist and is not inserted.
    ///
    /// # Errors
    /// As for [`Object::page_or_new`].
    pub(crate) fn pages_to_map(
        &self,
        page: u64,
        (window, around): (Range<u64>, Range<u64>),
        hints: Hints,
        memcg: MemcgId,
        inserts: bool,
    ) -> Result<Option<PagesToMap>, ObjectError> {
        let mut found = PagesToMap { first: page, runs: ArrayVec::new() };
        let limits = if inserts { FolioLimits::new(self, hints) } else { FolioLimits::of_existing(self, hints) };
        let got = self.with_page(page, memcg, true, limits, |state, pfn| {
            find_around(self, (page, pfn), (&window, &around), state, &mut found);
            // The descriptors of folios that lie apart are fetched side by side.
            found.runs.iter().skip(1).for_each(|run| self.machine.frames().prefetch(run.pfn));
            for (i, run) in found.runs.iter().enumerate() {
                if let Err(error) = run.get(self) {
                    found.runs[..i].iter().for_each(|run| run.put_back(self));
                    return Err(error);
                }
            }
            Ok(())
        })?;
        Ok(got.transpose()?.map(|()| found))
    }
}

/// Finds the pages that [`Object::pages_to_map`] returns.
fn find_around<P: Platform>(
    object: &Object<'_, P>,
    (page, pfn): (u64, Pfn),
    (window, around): (&Range<u64>, &Range<u64>),
    state: &LockedState,
    found: &mut PagesToMap,
) {
    let frames = object.machine.frames();
    let step = 1 << object.head().page_order;
    let end = window.end.min(state.size.div_ceil(1 << object.page_shift())).min(state.held_from);
    let around = around.start.max(window.start)..around.end.min(end);
    let resident = |page: u64| match state.index.find(frames, page) {
        Some(Entry::Resident(pfn)) => Some(pfn),
        _ => None,
    };
    // Most pages lie in a folio that is in the object from its first page on.
    let (head, frame) = frames.head(pfn);
    let index = (pfn.0 - head.0) / step;
    let last = page + u64::from((1 << frame.order()) / step - index);
    let end = around.end.max(last.min(end));
    let run_from = |start: u64| {
        let pfn = Pfn(pfn.0 - (page - start) as u32 * step);
        FrameRun { pfn, pages: state.index.resident_run(frames, start..end, pfn, step) }
    };
    let mut own = page.saturating_sub(index.into()).max(window.start);
    let mut run = run_from(own);
    if own + u64::from(run.pages) <= page {
        (own, run) = (page, run_from(page));
    }
    let mut at = own;
    while at > around.start && resident(at - 1).is_some() {
        at -= 1;
    }
    found.first = at;
    while at < around.end
        && let Some(run) = if at == own { Some(run) } else { resident(at).map(|pfn| FrameRun { pfn, pages: 1 }) }
    {
        found.push(run, step);
        at += u64::from(run.pages);
    }
}
