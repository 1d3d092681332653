//! Audits the charges of memcgs (INV-9).

use super::discrepancy::Quantity;
use super::{Audit, each_block};
use crate::frame::{FrameKind, flag};
use crate::memcg::{LruvecId, MemcgCounters, MemcgId, MemcgUsage};
use crate::platform::Platform;

impl<P: Platform> Audit<'_, '_, P> {
    /// Compares each memcg's charge with the folios, page tables and other blocks whose descriptors
    /// name the memcg. `structures` is the number of frames of spaces' and objects' own structures
    /// that the audit found. It is compared with the number of charged frames that belong to no
    /// folio, no page table and no structure of the host.
    pub(super) fn check_charges(&mut self, structures: u64) {
        self.counts.fill(0);
        let mut charged = 0;
        each_block(self.machine, |_, frame, state| {
            let pages = 1 << state.order();
            match state.kind() {
                FrameKind::Folio if !state.has(flag::ZERO_FOLIO | flag::HUGETLB) => {}
                FrameKind::Table => {}
                FrameKind::Private if state.has(flag::HOST) => self.sums.host += u64::from(pages),
                FrameKind::Private if state.has(flag::CHARGED) => charged += u64::from(pages),
                _ => return,
            }
            let memcg = LruvecId::unpack(frame.lruvec()).memcg;
            let count = self.counts.get_mut(usize::from(memcg.number()));
            count.into_iter().for_each(|count| *count += pages);
        });
        self.compare(Quantity::Structures, charged, structures);
        self.compare_by_memcg(
            Quantity::MemcgCharged as fn(MemcgId) -> Quantity,
            |usage, _| usage.charged,
            |usage| usage.lruvecs,
        );
    }

    /// Compares a quantity of each memcg and its descendants, which `counted` reads from the
    /// memcg's usage and counters, with the sum of the audit's counts for these memcgs. Adds to
    /// that sum the part of the usage that the audit has no count of, which `plus` returns.
    pub(super) fn compare_by_memcg(
        &mut self,
        what: fn(MemcgId) -> Quantity,
        counted: impl Fn(&MemcgUsage, &MemcgCounters) -> u64,
        plus: impl Fn(&MemcgUsage) -> u64,
    ) {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        for id in memcgs.all() {
            let (Ok(usage), Ok(counters)) = (memcgs.usage(frames, id), memcgs.counters(id)) else { continue };
            let of = |id: MemcgId| u64::from(self.counts[usize::from(id.number())]);
            let found: u64 = memcgs.descendants(id).map(of).sum();
            self.compare(what(id), counted(&usage, &counters), found + plus(&usage));
            frames.platform().resched();
        }
    }
}
