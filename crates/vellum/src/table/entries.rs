//! The PTEs of a locked page table: reads and writes them one run at a time.
//!
//! [`super::take`] clears leaf PTEs, and [`super::rewrite`] changes them while hardware sets
//! accessed and dirty bits. Only [`super::cont_block`] handles cont blocks (groups of PTEs that a
//! TLB may hold as one translation): the functions here return each leaf PTE as if it were in no
//! cont block (INV-14). All stores are made under the page table's lock, or before the page table
//! is published (INV-5).

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use super::run::Cont;
use super::walk::{are_empty, leading_empty};
use super::{LockedTable, Run};
use crate::arch::{Arch, Kind};
use crate::platform::{Event, Platform, trace};

/// The result of comparing consecutive entries with a [`Sequence`].
pub(super) struct Match {
    /// The number of entries that match, from the first on.
    pub(super) len: usize,
    /// The bits outside the compared mask in which at least one of these entries differs from the
    /// sequence.
    pub(super) differing: u64,
    /// The number of these entries that are in cont blocks.
    pub(super) cont: usize,
}

/// The raw values of consecutive entries, each a constant step from the one before.
#[derive(Clone, Copy)]
pub(super) struct Sequence {
    /// The value of the first entry.
    pub(super) first: u64,
    /// The difference between neighbours, wrapping ([`Arch::step`]); 0 if all entries are equal.
    pub(super) step: u64,
}

impl Sequence {
    /// Returns the sequence in which every entry is `raw`.
    #[inline]
    pub(super) const fn of_equal(raw: u64) -> Self {
        Sequence { first: raw, step: 0 }
    }

    /// Returns the value of entry `i`, counted from the first.
    #[inline]
    pub(super) const fn at(self, i: usize) -> u64 {
        self.first.wrapping_add(self.step.wrapping_mul(i as u64))
    }

    /// Returns the sequence without its first `n` entries.
    #[inline]
    pub(super) const fn skip(self, n: usize) -> Self {
        Sequence { first: self.at(n), ..self }
    }
}

impl Match {
    /// Adds the result for the entries that follow to this one.
    #[inline]
    fn add(&mut self, next: Match) {
        self.len += next.len;
        self.differing |= next.differing;
        self.cont += next.cont;
    }
}

impl<P: Platform> LockedTable<'_, '_, P> {
    /// Returns an entry. A leaf PTE is returned as if it were in no cont block, with the accessed
    /// and dirty bits of its whole block.
    #[inline]
    pub(super) fn read(&self, index: usize) -> u64 {
        let raw = self.entry(index).load(Relaxed);
        if !self.cont().is_cont(raw) {
            return raw;
        }
        let single = self.tables.arch.without_cont(raw, index);
        let block = self.cont().cont_len(raw);
        let first = index & !(block - 1);
        merge_hardware_bits::<P::Arch>(
            single,
            self.cont().differing(first, block, single, |_, entry| entry.load(Relaxed)),
        )
    }

    /// Returns the entry for `va`. A leaf PTE has the accessed and dirty bits of its whole cont
    /// block.
    #[inline]
    pub(crate) fn get(&self, va: u64) -> u64 {
        self.read(self.index(va))
    }

    /// Returns the kind of the entry for `va`.
    #[inline]
    pub(crate) fn kind(&self, va: u64) -> Kind {
        self.tables.arch.kind(self.entry(self.index(va)).load(Relaxed), self.level)
    }

    /// Returns the [`Run`] (consecutive entries that are alike) that begins at `va` and ends at
    /// `end` or before. `end` is above `va`. If `va` lies inside a huge entry, the run begins at
    /// the start of that entry. Returns `None` at a pointer to a page table, and at a busy entry
    /// (another CPU replaces it without the lock, [`BusyEntries`](super::BusyEntries)):
    /// [`PageTables::find`](super::PageTables::find) then walks down to that page table, or waits
    /// until that CPU has written the entry.
    #[inline]
    pub(crate) fn run(&self, va: u64, end: u64) -> Option<Run> {
        self.read_run(va, end, |raw| raw)
    }

