//! Scattered stretches: PTEs with equal attributes whose frames lie in pieces. A fork changes and
//! copies such PTEs without a look at their frames, and changes the counts of their folios one by
//! one, with the descriptors of the next ones prefetched.

use core::array::{from_mut, from_ref};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use super::LockedTable;
use super::stretch::{Flip, address_bits, flip_entry};
use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::{Event, Platform, trace};

/// A stretch whose frames lie in pieces: PTEs in no cont block, each of which maps other frames
/// than most of its neighbours. A view, from the PTE at `index` on.
pub(crate) struct Scattered<'l, 't, 'm, P: Platform> {
    table: &'l LockedTable<'t, 'm, P>,
    entries: &'l [AtomicU64],
    /// The first PTE.
    first: u64,
    /// The bits that are equal in all PTEs of the stretch.
    compared: u64,
    /// The number of the first entry in its page table.
    index: usize,
}

/// The number of folios after the one in work whose descriptors are prefetched: as many as memory
/// takes to answer, and no more than a core's line fill buffers hold.
const PREFETCH_AHEAD: usize = 12;
/// The length from which a run is handled by itself, and not as a part of a scattered stretch.
const LONG: usize = 32;

impl<'l, 't, 'm, P: Platform> Scattered<'l, 't, 'm, P> {
    /// Returns the PTEs from `va` on, at most `most` and before `end`, as a scattered stretch.
    /// Returns `None` if the entry at `va` is not a leaf PTE, is in a cont block, or begins a long
    /// run.
    #[inline]
    pub(crate) fn at(table: &'l LockedTable<'t, 'm, P>, va: u64, end: u64, most: usize) -> Option<Self> {
        let arch = &table.tables.arch;
        let index = table.index(va);
        let until = table.end_index(end).min(index + most);
        let entries = &table.entries()[index..until];
        let first = entries.first()?.load(Relaxed);
        if arch.kind(first, table.level) != Kind::Leaf || table.cont().is_cont(first) {
            return None;
        }
        let compared = !(address_bits(table) & !P::Arch::CONT | P::Arch::HARDWARE);
        let stretch = Scattered { table, entries, first, compared, index };
        stretch.frame(0).map(|_| stretch)
    }

