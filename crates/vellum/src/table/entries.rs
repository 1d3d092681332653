//! The entries of a locked table: read and written by the run. How leaves are emptied is told in [`super::take`], how they change
//! beside hardware in [`super::rewrite`].
//!
//! Whether leaves are joined to blocks is the business of [`super::block`]: what is read here is as if each stood for itself.

use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use core::sync::atomic::{AtomicU64, fence};

use super::run::Joined;
use super::{LockedTable, Run};
use crate::arch::{Arch, Attrs, Kind};
use crate::platform::{Event, Platform, trace};

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

    /// Returns what the entry for `va` is.
    #[inline]
    pub(crate) fn kind(&self, va: u64) -> Kind {
        self.tables.arch.kind(self.entry(self.index(va)).load(Relaxed), self.level)
    }

    /// The run that begins at `va`, no further than `end`, which is past `va`. `va` is aligned to
    /// this level's pages, or the run begins at the entry that contains it. `None` where no run
    /// begins: at a pointer to a table, and at a busy entry.
    /// [`PageTables::find`](super::PageTables::find) goes on from there: down to the table, or once
    /// the entry is busy no more.
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
        let until = self.until(end);
        let most = (until - index).min(self.tables.max_run);
        let raw = self.entry(index).load(Relaxed);
        let kind = arch.kind(raw, self.level);
        let va = va >> self.shift() << self.shift();
        let run = |len, raw| Some(Run::new(va, self.level, kind, raw, len));
        let alike = |most, raw, step| self.extend(index, most, (raw, step), !0, |_, _| ()).len;
        match kind {
            Kind::Table | Kind::Busy => None,
            Kind::None => run(alike(until - index, 0, 0), 0),
            Kind::Marker => run(alike(most, raw, 0), raw),
            // What a huge one stands for is as long as a run in a table below.
            Kind::Swap if self.level > 1 => run(1, raw),
            Kind::Swap => run(alike(most, raw, arch.step(raw, self.level)), raw),
            Kind::Leaf => {
                let first = taken(arch.without_cont(raw, index));
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
    pub(super) fn extend_leaves(
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
            if A::CONT == 0 || all.len == most {
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
            let (mut differs, mut next) = (0, expected);
            for entry in eight {
                differs |= entry.load(Relaxed) ^ next;
                next = next.wrapping_add(step);
            }
            if differs & mask != 0 {
                break;
            }
            each(index + len, eight);
            differing |= differs;
            expected = next;
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
        self.set_over(run, 0);
        self.add_live(run.len);
    }

    /// The same where each entry is `old`, which maps nothing; what is live is not counted.
    #[inline]
    pub(super) fn set_over(&self, run: &Run, old: u64) {
        let index = self.index(run.va);
        if self.may_complete(index, run) {
            self.set_joined(index, run, old);
        } else if run.len == 1 {
            self.store(index, old, run.raw);
        } else {
            self.write(index, run.len, Some((old, 0)), (run.raw, run.step(&self.tables.arch)));
        }
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
}

/// A leaf with the bits of hardware that it and others say, which differ in these bits.
#[inline]
pub(super) fn merged<A: Arch>(first: u64, differing: u64) -> u64 {
    // A bit that the first entry does not say, but another one, differs.
    let said = (first ^ A::HARDWARE_INVERTED) | differing;
    first & !A::HARDWARE | (said ^ A::HARDWARE_INVERTED) & A::HARDWARE
}
