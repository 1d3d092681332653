//! Leaves change while hardware records in them what happens: each keeps that, or it is forgotten and told.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{Relaxed, Release};

use super::entries::merged;
use super::run::Joined;
use super::{LockedTable, Run};
use crate::addr::VirtRange;
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::{Event, Platform, trace};

impl<P: Platform, A: Arch> LockedTable<'_, '_, P, A> {
    /// Turn each leaf of a run into `new` (the first one's; the others follow at its step), each keeping its own accessed
    /// and dirty bits, those included that hardware sets meanwhile.
    #[inline]
    pub(crate) fn rewrite(&self, run: &Run, new: u64) {
        debug_assert_eq!(run.kind, Kind::Leaf);
        let index = self.index(run.va);
        if run.joined != Joined::None || self.may_join(index, new) {
            self.rewrite_blocks(run, new);
        } else {
            self.rewrite_single(run, index, run.len, new);
        }
    }

    /// The same for `len` leaves of a run from `index` on, none of which is joined, or becomes so.
    #[inline]
    pub(super) fn rewrite_single(&self, run: &Run, index: usize, len: usize, new: u64) {
        let arch = &self.tables.arch;
        let step = arch.step(new, self.level);
        if run.settled {
            let old_step = arch.step(run.raw, self.level);
            let old = run.raw.wrapping_add(old_step.wrapping_mul((index - self.index(run.va)) as u64));
            return self.write(index, len, Some((old, old_step)), (arch.carry(new, old), step));
        }
        let first = self.entry(index).load(Relaxed);
        if let Some(change) = Bits::between::<A>(first, arch.carry(new, first))
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

    /// Turn a leaf into `new`, with what hardware has recorded in it.
    #[inline]
    pub(super) fn change(&self, index: usize, new: u64) {
        let old = self.entry(index).load(Relaxed);
        if self.tables.arch.hardware_idle(old) {
            self.store(index, old, self.tables.arch.carry(new, old));
        } else {
            let _ = self.change_contended(index, self.entry(index), |old| self.tables.arch.carry(new, old));
        }
    }

    /// Change bits of an entry in which hardware may set others meanwhile. What it was before.
    #[inline]
    fn change_bits(&self, index: usize, entry: &AtomicU64, change: Bits) -> u64 {
        trace(self.tables.platform(), || {
            Event::Exchange(self.pfn, index as u16, entry.load(Relaxed) & !change.clear | change.set)
        });
        if change.set == 0 { entry.fetch_and(!change.clear, Release) } else { entry.fetch_or(change.set, Release) }
    }

    /// Hardware may still set a bit in this entry: exchange until it didn't. What the last was that it made of it.
    #[inline]
    fn change_contended(&self, index: usize, entry: &AtomicU64, new: impl Fn(u64) -> u64) -> u64 {
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

    /// Record in the entry for `va`, a leaf, that it was accessed, as hardware that can't leaves to software; in all of its
    /// block, which has to allow the same everywhere.
    pub(crate) fn record(&self, va: u64, accessed: Attrs) {
        let index = self.index(va);
        let block = self.block(self.entry(index).load(Relaxed));
        let first = index & !(block - 1);
        for index in first..first + block {
            let _ = self.amend(index, |attrs| attrs | accessed);
        }
    }

    /// Clear some of what hardware has recorded in the leaves of a run. Which leaves had what of it is told, by the block.
    pub(crate) fn forget_recorded(&self, run: &Run, what: Attrs, mut told: impl FnMut(VirtRange, Attrs)) {
        let (mut at, end) = (self.index(run.va), self.index(run.va) + run.len);
        self.part_at(at);
        self.part_at(end);
        let arch = &self.tables.arch;
        let recorded = arch.leaf(arch.leaf_addr(run.raw, self.level), run.attrs(arch) | Attrs::HARDWARE, self.level);
        let bits = Bits::between::<A>(recorded, arch.clear_hardware(recorded, what, self.level));
        let forget = |index, entry: &AtomicU64| match bits {
            // What hardware sets after this look is set after it was forgotten.
            Some(bits) => match entry.load(Relaxed) {
                old if old & bits.clear == 0 => old,
                _ => self.change_bits(index, entry, bits),
            },
            None => self.change_contended(index, entry, |old| arch.clear_hardware(old, what, self.level)),
        };
        while at < end {
            let first = self.entry(at).load(Relaxed);
            let block = self.block(first);
            let old = match block {
                1 => forget(at, self.entry(at)),
                _ => merged::<A>(arch.without_cont(first, at), self.differing(at, block, first, forget)),
            };
            let start = self.base + ((at as u64) << self.shift());
            let range = VirtRange { start, end: start + ((block as u64) << self.shift()) };
            told(range, arch.attrs(old, self.level) & what);
            at += block;
        }
    }

    /// Change what a leaf says besides its frame, which hardware may change too; what that was.
    fn amend(&self, index: usize, change: impl Fn(Attrs) -> Attrs) -> Attrs {
        let arch = &self.tables.arch;
        let old = self.change_contended(index, self.entry(index), |old| {
            let attrs = change(arch.attrs(old, self.level));
            arch.leaf(arch.leaf_addr(old, self.level), attrs, self.level) | old & A::CONT
        });
        arch.attrs(old, self.level)
    }
}

/// Bits that are cleared in an entry, or set, and nothing else is done.
#[derive(Clone, Copy)]
struct Bits {
    clear: u64,
    set: u64,
}

impl Bits {
    /// What makes `new` of `old`, if it can be done beside hardware in one step: where that only ever sets bits, and it need not be
    /// looked at what those are.
    #[inline]
    fn between<A: Arch>(old: u64, new: u64) -> Option<Self> {
        let (clear, set) = (old & !new, new & !old);
        (A::HARDWARE_INVERTED == 0 && (clear == 0 || set == 0)).then_some(Bits { clear, set })
    }
}
