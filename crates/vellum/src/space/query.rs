//! What is mapped, and what of it is resident.

use crate::addr::{FRAME_SHIFT, FRAME_SIZE, Pfn, VirtRange};
use crate::arch::{Arch, Attrs, BadRange, Kind, UserRange};
use crate::errno::Errno;
use crate::frame::flag;
use crate::platform::Platform;
use crate::stats::{SpaceCounter, sum};
use crate::table::{LockedTable, Run};
use crate::vma::{State, Vma};

use super::AddressSpace;
use crate::space::ground::Ptes;

/// Why a query can't be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueryError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The end is beyond the last address, or not all of the range is mapped.
    NotMapped,
    /// The answer does not fit: this many entries are needed.
    TooShort(usize),
}

impl QueryError {
    /// What Linux's `mincore` answers.
    pub const fn errno(&self) -> Errno {
        match self {
            QueryError::Unaligned(_) => Errno::EINVAL,
            QueryError::NotMapped => Errno::ENOMEM,
            QueryError::TooShort(_) => Errno::EFAULT,
        }
    }
}

impl core::fmt::Display for QueryError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            QueryError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            QueryError::NotMapped => f.write_str("not all of the range is mapped"),
            QueryError::TooShort(needed) => write!(f, "the answer has {needed} entries"),
        }
    }
}

impl core::error::Error for QueryError {}

/// A space in numbers. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceStats {
    /// Address space in use (`VmSize`).
    pub mapped: u64,
    /// The most that ever was in use (`VmPeak`).
    pub most_mapped: u64,
    /// In locked VMAs (`VmLck`).
    pub locked: u64,
    /// Resident anonymous memory (`RssAnon`).
    pub anon: u64,
    /// Resident file memory (`RssFile`).
    pub file: u64,
    /// Resident shared memory (`RssShmem`).
    pub shmem: u64,
    /// Swapped out (`VmSwap`).
    pub swap: u64,
    /// The most that was ever resident, looked at whenever it was about to become less (`VmHWM`).
    pub peak: u64,
    /// Page tables of all levels (`VmPTE`).
    pub tables: u64,
    /// The engine's other structures for the space: nodes of VMAs, and what each CPU counts.
    pub kernel: u64,
    /// VMAs.
    pub vmas: usize,
}

/// What a range holds, for `smaps`. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident (`Rss`). The folio of zeros counts as nothing, as in Linux.
    pub resident: u64,
    /// Of that, each page's share: a page that three map is a third in each (`Pss`). Of a large folio, all pages count as mapped
    /// as often as they are on average, but at least once; and all are shared if some surely are.
    pub proportional: Split,
    /// Of that, what others map too (`Shared_Clean` and `Shared_Dirty`).
    pub shared: Split,
    /// Of that, anonymous memory (`Anonymous`); the rest is objects'.
    pub anonymous: u64,
    /// Of that, what would be lost with its page (`Private_Dirty` and `Shared_Dirty`): all anonymous memory, and what was
    /// written of objects since last cleared.
    pub dirty: u64,
    /// Of that, touched since last cleared (`Referenced`).
    pub referenced: u64,
    /// Of that, in huge mappings (`AnonHugePages`).
    pub huge: u64,
    /// Of that, objects' memory in huge mappings (`ShmemPmdMapped`); the rest of [`Usage::huge`] is anonymous.
    pub huge_objects: u64,
    /// Of that, what a TLB may hold by blocks of entries, of the last level and of the one above; how large such a block is says
    /// [`Arch::block_bits`].
    pub blocks: [u64; 2],
    /// Swapped out (`SwapPss`).
    pub swap: u64,
    /// Swapped out from the objects behind it, where nothing else is (`Swap`, together with the former).
    pub swap_objects: u64,
    /// Runs: how many pieces the engine has to deal with.
    pub runs: u64,
}

/// A number of bytes, and what of it is of some kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// All of it.
    pub all: u64,
    /// Of that, what is anonymous.
    pub anonymous: u64,
    /// Of that, what is dirty.
    pub dirty: u64,
}

impl Split {
    fn add(&mut self, bytes: u64, anonymous: bool, dirty: bool) {
        self.all += bytes;
        self.anonymous += if anonymous { bytes } else { 0 };
        self.dirty += if dirty { bytes } else { 0 };
    }
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// The space in numbers; exact when nothing runs.
    pub fn stats(&self) -> SpaceStats {
        let peak = self.peak.note(&self.tables.slots);
        let count = |c| sum(&self.tables.slots, c) << FRAME_SHIFT;
        let vmas = self.read();
        SpaceStats {
            mapped: vmas.mapped,
            most_mapped: vmas.most_mapped,
            locked: vmas.locked,
            anon: count(SpaceCounter::Anon),
            file: count(SpaceCounter::File),
            shmem: count(SpaceCounter::Shmem),
            swap: count(SpaceCounter::Swap),
            peak: peak << FRAME_SHIFT,
            tables: count(SpaceCounter::Tables),
            kernel: (self.slots_in.len() + vmas.tree.nodes() + vmas.tree.spares()) as u64 * FRAME_SIZE,
            vmas: vmas.tree.iter_from(0).filter(|v| v.state != State::Dying).count(),
        }
    }

