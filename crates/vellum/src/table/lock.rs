//! A locked table: its entries, read and written by the run.

use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};

use super::{PageTables, Run};
use crate::addr::{Pfn, VirtRange};
use crate::arch::{Arch, Attrs, Kind};
use crate::frame::{Frame, flag};
use crate::machine::Machine;
use crate::platform::{Event, Platform, trace};
use crate::stats::Counter;
use crate::sync::{RawSpin, WalkGuard};
use crate::tlb::{DeadTable, Gather, Removed};

/// A walk under way, told to the tracer.
pub(super) struct Walk<'m, P: Platform> {
    machine: &'m Machine<'m, P>,
    _guard: WalkGuard<'m, P>,
}

impl<'m, P: Platform> Walk<'m, P> {
    #[inline]
    pub(super) fn enter(machine: &'m Machine<'m, P>) -> Self {
        let walk = Walk { machine, _guard: machine.walkers().enter(machine.platform()) };
        trace(machine.platform(), || Event::WalkBegin);
        walk
    }
}

impl<P: Platform> Drop for Walk<'_, P> {
    #[inline]
    fn drop(&mut self) {
        trace(self.machine.platform(), || Event::WalkEnd);
    }
}

/// A table whose lock this CPU holds, seen from one address.
#[must_use = "a locked table must be unlocked"]
pub(crate) struct LockedTable<'t, 'm, P: Platform, A: Arch> {
    pub(super) tables: &'t PageTables<'m, P, A>,
    pub(super) pfn: Pfn,
    pub(super) desc: &'m Frame,
    /// Its level.
    pub(crate) level: u8,
    /// What its first entry translates.
    pub(crate) base: u64,
}

impl<'t, 'm, P: Platform, A: Arch> LockedTable<'t, 'm, P, A> {
    #[inline]
    pub(super) fn new(tables: &'t PageTables<'m, P, A>, pfn: Pfn, desc: &'m Frame, level: u8, va: u64) -> Self {
        let shift = tables.arch.level_shift(level) + tables.arch.index_bits();
        let base = if shift >= 64 { 0 } else { va >> shift << shift };
        LockedTable { tables, pfn, desc, level, base }
    }

    /// The lock in a table's descriptor.
    #[inline]
    pub(super) fn raw(desc: &Frame) -> &RawSpin {
        // SAFETY: `RawSpin` is a transparent `AtomicU32`, zero when free, as `become_table` leaves this word.
        unsafe { &*core::ptr::from_ref(desc.link(0)).cast::<RawSpin>() }
    }

    #[inline]
    fn live(&self) -> u32 {
        self.desc.link(1).load(Relaxed)
    }

    #[inline]
    pub(super) fn set_live(&self, live: u32) {
        self.desc.link(1).store(live, Relaxed);
    }

    #[inline]
    pub(super) fn add_live(&self, n: usize) {
        self.set_live(self.live() + n as u32);
    }

