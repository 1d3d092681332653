//! Stretches: consecutive leaf PTEs with equal attributes, whatever frames they map.
//!
//! A run is a stretch whose frames are consecutive, too. A change of attributes does not depend on
//! frames: where memory is in pieces, so that each page is a run, one stretch still covers many
//! pages.
//!
//! All PTEs of a stretch change in the same way: the bits in which the encodings of the old and the
//! new attributes differ are flipped. So no address is decoded, and a page that becomes
//! inaccessible, whose address some formats store inverted, needs no case of its own. A cont block
//! (PTEs that a TLB may hold as one translation) stays one, because all its PTEs change alike.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use super::LockedTable;
use crate::addr::{PhysAddr, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::{Event, Platform, trace};

/// A stretch whose attributes were changed, or needed no change.
pub(crate) struct Stretch {
    /// The addresses that its PTEs translate.
    pub(crate) range: VirtRange,
    /// The former attributes, without accessed and dirty.
    pub(crate) old: Attrs,
    /// The attributes, without accessed and dirty.
    pub(crate) new: Attrs,
}

/// The length from which a run of cont blocks is handled by the run: a multiple of their lengths.
pub(super) const LONG_CONT: usize = 128;

/// A change of a stretch's attributes.
#[derive(Clone, Copy)]
pub(super) struct Flip<A> {
    arch: A,
    /// The bits that change, none of which hardware sets.
    pub(super) bits: u64,
}

impl<A: Arch> Flip<A> {
    /// Returns the change of leaf PTEs of `level` from the attributes `old` to `new`.
    #[inline(always)]
    pub(super) fn between(arch: &A, old: Attrs, new: Attrs, level: u8) -> Self {
        let leaf = |attrs| arch.leaf(PhysAddr(0), attrs, level);
        Flip { arch: *arch, bits: (leaf(old) ^ leaf(new)) & !A::HARDWARE }
    }

    /// Returns the bits in which the change flips leaf PTE `raw`, and any other with its accessed
    /// and dirty state.
    #[inline(always)]
    pub(super) fn bits_of(self, raw: u64) -> u64 {
        self.of(raw) ^ raw
    }

    /// Returns leaf PTE `raw` after the change. Its accessed and dirty state stays (INV-6).
    #[inline(always)]
    pub(super) fn of(self, raw: u64) -> u64 {
        // Where hardware clears a bit to record a write, the encoding of dirty depends on the
        // attributes.
        if A::HARDWARE_INVERTED == 0 { raw ^ self.bits } else { self.arch.carry(raw ^ self.bits, raw) }
    }
}

impl Stretch {
    /// Changes the attributes of the stretch that begins at `va` and ends at `end` or before, from
    /// `old` to `new(old)`, both without accessed and dirty, which each PTE keeps (INV-6). Does not
    /// flush.
    ///
    /// Returns `None`, with nothing changed, if the entry at `va` is not a leaf PTE, if `new`
    /// returns `None`, or if the change decides whether PTEs can be in cont blocks: in a format
    /// with cont blocks, one from or to PTEs that deny every access. The caller then goes on by the
    /// run ([`LockedTable::run`]).
    #[inline]
    pub(crate) fn change<P: Platform>(
        table: &LockedTable<'_, '_, P>,
        va: u64,
        end: u64,
        new: impl FnOnce(Attrs) -> Option<Attrs>,
    ) -> Option<Stretch> {
        let arch = &table.tables.arch;
        let index = table.index(va);
        let first = table.entry(index).load(Relaxed);
        if arch.kind(first, table.level) != Kind::Leaf {
            return None;
        }
        // A long run of cont blocks is read and changed faster than PTE by PTE.
        if table.cont().is_cont(first) {
            let next = first.wrapping_add(arch.step(first, table.level).wrapping_mul(LONG_CONT as u64));
            let continues = |entry: &AtomicU64| (entry.load(Relaxed) ^ next) & !P::Arch::HARDWARE == 0;
            if table.entries().get(index + LONG_CONT).is_some_and(continues) {
                return None;
            }
        }
        let old = arch.attrs(first, table.level) - Attrs::HARDWARE;
        let new = new(old)?;
        if P::Arch::CONT != 0 && old.intersects(Attrs::PROT) != new.intersects(Attrs::PROT) {
            return None;
        }
        let flip = Flip::between(arch, old, new, table.level);
        let most = (table.end_index(end) - index).min(table.tables.max_run);
        if flip.bits != 0 {
            table.cont().unfold_at(index);
            table.cont().unfold_at(index + most);
        }
        let first = table.entry(index).load(Relaxed);
        let len = flip_alike(table, index, most, first, flip);
        if P::Arch::CONT != 0 && flip.bits != 0 && table.tables.uses_cont_blocks {
            // The PTEs were folded where their frames allow it. Only neighbours that had the new
            // attributes already can complete a cont block.
            table.cont().fold_edges(index, len);
        }
        let start = table.base + ((index as u64) << table.shift());
        let range = VirtRange { start, end: start + ((len as u64) << table.shift()) };
        Some(Stretch { range, old, new })
    }
}

/// Flips bits in the leaf PTEs from `index` on that have the attributes of `first`, at most
/// `most`. Returns their number.
///
/// Compares and changes eight entries at a time, without a branch between them.
#[inline(always)]
fn flip_alike<P: Platform>(
    table: &LockedTable<'_, '_, P>,
    index: usize,
    most: usize,
    first: u64,
    flip: Flip<P::Arch>,
) -> usize {
    let arch = &table.tables.arch;
    let address = address_bits(table);
    let same = arch.hardware_idle(first).then(|| flip.bits_of(first));
    fence(Release);
    let entries = &table.entries()[index..index + most];
    let mut len = 0;
    for eight in entries.chunks_exact(8) {
        let differs = eight.iter().fold(0, |differs, entry| differs | entry.load(Relaxed) ^ first) & !address;
        if differs & !P::Arch::HARDWARE != 0 {
            break;
        }
        if flip.bits != 0 {
            for (i, entry) in eight.iter().enumerate() {
                flip_entry(table, index + len + i, entry, flip, same.filter(|_| differs == 0));
            }
        }
        len += 8;
    }
    for entry in &entries[len..] {
        let differs = (entry.load(Relaxed) ^ first) & !address;
        if differs & !P::Arch::HARDWARE != 0 {
            break;
        }
        if flip.bits != 0 {
            flip_entry(table, index + len, entry, flip, same.filter(|_| differs == 0));
        }
        len += 1;
    }
    len
}

/// Returns the bits in which leaf PTEs with equal attributes may differ: the address, and the
/// mark of cont blocks.
#[inline(always)]
pub(super) fn address_bits<P: Platform>(table: &LockedTable<'_, '_, P>) -> u64 {
    let leaf = |pa| table.tables.arch.leaf(PhysAddr(pa), Attrs::PROT, table.level);
    leaf(0) ^ leaf(!0) | P::Arch::CONT
}

/// Flips bits of a leaf PTE: those of `same` by a plain store, if hardware has nothing left to set
/// in it and `same` are the bits for its state; otherwise by an atomic operation. Returns the old
/// PTE.
#[inline(always)]
pub(super) fn flip_entry<P: Platform>(
    table: &LockedTable<'_, '_, P>,
    index: usize,
    entry: &AtomicU64,
    flip: Flip<P::Arch>,
    same: Option<u64>,
) -> u64 {
    let Some(bits) = same else { return table.change_contended(index, entry, |old| flip.of(old)) };
    let old = entry.load(Relaxed);
    trace(table.tables.platform(), || Event::Store(table.pfn, index as u16, old, old ^ bits));
    entry.store(old ^ bits, Relaxed);
    old
}
