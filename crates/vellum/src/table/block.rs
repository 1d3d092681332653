//! Blocks: aligned groups of leaves that a TLB may hold as one translation (AArch64's contiguous bit, RISC-V's Svnapot).
//!
//! Who changes page tables knows nothing of them. A run is written, and what of it can be blocks is joined; a part of a block is
//! changed, and the block is taken apart first; the rest of a block comes to say the same again, and it is joined anew.
//!
//! - **What may be a block**: aligned in both address spaces, in one folio, all of it valid and alike. So nobody who asks what
//!   happened to a folio is told of another, and runs that say different things (dirty or watched, say, where software keeps it) are
//!   never one translation.
//! - **Hardware may record an access to any page of a block in any of its entries.** Who reads one reads all.
//! - **Live leaves are joined, or taken apart, with a break** (Arm ARM D8.7.1, D8.16.1): out with all, flush, in with all; unless
//!   [`Arch::joins_in_place`] says that TLBs get along without the flush. In between, entries are busy. To change all of a block alike is
//!   no such change, and needs none.

use core::sync::atomic::Ordering::Relaxed;

use super::entries::merged;
use super::{LockedTable, Run};
use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::Platform;
use crate::stats::Counter;

/// Blocks that are joined with one flush.
const BATCH: usize = 32;

impl<P: Platform, A: Arch> LockedTable<'_, '_, P, A> {
    /// Whether an entry is one of a block.
    #[inline]
    pub(super) fn is_joined(&self, raw: u64) -> bool {
        A::JOINED != 0 && raw & A::JOINED != 0 && self.tables.arch.kind(raw, self.level) == Kind::Leaf
    }

    /// How many entries the block of a leaf has: one, if it is not joined.
    #[inline]
    pub(super) fn block(&self, raw: u64) -> usize {
        if self.is_joined(raw) { 1 << self.tables.arch.block_bits(self.level) } else { 1 }
    }

    /// An entry, as if it stood for itself; of a leaf all that hardware has recorded in its block.
    #[inline]
    pub(super) fn read(&self, index: usize) -> u64 {
        let raw = self.entry(index).load(Relaxed);
        if !self.is_joined(raw) {
            return raw;
        }
        let single = self.tables.arch.single(raw, index);
        let block = self.block(raw);
        let first = index & !(block - 1);
        merged::<A>(single, self.differing(first, first + block, single))
    }

    /// The bits in which entries from `from` to `to` differ from this one, addresses aside.
    fn differing(&self, from: usize, to: usize, raw: u64) -> u64 {
        (from..to).fold(0, |all, i| all | self.entry(i).load(Relaxed) ^ raw) & A::HARDWARE
    }

    /// `differing`, and what hardware has recorded of a run's first and last block outside of the run; and whether there is no
    /// outside.
    #[cold]
    pub(super) fn with_blocks_around(&self, index: usize, len: usize, first: u64, differing: u64) -> (u64, bool) {
        let end = index + len;
        let block = 1 << self.tables.arch.block_bits(self.level);
        let mut all = differing;
        let mut whole = true;
        if index & (block - 1) != 0 && self.is_joined(self.entry(index).load(Relaxed)) {
            all |= self.differing(index & !(block - 1), index, first);
            whole = false;
        }
        if end & (block - 1) != 0 && self.is_joined(self.entry(end - 1).load(Relaxed)) {
            all |= self.differing(end, (end | (block - 1)) + 1, first);
            whole = false;
        }
        (all, whole)
    }

    /// Whether the block around an entry could be one if all of it followed `raw`: the format has blocks, memory is aligned as
    /// the addresses are, and hardware can reach it.
    #[inline]
    pub(super) fn may_join(&self, index: usize, raw: u64) -> bool {
        let arch = &self.tables.arch;
        let bits = if A::JOINED == 0 || !self.tables.joins { 0 } else { arch.block_bits(self.level) };
        if bits == 0 || arch.kind(raw, self.level) != Kind::Leaf {
            return false;
        }
        let va = self.base + ((index as u64) << self.shift());
        let within = (1u64 << (self.shift() + bits)) - 1;
        (arch.leaf_addr(raw, self.level).0 ^ va) & within == 0 && arch.attrs(raw, self.level).intersects(Attrs::PROT)
    }

    /// How many entries from `index`, where a block begins that may be one, are in one folio that has all of it: whole blocks,
    /// no more than `n` entries. 0: it has not.
    fn in_folio(&self, raw: u64, n: usize) -> usize {
        let arch = &self.tables.arch;
        let pfn = arch.leaf_pfn(raw, self.level);
        let (head, frame) = self.tables.machine.frames().head(pfn);
        let left = head.add(1 << frame.order()).0 - pfn.0;
        let block = 1 << arch.block_bits(self.level);
        ((left >> (self.shift() - FRAME_SHIFT)) as usize).min(n) & !(block - 1)
    }