    /// The address after the last that this table translates.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.base.saturating_add((1u64 << self.tables.arch.index_bits()) << self.shift())
    }

    /// log2 of what an entry translates.
    #[inline]
    pub(crate) fn shift(&self) -> u32 {
        self.tables.arch.level_shift(self.level)
    }

    #[inline]
    pub(super) fn index(&self, va: u64) -> usize {
        debug_assert!(va >= self.base && va < self.end());
        ((va - self.base) >> self.shift()) as usize
    }

    #[inline]
    pub(super) fn entry(&self, index: usize) -> &AtomicU64 {
        // SAFETY: the lock keeps the table hooked. Indices come from `index`, or were bounded by the length of the table.
        unsafe { self.tables.entry(self.pfn, index) }
    }

    /// All entries.
    #[inline]
    fn entries(&self) -> &[AtomicU64] {
        // SAFETY: as in `PageTables::entry`, for as many entries as a table of this format has; the lock keeps it hooked.
        unsafe { core::slice::from_raw_parts(self.tables.entries(self.pfn), 1 << self.tables.arch.index_bits()) }
    }

    /// The entry for `va`.
    #[inline]
    pub(crate) fn get(&self, va: u64) -> u64 {
        self.entry(self.index(va)).load(Relaxed)
    }

    /// The run that begins at `va`, no further than `end`, which is past `va`. `va` is aligned to this level's pages, or
    /// the run begins at the entry that contains it. A pointer to a table is never part of a run: `None`.
    #[inline]
    pub(crate) fn run(&self, va: u64, end: u64) -> Option<Run> {
        let arch = &self.tables.arch;
        let index = self.index(va);
        let until = self.index(end.min(self.end()) - 1) + 1;
        let most = (until - index).min(self.tables.max_run);
        let raw = self.entry(index).load(Relaxed);
        let kind = arch.kind(raw, self.level);
        let va = va >> self.shift() << self.shift();
        let run = |len, raw| Some(Run { va, len, level: self.level, kind, raw, settled: false });
        match kind {
            Kind::Table => None,
            Kind::None => run(self.extend(index, until - index, 0, 0, !0, |_, _| ()).0, 0),
            Kind::Marker => run(self.extend(index, most, raw, 0, !0, |_, _| ()).0, raw),
            Kind::Busy => run(1, raw),
            Kind::Swap => run(self.extend(index, most, raw, arch.step(raw, self.level), !0, |_, _| ()).0, raw),
            Kind::Leaf => {
                let (len, differing) = self.extend_leaves(index, most, raw, |_, _| ());
                // A bit that the first entry does not say, but another one, differs.
                let said = (raw ^ A::HARDWARE_INVERTED) | differing;
                let merged = raw & !A::HARDWARE | (said ^ A::HARDWARE_INVERTED) & A::HARDWARE;
                let settled = differing == 0 && arch.hardware_idle(raw);
                Some(Run { va, len, level: self.level, kind, raw: merged, settled })
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
        let raw = self.entry(index).load(Relaxed);
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        // Upper entries are read on the way down, without the lock: who finds one empty also finds the gather open that it
        // went to, and does not take it for flushed.
        let order = if self.level > 1 { Release } else { Relaxed };
        let (len, _) = self.extend_leaves(index, self.tables.max_run.min(whole as usize), raw, |index, entries| {
            for (i, entry) in entries.iter().enumerate() {
                trace(self.tables.platform(), || Event::Discard(self.pfn, (index + i) as u16, entry.load(Relaxed)));
                entry.store(0, order);
            }
        });
        self.set_live(self.live() - len as u32);
        let run = Run { va, len, level: self.level, kind: Kind::Leaf, raw, settled: false };
        Some(Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() })
    }

    /// Take the leaf for `va` out and leave a busy entry, so that nobody takes the place for empty before it is filled again
    /// ([`LockedTable::fill`]). For upper levels (INV-4); at the last one, entries are empty for as long as the lock is held.
    pub(crate) fn take_busy(&self, va: u64) -> (u64, Removed) {
        let arch = &self.tables.arch;
        let index = self.index(va);
        let busy = arch.busy();
        trace(self.tables.platform(), || Event::Exchange(self.pfn, index as u16, busy));
        let raw = self.entry(index).swap(busy, AcqRel);
        debug_assert_eq!(arch.kind(raw, self.level), Kind::Leaf);
        let run = Run {
            va: self.base + ((index as u64) << self.shift()),
            len: 1,
            level: self.level,
            kind: Kind::Leaf,
            raw,
            settled: false,
        };
        let removed =
            Removed { pfn: run.pfn(arch), frames: run.frames(arch), range: run.range(arch), shift: self.shift() };
        (raw, removed)
    }

    /// Write an entry where [`LockedTable::take_busy`] left a busy one.
    pub(crate) fn fill(&self, va: u64, raw: u64) {
        self.store(self.index(va), self.tables.arch.busy(), raw);
    }

    /// [`LockedTable::extend`] for leaves, whose accessed and dirty bits may differ.
    #[inline(always)]
    fn extend_leaves(
        &self,
        index: usize,
        most: usize,
        first: u64,
        each: impl FnMut(usize, &[AtomicU64]),
    ) -> (usize, u64) {
        self.extend(index, most, first, self.tables.arch.step(first, self.level), !A::HARDWARE, each)
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
        first: u64,
        step: u64,
        mask: u64,
        mut each: impl FnMut(usize, &[AtomicU64]),
    ) -> (usize, u64) {
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
        (len, differing)
    }

    /// Whether `n` entries from `va` are all empty.
    pub(crate) fn is_empty(&self, va: u64, n: usize) -> bool {
        let index = self.index(va);
        (index..index + n).all(|i| self.entry(i).load(Relaxed) == 0)
    }

    /// Write a run of leaves into entries that are empty.
    #[inline]
    pub(crate) fn set(&self, va: u64, raw: u64, n: usize) {
        self.set_at_steps(va, raw, self.tables.arch.step(raw, self.level), n);
    }

    /// Write a run of any kind into entries that are empty.
    #[inline]
    pub(crate) fn set_at_steps(&self, va: u64, raw: u64, step: u64, n: usize) {
        self.write(self.index(va), n, (0, 0), (raw, step));
        self.add_live(n);
    }

    /// Write entries of which each has the first's value plus so many steps, where others stand that also do. Eight at a time,
    /// as they are read.
    #[inline(always)]
    fn write(&self, index: usize, n: usize, (mut old, old_step): (u64, u64), (mut new, step): (u64, u64)) {
        let mut index = index;
        let (eights, rest) = self.entries()[index..index + n].as_chunks::<8>();
        let mut piece = |entries: &[AtomicU64]| {
            for (i, entry) in entries.iter().enumerate() {
                let at = |first: u64, step: u64| first.wrapping_add(step.wrapping_mul(i as u64));
                let next = at(new, step);
                trace(self.tables.platform(), || Event::Store(self.pfn, (index + i) as u16, at(old, old_step), next));
                entry.store(next, Release);
            }
            let len = entries.len() as u64;
            index += entries.len();
            old = old.wrapping_add(old_step.wrapping_mul(len));
            new = new.wrapping_add(step.wrapping_mul(len));
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

    /// Empty a run that maps nothing: markers (and, when there is swap, slots that the caller frees).
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
        let mut live = self.live();
        for (index, to) in (first..).zip(lifted) {
            let raw = self.entry(index).load(Relaxed);
            *to = raw;
            if raw == 0 {
                continue;
            }
            if arch.kind(raw, self.level) != Kind::Leaf || arch.hardware_idle(raw) {
                self.store(index, raw, 0);
            } else {
                trace(self.tables.platform(), || Event::Exchange(self.pfn, index as u16, 0));
                *to = self.entry(index).swap(0, AcqRel);
            }
            live -= 1;
        }
        let any = live != self.live();
        self.set_live(live);
        any
    }

    /// Put down entries that were lifted, where nothing stands. Tables among them have this one above them from now on.
    pub(super) fn lay(&self, va: u64, lifted: &[u64]) {
        let mut live = self.live();
        for (index, raw) in (self.index(va)..).zip(lifted).filter(|(_, raw)| **raw != 0) {
            if self.tables.arch.kind(*raw, self.level) == Kind::Table {
                let below = self.tables.arch.table_addr(*raw).pfn();
                Self::set_parent(self.tables.machine.frames().frame(below), self.pfn);
            }
            self.store(index, 0, *raw);
            live += 1;
        }
        self.set_live(live);
    }

    /// Turn each leaf of a run into `new` (the first one's; the others follow at its step), each keeping its own accessed
    /// and dirty bits, those included that hardware sets meanwhile.
    #[inline]
    pub(crate) fn rewrite(&self, run: &Run, new: u64) {
        debug_assert_eq!(run.kind, Kind::Leaf);
        let arch = &self.tables.arch;
        let index = self.index(run.va);
        let step = arch.step(new, self.level);
        if run.settled {
            let old = (run.raw, arch.step(run.raw, self.level));
            return self.write(index, run.len, old, (arch.carry(new, run.raw), step));
        }
        let mut new = new;
        for i in index..index + run.len {
            let old = self.entry(i).load(Relaxed);
            if arch.hardware_idle(old) {
                self.store(i, old, arch.carry(new, old));
            } else {
                self.rewrite_contended(i, new);
            }
            new = new.wrapping_add(step);
        }
    }

    /// Record in the entry for `va`, a leaf, that it was accessed, as hardware that can't leaves to software.
    pub(crate) fn record(&self, va: u64, accessed: Attrs) {
        let arch = &self.tables.arch;
        let index = self.index(va);
        let mut old = self.entry(index).load(Relaxed);
        loop {
            let attrs = arch.attrs(old, self.level) | accessed;
            let next = arch.leaf(arch.leaf_addr(old, self.level), attrs, self.level);
            trace(self.tables.platform(), || Event::Exchange(self.pfn, index as u16, next));
            match self.entry(index).compare_exchange(old, next, Release, Relaxed) {
                Ok(_) => return,
                Err(seen) => old = seen,
            }
        }
    }

    /// Hardware may still set a bit in this entry: exchange until it didn't.
    #[cold]
    fn rewrite_contended(&self, index: usize, new: u64) {
        let entry = self.entry(index);
        let mut old = entry.load(Relaxed);
        loop {
            let next = self.tables.arch.carry(new, old);
            trace(self.tables.platform(), || Event::Exchange(self.pfn, index as u16, next));
            match entry.compare_exchange(old, next, Release, Relaxed) {
                Ok(_) => return,
                Err(seen) => old = seen,
            }
        }
    }

    /// Give the lock back. If nothing is left in the table it is unhooked, and so are the tables above that held nothing
    /// else; the gather frees them.
    #[inline]
    pub(crate) fn unlock(self, gather: &mut Gather<'_, 'm, P>) {
        if self.live() != 0 || self.pfn == self.tables.root {
            self.release();
        } else {
            self.unhook(gather);
        }
    }

    /// Give the lock back where nothing can have become empty.
    #[inline]
    pub(crate) fn release(self) {
        debug_assert!(self.live() != 0 || self.pfn == self.tables.root, "an empty table would stay hooked");
        self.abandon();
    }

    /// Give back the lock of a table that turned out to be dead.
    #[inline]
    pub(super) fn abandon(self) {
        trace(self.tables.platform(), || Event::Unlocking(self.pfn));
        Self::raw(self.desc).unlock(self.tables.platform());
    }

    #[cold]
    fn unhook(self, gather: &mut Gather<'_, 'm, P>) {
        let mut child = self;
        loop {
            let parent = child.lock_parent();
            let index = parent.index(child.base);
            debug_assert_eq!(child.tables.arch.table_addr(parent.entry(index).load(Relaxed)).pfn(), child.pfn);
            parent.store(index, parent.entry(index).load(Relaxed), 0);
            parent.set_live(parent.live() - 1);
            child.desc.set_flag(flag::DEAD);
            child.tables.hooked(-1);
            child.tables.machine.count(Counter::TablesFreed, 1);
            gather.push_table(DeadTable { pfn: child.pfn, range: VirtRange { start: child.base, end: child.end() } });
            child.abandon();
            child = parent;
            if child.live() != 0 || child.pfn == child.tables.root {
                return child.abandon();
            }
        }
    }

    /// The table that points to this one. It can't go away: it holds at least that pointer.
    fn lock_parent(&self) -> LockedTable<'t, 'm, P, A> {
        let pfn = Pfn(self.desc.data() as u32);
        let desc = self.tables.machine.frames().frame(pfn);
        trace(self.tables.platform(), || Event::Locking(pfn));
        Self::raw(desc).lock(self.tables.platform());
        trace(self.tables.platform(), || Event::Locked(pfn));
        debug_assert!(!desc.state().has(flag::DEAD));
        LockedTable::new(self.tables, pfn, desc, self.level + 1, self.base)
    }

    /// Which table hooked this one in, so that it can be unhooked from there.
    pub(super) fn set_parent(desc: &Frame, parent: Pfn) {
        desc.set_data(parent.0 as u64);
    }
}
