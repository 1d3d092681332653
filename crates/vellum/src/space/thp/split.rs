//! Folios that are mapped in part are split ([`crate::memcg`]'s `split`), where one table has all
//! that maps them.

use crate::addr::{Pfn, VirtRange};
use crate::arch::{Arch, Kind, UserRange};
use crate::frame::HUGE_ORDER;
use crate::memcg::MappedPages;
use crate::platform::Platform;
use crate::table::{Found, LockedTable};

use super::Thp;

impl<'m, P: Platform, A: Arch> Thp<'_, 'm, P, A> {
    /// Split a folio, to which the caller has a reference, if all that maps it are pages of these
    /// addresses, in one table. What is mapped of it, then; in the place of his reference the
    /// caller has one to each piece that is not.
    pub(crate) fn split_folio(self, range: VirtRange, head: Pfn) -> Option<MappedPages> {
        let range = self.user_part(range);
        let mut at = range.start;
        while at < range.end {
            match self.tables().find(range.tail(at)) {
                Found::Hole(end) => at = end,
                Found::Table(table) => {
                    let end = range.end.min(table.end());
                    let mapped = match self.mapped_of(&table, range.tail(at).head(end), head) {
                        Ok(mapped) => mapped,
                        Err(busy) => {
                            table.release();
                            // Waits until it is so no more; then all is counted again.
                            if let Found::Table(table) = self.tables().find(range.tail(busy)) {
                                table.release();
                            }
                            continue;
                        }
                    };
                    let split = mapped.filter(|mapped| {
                        let machine = self.machine();
                        let frame = machine.frames().frame(head);
                        let alone = || frame.counts() == mapped.expected_counts();
                        alone()
                            && machine.uncache(head, frame, alone)
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

    /// What a table maps of a folio, in single pages.
    ///
    /// # Errors
    /// An entry is busy, that for this address.
    fn mapped_of(
        self,
        table: &LockedTable<'_, 'm, P, A>,
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
                let its = first.max(head.0)..(first + run.frames(arch)).min(head.0 + (1 << order));
                if !{ its }.all(|pfn| mapped.add(pfn - head.0)) {
                    return Ok(None);
                }
            }
            at = run.range(arch).end;
        }
        Ok(Some(mapped).filter(|mapped| mapped.len() != 0 && mapped.len() < 1 << order))
    }
}
