//! Changes leaf PTEs that hardware may change at the same time: no accessed or dirty bit that
//! hardware sets is lost (INV-6).
//!
//! A PTE that hardware may still write is changed by an atomic exchange, or by one atomic operation
//! that only sets or only clears bits. A plain store is used where hardware has nothing left to set
//! ([`Arch::hardware_idle`]).

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};

use super::cont_block::Before;
use super::entries::{Sequence, merge_hardware_bits};
use super::run::Cont;
use super::{LockedTable, Run};
use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::{Event, Platform, trace};

impl<P: Platform> LockedTable<'_, '_, P> {
    /// Changes the leaf PTEs of a run: the first to `new`, and each other one to the value that
    /// follows its predecessor's ([`Arch::step`]). Each PTE keeps its own accessed and dirty bits,
    /// also those that hardware sets at the same time (INV-6). Does not flush.
    #[inline]
    pub(crate) fn rewrite(&self, run: &Run, new: u64) {
        debug_assert_eq!(run.kind, Kind::Leaf);
        let index = self.index(run.va);
        if run.cont != Cont::None || self.cont().can_fold(index, new) {
            self.cont().rewrite_cont(run, new);
        } else {
            self.rewrite_single(run, index, run.len, new);
        }
    }

    /// Changes `len` leaf PTEs of a run from `index` on as [`LockedTable::rewrite`] does. None of
    /// them is in a cont block, and none becomes a part of one.
    #[inline]
    pub(super) fn rewrite_single(&self, run: &Run, index: usize, len: usize, new: u64) {
        let arch = &self.tables.arch;
        let step = arch.step(new, self.level);
        if run.stable {
            let old_step = arch.step(run.raw, self.level);
            let old = Sequence { first: run.raw, step: old_step }.skip(index - self.index(run.va));
            return self.write(index, len, old, Sequence { first: arch.carry(new, old.first), step });
        }
        let first = self.entry(index).load(Relaxed);
        if let Some(change) = Bits::between::<P::Arch>(first, arch.carry(new, first))
            && arch.step(first, self.level) == step
        {
            for (i, entry) in self.entries()[index..index + len].iter().enumerate() {
                self.change_bits(index + i, entry, change);
            }
            return;
        }
        let mut new = new;
        for i in index..index + len {
            self.change(i, new);
            new = new.wrapping_add(step);
        }
    }

    /// Changes the leaf PTE at `index` to `new`, and keeps its accessed and dirty bits.
    #[inline]
    pub(super) fn change(&self, index: usize, new: u64) {
        let old = self.entry(index).load(Relaxed);
        if self.tables.arch.hardware_idle(old) {
            self.store(index, old, self.tables.arch.carry(new, old));
        } else {
            let _ = self.change_contended(index, self.entry(index), |old| self.tables.arch.carry(new, old));
        }
    }

    /// Sets or clears bits of an entry in which hardware may set others meanwhile, and returns the
    /// old value. This is one atomic operation without retries.
    #[inline]
    fn change_bits(&self, index: usize, entry: &AtomicU64, change: Bits) -> u64 {
        trace(self.tables.platform(), || {
            Event::Exchange(self.pfn, index as u16, entry.load(Relaxed) & !change.clear | change.set)
        });
        if change.set == 0 { entry.fetch_and(!change.clear, Release) } else { entry.fetch_or(change.set, Release) }
    }

    /// Changes an entry to `new(old)` by a compare-and-exchange, which is repeated if hardware
    /// changed the entry after it was read. Returns the last old value.
    #[inline]
    pub(super) fn change_contended(&self, index: usize, entry: &AtomicU64, new: impl Fn(u64) -> u64) -> u64 {
        let mut old = entry.load(Relaxed);
        loop {
            let next = new(old);
            if next == old {
                return old;
            }
            trace(self.tables.platform(), || Event::Exchange(self.pfn, index as u16, next));
            match entry.compare_exchange(old, next, Release, Relaxed) {
                Ok(_) => return old,
                Err(seen) => old = seen,
            }
        }
    }