    /// Show each VMA from `addr` on, in order, until `visit` answers `false`. The VMAs don't change meanwhile: `visit`
    /// must be quick, and must not call back into a changing method of this space.
    pub fn vmas(&self, addr: u64, mut visit: impl FnMut(&Vma) -> bool) {
        let vmas = self.read();
        for vma in vmas.tree.iter_from(addr).filter(|v| v.state != State::Dying) {
            if !visit(vma) {
                return;
            }
        }
    }

    /// Show each run in `range`, in order. Holes come as runs of [`Kind::None`] at level 1. Each table is locked while its
    /// runs are shown: `visit` must be quick, and must not call back into the space.
    pub fn runs(&self, range: VirtRange, mut visit: impl FnMut(&Run)) {
        Ptes::of(self).each_run_or_hole(UserRange::all(&self.tables.arch).intersect(&range), |_, run| visit(run));
    }

    /// For each page of the range, whether touching it would find it in memory (`mincore`): mapped, or in the object behind it. The answer may be outdated
    /// before the caller sees it.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn resident(&self, addr: u64, len: u64, answer: &mut [bool]) -> Result<(), QueryError> {
        let shift = self.page_shift();
        let range = UserRange::new(&self.tables.arch, addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => QueryError::Unaligned(addr),
            BadRange::Overflow | BadRange::Beyond(_) => QueryError::NotMapped,
        })?;
        let pages = (range.len() >> shift) as usize;
        let answer = answer.get_mut(..pages).ok_or(QueryError::TooShort(pages))?;
        if !range.is_empty() && !self.read().covers(self.tables.platform(), range) {
            return Err(QueryError::NotMapped);
        }
        self.runs(*range, |run| {
            let part = run.range(&self.tables.arch).intersect(&range);
            let first = ((part.start - addr) >> shift) as usize;
            answer[first..first + (part.len() >> shift) as usize].fill(run.kind == Kind::Leaf);
        });
        self.resident_in_objects(range, answer);
        Ok(())
    }

    /// What a range holds.
    pub fn usage(&self, range: VirtRange) -> Usage {
        let arch = &self.tables.arch;
        let range = UserRange::all(arch).intersect(&range);
        let mut usage = Usage::default();
        Ptes::of(self).each_run_or_hole(range, |table, run| {
            let part = range.intersect(&run.range(arch));
            match run.kind {
                Kind::Leaf if !self.tables.machine.zeros_folio().contains(run.pfn(arch)) => {
                    usage.runs += 1;
                    let Some(table) = table else { return };
                    if let Some(blocks) = usage.blocks.get_mut(usize::from(run.level) - 1) {
                        *blocks += (table.joined(run) as u64) << table.shift();
                    }
                    // Its entries may differ in what hardware has recorded.
                    let mut rest = part;
                    while !rest.is_empty() {
                        let piece = if run.settled { rest } else { recorded_alike(table, rest) };
                        let attrs =
                            if run.settled { run.attrs(arch) } else { arch.attrs(table.get(piece.start), run.level) };
                        let first = run.pfn(arch).add(((piece.start - run.va) >> FRAME_SHIFT) as u32);
                        self.count_folios(&mut usage, first, (piece.len() >> FRAME_SHIFT) as u32, run.level, attrs);
                        rest = rest.tail(piece.end);
                    }
                }
                Kind::Swap => usage.swap += part.len(),
                _ => {}
            }
        });
        usage.swap_objects = self.swapped_in_objects(range);
        usage
    }

    /// Adds frames that a run maps, whose table is locked: so they are in use.
    fn count_folios(&self, usage: &mut Usage, first: Pfn, count: u32, level: u8, attrs: Attrs) {
        let end = first.add(count);
        let mut at = first;
        while at < end {
            let (head, frame) = self.tables.machine.frames().head(at);
            let (state, maps) = (frame.state(), u64::from(frame.counts().maps));
            let size = 1u64 << state.order();
            let next = head.add(size as u32).min(end);
            let bytes = u64::from(next.0 - at.0) << FRAME_SHIFT;
            let anonymous = !state.has(flag::OBJECT);
            let dirty = anonymous || attrs.contains(Attrs::DIRTY);
            usage.resident += bytes;
            usage.anonymous += if anonymous { bytes } else { 0 };
            usage.dirty += if dirty { bytes } else { 0 };
            usage.referenced += if attrs.contains(Attrs::ACCESSED) { bytes } else { 0 };
            usage.huge += if level > 1 { bytes } else { 0 };
            usage.huge_objects += if level > 1 && !anonymous { bytes } else { 0 };
            usage.proportional.add(bytes * size / maps.max(size), anonymous, dirty);
            if maps > size {
                usage.shared.add(bytes, anonymous, dirty);
            }
            at = next;
        }
    }
}

/// The first entries of a part of a run that are alike in what hardware has recorded, of all of a block at once.
fn recorded_alike<P: Platform, A: Arch>(table: &LockedTable<'_, '_, P, A>, part: UserRange) -> UserRange {
    let recorded = |at: u64| table.get(at) & A::HARDWARE;
    let step = 1 << table.shift();
    let first = recorded(part.start);
    let mut end = (part.start | (step - 1)) + 1;
    while end < part.end && recorded(end) == first {
        end += step;
    }
    part.head(end)
}
