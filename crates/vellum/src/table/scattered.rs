//! Scattered stretches: PTEs with equal attributes whose frames lie in pieces. A fork changes and
//! copies such PTEs without a look at their frames, and changes the counts of their folios part by
//! part, with the descriptors of all parts prefetched.

use core::array::{from_mut, from_ref};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use arrayvec::ArrayVec;

use super::LockedTable;
use super::stretch::{Flip, LONG_CONT, address_bits, flip_entry};
use crate::addr::{FRAME_SHIFT, Pfn};
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{Frame, prefetch};
use crate::platform::{Event, Platform, trace};

/// A stretch whose frames lie in pieces: PTEs of which few in a row ([`LONG`]) map consecutive
/// frames. They are whole cont blocks (PTEs that a TLB may hold as one translation), or in none.
pub(crate) struct Scattered<'l, 't, 'm, P: Platform> {
    table: &'l LockedTable<'t, 'm, P>,
    entries: &'l [AtomicU64],
    /// The first PTE.
    first: u64,
    /// The bits that are equal in all PTEs of the stretch.
    equal: u64,
    /// The number of PTEs of a cont block, or 1.
    block: usize,
    /// The number of the first entry in its page table.
    index: usize,
}

/// Consecutive PTEs of a scattered stretch that map consecutive frames.
#[derive(Clone, Copy)]
pub(crate) struct Part<'m> {
    /// The first frame.
    pub(crate) pfn: Pfn,
    /// Its descriptor.
    pub(crate) frame: &'m Frame,
    /// The number of PTEs.
    pub(crate) ptes: usize,
}

/// The largest number of parts whose descriptors are prefetched together. A core has no more cache
/// misses under way.
pub(crate) const MAX_PARTS: usize = 16;
/// The length from which a run is handled by itself, and not as a part of a scattered stretch
/// ([`LONG_CONT`] for a run of cont blocks).
const LONG: usize = 64;

impl<'l, 't, 'm, P: Platform> Scattered<'l, 't, 'm, P> {
    /// Returns the PTEs from `va` on, at most `most` and before `end`, as a scattered stretch.
    /// Returns `None` if the entry at `va` is not a leaf PTE, begins a long run, or is in a cont
    /// block that is not wholly in that range.
    #[inline]
    pub(crate) fn at(table: &'l LockedTable<'t, 'm, P>, va: u64, end: u64, most: usize) -> Option<Self> {
        let (arch, level) = (&table.tables.arch, table.level);
        let index = table.index(va);
        let first = table.entry(index).load(Relaxed);
        if arch.kind(first, level) != Kind::Leaf {
            return None;
        }
        let block = table.cont().cont_len(first);
        let ptes = table.end_index(end).min(index + most) - index;
        let entries = &table.entries()[index..index + ptes / block * block];
        // The bits that are equal in all PTEs of the stretch.
        let equal = !(address_bits(table) & !P::Arch::CONT | P::Arch::HARDWARE);
        let stretch = Scattered { table, entries, first, equal, block, index };
        (index.is_multiple_of(block) && !entries.is_empty() && !stretch.begins_long_run()).then_some(stretch)
    }

    /// Returns whether the first PTE seems to begin a long run.
    #[inline]
    fn begins_long_run(&self) -> bool {
        if self.is_limited() {
            return false;
        }
        // All PTEs of a cont block may have the same address field, so first ones are compared.
        let skip = self.long() - self.block;
        let step = self.arch().step(self.first, self.table.level);
        let expected = self.first.wrapping_add(step.wrapping_mul(skip as u64));
        self.entries.get(skip).is_some_and(|last| (last.load(Relaxed) ^ expected) & !P::Arch::HARDWARE == 0)
    }

    /// Returns the number of PTEs of a cont block, or 1: a constant for a format without them.
    #[inline]
    fn block(&self) -> usize {
        if P::Arch::CONT == 0 { 1 } else { self.block }
    }

    fn long(&self) -> usize {
        if self.block == 1 { LONG } else { LONG_CONT }
    }

    /// Returns whether the limit on runs is shorter than a long run, so that there is none.
    fn is_limited(&self) -> bool {
        self.table.tables.max_run < self.long()
    }

    /// Replaces `parts` by the next `most`, from PTE `n` on, and prefetches their descriptors.
    /// There are fewer at the end of the stretch: where attributes differ or a long run begins.
    pub(crate) fn next_parts(&self, n: usize, most: usize, parts: &mut ArrayVec<Part<'m>, MAX_PARTS>) {
        match self.is_limited() {
            true => self.next_parts_of::<true>(n, most, parts),
            false => self.next_parts_of::<false>(n, most, parts),
        }
    }