    /// Returns the run that [`LockedTable::run`] does, for a caller that does not need the accessed
    /// and dirty bits: the run has all of them set. Cheaper, because the other PTEs of a cont block
    /// need not be read.
    #[inline]
    pub(crate) fn run_ignoring_accessed_dirty(&self, va: u64, end: u64) -> Option<Run> {
        self.read_run(va, end, |raw| self.tables.arch.set_hardware(raw))
    }

    /// Returns the run at `va`. If it is a run of leaf PTEs, `taken` converts the first one to the
    /// value with which the others are compared.
    #[inline(always)]
    fn read_run(&self, va: u64, end: u64, taken: impl FnOnce(u64) -> u64) -> Option<Run> {
        let arch = &self.tables.arch;
        let index = self.index(va);
        let until = self.end_index(end);
        let most = (until - index).min(self.tables.max_run);
        let raw = self.entry(index).load(Relaxed);
        let kind = arch.kind(raw, self.level);
        let va = va >> self.shift() << self.shift();
        let run = |len, raw| Some(Run::new(va, self.level, kind, raw, len));
        let alike = |most, raw, step| self.match_entries(index, most, Sequence { first: raw, step }, !0, |_, _| ()).len;
        match kind {
            Kind::Table | Kind::Busy => None,
            Kind::None => run(leading_empty(&self.entries()[index..until]), 0),
            Kind::Marker => run(alike(most, raw, 0), raw),
            // A huge swap entry is a run by itself. It names the first of many consecutive slots,
            // so the slots of two such neighbours differ by more than the one slot of
            // [`Arch::step`].
            Kind::Swap if self.level > 1 => run(1, raw),
            Kind::Swap => run(alike(most, raw, arch.step(raw, self.level)), raw),
            Kind::Leaf => {
                let first = taken(arch.without_cont(raw, index));
                let Match { len, differing, cont } = self.match_leaves(index, most, first, |_, _| ());
                let cont = match cont {
                    0 => Cont::None,
                    all if all == len => Cont::All,
                    _ => Cont::Some,
                };
                let raw = merge_hardware_bits::<P::Arch>(first, differing);
                let stable = differing & P::Arch::HARDWARE == 0 && arch.hardware_idle(raw);
                Some(Run { va, len, level: self.level, kind, raw, stable, cont })
            }
        }
    }

    /// Overwrites the entry for `va`, which is a busy entry of [`LockedTable::take_busy`] or a swap
    /// entry: no other CPU and no hardware changes such an entry.
    pub(crate) fn fill(&self, va: u64, raw: u64) {
        self.store(self.index(va), self.get(va), raw);
    }

    /// Writes the run `new` over the run `old`, which has the same length and maps nothing.
    pub(crate) fn replace(&self, old: &Run, new: &Run) {
        if self.level > 1 {
            debug_assert!(old.len == 1 && new.len == 1);
            return self.fill(new.va, new.raw);
        }
        self.erase(old);
        self.set(new);
    }

    /// Returns how many of `n` leaf PTEs from `index` on continue a run that begins with `first`. A
    /// PTE in a cont block never continues it.
    pub(super) fn matching_len(&self, index: usize, n: usize, first: u64) -> usize {
        let step = self.tables.arch.step(first, self.level);
        self.match_entries(index, n, Sequence { first, step }, !P::Arch::HARDWARE, |_, _| ()).len
    }

