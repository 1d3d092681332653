//! Takes PTEs out of a page table, one run at a time.
//!
//! [`LockedTable::take`] and [`Taken::all`] drop the accessed and dirty bits, and are for memory
//! that is freed. [`LockedTable::take_clean`] stops at a dirty folio (lazyfree).
//! [`LockedTable::take_raw`] returns the PTEs with all bits, for a caller that writes them to
//! another page table (`mremap`). The caller passes what was taken out to a gather
//! ([`crate::tlb::Gather`]), which flushes before it frees anything (INV-1).

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use super::cont_block::{Before, ContBlock};
use super::entries::{Match, Sequence};
use super::run::Cont;
use super::{LockedTable, Run};
use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::machine::FrameRange;
use crate::platform::{Event, Platform, trace};
use crate::tlb::{Gather, Removed};

/// Counts of what [`Taken::all`] has taken out of a page table.
pub(crate) struct Taken {
    /// The address at which it stopped.
    pub(crate) end: u64,
    /// The runs of consecutive frames.
    pub(crate) runs: usize,
    /// The frames.
    pub(crate) frames: u32,
    /// Those of them that are of the zero folio, which is not counted as resident.
    pub(crate) zero_frames: u32,
}

impl Taken {
    /// Clears leaf PTEs from `va` on, whatever their attributes are and wherever their frames lie,
    /// and passes their frames to `gather`. Stops at `end`, before an entry that is not a leaf PTE
    /// or that also translates addresses from `end` on, when the gather is full, and after `most`
    /// runs of consecutive frames. Drops accessed and dirty bits, like [`LockedTable::take`].
    #[inline]
    pub(crate) fn all<'m, P: Platform>(
        table: &LockedTable<'_, 'm, P>,
        va: u64,
        end: u64,
        most: usize,
        gather: &mut Gather<'_, 'm, P>,
    ) -> Taken {
        let shift = table.shift();
        let index = table.index(va);
        let start = table.base + ((index as u64) << shift);
        let taken = Taken { end: va, runs: 0, frames: 0, zero_frames: 0 };
        let until = index + ((end.min(table.end()) - va) >> shift) as usize;
        if va != start || until == index {
            return taken;
        }
        table.cont().unfold_at(index);
        table.cont().unfold_at(until);
        // As in `take`.
        if table.level > 1 {
            fence(Release);
        }
        let mut taking = Taking { table, until, most, gather, taken };
        let mut at = index;
        while at < until {
            let mut next = taking.long_runs(at);
            if next < until {
                next = taking.short_runs(next);
            }
            if next == at {
                break;
            }
            at = next;
        }
        let Taking { gather, mut taken, .. } = taking;
        table.live().subtract(at - index);
        taken.end = start + (((at - index) as u64) << shift);
        if at != index {
            gather.note(VirtRange { start, end: taken.end }, shift);
        }
        taken
    }
}

/// The length from which a run counts as long, and is compared eight PTEs at a time.
const LONG: usize = 8;

/// Returns whether the run at the start of `entries`, whose first PTE is `raw`, a leaf PTE in no
/// cont block, may have [`LONG`] PTEs. This comparison mostly shows it.
#[inline(always)]
fn is_long<P: Platform>(table: &LockedTable<'_, '_, P>, raw: u64, entries: &[AtomicU64]) -> bool {
    let expected = raw.wrapping_add(table.tables.arch.step(raw, table.level).wrapping_mul(LONG as u64 - 1));
    let last = entries.get(LONG - 1).filter(|_| table.tables.max_run >= LONG).map(|entry| entry.load(Relaxed));
    last.is_some_and(|last| (last ^ expected) & !P::Arch::HARDWARE == 0)
}

/// A call of [`Taken::all`]: its page table, its limits, its gather, and the counts so far.
struct Taking<'a, 't, 'g, 'm, P: Platform> {
    table: &'a LockedTable<'t, 'm, P>,
    /// The index of the entry before which it stops.
    until: usize,
    /// The largest number of runs.
    most: usize,
    gather: &'a mut Gather<'g, 'm, P>,
    taken: Taken,
}