    /// The pieces of `n` entries from `index` on, the first of which is to be `raw`, that are blocks (`true`) or not.
    fn pieces(&self, index: usize, n: usize, raw: u64, mut each: impl FnMut(usize, usize, u64, bool)) {
        let block = 1usize << self.tables.arch.block_bits(self.level);
        let step = self.tables.arch.step(raw, self.level);
        let mut at = 0;
        while at < n {
            let raw = raw.wrapping_add(step.wrapping_mul(at as u64));
            let into = (index + at) & (block - 1);
            let whole = if into == 0 { self.in_folio(raw, n - at) } else { 0 };
            let len = if whole > 0 { whole } else { (block - into).min(n - at) };
            each(index + at, len, raw, whole > 0);
            at += len;
        }
    }

    /// Write leaves into entries that are empty, joined where they may be.
    pub(super) fn set_joined(&self, index: usize, raw: u64, n: usize) {
        let step = self.tables.arch.step(raw, self.level);
        self.pieces(index, n, raw, |index, n, raw, joined| match joined {
            true => self.write_joined(index, n, raw, 0),
            false => self.write(index, n, (0, 0), (raw, step)),
        });
        self.join_around(index, n);
    }

    /// Write whole blocks where each entry is `old`.
    fn write_joined(&self, index: usize, n: usize, raw: u64, old: u64) {
        let arch = &self.tables.arch;
        let (block, step) = (1usize << arch.block_bits(self.level), arch.step(raw, self.level));
        let joined_step = arch.joined_step(raw, self.level);
        if joined_step == step {
            return self.write(index, n, (old, 0), (arch.join(raw), step));
        }
        for at in (0..n).step_by(block) {
            let first = raw.wrapping_add(step.wrapping_mul(at as u64));
            self.write(index + at, block, (old, 0), (arch.join(first), joined_step));
        }
    }

    /// Take entries out, leaving `instead`: the first one, as if it stood for itself, with all that hardware has recorded in any.
    pub(super) fn collect(&self, index: usize, n: usize, instead: u64) -> u64 {
        let first = self.exchange(index, instead);
        let differing = (index + 1..index + n).fold(0, |all, i| all | self.exchange(i, instead) ^ first);
        merged::<A>(self.tables.arch.single(first, index), differing & A::HARDWARE)
    }

    /// Between taking leaves out and putting them in again in another size.
    fn break_before_make(&self, index: usize, n: usize) {
        if !self.tables.arch.joins_in_place() {
            let start = self.base + ((index as u64) << self.shift());
            let range = VirtRange { start, end: start + ((n as u64) << self.shift()) };
            let _flushed = self.tables.tlb.invalidate(&[range], self.shift(), false);
        }
    }

    /// Take the block apart of which an index is neither the first nor past the last, if there is one.
    #[inline]
    pub(super) fn part_at(&self, index: usize) {
        if A::JOINED != 0 && index & ((1 << self.tables.arch.block_bits(self.level)) - 1) != 0 {
            self.part_around(index);
        }
    }

    /// Take the block apart of which an entry is one, if it is.
    #[inline]
    pub(super) fn part_around(&self, index: usize) {
        let block = self.block(self.entry(index).load(Relaxed));
        if block > 1 {
            self.part(index & !(block - 1), block);
        }
    }

    #[cold]
    fn part(&self, first: usize, block: usize) {
        let busy = self.tables.arch.busy();
        let raw = self.collect(first, block, busy);
        self.break_before_make(first, block);
        self.write(first, block, (busy, 0), (raw, self.tables.arch.step(raw, self.level)));
        self.tables.machine.count(Counter::BlocksParted, 1);
    }

    /// Some leaves were written: join the blocks at both ends, if they became whole.
    pub(super) fn join_around(&self, index: usize, n: usize) {
        let block = 1usize << self.tables.arch.block_bits(self.level);
        let last = index + n - 1;
        if index & (block - 1) != 0 || n < block {
            self.join_if_whole(index & !(block - 1));
        }
        if last & !(block - 1) != index & !(block - 1) && (last + 1) & (block - 1) != 0 {
            self.join_if_whole(last & !(block - 1));
        }
    }