    /// Compares at most `most` leaf PTEs from `index` on with a run whose first PTE is `first`, and
    /// ignores accessed and dirty bits. PTEs in cont blocks are compared one block at a time. Calls
    /// `each` with pieces of the matching entries, and with the index of each piece's first entry.
    #[inline(always)]
    pub(super) fn match_leaves(
        &self,
        index: usize,
        most: usize,
        first: u64,
        mut each: impl FnMut(usize, &[AtomicU64]),
    ) -> Match {
        let expected = Sequence { first, step: self.tables.arch.step(first, self.level) };
        // In memory that is in pieces, most runs are one PTE long: the next one shows that.
        if let [one, rest @ ..] = &self.entries()[index..index + most] {
            let next = rest.first().map_or(0, |next| next.load(Relaxed));
            let differing = one.load(Relaxed) ^ first;
            let differs = |bits: u64| bits & !P::Arch::HARDWARE != 0;
            if next & P::Arch::CONT == 0 && differs(next ^ expected.at(1)) && !differs(differing) {
                each(index, core::slice::from_ref(one));
                return Match { len: 1, differing, cont: 0 };
            }
        }
        let mut all = Match { len: 0, differing: 0, cont: 0 };
        loop {
            let next = expected.skip(all.len);
            let mut found =
                |next| self.match_entries(index + all.len, most - all.len, next, !P::Arch::HARDWARE, &mut each);
            // With the step as a constant, a comparison takes an instruction less for each PTE.
            let found = if next.step == P::Arch::PAGE_STEP {
                found(Sequence { step: P::Arch::PAGE_STEP, ..next })
            } else {
                found(next)
            };
            all.add(found);
            if P::Arch::CONT == 0 || all.len == most {
                return all;
            }
            let next = expected.at(all.len);
            let blocks = self.cont().match_cont_blocks(index + all.len, most - all.len, next, &mut each);
            let ends = blocks.len == 0;
            all.add(blocks);
            if ends || all.len == most {
                return all;
            }
        }
    }

    /// Compares at most `most` entries from `index` on with the sequence, in the bits of `mask`.
    /// Calls `each` with pieces of the matching entries, and with the index of each piece's first
    /// entry.
    ///
    /// Compares eight entries at a time without a branch between them, so that finding a run costs
    /// little more than reading its entries.
    #[inline(always)]
    fn match_entries(
        &self,
        index: usize,
        most: usize,
        Sequence { first, step }: Sequence,
        mask: u64,
        mut each: impl FnMut(usize, &[AtomicU64]),
    ) -> Match {
        let mut expected = first;
        let mut differing = 0;
        let mut rest = &self.entries()[index..index + most];
        while let Some((eight, others)) = rest.split_first_chunk::<8>() {
            // Most runs end where a folio does, mostly a multiple of eight: one PTE shows that.
            let mut differs = eight[0].load(Relaxed) ^ expected;
            if differs & mask != 0 {
                return Match { len: most - rest.len(), differing, cont: 0 };
            }
            let mut next = expected.wrapping_add(step);
            for entry in &eight[1..] {
                differs |= entry.load(Relaxed) ^ next;
                next = next.wrapping_add(step);
            }
            if differs & mask != 0 {
                break;
            }
            each(index + most - rest.len(), eight);
            differing |= differs;
            (expected, rest) = (next, others);
        }
        while let Some((entry, others)) = rest.split_first() {
            let differs = entry.load(Relaxed) ^ expected;
            if differs & mask != 0 {
                break;
            }
            each(index + most - rest.len(), core::slice::from_ref(entry));
            differing |= differs;
            (expected, rest) = (expected.wrapping_add(step), others);
        }
        let len = most - rest.len();
        Match { len, differing, cont: 0 }
    }

    /// Returns true if the `n` entries from `va` on are all empty.
    pub(crate) fn is_empty(&self, va: u64, n: usize) -> bool {
        let index = self.index(va);
        are_empty(&self.entries()[index..index + n])
    }

    /// Writes a run of any kind into empty entries, and adds it to the live count.
    #[inline]
    pub(crate) fn set(&self, run: &Run) {
        self.set_over(run, 0);
        self.live().add(run.len);
    }

    /// Writes a run as [`LockedTable::set`] does, of PTEs that map pages of a page-cache object.
    pub(super) fn set_object(&self, run: &Run) {
        self.set_over(run, 0);
        self.live().add_object(run.len);
    }

