//! What memcgs are charged with.

use super::unsound::What;
use super::{Audit, each_block};
use crate::frame::{FrameKind, flag};
use crate::memcg::{LruvecId, MemcgId, MemcgUsage};
use crate::platform::Platform;

impl<P: Platform> Audit<'_, '_, P> {
    /// Compares what each memcg is charged with the folios, page tables and other blocks whose
    /// descriptors name the memcg. `structures` are the frames of spaces and objects that the audit
    /// has found: all blocks that are neither, nor the host's, are among them.
    pub(super) fn charges(&mut self, structures: u64) {
        self.counts.fill(0);
        let mut charged = 0;
        each_block(self.machine, |_, frame, state| {
            let pages = 1 << state.order();
            match state.kind() {
                FrameKind::Folio if !state.has(flag::ZEROS) => {}
                FrameKind::Table => {}
                FrameKind::Private if state.has(flag::HOST) => self.sums.host += u64::from(pages),
                FrameKind::Private if state.has(flag::CHARGED) => charged += u64::from(pages),
                _ => return,
            }
            let memcg = LruvecId::unpack(frame.lruvec()).memcg;
            let count = self.counts.get_mut(usize::from(memcg.number()));
            count.into_iter().for_each(|count| *count += pages);
        });
        self.compare(What::Structures, charged, structures);
        self.by_memcg(What::Charged as fn(MemcgId) -> What, |usage| usage.charged, |usage| usage.shards);
    }

    /// Compares what each memcg says of itself and its descendants with what was counted for each
    /// of these, and what it has `beside`.
    pub(super) fn by_memcg(
        &mut self,
        what: fn(MemcgId) -> What,
        says: impl Fn(&MemcgUsage) -> u64,
        beside: impl Fn(&MemcgUsage) -> u64,
    ) {
        let (memcgs, frames) = (self.machine.memcgs(), self.machine.frames());
        for id in memcgs.all() {
            let Ok(usage) = memcgs.usage(frames, id) else { continue };
            let of = |id: MemcgId| u64::from(self.counts[usize::from(id.number())]);
            let found: u64 = memcgs.descendants(id).map(of).sum();
            self.compare(what(id), says(&usage), found + beside(&usage));
            frames.platform().resched();
        }
    }
}
