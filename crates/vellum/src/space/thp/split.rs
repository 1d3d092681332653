//! Splits partially mapped folios ([`Memcgs::split`](crate::memcg::Memcgs::split)) that one page
//! table maps.

use crate::addr::{Pfn, VirtRange};
use crate::arch::{Kind, UserRange};
use crate::frame::HUGE_ORDER;
use crate::memcg::MappedPages;
use crate::platform::Platform;
use crate::table::{Found, LockedTable};

use super::Thp;

impl<'m, P: Platform> Thp<'_, 'm, P> {
    /// Splits the folio `head` if PTEs of one page table in `range` are all its mappings, and if it
    /// has no reference except theirs and the caller's. Returns the folio's mapped pages. Its
    /// unmapped pages are then pieces (naturally aligned folios, [`MappedPages::pieces`]), and the
    /// caller's reference to the folio has become one to each unmapped piece. Returns `None` if the
    /// folio was not split. The caller holds no lock.
    pub(crate) fn split_folio(self, range: VirtRange, head: Pfn) -> Option<MappedPages> {
        let range = self.user_part(range);
        let mut at = range.start;
        while at < range.end {
            match self.tables().find(range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let end = range.end.min(table.end());
                    let mapped = match self.mapped_pages(&table, range.tail(at).head(end), head) {
                        Ok(mapped) => mapped,
                        Err(busy) => {
                            table.release();
                            // `find` waits until the entry is no longer busy.
                            if let Found::Table(table) = self.tables().find(range.tail(busy)) {
                                table.release();
                            }
                            continue;
                        }
                    };
                    let split = mapped.filter(|mapped| {
                        let machine = self.machine();
                        let frame = machine.frames().frame(head);
                        let is_alone = || frame.counts() == mapped.expected_counts();
                        is_alone()
                            && machine.uncache(head, frame, is_alone)
                            && machine.memcgs().split(machine.frames(), head, mapped)
                    });
                    table.release();
                    if split.is_some() {
                        return split;
                    }
                    at = end;
                }
            }
        }
        None
    }

    /// Returns the pages of the folio `head` that PTEs of a locked page table map in `range`.
    /// Returns `None` if these PTEs map all pages of the folio or none, or if a page is mapped
    /// twice, or by a huge PTE.
    ///
    /// # Errors
    /// The address of an entry that is busy: another CPU is changing it.
    fn mapped_pages(
        self,
        table: &LockedTable<'_, 'm, P>,
        range: UserRange,
        head: Pfn,
    ) -> Result<Option<MappedPages>, u64> {
        let arch = self.arch();
        let frames = self.machine().frames();
        let order = frames.frame(head).order();
        if table.level > 1 || order > HUGE_ORDER {
            return Ok(None);
        }
        let mut mapped = MappedPages::none(order);
        let mut at = range.start;
        while at < range.end {
            let run = table.run(at, range.end).ok_or(at)?;
            let first = run.pfn(arch).0;
            if run.kind == Kind::Leaf && first < head.0 + (1 << order) && head.0 < first + run.frames(arch) {
                let mut pages = first.max(head.0)..(first + run.frames(arch)).min(head.0 + (1 << order));
                if !pages.all(|pfn| mapped.add(pfn - head.0)) {
                    return Ok(None);
                }
            }
            at = run.range(arch).end;
        }
        Ok(Some(mapped).filter(|mapped| mapped.len() != 0 && mapped.len() < 1 << order))
    }
}
