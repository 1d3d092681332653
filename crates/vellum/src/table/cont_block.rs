//! Cont blocks: aligned groups of leaf PTEs that a TLB may hold as one translation. They are
//! contpte blocks on AArch64 (the contiguous bit) and NAPOT blocks on RISC-V (Svnapot).
//!
//! The rest of the engine writes and changes runs without regard to cont blocks. When a run that is
//! written completes an aligned group of like PTEs, this module folds the group into a block. It
//! unfolds a block before some of its PTEs change, and folds it again when its PTEs are alike again
//! (Linux: `contpte_fold`, `contpte_unfold`).
//!
//! - **A cont block is** aligned in virtual and physical addresses, inside one folio, and its PTEs
//!   are all valid and alike (INV-14). So an accessed or dirty bit of a block always belongs to the
//!   block's folio, and pages that differ in soft-dirty or uffd-wp are never one translation.
//! - **Hardware may set the accessed and dirty bits of a block in any of its PTEs.** So a read of
//!   one PTE returns the union of the bits of all PTEs of its block.
//! - **Live PTEs are folded and unfolded with break-before-make** (Arm ARM D8.7.1, D8.17.1): clear
//!   all, flush, write all. The flush is left out where [`Arch::cont_in_place`] returns true. From
//!   the clearing to the writing the PTEs are busy (markers at which other CPUs wait). A change of
//!   all PTEs of a block in the same way keeps the block folded, and needs no flush in between.

use core::ops::Deref;
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

use super::entries::{Match, Sequence, merge_hardware_bits};
use super::run::Cont;
use super::{LockedTable, Run};
use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::Platform;
use crate::stats::Counter;

/// A cont block that PTEs outside a page table will form once they are written to a page table.
pub(super) struct ContBlock {
    /// The number of entries.
    pub(super) len: usize,
    /// The first entry, without the bit [`Arch::CONT`], with the accessed and dirty bits of all
    /// entries.
    pub(super) first: u64,
}

/// The entries that [`ContBlocks::write_cont`] overwrites, for the tracer.
#[derive(Clone, Copy)]
pub(super) enum Before {
    /// All have this value.
    Equal(u64),
    /// They are cont blocks, and this is their first PTE as it would be in no cont block, with the
    /// accessed and dirty bits of all of them: what one PTE tells, it tells for its whole block.
    Blocks(u64),
}

impl Before {
    /// Returns the entries from the `at`th on, up to the end of its cont block at least.
    #[inline]
    fn from(self, arch: &impl Arch, level: u8, at: usize) -> Sequence {
        match self {
            Before::Equal(raw) => Sequence::of_equal(raw),
            Before::Blocks(raw) => {
                let single = Sequence { first: raw, step: arch.step(raw, level) }.at(at);
                Sequence { first: arch.with_cont(single), step: arch.cont_step(raw, level) }
            }
        }
    }
}

/// The cont blocks of a locked page table: the functions that fold, unfold and rewrite them.
pub(super) struct ContBlocks<'l, 't, 'm, P: Platform>(&'l LockedTable<'t, 'm, P>);

impl<'t, 'm, P: Platform> LockedTable<'t, 'm, P> {
    /// Returns this page table as [`ContBlocks`], which has the functions for cont blocks.
    #[inline(always)]
    pub(super) fn cont(&self) -> ContBlocks<'_, 't, 'm, P> {
        ContBlocks(self)
    }

    /// Returns how many PTEs of a run are in cont blocks.
    pub(crate) fn cont_ptes(&self, run: &Run) -> usize {
        let index = self.index(run.va);
        match run.cont {
            Cont::Some => {
                (index..index + run.len).filter(|i| self.cont().is_cont(self.entry(*i).load(Relaxed))).count()
            }
            Cont::All => run.len,
            Cont::None => 0,
        }
    }
}

impl<P: Platform> Clone for ContBlocks<'_, '_, '_, P> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<P: Platform> Copy for ContBlocks<'_, '_, '_, P> {}

