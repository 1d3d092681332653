//! Entries of upper levels. They may not even look empty transiently, and must not map memory in
//! two sizes at once.

use vellum::addr::{Pfn, PhysAddr, VirtRange};
use vellum::arch::{Attrs, Kind};

use super::ptes::DecodePtes as _;
use super::shadow::{Checker, Emptied};
use super::violation::Rule;
use crate::hardware::Hardware;
use crate::walker::Silicon;

impl<A: Silicon> Checker<A> {
    /// Checks that no upper-level entry is transiently empty: a mapping that was cleared does not
    /// come back unchanged, in pages of another size or as a swap entry, unless the frame was
    /// unmapped for good, freed, or mapped elsewhere since the clearing.
    pub fn check_transient(&mut self, pfn: Pfn, index: u16, level: u8, (old, new): (u64, u64), hardware: &Hardware<A>) {
        let at = (pfn, index);
        if new == 0 {
            if let Some((target, first)) = self.arch.targets(old, index, level, hardware) {
                self.emptied.insert(at, Emptied { target, first, when: self.seq });
            }
            return;
        }
        let Some(&Emptied { target, first, when }) = self.emptied.get(&at) else {
            return;
        };
        let was = [Some(target), first];
        let back = match self.arch.targets(new, index, level, hardware) {
            Some((now, now_first)) => {
                [Some(now), now_first].into_iter().flatten().find(|pfn| was.contains(&Some(*pfn)))
            }
            None if self.arch.kind(new, level) == Kind::Swap => Some(target),
            // Another entry that maps nothing, such as a busy entry, may stand there in between.
            None => return,
        };
        self.emptied.remove(&at);
        let Some(back) = back else { return };
        let head = self.frame(back).map_or(back, |f| f.head.0);
        let is_final = [back, head].into_iter().any(|pfn| {
            let frame = self.frames.get(pfn);
            frame.is_none_or(|f| f.since > when || f.fell > when || f.target_since > when)
        });
        if !is_final {
            let text = format!(
                "entry {index} of {pfn:?} was empty from event {when} until {back:?}, or a swap entry, came back to it"
            );
            self.fail(Rule::TransientlyEmpty, text, &[back], &[at]);
        }
    }

    /// Checks a change of size: the same frames are now mapped in pages, or blocks, of another
    /// size. A translation of the old size in a TLB would be a second one for the same address. The
    /// architectures leave open which of them an access uses, and which of them an invalidation by
    /// page finds (Intel SDM vol. 3A, "Recommended Invalidation"; Arm ARM, break-before-make).
    pub fn check_sizes(&mut self, pfn: Pfn, index: u16, level: u8, new: u64, hardware: &Hardware<A>) {
        let Some((space, va, _)) = self.locate(pfn, index) else {
            return;
        };
        let span = VirtRange { start: va, end: va + (1 << self.arch.level_shift(level)) };
        // The start of the new mapping, the frame there, and the size of its pages.
        let (start, base, shift) = match self.arch.kind(new, level) {
            Kind::Leaf if !self.arch.attrs(new, level).intersects(Attrs::PROT) => return,
            Kind::Leaf => (va, self.arch.leaf_pfn_at(new, index, level).addr(), self.arch.mapped_shift(new, level)),
            Kind::Table => {
                let table = self.arch.table_addr(new).pfn();
                let Some((first, raw)) = self.arch.first_leaf(table, level - 1, hardware) else {
                    return;
                };
                let start = va + ((first as u64) << self.arch.level_shift(level - 1));
                (start, self.arch.leaf_pfn_at(raw, first, level - 1).addr(), self.arch.mapped_shift(raw, level - 1))
            }
            _ => return,
        };
        for cpu in 0..self.cpus.len() {
            let same = |at: VirtRange, pa: PhysAddr| at.start.wrapping_sub(start) == pa.0.wrapping_sub(base.0);
            let mmu = hardware.mmu(cpu);
            let other = mmu.tlb.translation_over(space, span, |(tag, leaf)| {
                !self.arch.sizes_may_coexist(leaf.block, shift) && same(tag.range(), leaf.base)
            });
            drop(mmu);
            if let Some((tag, leaf)) = other {
                let text = format!(
                    "{span:?} is now mapped in pages of {} bytes, but CPU {cpu} still translates {:?} as one of {}",
                    1u64 << shift,
                    tag.range(),
                    1u64 << leaf.block
                );
                self.fail(Rule::TwoSizes, text, &[base.pfn()], &[(pfn, index)]);
            }
        }
    }
}