impl<P: Platform> Taking<'_, '_, '_, '_, P> {
    /// Takes short runs of leaf PTEs from `at` on. Stops before an entry that is not a leaf PTE,
    /// before a run that [`Taking::long_runs`] takes, and at the limits. Returns the index at which
    /// it stopped.
    ///
    /// Not inlined, so that the loop has the registers: where pages lie apart, it is a third of
    /// what a page costs.
    #[inline(never)]
    fn short_runs(&mut self, mut at: usize) -> usize {
        let (table, until) = (self.table, self.until);
        let (arch, level, longest) = (&table.tables.arch, table.level, table.tables.max_run.min(LONG));
        let (zero_folio, one) = (table.tables.machine.zero_folio(), 1 << (table.shift() - FRAME_SHIFT));
        let entries = &table.entries()[..until];
        let (ranges, room) = self.gather.room(self.most - self.taken.runs);
        let (mut runs, mut all) = (0, 0);
        while runs < ranges.len() && all < room && at < until {
            let raw = entries[at].load(Relaxed);
            let pfn = arch.leaf_pfn(raw, level);
            if arch.kind(raw, level) != Kind::Leaf || table.cont().is_cont(raw) || zero_folio.contains(pfn) {
                break;
            }
            let step = arch.step(raw, level);
            let continues = |at: usize, expected| {
                entries.get(at).is_some_and(|entry| (entry.load(Relaxed) ^ expected) & !P::Arch::HARDWARE == 0)
            };
            let (first, mut expected, mut count) = (at, raw.wrapping_add(step), one);
            if longest != 1 && continues(at + 1, expected) {
                if is_long(table, raw, &entries[at..]) {
                    break;
                }
                while at - first < longest - 1 && continues(at + 1, expected) {
                    table.clear_entries(at, core::slice::from_ref(&entries[at]));
                    expected = expected.wrapping_add(step);
                    count += one;
                    at += 1;
                }
            }
            table.clear_entries(at, core::slice::from_ref(&entries[at]));
            at += 1;
            ranges[runs] = FrameRange { pfn: pfn.0, frames: count };
            runs += 1;
            all += count;
        }
        self.add(runs, all);
        at
    }

    /// Takes long runs, as [`Taking::short_runs`] takes short ones: those of at least [`LONG`]
    /// PTEs, and PTEs of cont blocks and of the zero folio.
    #[inline(never)]
    fn long_runs(&mut self, mut at: usize) -> usize {
        let (table, until) = (self.table, self.until);
        let (arch, level, max_run) = (&table.tables.arch, table.level, table.tables.max_run);
        let zero_folio = table.tables.machine.zero_folio();
        let entries = &table.entries()[..until];
        let (ranges, room) = self.gather.room(self.most - self.taken.runs);
        let (mut runs, mut all) = (0, 0);
        while runs < ranges.len() && all < room && at < until {
            let raw = entries[at].load(Relaxed);
            if arch.kind(raw, level) != Kind::Leaf {
                break;
            }
            let single = arch.without_cont(raw, at);
            let pfn = arch.leaf_pfn(single, level);
            let (is_zero, is_cont) = (zero_folio.contains(pfn), table.cont().is_cont(raw));
            if !is_zero && !is_cont && !is_long(table, raw, &entries[at..]) {
                break;
            }
            let most = (until - at).min(max_run);
            let mut clear = |at: usize, some: &[AtomicU64]| table.clear_entries(at, some);
            let mut len = 0;
            if is_cont {
                len = table.cont().match_cont_blocks(at, most, single, &mut clear).len;
            }
            // PTEs in no cont block may continue the run.
            let next = single.wrapping_add(arch.step(single, level).wrapping_mul(len as u64));
            if len == 0 || len < most && (entries[at + len].load(Relaxed) ^ next) & !P::Arch::HARDWARE == 0 {
                len += table.match_leaves(at + len, most - len, next, clear).len;
            }
            let count = (len as u32) << (table.shift() - FRAME_SHIFT);
            ranges[runs] = FrameRange { pfn: pfn.0, frames: count };
            if is_zero {
                self.taken.zero_frames += count;
            }
            runs += 1;
            all += count;
            at += len;
        }
        self.add(runs, all);
        at
    }

    /// Adds runs, whose frames are in the gather's room, and which have `frames` frames in all.
    #[inline(always)]
    fn add(&mut self, runs: usize, frames: u32) {
        self.gather.add(runs, frames);
        self.taken.runs += runs;
        self.taken.frames += frames;
    }
}