    fn arch(&self) -> &'l P::Arch {
        &self.table.tables.arch
    }

    /// Returns the attributes, without accessed and dirty.
    #[inline]
    pub(crate) fn attrs(&self) -> Attrs {
        self.arch().attrs(self.first, self.table.level) - Attrs::HARDWARE
    }

    /// Returns the number of frames that a PTE maps.
    #[inline]
    pub(crate) fn frames_of_a_pte(&self) -> u32 {
        1 << (self.arch().level_shift(self.table.level) - FRAME_SHIFT)
    }

    /// Returns the frame that PTE `n` maps. Returns `None` at the end of the stretch: where
    /// attributes differ or a long run begins.
    #[inline(always)]
    pub(crate) fn frame(&self, n: usize) -> Option<Pfn> {
        let raw = self.entries.get(n)?.load(Relaxed);
        if (raw ^ self.first) & self.compared != 0 || self.begins_long_run(raw, n) {
            return None;
        }
        Some(self.arch().leaf_pfn(raw, self.table.level))
    }

    /// Prefetches descriptors of frames that PTEs from `n` on map, as if each folio had `ptes`
    /// PTEs: those of the next [`PREFETCH_AHEAD`] folios, except before PTE `done`. Returns the PTE
    /// at which it stopped.
    #[inline(always)]
    pub(crate) fn prefetch_ahead(&self, n: usize, ptes: usize, done: usize) -> usize {
        let until = (n + PREFETCH_AHEAD * ptes).min(self.entries.len());
        let mut at = done.max(n);
        while at < until {
            self.table
                .tables
                .machine
                .frames()
                .prefetch(self.arch().leaf_pfn(self.entries[at].load(Relaxed), self.table.level));
            at += ptes;
        }
        at
    }

    /// Returns how many of the PTEs from `n` on, at most `most`, map consecutive frames. PTE `n` is
    /// one of the stretch.
    #[inline]
    pub(crate) fn consecutive(&self, n: usize, most: usize) -> usize {
        let first = self.entries[n].load(Relaxed);
        let step = self.arch().step(first, self.table.level);
        let follows = |(i, entry): &(usize, &AtomicU64)| {
            let expected = first.wrapping_add(step.wrapping_mul(*i as u64));
            (entry.load(Relaxed) ^ expected) & !P::Arch::HARDWARE == 0
        };
        self.entries[n..].iter().enumerate().take(most).take_while(follows).count()
    }

    /// Returns whether a long run seems to begin with PTE `n`, which is `raw`.
    #[inline(always)]
    fn begins_long_run(&self, raw: u64, n: usize) -> bool {
        let expected = raw.wrapping_add(self.arch().step(raw, self.table.level).wrapping_mul(LONG as u64 - 1));
        self.entries.get(n + LONG - 1).is_some_and(|last| (last.load(Relaxed) ^ expected) & !P::Arch::HARDWARE == 0)
    }

    /// Changes the first PTEs of a scattered stretch, as many as there are `copies`, to the
    /// attributes `kept`, and stores in `copies` the same PTEs with the attributes `copied`, both
    /// without accessed and dirty: each PTE keeps these, and its copy gets them (INV-6). Neither
    /// change adds or removes a right but the right to write.
    #[inline]
    pub(crate) fn change_and_copy(&self, [kept, copied]: [Attrs; 2], copies: &mut [u64]) {
        let (table, n) = (self.table, copies.len());
        let flip = |new| Flip::between(self.arch(), self.attrs(), new, table.level);
        let change = Change { first: self.first, keep: flip(kept), copy: flip(copied) };
        fence(Release);
        let (eights, rest) = self.entries[..n].as_chunks::<8>();
        let (to_eights, to_rest) = copies.as_chunks_mut::<8>();
        for ((at, eight), to) in (self.index..).step_by(8).zip(eights).zip(to_eights) {
            self.change_and_copy_some(at, eight, to, change);
        }
        for ((at, entry), to) in (self.index + n - rest.len()..).zip(rest).zip(to_rest) {
            self.change_and_copy_some(at, from_ref(entry), from_mut(to), change);
        }
        if P::Arch::CONT != 0 && change.keep.bits != 0 && table.tables.uses_cont_blocks {
            table.cont().fold_edges(self.index, n);
        }
    }

    /// Changes and copies a fixed number of PTEs, so that no branch lies between them.
    #[inline(always)]
    fn change_and_copy_some<const N: usize>(
        &self,
        index: usize,
        entries: &[AtomicU64; N],
        copies: &mut [u64; N],
        Change { first, keep, copy }: Change<P::Arch>,
    ) {
        let differs = entries.iter().fold(0, |differs, entry| differs | entry.load(Relaxed) ^ first);
        let idle = differs & P::Arch::HARDWARE == 0 && self.arch().hardware_idle(first);
        let (keep_bits, copy_bits) = (keep.bits_of(first), copy.bits_of(first));
        for (i, (entry, to)) in entries.iter().zip(copies).enumerate() {
            let old = match keep.bits {
                0 => entry.load(Relaxed),
                _ => flip_entry(self.table, index + i, entry, keep, idle.then_some(keep_bits)),
            };
            *to = if idle { old ^ copy_bits } else { copy.of(old) };
        }
    }
}

/// The change of PTEs and that of their copies.
#[derive(Clone, Copy)]
struct Change<A> {
    /// A PTE. If hardware has nothing left to set in it, the same holds for all PTEs with its
    /// accessed and dirty bits.
    first: u64,
    keep: Flip<A>,
    copy: Flip<A>,
}

/// Writes copies of [`Scattered::change_and_copy`] into empty entries from `va` on, and adds
/// them to the live count.
#[inline]
pub(crate) fn set_copies<P: Platform>(table: &LockedTable<'_, '_, P>, va: u64, copies: &[u64]) {
    debug_assert!(table.is_empty(va, copies.len()));
    fence(Release);
    let index = table.index(va);
    let set = |at: usize, entry: &AtomicU64, copy: u64| {
        trace(table.tables.platform(), || Event::Store(table.pfn, at as u16, 0, copy));
        entry.store(copy, Relaxed);
    };
    let (eights, rest) = table.entries()[index..index + copies.len()].as_chunks::<8>();
    let (from_eights, from_rest) = copies.as_chunks::<8>();
    for ((at, eight), from) in (index..).step_by(8).zip(eights).zip(from_eights) {
        eight.iter().zip(from).enumerate().for_each(|(i, (entry, &copy))| set(at + i, entry, copy));
    }
    let at = index + copies.len() - rest.len();
    rest.iter().zip(from_rest).enumerate().for_each(|(i, (entry, &copy))| set(at + i, entry, copy));
    table.live().add(copies.len());
    if P::Arch::CONT != 0 && table.tables.uses_cont_blocks {
        table.cont().fold_edges(index, copies.len());
    }
}