    /// If entries that are to stand from `index` on begin with what can be a block: how long that is, and its first leaf with
    /// what hardware has recorded in any.
    pub(super) fn block_of(&self, index: usize, entries: &[u64]) -> Option<(usize, u64)> {
        let (&first, arch) = (entries.first()?, &self.tables.arch);
        if !self.may_join(index, first) {
            return None;
        }
        let block = 1 << arch.block_bits(self.level);
        let entries = entries.get(..block).filter(|_| index & (block - 1) == 0)?;
        let follow = (0..).map(|i| first.wrapping_add(arch.step(first, self.level).wrapping_mul(i)));
        let differing = entries.iter().zip(follow).fold(0, |all, (entry, follows)| all | entry ^ follows);
        let whole = differing & !A::HARDWARE == 0 && self.in_folio(first, block) == block;
        whole.then(|| (block, merged::<A>(first, differing)))
    }

    fn join_if_whole(&self, first: usize) {
        let raw = self.entry(first).load(Relaxed);
        let block = 1usize << self.tables.arch.block_bits(self.level);
        if raw & A::JOINED == 0
            && self.may_join(first, raw)
            && self.alike(first, block, raw) == block
            && self.in_folio(raw, block) == block
        {
            let busy = self.tables.arch.busy();
            let raw = self.collect(first, block, busy);
            self.break_before_make(first, block);
            self.write_joined(first, block, raw, busy);
            self.tables.machine.count(Counter::BlocksJoined, 1);
        }
    }

    /// [`LockedTable::rewrite`] of leaves of which some are joined, or may be.
    pub(super) fn rewrite_blocks(&self, run: &Run, new: u64) {
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        self.part_at(index);
        self.part_at(index + run.len);
        let step = arch.step(new, self.level);
        if !self.may_join(index, new) {
            // What hardware has recorded is each entry's own from now on.
            let mut at = index;
            while at < index + run.len {
                let raw = self.entry(at).load(Relaxed);
                let block = self.block(raw);
                let next = new.wrapping_add(step.wrapping_mul((at - index) as u64));
                match block {
                    1 => self.change(at, next),
                    _ => {
                        self.rewrite_parted(at, block, next);
                    }
                }
                at += block;
            }
            return;
        }
        self.pieces(index, run.len, new, |index, n, new, whole| {
            if !whole {
                return self.rewrite_single(run, index, n, new);
            }
            self.rewrite_whole(run, index, n, new);
        });
        self.join_around(index, run.len);
    }

    /// A joined block becomes leaves that can't be joined.
    fn rewrite_parted(&self, index: usize, block: usize, new: u64) {
        let arch = &self.tables.arch;
        let busy = arch.busy();
        let old = self.collect(index, block, busy);
        if arch.attrs(new, self.level).intersects(Attrs::PROT) {
            self.break_before_make(index, block);
        }
        self.write(index, block, (busy, 0), (arch.carry(new, old), arch.step(new, self.level)));
        self.tables.machine.count(Counter::BlocksParted, 1);
    }

    /// Whole blocks become joined ones, or stay so.
    fn rewrite_whole(&self, run: &Run, index: usize, n: usize, new: u64) {
        let arch = &self.tables.arch;
        let (step, block) = (arch.step(new, self.level), 1usize << arch.block_bits(self.level));
        let of = |at: usize| new.wrapping_add(step.wrapping_mul(at as u64));
        let is_joined = |at: usize| self.is_joined(self.entry(index + at).load(Relaxed));
        let mut at = 0;
        while at < n {
            if is_joined(at) {
                let (first, joined_step) = (arch.join(of(at)), arch.joined_step(new, self.level));
                if run.settled {
                    let old = arch.join(self.read(index + at));
                    self.write(index + at, block, (old, joined_step), (arch.carry(first, old), joined_step));
                } else {
                    (0..block).for_each(|i| self.change(index + at + i, first + joined_step * i as u64));
                }
                at += block;
                continue;
            }
            // All that follow and are not joined either, with one break.
            let mut old = [0; BATCH];
            let mut count = 0;
            while count < BATCH && at + count * block < n && !is_joined(at + count * block) {
                old[count] = self.collect(index + at + count * block, block, arch.busy());
                count += 1;
            }
            let old = &old[..count];
            if old.iter().any(|old| arch.attrs(*old, self.level).intersects(Attrs::PROT)) {
                self.break_before_make(index + at, count * block);
            }
            for old in old {
                self.write_joined(index + at, block, arch.carry(of(at), *old), arch.busy());
                at += block;
            }
            self.tables.machine.count(Counter::BlocksJoined, count as u64);
        }
    }
    /// How many entries of a run are joined.
    pub(crate) fn joined(&self, run: &Run) -> usize {
        let index = self.index(run.va);
        match run.joined {
            true => (index..index + run.len).filter(|i| self.is_joined(self.entry(*i).load(Relaxed))).count(),
            false => 0,
        }
    }
}