    /// Sets the bits `accessed` (accessed, dirty or both) in the leaf PTE for `va` and in all PTEs
    /// of its cont block, so that they stay alike (INV-14). For CPUs that leave this to software.
    pub(crate) fn set_accessed_dirty(&self, va: u64, accessed: Attrs) {
        let index = self.index(va);
        let block = self.cont().cont_len(self.entry(index).load(Relaxed));
        let first = index & !(block - 1);
        for index in first..first + block {
            let _ = self.update_attrs(index, |attrs| attrs | accessed);
        }
    }

    /// Clears the accessed or dirty bits `cleared` of a run's leaf PTEs. Calls `report` for each
    /// part of the run with its addresses, and with those bits of `cleared` that were set in all
    /// its PTEs, or in any PTE of its cont block. Does not flush.
    pub(crate) fn clear_accessed_dirty(&self, run: &Run, cleared: Attrs, mut report: impl FnMut(VirtRange, Attrs)) {
        let (mut at, end) = (self.index(run.va), self.index(run.va) + run.len);
        if run.stable && (run.cont == Cont::None || self.cont().is_all_cont(at, run)) {
            let raw = self.tables.arch.clear_hardware(run.raw, cleared, self.level);
            match run.cont {
                Cont::None => {
                    let step = run.step(&self.tables.arch);
                    self.write(at, run.len, Sequence { first: run.raw, step }, Sequence { first: raw, step });
                }
                _ => self.cont().write_cont(at, run.len, raw, Before::Blocks(run.raw)),
            }
            return report(run.range(&self.tables.arch), run.attrs(&self.tables.arch) & cleared);
        }
        self.cont().unfold_at(at);
        self.cont().unfold_at(end);
        let arch = &self.tables.arch;
        let all_set = arch.leaf(arch.leaf_addr(run.raw, self.level), run.attrs(arch) | Attrs::HARDWARE, self.level);
        let bits = Bits::between::<P::Arch>(all_set, arch.clear_hardware(all_set, cleared, self.level));
        let clear = |index, entry: &AtomicU64| match bits {
            // If hardware sets a bit after this load, the access or write counts as one after the
            // clearing.
            Some(bits) => match entry.load(Relaxed) {
                old if old & bits.clear == 0 => old,
                _ => self.change_bits(index, entry, bits),
            },
            None => self.change_contended(index, entry, |old| arch.clear_hardware(old, cleared, self.level)),
        };
        while at < end {
            let first = self.entry(at).load(Relaxed);
            let block = self.cont().cont_len(first);
            let old = match block {
                1 => clear(at, self.entry(at)),
                _ => merge_hardware_bits::<P::Arch>(
                    arch.without_cont(first, at),
                    self.cont().differing(at, block, first, clear),
                ),
            };
            let start = self.base + ((at as u64) << self.shift());
            let range = VirtRange { start, end: start + ((block as u64) << self.shift()) };
            report(range, arch.attrs(old, self.level) & cleared);
            at += block;
        }
    }

    /// Changes the attributes of the leaf PTE at `index`, which hardware may change meanwhile, and
    /// returns the old ones. The frame and the bit [`Arch::CONT`] stay.
    fn update_attrs(&self, index: usize, change: impl Fn(Attrs) -> Attrs) -> Attrs {
        let arch = &self.tables.arch;
        let old = self.change_contended(index, self.entry(index), |old| {
            let attrs = change(arch.attrs(old, self.level));
            arch.leaf(arch.leaf_addr(old, self.level), attrs, self.level) | old & P::Arch::CONT
        });
        arch.attrs(old, self.level)
    }
}

/// A change that only clears bits, or only sets bits.
#[derive(Clone, Copy)]
struct Bits {
    clear: u64,
    set: u64,
}

impl Bits {
    /// Returns the change from `old` to `new` if one atomic operation can make it while hardware
    /// may set bits. That needs two things: the change only clears or only sets bits, and hardware
    /// never clears a bit in this format. Then the current value need not be known.
    #[inline]
    fn between<A: Arch>(old: u64, new: u64) -> Option<Self> {
        let (clear, set) = (old & !new, new & !old);
        (A::HARDWARE_INVERTED == 0 && (clear == 0 || set == 0)).then_some(Bits { clear, set })
    }
}
