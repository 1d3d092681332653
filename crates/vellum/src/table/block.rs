//! Blocks: aligned groups of leaves that a TLB may hold as one translation (AArch64's contiguous bit, RISC-V's Svnapot).
//!
//! Who changes page tables knows nothing of them. A run is written, and what of it can be blocks is joined; a part of a block is
//! changed, and the block is taken apart first; the rest of a block comes to say the same again, and it is joined anew.
//!
//! - **What may be a block**: aligned in both address spaces, in one folio, all of it valid and alike. So nobody who asks what
//!   happened to a folio is told of another, and runs that say different things (dirty or watched, say, where software keeps it) are
//!   never one translation.
//! - **Hardware may record an access to any page of a block in any of its entries.** Who reads one reads all.
//! - **Live leaves are joined, or taken apart, with a break** (Arm ARM D8.7.1, D8.17.1): out with all, flush, in with all; unless
//!   [`Arch::joins_in_place`] says that TLBs get along without the flush. In between, entries are busy. To change all of a block alike is
//!   no such change, and needs none.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::entries::{Extent, merged};
use super::run::Joined;
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
        A::CONT != 0 && raw & A::CONT != 0 && self.tables.arch.kind(raw, self.level) == Kind::Leaf
    }

    /// How many entries the block of a leaf has: one, if it is not joined.
    #[inline]
    pub(super) fn block(&self, raw: u64) -> usize {
        if self.is_joined(raw) { 1 << self.tables.arch.cont_bits(self.level) } else { 1 }
    }

    /// An entry, as if it stood for itself; of a leaf all that hardware has recorded in its block.
    #[inline]
    pub(super) fn read(&self, index: usize) -> u64 {
        let raw = self.entry(index).load(Relaxed);
        if !self.is_joined(raw) {
            return raw;
        }
        let single = self.tables.arch.without_cont(raw, index);
        let block = self.block(raw);
        let first = index & !(block - 1);
        merged::<A>(single, self.differing(first, block, single, |_, entry| entry.load(Relaxed)))
    }

    /// The bits of hardware in which what is found in any of `n` entries differs from this. Eight at a time, as [`Self::extend`] does.
    #[inline(always)]
    pub(super) fn differing(&self, index: usize, n: usize, raw: u64, look: impl Fn(usize, &AtomicU64) -> u64) -> u64 {
        let mut all = 0;
        let (eights, rest) = self.entries()[index..index + n].as_chunks::<8>();
        for (at, eight) in (index..).step_by(8).zip(eights) {
            for (i, entry) in eight.iter().enumerate() {
                all |= look(at + i, entry) ^ raw;
            }
        }
        let at = index + eights.len() * 8;
        all = rest.iter().enumerate().fold(all, |all, (i, entry)| all | look(at + i, entry) ^ raw);
        all & A::HARDWARE
    }

    /// How many joined leaves from `index`, at most `most`, follow what `first` begins. The first of a block speaks for all of it,
    /// but for what hardware has recorded in others: that is of the block, whatever part of it is asked for.
    pub(super) fn extend_blocks(
        &self,
        index: usize,
        most: usize,
        first: u64,
        each: &mut impl FnMut(usize, &[AtomicU64]),
    ) -> Extent {
        let arch = &self.tables.arch;
        let (block, step) = (1usize << arch.cont_bits(self.level), arch.step(first, self.level));
        // Then there is nothing that others could say and the first does not.
        let full = arch.attrs(first, self.level).contains(Attrs::HARDWARE);
        let (mut at, mut expected, mut differing) = (index, first, 0);
        let mut entries = &self.entries()[index..index + most];
        // Only the first of them may be a part of a block that begins before it.
        let mut into = index & (block - 1);
        while let Some(entry) = entries.first() {
            let raw = entry.load(Relaxed);
            let differs = arch.without_cont(raw, at) ^ expected;
            // What follows a leaf is one.
            if raw & A::CONT == 0 || differs & !A::HARDWARE != 0 {
                break;
            }
            differing |= differs;
            if !full {
                differing |= self.differing(at - into, block, first, |_, entry| entry.load(Relaxed));
            }
            let (these, rest) = entries.split_at((block - into).min(entries.len()));
            each(at, these);
            at += these.len();
            expected = expected.wrapping_add(step.wrapping_mul(these.len() as u64));
            entries = rest;
            into = 0;
        }
        let len = at - index;
        Extent { len, differing: if len == 0 { 0 } else { differing | A::CONT }, joined: len }
    }

    /// Whether the block around an entry could be one if all of it followed `raw`: the format has blocks, memory is aligned as
    /// the addresses are, and hardware can reach it.
    #[inline]
    pub(super) fn may_join(&self, index: usize, raw: u64) -> bool {
        let arch = &self.tables.arch;
        let bits = if A::CONT == 0 || !self.tables.joins { 0 } else { arch.cont_bits(self.level) };
        if bits == 0 || arch.kind(raw, self.level) != Kind::Leaf {
            return false;
        }
        let va = self.base + ((index as u64) << self.shift());
        let within = (1u64 << (self.shift() + bits)) - 1;
        (arch.leaf_addr(raw, self.level).0 ^ va) & within == 0 && arch.attrs(raw, self.level).intersects(Attrs::PROT)
    }

    /// How many entries, of whole blocks, are in one folio from that on which `raw` is to map, where a block begins: 0, if its
    /// folio is smaller than a block.
    #[inline]
    fn in_folio(&self, raw: u64) -> usize {
        let arch = &self.tables.arch;
        let pfn = arch.leaf_pfn(raw, self.level);
        // Head or tail: it knows how large the folio is, and that begins at a multiple of its size.
        let order = self.tables.machine.frames().frame(pfn).state().order();
        let left = (1u32 << order) - (pfn.0 & ((1 << order) - 1));
        let block = 1 << arch.cont_bits(self.level);
        (left >> (self.shift() - FRAME_SHIFT)) as usize & !(block - 1)
    }

    /// Whether writing a run can make a block whole, as far as is known without a look at its neighbours: what most faults write,
    /// a folio that is smaller than a block, can't.
    #[inline]
    pub(super) fn may_complete(&self, index: usize, run: &Run) -> bool {
        if A::CONT == 0 || !self.tables.joins || run.kind != Kind::Leaf {
            return false;
        }
        let arch = &self.tables.arch;
        let small = run.len < 1 << arch.cont_bits(self.level)
            && run.frames(arch) == 1 << self.tables.machine.frames().frame(run.pfn(arch)).order();
        !small && self.may_join(index, run.raw)
    }

    /// The pieces of `n` entries from `index` on, the first of which is to be `raw`, that can be blocks (`true`) or not.
    fn pieces(&self, index: usize, n: usize, raw: u64, mut each: impl FnMut(usize, usize, u64, bool)) {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        let step = self.tables.arch.step(raw, self.level);
        let of = |at: usize| raw.wrapping_add(step.wrapping_mul(at as u64));
        // What is no block is put off until one comes, or the end.
        let (mut at, mut done) = (block.wrapping_sub(index) & (block - 1), 0);
        while at + block <= n {
            let start = at;
            // Of one folio after the other.
            while at + block <= n {
                match self.in_folio(of(at)).min((n - at) & !(block - 1)) {
                    0 => break,
                    whole => at += whole,
                }
            }
            if at == start {
                at += block;
                continue;
            }
            if start > done {
                each(index + done, start - done, of(done), false);
            }
            each(index + start, at - start, of(start), true);
            done = at;
        }
        if n > done {
            each(index + done, n - done, of(done), false);
        }
    }

    /// Write leaves into entries that are all `old`, joined where they may be.
    pub(super) fn set_joined(&self, index: usize, run: &Run, old: u64) {
        if self.is_whole(index, run) {
            return self.write_joined(index, run.len, run.raw, Some(old));
        }
        let step = run.step(&self.tables.arch);
        if run.joined == Joined::None {
            // Read from another table, where it lay as it does here.
            self.write(index, run.len, Some((old, 0)), (run.raw, step));
            return self.join_around(index, run.len);
        }
        self.pieces(index, run.len, run.raw, |index, n, raw, joined| match joined {
            true => self.write_joined(index, n, raw, Some(old)),
            false => self.write(index, n, Some((old, 0)), (raw, step)),
        });
        self.join_around(index, run.len);
    }

    /// Whether a run is of joined blocks and of nothing else, so that nobody needs to ask what folios it is in.
    #[inline]
    fn is_whole(&self, index: usize, run: &Run) -> bool {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        run.joined == Joined::All && (index | run.len) & (block - 1) == 0
    }

    /// Write whole blocks, where each entry is `old`, or whatever stands there.
    pub(super) fn write_joined(&self, index: usize, n: usize, raw: u64, old: Option<u64>) {
        let arch = &self.tables.arch;
        let old = old.map(|old| (old, 0));
        let (block, step) = (1usize << arch.cont_bits(self.level), arch.step(raw, self.level));
        let joined_step = arch.cont_step(raw, self.level);
        if joined_step == step {
            return self.write(index, n, old, (arch.with_cont(raw), step));
        }
        for at in (0..n).step_by(block) {
            let first = raw.wrapping_add(step.wrapping_mul(at as u64));
            self.write(index + at, block, old, (arch.with_cont(first), joined_step));
        }
    }

    /// Take entries out, leaving `instead`: the first one, as if it stood for itself, with all that hardware has recorded in any.
    pub(super) fn collect(&self, index: usize, n: usize, instead: u64) -> u64 {
        let first = self.entry(index).load(Relaxed);
        // What hardware has recorded in the first one since is among what differs.
        let differing = self.differing(index, n, first, |i, entry| self.exchange_at(i, entry, instead));
        merged::<A>(self.tables.arch.without_cont(first, index), differing)
    }

    /// Between taking leaves out and putting them in again in another size.
    fn break_before_make(&self, index: usize, n: usize) {
        if !self.tables.arch.cont_in_place() {
            let start = self.base + ((index as u64) << self.shift());
            let range = VirtRange { start, end: start + ((n as u64) << self.shift()) };
            let _flushed = self.tables.tlb.invalidate(&[range], self.shift(), false);
        }
    }

    /// Take the block apart of which an index is neither the first nor past the last, if there is one.
    #[inline]
    pub(super) fn part_at(&self, index: usize) {
        if A::CONT != 0 && index & ((1 << self.tables.arch.cont_bits(self.level)) - 1) != 0 {
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
        let busy = self.tables.arch.busy_pte();
        let raw = self.collect(first, block, busy);
        self.break_before_make(first, block);
        self.write(first, block, Some((busy, 0)), (raw, self.tables.arch.step(raw, self.level)));
        self.tables.machine.count(Counter::ContUnfolds, 1);
    }

    /// Some leaves were written: join the blocks at both ends, if they became whole.
    pub(super) fn join_around(&self, index: usize, n: usize) {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
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
        let block = 1 << arch.cont_bits(self.level);
        let entries = entries.get(..block).filter(|_| index & (block - 1) == 0)?;
        let follow = (0..).map(|i| first.wrapping_add(arch.step(first, self.level).wrapping_mul(i)));
        let differing = entries.iter().zip(follow).fold(0, |all, (entry, follows)| all | entry ^ follows);
        let whole = differing & !A::HARDWARE == 0 && self.in_folio(first) >= block;
        whole.then(|| (block, merged::<A>(first, differing)))
    }

    fn join_if_whole(&self, first: usize) {
        let raw = self.entry(first).load(Relaxed);
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        if raw & A::CONT == 0
            && self.may_join(first, raw)
            && self.in_folio(raw) >= block
            && self.alike(first, block, raw) == block
        {
            let busy = self.tables.arch.busy_pte();
            let raw = self.collect(first, block, busy);
            self.break_before_make(first, block);
            self.write_joined(first, block, raw, Some(busy));
            self.tables.machine.count(Counter::ContFolds, 1);
        }
    }

    /// [`LockedTable::rewrite`] of leaves of which some are joined, or may be.
    pub(super) fn rewrite_blocks(&self, run: &Run, new: u64) {
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        let step = arch.step(new, self.level);
        let may_join = self.may_join(index, new);
        if may_join && self.is_whole(index, run) {
            return self.rewrite_joined(run, index, run.len, new);
        }
        if may_join && run.joined == Joined::None && self.may_join(index, run.raw) {
            // Nothing but what it maps and where could keep a block from being joined, and that stays.
            self.rewrite_single(run, index, run.len, new);
            return self.join_around(index, run.len);
        }
        self.part_at(index);
        self.part_at(index + run.len);
        if !may_join {
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
        let mut at = 0;
        while at < run.len {
            let next = new.wrapping_add(step.wrapping_mul(at as u64));
            let joined = self.joined_from(index + at, run.len - at);
            if joined > 0 {
                self.rewrite_joined(run, index + at, joined, next);
                at += joined;
                continue;
            }
            let single = self.single_from(index + at, run.len - at);
            self.pieces(index + at, single, next, |index, n, new, whole| match whole {
                true => self.rewrite_whole(index, n, new),
                false => self.rewrite_single(run, index, n, new),
            });
            at += single;
        }
        self.join_around(index, run.len);
    }

    /// Of `n` leaves from `index` on, how many are joined before one is not: whole blocks.
    fn joined_from(&self, index: usize, n: usize) -> usize {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        let mut at = 0;
        // All of them are leaves.
        while at < n && self.entry(index + at).load(Relaxed) & A::CONT != 0 {
            at += block;
        }
        at
    }

    /// Of `n` leaves from `index` on, how many are not joined before one is.
    fn single_from(&self, index: usize, n: usize) -> usize {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        let mut at = block - (index & (block - 1));
        while at < n && self.entry(index + at).load(Relaxed) & A::CONT == 0 {
            at += block;
        }
        at.min(n)
    }

    /// Joined blocks stay what they are.
    fn rewrite_joined(&self, run: &Run, index: usize, n: usize, new: u64) {
        let arch = &self.tables.arch;
        if run.settled {
            return self.write_joined(index, n, arch.carry(new, run.raw), None);
        }
        let (block, step) = (1usize << arch.cont_bits(self.level), arch.step(new, self.level));
        let joined_step = arch.cont_step(new, self.level);
        for at in (0..n).step_by(block) {
            let mut next = arch.with_cont(new.wrapping_add(step.wrapping_mul(at as u64)));
            for i in index + at..index + at + block {
                self.change(i, next);
                next = next.wrapping_add(joined_step);
            }
        }
    }

    /// A joined block becomes leaves that can't be joined.
    fn rewrite_parted(&self, index: usize, block: usize, new: u64) {
        let arch = &self.tables.arch;
        let busy = arch.busy_pte();
        let old = self.collect(index, block, busy);
        if arch.attrs(new, self.level).intersects(Attrs::PROT) {
            self.break_before_make(index, block);
        }
        self.write(index, block, Some((busy, 0)), (arch.carry(new, old), arch.step(new, self.level)));
        self.tables.machine.count(Counter::ContUnfolds, 1);
    }

    /// Whole blocks become joined ones: many with one break.
    fn rewrite_whole(&self, index: usize, n: usize, new: u64) {
        let arch = &self.tables.arch;
        let (step, block) = (arch.step(new, self.level), 1usize << arch.cont_bits(self.level));
        let mut at = 0;
        while at < n {
            let count = ((n - at) / block).min(BATCH);
            let mut old = [0; BATCH];
            for (i, old) in old[..count].iter_mut().enumerate() {
                *old = self.collect(index + at + i * block, block, arch.busy_pte());
            }
            if old[..count].iter().any(|old| arch.attrs(*old, self.level).intersects(Attrs::PROT)) {
                self.break_before_make(index + at, count * block);
            }
            for old in &old[..count] {
                let new = new.wrapping_add(step.wrapping_mul(at as u64));
                self.write_joined(index + at, block, arch.carry(new, *old), Some(arch.busy_pte()));
                at += block;
            }
            self.tables.machine.count(Counter::ContFolds, count as u64);
        }
    }

    /// How many entries of a run are joined.
    pub(crate) fn joined(&self, run: &Run) -> usize {
        let index = self.index(run.va);
        match run.joined {
            Joined::Some => (index..index + run.len).filter(|i| self.is_joined(self.entry(*i).load(Relaxed))).count(),
            Joined::All => run.len,
            Joined::None => 0,
        }
    }
}
