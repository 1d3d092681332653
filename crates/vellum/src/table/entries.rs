//! The entries of a locked table: read, written and emptied by the run.
//!
//! Whether leaves are joined to blocks is the business of [`super::block`]: what is read here is as if each stood for itself.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use super::run::Joined;
use super::{LockedTable, Run};
use crate::addr::{FRAME_SHIFT, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::{Event, Platform, trace};
use crate::tlb::Removed;

/// What a stretch of entries has in common.
pub(super) struct Extent {
    /// How many there are.
    pub(super) len: usize,
    /// The bits of those that were not compared, in which any differs from what would follow.
    pub(super) differing: u64,
    /// How many of them are joined.
    pub(super) joined: usize,
}

impl Extent {
    /// What follows goes on like this.
    #[inline]
    fn add(&mut self, next: Extent) {
        self.len += next.len;
        self.differing |= next.differing;
        self.joined += next.joined;
    }
}

impl<P: Platform, A: Arch> LockedTable<'_, '_, P, A> {
    /// The entry for `va`; of a leaf all that hardware has recorded in its block.
    #[inline]
    pub(crate) fn get(&self, va: u64) -> u64 {
        self.read(self.index(va))
    }

    /// The run that begins at `va`, no further than `end`, which is past `va`. `va` is aligned to this level's pages, or
    /// the run begins at the entry that contains it. A pointer to a table is never part of a run: `None`.
    #[inline]
    pub(crate) fn run(&self, va: u64, end: u64) -> Option<Run> {
        self.read_run(va, end, |raw| raw)
    }

    /// The same for whoever does not ask what hardware has recorded: as if it were everything.
    #[inline]
    pub(crate) fn run_whatever_recorded(&self, va: u64, end: u64) -> Option<Run> {
        let arch = &self.tables.arch;
        let full = |raw| arch.attrs(raw, self.level) | Attrs::HARDWARE;
        self.read_run(va, end, |raw| arch.leaf(arch.leaf_addr(raw, self.level), full(raw), self.level))
    }

    /// `taken`: what to take the first leaf for.
    #[inline(always)]
    fn read_run(&self, va: u64, end: u64, taken: impl FnOnce(u64) -> u64) -> Option<Run> {
        let arch = &self.tables.arch;
        let index = self.index(va);
        let until = self.index(end.min(self.end()) - 1) + 1;
        let most = (until - index).min(self.tables.max_run);
        let raw = self.entry(index).load(Relaxed);
        let kind = arch.kind(raw, self.level);
        let va = va >> self.shift() << self.shift();
        let run = |len, raw| Some(Run::new(va, self.level, kind, raw, len));
        let alike = |most, raw, step| self.extend(index, most, (raw, step), !0, |_, _| ()).len;
        match kind {
            Kind::Table => None,
            Kind::None => run(alike(until - index, 0, 0), 0),
            Kind::Marker => run(alike(most, raw, 0), raw),
            Kind::Busy => run(1, raw),
            // What a huge one stands for is as long as a run in a table below.
            Kind::Swap if self.level > 1 => run(1, raw),
            Kind::Swap => run(alike(most, raw, arch.step(raw, self.level)), raw),
            Kind::Leaf => {
                let first = taken(arch.single(raw, index));
                let Extent { len, differing, joined } = self.extend_leaves(index, most, first, |_, _| ());
                let joined = match joined {
                    0 => Joined::None,
                    all if all == len => Joined::All,
                    _ => Joined::Some,
                };
                let raw = merged::<A>(first, differing);
                let settled = differing & A::HARDWARE == 0 && arch.hardware_idle(raw);
                Some(Run { va, len, level: self.level, kind, raw, settled, joined })
            }
        }
    }

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
        let raw = arch.single(self.entry(index).load(Relaxed), index);
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        // Upper entries are read on the way down, without the lock: who finds one empty also finds the gather open that it
        // went to, and does not take it for flushed.
        if self.level > 1 {
            fence(Release);
        }
        let Extent { len, .. } = self.extend_leaves(index, most, raw, |index, entries| {
            for (i, entry) in entries.iter().enumerate() {
                trace(self.tables.platform(), || Event::Discard(self.pfn, (index + i) as u16, entry.load(Relaxed)));
                entry.store(0, Relaxed);
            }
        });
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
        for (i, entry) in self.entries()[index..index + run.len].iter().enumerate() {
            trace(self.tables.platform(), || Event::Discard(self.pfn, (index + i) as u16, entry.load(Relaxed)));
            entry.store(0, Relaxed);
        }
        self.set_live(self.live() - run.len as u32);
        Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() }
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
        let says = dirty ^ arch.forget(dirty, Attrs::DIRTY, self.level);
        let written = |raw: u64| raw & says == dirty & says;
        let mut len = 0;
        while len < run.len {
            let at = index + len;
            let block = self.block(self.entry(at).load(Relaxed));
            if block > 1 {
                let raw = self.collect(at, block, 0);
                if written(raw) {
                    self.write_joined(at, block, raw, Some(0));
                    break;
                }
                len += block;
                continue;
            }
            let singles = if run.joined == Joined::None { run.len } else { 1 };
            let clean = self.empty_clean(at, singles, written);
            len += clean;
            if clean < singles {
                break;
            }
        }
        self.set_live(self.live() - len as u32);
        if len < run.len {
            len = self.put_back(run, len);
        }
        let (run, shift) = (Run { len, ..*run }, self.shift());
        Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift }
    }

    /// Empty leaves, none of which is joined, up to the first that was written to; how many those are.
    #[inline(always)]
    fn empty_clean(&self, index: usize, n: usize, written: impl Fn(u64) -> bool) -> usize {
        // Upper entries must not look empty before that is final (INV-4).
        let instead = if self.level > 1 { self.tables.arch.busy() } else { 0 };
        for (i, entry) in self.entries()[index..index + n].iter().enumerate() {
            let raw = self.exchange_at(index + i, entry, instead);
            if written(raw) {
                self.store(index + i, instead, raw);
                return i;
            }
            if instead != 0 {
                self.store(index + i, instead, 0);
            }
        }
        n
    }

    /// Of so many entries of a run that were emptied, those come back, clean, that map a part of what the next one maps a part of.
    /// How many are left.
    #[cold]
    fn put_back(&self, run: &Run, emptied: usize) -> usize {
        let arch = &self.tables.arch;
        let each = self.shift() - FRAME_SHIFT;
        let (head, _) = self.tables.machine.frames().head(run.pfn(arch).add((emptied as u32) << each));
        let kept = (head.0.saturating_sub(run.pfn(arch).0) >> each) as usize;
        if kept < emptied {
            let run = run.part(arch, kept, emptied - kept);
            self.set(&Run { raw: arch.forget(run.raw, Attrs::DIRTY, self.level), ..run });
        }
        kept
    }

    /// Take the leaf for `va` out and leave a busy entry, so that nobody takes the place for empty before it is filled again
    /// ([`LockedTable::fill`]). For upper levels (INV-4); at the last one, entries are empty for as long as the lock is held.
    pub(crate) fn take_busy(&self, va: u64) -> (u64, Removed) {
        let arch = &self.tables.arch;
        let index = self.index(va);
        self.part_around(index);
        let raw = self.exchange(index, arch.busy());
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        let va = self.base + ((index as u64) << self.shift());
        let run = Run::new(va, self.level, Kind::Leaf, raw, 1);
        let removed =
            Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() };
        (raw, removed)
    }

    /// Write an entry where one stands that nobody else changes: one that [`LockedTable::take_busy`] left, or a swap entry.
    pub(crate) fn fill(&self, va: u64, raw: u64) {
        self.store(self.index(va), self.get(va), raw);
    }

    /// Put a run where another one of that length stands that maps nothing.
    pub(crate) fn replace(&self, old: &Run, new: &Run) {
        if self.level > 1 {
            debug_assert!(old.len == 1 && new.len == 1);
            return self.fill(new.va, new.raw);
        }
        self.erase(old);
        self.set(new);
    }

    /// How many of `n` leaves from `index` on are of one run with `first`, none of them joined.
    pub(super) fn alike(&self, index: usize, n: usize, first: u64) -> usize {
        let step = self.tables.arch.step(first, self.level);
        self.extend(index, n, (first, step), !A::HARDWARE, |_, _| ()).len
    }

    /// [`LockedTable::extend`] for leaves, whose accessed and dirty bits may differ, and of which some may be joined: those are
    /// read by the block.
    #[inline(always)]
    fn extend_leaves(
        &self,
        index: usize,
        most: usize,
        first: u64,
        mut each: impl FnMut(usize, &[AtomicU64]),
    ) -> Extent {
        let step = self.tables.arch.step(first, self.level);
        let mut all = Extent { len: 0, differing: 0, joined: 0 };
        loop {
            let next = first.wrapping_add(step.wrapping_mul(all.len as u64));
            all.add(self.extend(index + all.len, most - all.len, (next, step), !A::HARDWARE, &mut each));
            if A::JOINED == 0 || all.len == most {
                return all;
            }
            let next = first.wrapping_add(step.wrapping_mul(all.len as u64));
            let blocks = self.extend_blocks(index + all.len, most - all.len, next, &mut each);
            let ends = blocks.len == 0;
            all.add(blocks);
            if ends || all.len == most {
                return all;
            }
        }
    }

    /// How many entries from `index`, at most `most`, follow `first` at intervals of `step` in the bits of `mask`; and the
    /// other bits in which any of them differs from what would follow. `each` has those that follow, with the index of the
    /// first of them, in pieces.
    ///
    /// Eight entries at a time without a branch between them: a run costs little more than reading its entries.
    #[inline(always)]
    fn extend(
        &self,
        index: usize,
        most: usize,
        (first, step): (u64, u64),
        mask: u64,
        mut each: impl FnMut(usize, &[AtomicU64]),
    ) -> Extent {
        let mut expected = first;
        let mut differing = 0;
        let mut len = 0;
        let entries = &self.entries()[index..index + most];
        for eight in entries.chunks_exact(8) {
            let mut differs = 0;
            for (i, entry) in eight.iter().enumerate() {
                differs |= entry.load(Relaxed) ^ expected.wrapping_add(step.wrapping_mul(i as u64));
            }
            if differs & mask != 0 {
                break;
            }
            each(index + len, eight);
            differing |= differs;
            expected = expected.wrapping_add(step.wrapping_mul(8));
            len += 8;
        }
        for entry in &entries[len..] {
            let differs = entry.load(Relaxed) ^ expected;
            if differs & mask != 0 {
                break;
            }
            each(index + len, core::slice::from_ref(entry));
            differing |= differs;
            expected = expected.wrapping_add(step);
            len += 1;
        }
        Extent { len, differing, joined: 0 }
    }

    /// Whether `n` entries from `va` are all empty.
    pub(crate) fn is_empty(&self, va: u64, n: usize) -> bool {
        let index = self.index(va);
        self.entries()[index..index + n].iter().all(|entry| entry.load(Relaxed) == 0)
    }

    /// Write a run of any kind into entries that are empty.
    #[inline]
    pub(crate) fn set(&self, run: &Run) {
        let index = self.index(run.va);
        if self.may_complete(index, run) {
            self.set_joined(index, run);
        } else {
            self.write(index, run.len, Some((0, 0)), (run.raw, run.step(&self.tables.arch)));
        }
        self.add_live(run.len);
    }

    /// Write entries of which each has the first's value plus so many steps, where others stand that also do (or whatever stands
    /// there, if what hardware may have recorded is in the new ones). Eight at a time, as they are read. Whoever finds one of
    /// them finds the contents of what it maps: by one fence before all of them, which is less than a release by each.
    #[inline(always)]
    pub(super) fn write(&self, index: usize, n: usize, old: Option<(u64, u64)>, (mut new, step): (u64, u64)) {
        fence(Release);
        let mut passed = 0;
        let mut index = index;
        let (eights, rest) = self.entries()[index..index + n].as_chunks::<8>();
        let mut piece = |entries: &[AtomicU64]| {
            for (i, entry) in entries.iter().enumerate() {
                let next = new.wrapping_add(step.wrapping_mul(i as u64));
                trace(self.tables.platform(), || {
                    let follows = |(first, step): (u64, u64)| first.wrapping_add(step.wrapping_mul(passed + i as u64));
                    Event::Store(self.pfn, (index + i) as u16, old.map_or_else(|| entry.load(Relaxed), follows), next)
                });
                entry.store(next, Relaxed);
            }
            index += entries.len();
            passed += entries.len() as u64;
            new = new.wrapping_add(step.wrapping_mul(entries.len() as u64));
        };
        eights.iter().for_each(|eight| piece(eight));
        piece(rest);
    }

    /// A plain store to an entry whose value nobody else can change meanwhile. Release: whoever finds the entry finds the
    /// contents of what it maps.
    #[inline]
    pub(super) fn store(&self, index: usize, expected: u64, new: u64) {
        trace(self.tables.platform(), || Event::Store(self.pfn, index as u16, expected, new));
        self.entry(index).store(new, Release);
    }

    /// Put another entry there, for the last that hardware has made of this one.
    pub(super) fn exchange(&self, index: usize, new: u64) -> u64 {
        self.exchange_at(index, self.entry(index), new)
    }

    /// The same where the entry is known.
    #[inline(always)]
    pub(super) fn exchange_at(&self, index: usize, entry: &AtomicU64, new: u64) -> u64 {
        trace(self.tables.platform(), || Event::Exchange(self.pfn, index as u16, new));
        entry.swap(new, AcqRel)
    }

    /// Empty a run that maps nothing: markers, or slots, which the caller gives up.
    pub(crate) fn erase(&self, run: &Run) {
        debug_assert!(matches!(run.kind, Kind::Marker | Kind::Swap));
        let index = self.index(run.va);
        for i in index..index + run.len {
            self.store(i, self.entry(i).load(Relaxed), 0);
        }
        self.set_live(self.live() - run.len as u32);
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
                self.set_joined(first + i, &Run::new(va, self.level, Kind::Leaf, raw, block));
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
        let bits = Bits::between::<A>(recorded, arch.forget(recorded, what, self.level));
        let forget = |index, entry: &AtomicU64| match bits {
            // What hardware sets after this look is set after it was forgotten.
            Some(bits) => match entry.load(Relaxed) {
                old if old & bits.clear == 0 => old,
                _ => self.change_bits(index, entry, bits),
            },
            None => self.change_contended(index, entry, |old| arch.forget(old, what, self.level)),
        };
        while at < end {
            let first = self.entry(at).load(Relaxed);
            let block = self.block(first);
            let old = match block {
                1 => forget(at, self.entry(at)),
                _ => merged::<A>(arch.single(first, at), self.differing(at, block, first, forget)),
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
            arch.leaf(arch.leaf_addr(old, self.level), attrs, self.level) | old & A::JOINED
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

/// A leaf with the bits of hardware that it and others say, which differ in these bits.
#[inline]
pub(super) fn merged<A: Arch>(first: u64, differing: u64) -> u64 {
    // A bit that the first entry does not say, but another one, differs.
    let said = (first ^ A::HARDWARE_INVERTED) | differing;
    first & !A::HARDWARE | (said ^ A::HARDWARE_INVERTED) & A::HARDWARE
}
