//! Counts pages of files that become dirty or clean for the memcgs that they are charged to.

use super::Machine;
use crate::addr::Pfn;
use crate::memcg::{DirtyChange, MemcgId};
use crate::platform::Platform;

/// Pages with the same change, which are counted for their memcg when another memcg's
/// follow, and in the end. Takes no lock.
pub(crate) struct DirtyTally<'a, 'm, P: Platform> {
    machine: &'a Machine<'m, P>,
    change: DirtyChange,
    /// log2 of the number of frames of a page; `None` if the pages do not count.
    page_order: Option<u8>,
    memcg: MemcgId,
    pages: u64,
}

impl<'a, 'm, P: Platform> DirtyTally<'a, 'm, P> {
    /// Begins to count pages of `1 << page_order` frames, or, with `None`, ignores them.
    pub(crate) fn new(machine: &'a Machine<'m, P>, page_order: Option<u8>, change: DirtyChange) -> Self {
        DirtyTally { machine, change, page_order, memcg: MemcgId::ROOT, pages: 0 }
    }

    /// Adds pages of the folio that has the frame `pfn`, which the caller keeps from being freed.
    pub(crate) fn add(&mut self, pfn: Pfn, pages: u64) {
        if self.page_order.is_none() || pages == 0 {
            return;
        }
        let memcg = self.machine.charged(pfn);
        if memcg != self.memcg {
            self.count();
            self.memcg = memcg;
        }
        self.pages += pages;
    }

    /// Counts what was added since the last call.
    fn count(&mut self) {
        let pages = core::mem::take(&mut self.pages) << self.page_order.unwrap_or(0);
        if pages > 0 {
            self.machine.memcgs().throttle().count(self.memcg, self.change, pages);
            if self.change == DirtyChange::Dirtied {
                self.machine.platform().dirtied(self.memcg, pages);
            }
        }
    }
}

impl<P: Platform> Drop for DirtyTally<'_, '_, P> {
    /// Counts the pages of the last memcg.
    fn drop(&mut self) {
        self.count();
    }
}
