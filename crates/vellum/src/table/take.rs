//! Entries leave a table: leaves for good, by the run, with or without a look at what hardware has recorded; or all there are, to be
//! laid down elsewhere.

use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use super::entries::Extent;
use super::run::Joined;
use super::{LockedTable, Run};
use crate::addr::FRAME_SHIFT;
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::{Event, Platform, trace};
use crate::tlb::Removed;

impl<P: Platform, A: Arch> LockedTable<'_, '_, P, A> {
    /// Empty the run of leaves that begins with the entry for `va`, as far as its mappings lie between `va` and `end`
    /// entirely: `None` if not even the first does. Accessed and dirty bits are dropped: for anonymous memory, whose
    /// contents go with it. Reading and writing are one pass, because the entries often come from memory.
    ///
    /// A plain store is enough: hardware sets those bits by a locked read-modify-write that first looks whether the entry
    /// is still there, so it comes either before the store, and is dropped, or after it, and finds nothing.
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
        self.part_at(index);
        self.part_at(index + most);
        let raw = arch.without_cont(self.entry(index).load(Relaxed), index);
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        // Upper entries are read on the way down, without the lock: who finds one empty also finds the gather open that it
        // went to, and does not take it for flushed.
        if self.level > 1 {
            fence(Release);
        }
        let Extent { len, .. } = self.extend_leaves(index, most, raw, |index, entries| self.discard(index, entries));
        self.set_live(self.live() - len as u32);
        let run = Run::new(va, self.level, Kind::Leaf, raw, len);
        Some(Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() })
    }

    /// Empty a run of leaves that was found under this lock: the same as [`LockedTable::take`], without another look.
    pub(crate) fn take_run(&self, run: &Run) -> Removed {
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        self.part_at(index);
        self.part_at(index + run.len);
        if self.level > 1 {
            fence(Release);
        }
        self.discard(index, &self.entries()[index..index + run.len]);
        self.set_live(self.live() - run.len as u32);
        Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() }
    }

    /// Empties entries, of which `index` is the first one's, whatever hardware records in them:
    /// eight at a time, as they are read.
    #[inline(always)]
    fn discard(&self, index: usize, entries: &[AtomicU64]) {
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

    /// Empty a run of leaves that was found under this lock, up to a folio that was written to, which stays. Hardware that is to record
    /// a write does so before the entry goes, or finds none and faults; and whoever may write by what his TLB holds has to record it
    /// first. So what was found clean stays so, flushed or not.
    pub(crate) fn take_clean(&self, run: &Run) -> Removed {
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        self.part_at(index);
        self.part_at(index + run.len);
        let dirty = arch.leaf(arch.leaf_addr(run.raw, self.level), run.attrs(arch) | Attrs::DIRTY, self.level);
        let says = dirty ^ arch.clear_hardware(dirty, Attrs::DIRTY, self.level);
        let written = |raw: u64| raw & says == dirty & says;
        // Upper entries must not look empty before that is final (INV-4).
        let instead = if self.level > 1 { arch.busy_pte() } else { 0 };
        let mut len = 0;
        while len < run.len {
            let at = index + len;
            let block = self.block(self.entry(at).load(Relaxed));
            if block > 1 {
                let raw = self.collect(at, block, instead);
                if written(raw) {
                    self.write_joined(at, block, raw, Some(instead));
                    break;
                }
                len += block;
                continue;
            }
            let singles = if run.joined == Joined::None { run.len } else { 1 };
            let clean = self.empty_clean(at, singles, instead, written);
            len += clean;
            if clean < singles {
                break;
            }
        }
        if len < run.len {
            len = self.put_back(run, len, instead);
        }
        if instead != 0 {
            self.write(index, len, Some((instead, 0)), (0, 0));
        }
        self.set_live(self.live() - len as u32);
        let (run, shift) = (Run { len, ..*run }, self.shift());
        Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift }
    }

    /// Takes leaves out, none of which is joined, up to the first that was written to, leaving
    /// `instead`; returns how many those are.
    #[inline(always)]
    fn empty_clean(&self, index: usize, n: usize, instead: u64, written: impl Fn(u64) -> bool) -> usize {
        for (i, entry) in self.entries()[index..index + n].iter().enumerate() {
            let raw = self.exchange_at(index + i, entry, instead);
            if written(raw) {
                self.store(index + i, instead, raw);
                return i;
            }
        }
        n
    }

    /// Of so many entries of a run that were taken out, puts those back, clean, that map a part of what
    /// the next one maps a part of: where each is `instead`. Returns how many are left.
    #[cold]
    fn put_back(&self, run: &Run, emptied: usize, instead: u64) -> usize {
        let arch = &self.tables.arch;
        let each = self.shift() - FRAME_SHIFT;
        let (head, _) = self.tables.machine.frames().head(run.pfn(arch).add((emptied as u32) << each));
        let kept = (head.0.saturating_sub(run.pfn(arch).0) >> each) as usize;
        if kept < emptied {
            let run = run.part(arch, kept, emptied - kept);
            self.set_over(&Run { raw: arch.clear_hardware(run.raw, Attrs::DIRTY, self.level), ..run }, instead);
        }
        kept
    }

    /// Take the leaf for `va` out and leave a busy entry, so that nobody takes the place for empty before it is filled again
    /// ([`LockedTable::fill`]). For upper levels (INV-4); at the last one, entries are empty for as long as the lock is held.
    pub(crate) fn take_busy(&self, va: u64) -> (u64, Removed) {
        let arch = &self.tables.arch;
        let index = self.index(va);
        self.part_around(index);
        let raw = self.exchange(index, arch.busy_pte());
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        let va = self.base + ((index as u64) << self.shift());
        let run = Run::new(va, self.level, Kind::Leaf, raw, 1);
        let removed =
            Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() };
        (raw, removed)
    }

    /// Take out the entries from `va` on, whatever they are, with all that hardware has recorded in them. They stand nowhere until
    /// they are laid down elsewhere ([`LockedTable::lay`]). Whether there were any.
    pub(super) fn lift(&self, va: u64, lifted: &mut [u64]) -> bool {
        let arch = &self.tables.arch;
        let first = self.index(va);
        self.part_at(first);
        self.part_at(first + lifted.len());
        let mut live = self.live();
        let mut i = 0;
        while i < lifted.len() {
            let raw = self.entry(first + i).load(Relaxed);
            if self.is_joined(raw) {
                let block = self.block(raw);
                let raw = self.collect(first + i, block, 0);
                let step = arch.step(raw, self.level);
                for (n, to) in lifted[i..i + block].iter_mut().enumerate() {
                    *to = raw.wrapping_add(step.wrapping_mul(n as u64));
                }
                live -= block as u32;
                i += block;
                continue;
            }
            lifted[i] = raw;
            if raw != 0 {
                if arch.kind(raw, self.level) != Kind::Leaf || arch.hardware_idle(raw) {
                    self.store(first + i, raw, 0);
                } else {
                    lifted[i] = self.exchange(first + i, 0);
                }
                live -= 1;
            }
            i += 1;
        }
        let any = live != self.live();
        self.set_live(live);
        any
    }

    /// Put down entries that were lifted, where nothing stands. Tables among them have this one above them from now on.
    pub(super) fn lay(&self, va: u64, lifted: &[u64]) {
        let first = self.index(va);
        let mut live = self.live();
        let mut i = 0;
        while i < lifted.len() {
            if let Some((block, raw)) = self.block_of(first + i, &lifted[i..]) {
                self.set_joined(first + i, &Run::new(va, self.level, Kind::Leaf, raw, block), 0);
                live += block as u32;
                i += block;
                continue;
            }
            let raw = lifted[i];
            if self.tables.arch.kind(raw, self.level) == Kind::Table {
                let below = self.tables.arch.table_addr(raw).pfn();
                Self::set_parent(self.tables.machine.frames().frame(below), self.pfn);
            }
            if raw != 0 {
                self.store(first + i, 0, raw);
                live += 1;
            }
            i += 1;
        }
        self.set_live(live);
        self.join_around(first, lifted.len());
    }
}
