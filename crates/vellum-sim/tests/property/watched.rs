//! Writes that somebody asks for, again and again: what he is told of is protected, so that he is told of what comes next.

use std::num::NonZeroU16;
use std::ops::Range;

use vellum::space::{Categories, Region, Scan, ScanError, WatchError};
use vellum::vma::{VmaFlags, Watcher};

use super::host::Host;
use super::look::vmas_in;
use super::plot::{Plot, Scene};

const WATCHER: Watcher = Watcher(NonZeroU16::MIN);
/// Writes go on: no fault is told.
const WHAT: VmaFlags = VmaFlags::WRITES.union(VmaFlags::ASYNC);

impl Plot {
    /// `watch`, or `unwatch`.
    pub fn watch<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>, watched: bool) {
        let range = self.bounds.range(&pages);
        let got = match watched {
            true => on.space.watch(range, WATCHER, WHAT),
            false => on.space.unwatch(range, WATCHER),
        };
        match got {
            Ok(()) if !watched || self.model.covers(pages.clone()) => {
                self.model.each(pages.clone(), |page| page.kind.flags.set(WHAT, watched));
            }
            Err(WatchError::NotMapped) if watched && !self.model.covers(pages.clone()) => {}
            Err(WatchError::TooManyVmas | WatchError::NoMemory(_)) if self.may_fail(on, &pages) => {
                // What lies before the VMA that could not be split is not watched any more.
                for (vma, kind) in vmas_in(on.space, self.bounds.page_shift, &pages) {
                    let now = |flags: VmaFlags| (flags - WHAT) | kind.flags & WHAT;
                    self.model.each(vma, |page| page.kind.flags = now(page.kind.flags));
                }
            }
            got => panic!("watching ({watched}) answers {got:x?}"),
        }
        self.check(on, &pages);
    }

    /// `scan`, for what was written: no write is missed.
    pub fn written<H: Host>(&mut self, on: &Scene<'_, '_, H>, pages: Range<u64>) {
        let range = self.bounds.range(&pages);
        let select = |is: Categories| is.contains(Categories::WRITTEN).then_some(Categories::WRITTEN);
        let mut out = vec![Region::default(); (pages.end - pages.start) as usize];
        let scan = Scan { select, pages: u64::MAX, protect: true, only_async: false };
        let regions = match on.space.scan(range, scan, Some(&mut out)) {
            Ok(found) => found.regions,
            // Of some it would have told, which are protected now.
            Err(ScanError::NoMemory(_)) if on.tight => {
                self.model.each(pages.clone(), |page| page.untold = false);
                return self.check(on, &pages);
            }
            Err(error) => panic!("a look for what was written: {error}"),
        };
        for Region { range, .. } in &out[..regions] {
            let told = range.start >> self.bounds.page_shift..range.end >> self.bounds.page_shift;
            let watched = self.model.count(told.clone(), |page| page.kind.flags.contains(WHAT));
            assert_eq!(watched, told.end - told.start, "the pages of {told:x?} that are watched");
            self.model.each(told, |page| page.untold = false);
        }
        let missed = |page: &super::model::Page| page.untold && page.kind.flags.contains(WHAT);
        let missed = self.model.runs(pages.clone()).find(|(_, page)| missed(page));
        assert_eq!(missed, None, "what was written and nobody was told of");
        self.check(on, &pages);
    }
}