impl<'t, 'm, P: Platform> Deref for ContBlocks<'_, 't, 'm, P> {
    type Target = LockedTable<'t, 'm, P>;

    #[inline(always)]
    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl<P: Platform> ContBlocks<'_, '_, '_, P> {
    /// Returns true if an entry is a leaf PTE in a cont block.
    #[inline]
    pub(super) fn is_cont(self, raw: u64) -> bool {
        P::Arch::CONT != 0 && raw & P::Arch::CONT != 0 && self.tables.arch.kind(raw, self.level) == Kind::Leaf
    }

    /// Returns the number of PTEs of the cont block that `raw` is in; 1 if it is in none.
    #[inline]
    pub(super) fn cont_len(self, raw: u64) -> usize {
        if self.is_cont(raw) { 1 << self.tables.arch.cont_bits(self.level) } else { 1 }
    }

    /// Returns the accessed and dirty bits in which any of `n` entries from `index` on differs from
    /// `raw`. `look` reads each entry, or exchanges it and returns the old value. Compares eight
    /// entries at a time without a branch, as `LockedTable::match_entries` does.
    #[inline(always)]
    pub(super) fn differing(self, index: usize, n: usize, raw: u64, look: impl Fn(usize, &AtomicU64) -> u64) -> u64 {
        let mut all = 0;
        let (eights, rest) = self.entries()[index..index + n].as_chunks::<8>();
        for (at, eight) in (index..).step_by(8).zip(eights) {
            for (i, entry) in eight.iter().enumerate() {
                all |= look(at + i, entry) ^ raw;
            }
        }
        let at = index + eights.len() * 8;
        all = rest.iter().enumerate().fold(all, |all, (i, entry)| all | look(at + i, entry) ^ raw);
        all & P::Arch::HARDWARE
    }

    /// Compares at most `most` PTEs in cont blocks from `index` on with a run whose first PTE is
    /// `first`. Frame and attributes are read only from the first compared PTE of each block,
    /// because the others follow from it (INV-14). The accessed and dirty bits in the result
    /// include those of all PTEs of the compared blocks, also of PTEs outside the range. Calls
    /// `each` with pieces of the matching entries, and with the index of each piece's first entry.
    pub(super) fn match_cont_blocks(
        self,
        index: usize,
        most: usize,
        first: u64,
        each: &mut impl FnMut(usize, &[AtomicU64]),
    ) -> Match {
        let arch = &self.tables.arch;
        let (block, step) = (1usize << arch.cont_bits(self.level), arch.step(first, self.level));
        // If `first` has all accessed and dirty bits, no other PTE can add one.
        let full = arch.attrs(first, self.level).contains(Attrs::HARDWARE);
        let (mut at, mut expected, mut differing) = (index, first, 0);
        let mut entries = &self.entries()[index..index + most];
        // Only the first block of the range may begin before the range.
        let mut into = index & (block - 1);
        while let Some(entry) = entries.first() {
            let raw = entry.load(Relaxed);
            let differs = arch.without_cont(raw, at) ^ expected;
            // An entry that follows a leaf PTE and has the bit [`Arch::CONT`] is a leaf PTE too.
            if raw & P::Arch::CONT == 0 || differs & !P::Arch::HARDWARE != 0 {
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
        Match { len, differing: if len == 0 { 0 } else { differing | P::Arch::CONT }, cont: len }
    }

    /// Returns true if the aligned group of PTEs that contains `index` may be folded, provided that
    /// all of them are in one run with the PTE `raw` at `index`: the format has cont blocks at this
    /// level, virtual and physical addresses are aligned alike, and the PTEs allow an access.
    #[inline]
    pub(super) fn can_fold(self, index: usize, raw: u64) -> bool {
        let arch = &self.tables.arch;
        let bits = if P::Arch::CONT == 0 || !self.tables.uses_cont_blocks { 0 } else { arch.cont_bits(self.level) };
        if bits == 0 || arch.kind(raw, self.level) != Kind::Leaf {
            return false;
        }
        let va = self.base + ((index as u64) << self.shift());
        let within = (1u64 << (self.shift() + bits)) - 1;
        (arch.leaf_addr(raw, self.level).0 ^ va) & within == 0 && arch.attrs(raw, self.level).intersects(Attrs::PROT)
    }

    /// Returns how many PTEs it takes to map a folio from the frame that `raw` maps to the folio's
    /// end, rounded down to whole cont blocks: 0 if the folio is smaller than a cont block. `raw`
    /// is at the start of a cont block.
    #[inline]
    fn entries_in_folio(self, raw: u64) -> usize {
        let arch = &self.tables.arch;
        let pfn = arch.leaf_pfn(raw, self.level);
        // Head and tail descriptors both have the folio's order, and a folio is aligned to its
        // size.
        let order = self.tables.machine.frames().frame(pfn).state().order();
        let left = (1u32 << order) - (pfn.0 & ((1 << order) - 1));
        let block = 1 << arch.cont_bits(self.level);
        (left >> (self.shift() - FRAME_SHIFT)) as usize & !(block - 1)
    }

    /// Returns true if writing a run may complete a cont block. Does not read the neighbouring
    /// PTEs. Returns false for a run that maps a folio smaller than a cont block, which is what
    /// most faults write.
    #[inline]
    pub(super) fn may_complete_cont(self, index: usize, run: &Run) -> bool {
        if P::Arch::CONT == 0 || !self.tables.uses_cont_blocks || run.kind != Kind::Leaf {
            return false;
        }
        let arch = &self.tables.arch;
        let small = run.len < 1 << arch.cont_bits(self.level)
            && run.frames(arch) == 1 << self.tables.machine.frames().frame(run.pfn(arch)).order();
        !small && self.can_fold(index, run.raw)
    }

    /// Cuts `n` entries from `index` on, which will hold a run with the first PTE `raw`, into
    /// pieces, and calls `each` with a piece's index, length, first PTE, and true if the piece
    /// consists of whole cont blocks.
    pub(super) fn for_each_piece(
        self,
        index: usize,
        n: usize,
        raw: u64,
        mut each: impl FnMut(usize, usize, u64, bool),
    ) {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        let step = self.tables.arch.step(raw, self.level);
        let of = |at: usize| raw.wrapping_add(step.wrapping_mul(at as u64));
        // The entries from `done` to `at` form no block. They are passed on as one piece when a
        // block or the end is reached.
        let (mut at, mut done) = (block.wrapping_sub(index) & (block - 1), 0);
        while at + block <= n {
            let start = at;
            // Extends the piece by one folio after another, as long as they hold whole blocks.
            while at + block <= n {
                match self.entries_in_folio(of(at)).min((n - at) & !(block - 1)) {
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

    /// Writes a run of leaf PTEs over entries that are all `old`, folded where that is possible,
    /// and then folds the blocks at both ends if the run completed them.
    pub(super) fn set_folding(self, index: usize, run: &Run, old: u64) {
        if self.is_all_cont(index, run) {
            return self.write_cont(index, run.len, run.raw, Before::Equal(old));
        }
        let step = run.step(&self.tables.arch);
        if run.cont == Cont::None {
            // The run was read from another page table, where its addresses were aligned in the
            // same way, and where it contained no group of PTEs that could be folded
            // ([`Cont::None`]).
            self.write(index, run.len, Sequence::of_equal(old), Sequence { first: run.raw, step });
            return self.fold_edges(index, run.len);
        }
        self.for_each_piece(index, run.len, run.raw, |index, n, raw, is_cont| match is_cont {
            true => self.write_cont(index, n, raw, Before::Equal(old)),
            false => self.write(index, n, Sequence::of_equal(old), Sequence { first: raw, step }),
        });
        self.fold_edges(index, run.len);
    }

    /// Returns true if a run consists of whole cont blocks. If so, its folios need not be looked
    /// up, because each cont block lies in one folio.
    #[inline]
    pub(super) fn is_all_cont(self, index: usize, run: &Run) -> bool {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        run.cont == Cont::All && (index | run.len) & (block - 1) == 0
    }

    /// Writes `n` PTEs from `index` on as whole cont blocks. `raw` is the first PTE as it would be
    /// in no cont block. Only the tracer needs `before`.
    pub(super) fn write_cont(self, index: usize, n: usize, raw: u64, before: Before) {
        let arch = &self.tables.arch;
        let (block, step) = (1usize << arch.cont_bits(self.level), arch.step(raw, self.level));
        let cont_step = arch.cont_step(raw, self.level);
        if cont_step == step {
            let new = Sequence { first: arch.with_cont(raw), step };
            return self.write(index, n, before.from(arch, self.level, 0), new);
        }
        let singles = Sequence { first: raw, step };
        for at in (0..n).step_by(block) {
            let new = Sequence { first: arch.with_cont(singles.at(at)), step: cont_step };
            self.write(index + at, block, before.from(arch, self.level, at), new);
        }
    }

    /// Exchanges `n` PTEs for `instead`, and returns the first of them as if it were in no cont
    /// block, with the accessed and dirty bits of all of them (INV-6).
    pub(super) fn take_merged(self, index: usize, n: usize, instead: u64) -> u64 {
        let first = self.entry(index).load(Relaxed);
        // A bit that hardware set in the first PTE after that load is in `differing`.
        let differing = self.differing(index, n, first, |i, entry| self.exchange_at(i, entry, instead));
        merge_hardware_bits::<P::Arch>(self.tables.arch.without_cont(first, index), differing)
    }

    /// Flushes the TLB between clearing PTEs and writing them in another translation size, unless
    /// the CPU permits both sizes at once.
    pub(super) fn break_before_make(self, index: usize, n: usize) {
        if !self.tables.arch.cont_in_place() {
            let start = self.base + ((index as u64) << self.shift());
            let range = VirtRange { start, end: start + ((n as u64) << self.shift()) };
            let _flushed = self.tables.tlb.invalidate(&[range], self.shift(), false);
        }
    }

    /// Unfolds the cont block that begins before `index` and ends after it, so that the PTEs before
    /// `index` and those from `index` on can change separately. Does nothing if no block crosses
    /// `index`.
    #[inline]
    pub(super) fn unfold_at(self, index: usize) {
        if P::Arch::CONT != 0 && index & ((1 << self.tables.arch.cont_bits(self.level)) - 1) != 0 {
            self.unfold_around(index);
        }
    }

    /// Unfolds the cont block that the PTE at `index` is in, if any.
    #[inline]
    pub(super) fn unfold_around(self, index: usize) {
        let block = self.cont_len(self.entry(index).load(Relaxed));
        if block > 1 {
            self.unfold(index & !(block - 1), block);
        }
    }

    /// Unfolds the cont block of `block` PTEs that begins at `first`.
    #[cold]
    fn unfold(self, first: usize, block: usize) {
        let busy = self.tables.arch.busy_pte();
        let raw = self.take_merged(first, block, busy);
        self.break_before_make(first, block);
        let new = Sequence { first: raw, step: self.tables.arch.step(raw, self.level) };
        self.write(first, block, Sequence::of_equal(busy), new);
        self.tables.machine.count(Counter::ContUnfolds, 1);
    }

    /// Folds the cont blocks at both ends of `n` leaf PTEs that were written from `index` on, if
    /// their PTEs are alike now.
    pub(super) fn fold_edges(self, index: usize, n: usize) {
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        let last = index + n - 1;
        if index & (block - 1) != 0 || n < block {
            self.fold_if_uniform(index & !(block - 1));
        }
        if last & !(block - 1) != index & !(block - 1) && (last + 1) & (block - 1) != 0 {
            self.fold_if_uniform(last & !(block - 1));
        }
    }

    /// Returns the cont block that the first of `entries` form once `entries` are written from
    /// `index` on. Returns `None` if they can't be folded.
    pub(super) fn leading_cont_block(self, index: usize, entries: &[u64]) -> Option<ContBlock> {
        let (&first, arch) = (entries.first()?, &self.tables.arch);
        if !self.can_fold(index, first) {
            return None;
        }
        let block = 1 << arch.cont_bits(self.level);
        let entries = entries.get(..block).filter(|_| index & (block - 1) == 0)?;
        let follow = (0..).map(|i| first.wrapping_add(arch.step(first, self.level).wrapping_mul(i)));
        let differing = entries.iter().zip(follow).fold(0, |all, (entry, follows)| all | entry ^ follows);
        let whole = differing & !P::Arch::HARDWARE == 0 && self.entries_in_folio(first) >= block;
        whole.then(|| ContBlock { len: block, first: merge_hardware_bits::<P::Arch>(first, differing) })
    }

    /// Folds the PTEs from `first` on, the start of a cont block, if they are alike and map one
    /// folio.
    fn fold_if_uniform(self, first: usize) {
        let raw = self.entry(first).load(Relaxed);
        let block = 1usize << self.tables.arch.cont_bits(self.level);
        if raw & P::Arch::CONT == 0
            && self.can_fold(first, raw)
            && self.entries_in_folio(raw) >= block
            && self.matching_len(first, block, raw) == block
        {
            let busy = self.tables.arch.busy_pte();
            let raw = self.take_merged(first, block, busy);
            self.break_before_make(first, block);
            self.write_cont(first, block, raw, Before::Equal(busy));
            self.tables.machine.count(Counter::ContFolds, 1);
        }
    }
}