    /// Does the work of [`Self::next_parts`]; `LIMITED` is [`Self::is_limited`].
    ///
    /// Not inlined: the compiler then keeps what the loop needs in registers.
    #[inline(never)]
    fn next_parts_of<const LIMITED: bool>(&self, n: usize, most: usize, parts: &mut ArrayVec<Part<'m>, MAX_PARTS>) {
        let (arch, level) = (self.arch(), self.table.level);
        let frames = self.table.tables.machine.frames();
        let (entries, block, first, equal) = (self.entries, self.block(), self.first, self.equal);
        let (step, long) = (arch.step(first, level).wrapping_mul(block as u64), self.long());
        parts.clear();
        let mut at = n;
        while let Some(entry) = entries.get(at) {
            let raw = entry.load(Relaxed);
            if (raw ^ first) & equal != 0 {
                return;
            }
            let pfn = arch.leaf_pfn(arch.at_index(raw, self.index + at), level);
            let frame = frames.frame(pfn);
            prefetch(frame);
            let (start, mut expected) = (at, raw);
            loop {
                at += block;
                expected = expected.wrapping_add(step);
                let Some(entry) = entries.get(at) else { break };
                if (entry.load(Relaxed) ^ expected) & !P::Arch::HARDWARE != 0 {
                    break;
                }
                if LIMITED && at - start >= self.table.tables.max_run {
                    break;
                }
                if at - start >= long {
                    return;
                }
            }
            if parts.try_push(Part { pfn, frame, ptes: at - start }).is_err() || parts.len() >= most {
                return;
            }
        }
    }

    fn arch(&self) -> &'l P::Arch {
        &self.table.tables.arch
    }

    /// Returns the attributes, without accessed and dirty.
    #[inline]
    pub(crate) fn attrs(&self) -> Attrs {
        self.arch().attrs(self.first, self.table.level) - Attrs::HARDWARE
    }

    /// Returns the order of the block of frames that a PTE maps.
    #[inline]
    pub(crate) fn order_of_a_pte(&self) -> u32 {
        self.arch().level_shift(self.table.level) - FRAME_SHIFT
    }

    /// Changes the first PTEs of a scattered stretch, as many as there are `copies`, to the
    /// attributes `kept`, and stores in `copies` the same PTEs with the attributes `copied`, both
    /// without accessed and dirty: each PTE keeps these, and its copy gets them (INV-6). Neither
    /// change adds or removes a right but the right to write.
    #[inline]
    pub(crate) fn change_and_copy(&self, [kept, copied]: [Attrs; 2], copies: &mut [u64]) {
        let (table, n) = (self.table, copies.len());
        let flip = |new| Flip::between(self.arch(), self.attrs(), new, table.level);
        let (keep, copy) = (flip(kept), flip(copied));
        let idle = self.arch().hardware_idle(self.first).then(|| (keep.bits_of(self.first), copy.bits_of(self.first)));
        let change = Change { first: self.first, keep, copy, idle };
        fence(Release);
        let (eights, rest) = self.entries[..n].as_chunks::<8>();
        let (to_eights, to_rest) = copies.as_chunks_mut::<8>();
        for (nth, (eight, to)) in eights.iter().zip(to_eights).enumerate() {
            self.change_and_copy_some(self.index + 8 * nth, eight, to, change);
        }
        let index = self.index + 8 * eights.len();
        for (at, (entry, to)) in rest.iter().zip(to_rest).enumerate() {
            self.change_and_copy_some(index + at, from_ref(entry), from_mut(to), change);
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
        Change { first, keep, copy, idle }: Change<P::Arch>,
    ) {
        let differs = entries.iter().fold(0, |differs, entry| differs | entry.load(Relaxed) ^ first);
        let each = entries.iter().zip(copies);
        let Some((keep_bits, copy_bits)) = idle.filter(|_| differs & P::Arch::HARDWARE == 0) else {
            each.zip(index..)
                .for_each(|((entry, to), at)| *to = copy.of(flip_entry(self.table, at, entry, keep, None)));
            return;
        };
        match keep_bits {
            0 => each.for_each(|(entry, to)| *to = entry.load(Relaxed) ^ copy_bits),
            _ => each.zip(index..).for_each(|((entry, to), at)| {
                *to = flip_entry(self.table, at, entry, keep, Some(keep_bits)) ^ copy_bits;
            }),
        }
    }
}

/// The change of PTEs and that of their copies.
#[derive(Clone, Copy)]
struct Change<A> {
    /// A PTE.
    first: u64,
    keep: Flip<A>,
    copy: Flip<A>,
    /// The bits that flip in a PTE and in its copy, where the PTE has the accessed and dirty bits
    /// of `first`; `None` if hardware may still set one in such a PTE.
    idle: Option<(u64, u64)>,
}

/// Writes copies of [`Scattered::change_and_copy`] into empty entries from `va` on, and adds
/// them to the live count.
#[inline]
pub(crate) fn set_copies<P: Platform>(table: &LockedTable<'_, '_, P>, va: u64, copies: &[u64]) {
    fence(Release);
    let index = table.index(va);
    let set = |at: usize, entry: &AtomicU64, copy: u64| {
        trace(table.tables.platform(), || Event::Store(table.pfn, at as u16, 0, copy));
        entry.store(copy, Relaxed);
    };
    let entries = &table.entries()[index..index + copies.len()];
    entries.iter().zip(copies).enumerate().for_each(|(n, (entry, &copy))| set(index + n, entry, copy));
    table.live().add(copies.len());
    if P::Arch::CONT != 0 && table.tables.uses_cont_blocks {
        table.cont().fold_edges(index, copies.len());
    }
}