impl<P: Platform> LockedTable<'_, '_, P> {
    /// Clears the run of leaf PTEs that begins at `va`, up to the last PTE that translates only
    /// addresses before `end`. Returns `None`, with nothing cleared, if the first PTE also
    /// translates addresses before `va`, or from `end` on. Drops accessed and dirty bits: for
    /// memory that is freed (INV-6). Reading and clearing are one pass, because the PTEs are often
    /// not in the CPU's caches.
    ///
    /// A plain store suffices: hardware sets the accessed and dirty bits by an atomic
    /// read-modify-write that first checks that the PTE is still valid. That operation comes either
    /// before the store, and its bit is dropped, or after the store, and then the CPU finds the
    /// entry empty and faults.
    #[inline]
    pub(crate) fn take(&self, va: u64, end: u64) -> Option<Removed> {
        let arch = &self.tables.arch;
        let index = self.index(va);
        let whole = (end.min(self.end()) - va) >> self.shift();
        let start = self.base + ((index as u64) << self.shift());
        if va != start || whole == 0 {
            return None;
        }
        let most = self.tables.max_run.min(whole as usize);
        self.cont().unfold_at(index);
        self.cont().unfold_at(index + most);
        let raw = arch.without_cont(self.entry(index).load(Relaxed), index);
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        // Walks read entries above level 1 without the lock. Because of the fence, a CPU that finds
        // the entry empty in a walk also sees that a gather is open ([`crate::tlb::Gather`]), and
        // does not assume that the TLBs are flushed.
        if self.level > 1 {
            fence(Release);
        }
        let Match { len, .. } =
            self.match_leaves(index, most, raw, |index, entries| self.clear_entries(index, entries));
        self.live().subtract(len);
        let run = Run::new(va, self.level, Kind::Leaf, raw, len);
        Some(Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() })
    }

    /// Clears a run of leaf PTEs that was read under this lock. Like [`LockedTable::take`], but
    /// does not compare the PTEs again.
    pub(crate) fn take_run(&self, run: &Run) -> Removed {
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        if run.cont != Cont::None {
            self.cont().unfold_at(index);
            self.cont().unfold_at(index + run.len);
        }
        if self.level > 1 {
            fence(Release);
        }
        self.clear_entries(index, &self.entries()[index..index + run.len]);
        self.live().subtract(run.len);
        Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() }
    }

    /// Clears consecutive entries, the first at `index`, and drops their accessed and dirty bits.
    /// Clears eight entries at a time without a branch between them.
    #[inline(always)]
    fn clear_entries(&self, index: usize, entries: &[AtomicU64]) {
        let empty = |index: usize, entry: &AtomicU64| {
            trace(self.tables.platform(), || Event::ClearAnon(self.pfn, index as u16, entry.load(Relaxed)));
            entry.store(0, Relaxed);
        };
        let (eights, rest) = entries.as_chunks::<8>();
        for (at, eight) in (index..).step_by(8).zip(eights) {
            eight.iter().enumerate().for_each(|(i, entry)| empty(at + i, entry));
        }
        let at = index + eights.len() * 8;
        rest.iter().enumerate().for_each(|(i, entry)| empty(at + i, entry));
    }

    /// Clears the PTEs of a run that was read under this lock, up to the first folio with a dirty
    /// PTE, which stays mapped. Returns what was cleared, perhaps nothing. For lazyfree folios.
    /// With `dirty_too` clears all PTEs of the run.
    ///
    /// The atomic exchange of a PTE decides whether the page is dirty (INV-6): hardware sets the
    /// dirty bit either before the exchange, and then the PTE is put back, or after it, and then
    /// the CPU finds the entry empty and faults. A CPU with a writable translation in its TLB must
    /// still set the dirty bit in the PTE before its first write. So a page that the exchange found
    /// clean stays clean, even before the TLB flush.
    pub(crate) fn take_clean(&self, run: &Run, dirty_too: bool) -> Removed {
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        self.cont().unfold_at(index);
        self.cont().unfold_at(index + run.len);
        let dirty = arch.leaf(arch.leaf_addr(run.raw, self.level), run.attrs(arch) | Attrs::DIRTY, self.level);
        let dirty_mask = dirty ^ arch.clear_hardware(dirty, Attrs::DIRTY, self.level);
        let is_dirty = |raw: u64| !dirty_too && raw & dirty_mask == dirty & dirty_mask;
        // Entries above level 1 hold a busy marker, at which walks wait, until it is known that
        // they stay empty (INV-4).
        let filler = if self.level > 1 { arch.busy_pte() } else { 0 };
        let mut len = 0;
        while len < run.len {
            let at = index + len;
            let block = self.cont().cont_len(self.entry(at).load(Relaxed));
            if block > 1 {
                let raw = self.cont().take_merged(at, block, filler);
                if is_dirty(raw) {
                    self.cont().write_cont(at, block, raw, Before::Equal(filler));
                    break;
                }
                len += block;
                continue;
            }
            let singles = if run.cont == Cont::None { run.len } else { 1 };
            let clean = self.take_clean_singles(at, singles, filler, is_dirty);
            len += clean;
            if clean < singles {
                break;
            }
        }
        if len < run.len {
            len = self.restore_clean_tail(run, len, filler);
        }
        if filler != 0 {
            self.write(index, len, Sequence::of_equal(filler), Sequence::of_equal(0));
        }
        self.live().subtract(len);
        let (run, shift) = (Run { len, ..*run }, self.shift());
        Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift }
    }

    /// Exchanges `n` leaf PTEs in no cont block for `filler`, up to the first dirty one, which is
    /// put back. Returns the number before that one.
    #[inline(always)]
    fn take_clean_singles(&self, index: usize, n: usize, filler: u64, is_dirty: impl Fn(u64) -> bool) -> usize {
        for (i, entry) in self.entries()[index..index + n].iter().enumerate() {
            let raw = self.exchange_at(index + i, entry, filler);
            if is_dirty(raw) {
                self.store(index + i, filler, raw);
                return i;
            }
        }
        n
    }

    /// Restores some of the first `emptied` PTEs of a run, which were cleared: those that map the
    /// same folio as the next PTE. That PTE is dirty, so its folio stays mapped as a whole. The
    /// restored PTEs have no dirty bit. Returns how many of the `emptied` PTEs stay cleared.
    /// `filler` is the value of the cleared entries.
    #[cold]
    fn restore_clean_tail(&self, run: &Run, emptied: usize, filler: u64) -> usize {
        let arch = &self.tables.arch;
        let entry_order = self.shift() - FRAME_SHIFT;
        let (head, _) = self.tables.machine.frames().head(run.pfn(arch).add((emptied as u32) << entry_order));
        let restored_from = (head.0.saturating_sub(run.pfn(arch).0) >> entry_order) as usize;
        if restored_from < emptied {
            let run = run.part(arch, restored_from, emptied - restored_from);
            self.set_over(&Run { raw: arch.clear_hardware(run.raw, Attrs::DIRTY, self.level), ..run }, filler);
        }
        restored_from
    }

    /// Takes out the leaf PTE for `va` and leaves a busy entry (a marker at which walks wait), so
    /// that no walk finds the entry empty before [`LockedTable::fill`] writes it again (INV-4). For
    /// levels above 1; a level-1 entry may be empty for as long as the lock is held. Returns the
    /// PTE with its accessed and dirty bits, and what it mapped.
    pub(crate) fn take_busy(&self, va: u64) -> (u64, Removed) {
        let arch = &self.tables.arch;
        let index = self.index(va);
        self.cont().unfold_around(index);
        let raw = self.exchange(index, arch.busy_pte());
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        let va = self.base + ((index as u64) << self.shift());
        let run = Run::new(va, self.level, Kind::Leaf, raw, 1);
        let removed =
            Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() };
        (raw, removed)
    }

    /// Takes out the entries from `va` on, of any kind, with their accessed and dirty bits, and
    /// stores them in `entries`. Returns true if any was not empty. Until [`LockedTable::put_raw`]
    /// writes them to another page table they are in no page table.
    pub(super) fn take_raw(&self, va: u64, entries: &mut [u64]) -> bool {
        let arch = &self.tables.arch;
        let first = self.index(va);
        self.cont().unfold_at(first);
        self.cont().unfold_at(first + entries.len());
        let (mut taken, mut i) = (0, 0);
        while i < entries.len() {
            let raw = self.entry(first + i).load(Relaxed);
            if self.cont().is_cont(raw) {
                let block = self.cont().cont_len(raw);
                let raw = self.cont().take_merged(first + i, block, 0);
                let step = arch.step(raw, self.level);
                for (n, to) in entries[i..i + block].iter_mut().enumerate() {
                    *to = raw.wrapping_add(step.wrapping_mul(n as u64));
                }
                taken += block;
                i += block;
                continue;
            }
            entries[i] = raw;
            if raw != 0 {
                if arch.kind(raw, self.level) != Kind::Leaf || arch.hardware_idle(raw) {
                    self.store(first + i, raw, 0);
                } else {
                    entries[i] = self.exchange(first + i, 0);
                }
                taken += 1;
            }
            i += 1;
        }
        self.live().subtract(taken);
        taken > 0
    }

    /// Writes entries that [`LockedTable::take_raw`] took out into empty entries from `va` on. If
    /// one of them points to a page table, this page table becomes its parent.
    pub(super) fn put_raw(&self, va: u64, entries: &[u64]) {
        let first = self.index(va);
        let (mut put, mut i) = (0, 0);
        while i < entries.len() {
            if let Some(ContBlock { len, first: raw }) = self.cont().leading_cont_block(first + i, &entries[i..]) {
                self.cont().set_folding(first + i, &Run::new(va, self.level, Kind::Leaf, raw, len), 0);
                put += len;
                i += len;
                continue;
            }
            let raw = entries[i];
            if self.tables.arch.kind(raw, self.level) == Kind::Table {
                let below = self.tables.arch.table_addr(raw).pfn();
                super::lock::set_parent(self.tables.machine.frames().frame(below), self.pfn);
            }
            if raw != 0 {
                self.store(first + i, 0, raw);
                put += 1;
            }
            i += 1;
        }
        self.live().add(put);
        self.cont().fold_edges(first, entries.len());
    }
}
