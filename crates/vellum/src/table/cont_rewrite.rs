//! Changes attributes of leaf PTEs of which some are in cont blocks (groups of PTEs that a TLB may
//! hold as one translation), or can be folded into one.
//!
//! A change of all PTEs of a cont block in the same way keeps the block folded. Any other change
//! first unfolds the block into separate PTEs, and at the end folds those that are alike again.

use core::sync::atomic::Ordering::Relaxed;

use super::Run;
use super::cont_block::{Before, ContBlocks};
use super::entries::Sequence;
use super::run::Cont;
use crate::arch::{Arch, Attrs};
use crate::platform::Platform;
use crate::stats::Counter;

/// The maximum number of cont blocks that are folded with one flush.
const BLOCKS_PER_FLUSH: usize = 32;

impl<P: Platform> ContBlocks<'_, '_, '_, P> {
    /// Changes the leaf PTEs of a run as `LockedTable::rewrite` does, where some are in cont
    /// blocks or can be folded.
    pub(super) fn rewrite_cont(self, run: &Run, new: u64) {
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        let step = arch.step(new, self.level);
        let can_fold = self.can_fold(index, new);
        if can_fold && self.is_all_cont(index, run) {
            return self.rewrite_folded(run, index, run.len, new);
        }
        if can_fold && run.cont == Cont::None && self.can_fold(index, run.raw) {
            // The old PTEs are not folded although their attributes permit it. So their folio or
            // their addresses forbid it, and these do not change.
            self.rewrite_single(run, index, run.len, new);
            return self.fold_edges(index, run.len);
        }
        self.unfold_at(index);
        self.unfold_at(index + run.len);
        if !can_fold {
            // None of the new PTEs may be in a cont block: each gets the accessed and dirty bits of
            // its former block.
            let mut at = index;
            while at < index + run.len {
                let raw = self.entry(at).load(Relaxed);
                let block = self.cont_len(raw);
                let next = new.wrapping_add(step.wrapping_mul((at - index) as u64));
                match block {
                    1 => self.change(at, next),
                    _ => {
                        self.rewrite_unfolding(at, block, next);
                    }
                }
                at += block;
            }
            return;
        }
        let mut at = 0;
        while at < run.len {
            let next = new.wrapping_add(step.wrapping_mul(at as u64));
            let folded = self.cont_len_from(index + at, run.len - at);
            if folded > 0 {
                self.rewrite_folded(run, index + at, folded, next);
                at += folded;
                continue;
            }
            let single = self.non_cont_len_from(index + at, run.len - at);
            self.for_each_piece(index + at, single, next, |index, n, new, forms_blocks| match forms_blocks {
                true => self.rewrite_folding(index, n, new),
                false => self.rewrite_single(run, index, n, new),
            });
            at += single;
        }
        self.fold_edges(index, run.len);
    }

    /// Returns the number of PTEs of the adjacent cont blocks that begin at `index`, among `n` leaf
    /// PTEs; 0 if the PTE at `index` is in no cont block.
    fn cont_len_from(self, index: usize, n: usize) -> usize {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        let mut at = 0;
        // All entries of the range are leaf PTEs, so the bit CONT alone tells whether they are in a
        // block.
        while at < n && self.entry(index + at).load(Relaxed) & P::Arch::CONT != 0 {
            at += block;
        }
        at
    }

    /// Returns how many of `n` leaf PTEs from `index` on precede the first one that is in a cont
    /// block.
    fn non_cont_len_from(self, index: usize, n: usize) -> usize {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        let mut at = block - (index & (block - 1));
        while at < n && self.entry(index + at).load(Relaxed) & P::Arch::CONT == 0 {
            at += block;
        }
        at.min(n)
    }

    /// Changes PTEs in whole cont blocks, which stay folded. All PTEs of a block change alike, so
    /// no break-before-make (clear, flush, write) is needed.
    fn rewrite_folded(self, run: &Run, index: usize, n: usize, new: u64) {
        let arch = &self.tables.arch;
        if run.stable {
            let before = Sequence { first: run.raw, step: run.step(arch) }.at(index - self.index(run.va));
            return self.write_cont(index, n, arch.carry(new, before), Before::Blocks(before));
        }
        let (block, step) = (1usize << arch.cont_bits(self.level), arch.step(new, self.level));
        let cont_step = arch.cont_step(new, self.level);
        for at in (0..n).step_by(block) {
            let mut next = arch.with_cont(new.wrapping_add(step.wrapping_mul(at as u64)));
            for i in index + at..index + at + block {
                self.change(i, next);
                next = next.wrapping_add(cont_step);
            }
        }
    }

    /// Changes the PTEs of a cont block into PTEs that can't be folded.
    fn rewrite_unfolding(self, index: usize, block: usize, new: u64) {
        let arch = &self.tables.arch;
        let busy = arch.busy_pte();
        let old = self.take_merged(index, block, busy);
        if arch.attrs(new, self.level).intersects(Attrs::PROT) {
            self.break_before_make(index, block);
        }
        let new = Sequence { first: arch.carry(new, old), step: arch.step(new, self.level) };
        self.write(index, block, Sequence::of_equal(busy), new);
        self.tables.machine.count(Counter::ContUnfolds, 1);
    }

    /// Changes PTEs that are in no cont block and folds them: up to [`BLOCKS_PER_FLUSH`] blocks
    /// with one break-before-make.
    fn rewrite_folding(self, index: usize, n: usize, new: u64) {
        let arch = &self.tables.arch;
        let (step, block) = (arch.step(new, self.level), 1usize << arch.cont_bits(self.level));
        let mut at = 0;
        while at < n {
            let count = ((n - at) / block).min(BLOCKS_PER_FLUSH);
            let mut old = [0; BLOCKS_PER_FLUSH];
            for (i, old) in old[..count].iter_mut().enumerate() {
                *old = self.take_merged(index + at + i * block, block, arch.busy_pte());
            }
            if old[..count].iter().any(|old| arch.attrs(*old, self.level).intersects(Attrs::PROT)) {
                self.break_before_make(index + at, count * block);
            }
            for old in &old[..count] {
                let new = new.wrapping_add(step.wrapping_mul(at as u64));
                self.write_cont(index + at, block, arch.carry(new, *old), Before::Equal(arch.busy_pte()));
                at += block;
            }
            self.tables.machine.count(Counter::ContFolds, count as u64);
        }
    }
}