    /// Writes a run of any kind over entries that are all `old` and map nothing. Does not change
    /// the live count.
    #[inline]
    pub(super) fn set_over(&self, run: &Run, old: u64) {
        let index = self.index(run.va);
        if self.cont().may_complete_cont(index, run) {
            self.cont().set_folding(index, run, old);
        } else if run.len == 1 {
            self.store(index, old, run.raw);
        } else {
            let new = Sequence { first: run.raw, step: run.step(&self.tables.arch) };
            self.write(index, run.len, Sequence::of_equal(old), new);
        }
    }

    /// Writes `n` entries from `index` on by plain stores. No accessed or dirty bit is lost,
    /// because hardware sets none in these entries any more: they are not valid, or have all bits
    /// that it would set ([`Arch::hardware_idle`]); or, in a cont block, another PTE has told them
    /// for the whole block. Only the tracer needs `old`, the values of the entries as they are
    /// known.
    ///
    /// One release fence before all stores orders the contents of the mapped frames before the
    /// PTEs. That is cheaper than a release store for each PTE.
    #[inline(always)]
    pub(super) fn write(&self, index: usize, n: usize, old: Sequence, new: Sequence) {
        fence(Release);
        let mut passed = 0;
        let Sequence { first: mut new, step } = new;
        let mut index = index;
        let (eights, rest) = self.entries()[index..index + n].as_chunks::<8>();
        let mut piece = |entries: &[AtomicU64]| {
            for (i, entry) in entries.iter().enumerate() {
                let next = new.wrapping_add(step.wrapping_mul(i as u64));
                trace(self.tables.platform(), || Event::Store(self.pfn, (index + i) as u16, old.at(passed + i), next));
                entry.store(next, Relaxed);
            }
            index += entries.len();
            passed += entries.len();
            new = new.wrapping_add(step.wrapping_mul(entries.len() as u64));
        };
        eights.iter().for_each(|eight| piece(eight));
        piece(rest);
    }

    /// Stores an entry that no other CPU or hardware changes meanwhile. `expected` is its present
    /// value, for the tracer. The store has release order, so that a CPU that reads the entry sees
    /// the contents of the frame that it maps.
    #[inline]
    pub(super) fn store(&self, index: usize, expected: u64, new: u64) {
        trace(self.tables.platform(), || Event::Store(self.pfn, index as u16, expected, new));
        self.entry(index).store(new, Release);
    }

    /// Exchanges an entry for `new`, and returns the old value with every accessed and dirty bit
    /// that hardware has set until then (INV-6).
    pub(super) fn exchange(&self, index: usize, new: u64) -> u64 {
        self.exchange_at(index, self.entry(index), new)
    }

    /// Exchanges an entry as [`LockedTable::exchange`] does, for a caller that already has a
    /// reference to the entry.
    #[inline(always)]
    pub(super) fn exchange_at(&self, index: usize, entry: &AtomicU64, new: u64) -> u64 {
        trace(self.tables.platform(), || Event::Exchange(self.pfn, index as u16, new));
        entry.swap(new, AcqRel)
    }

    /// Clears a run of markers or swap entries. The caller releases the swap slots.
    pub(crate) fn erase(&self, run: &Run) {
        debug_assert!(matches!(run.kind, Kind::Marker | Kind::Swap));
        let index = self.index(run.va);
        for i in index..index + run.len {
            self.store(i, self.entry(i).load(Relaxed), 0);
        }
        self.live().subtract(run.len);
    }
}

/// Returns the leaf PTE `first` with the union of the accessed and dirty bits of several PTEs.
/// `differing` has the bits in which at least one of the other PTEs differs from `first`.
#[inline]
pub(super) fn merge_hardware_bits<A: Arch>(first: u64, differing: u64) -> u64 {
    // A bit that is clear in `first` and differs in another PTE is set in that other PTE.
    let recorded = (first ^ A::HARDWARE_INVERTED) | differing;
    first & !A::HARDWARE | (recorded ^ A::HARDWARE_INVERTED) & A::HARDWARE
}
