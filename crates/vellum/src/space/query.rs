//! What is mapped, and what of it is resident.

use core::sync::atomic::Ordering::Relaxed;

use crate::addr::{FRAME_SHIFT, VirtRange, align_up};
use crate::arch::{Arch, Attrs, Kind};
use crate::errno::Errno;
use crate::platform::Platform;
use crate::stats::{SpaceCounter, sum};
use crate::table::{Found, Run};
use crate::vma::{State, Vma};

use super::AddressSpace;

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
    /// In locked areas (`VmLck`).
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
    /// Areas.
    pub areas: usize,
}

/// What a range holds, for `smaps`. Sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Resident (`Rss`). The folio of zeros counts as nothing, as in Linux.
    pub resident: u64,
    /// Of that, written since last cleared (`Private_Dirty`).
    pub dirty: u64,
    /// Of that, touched since last cleared (`Referenced`).
    pub referenced: u64,
    /// Of that, in huge mappings (`AnonHugePages`).
    pub huge: u64,
    /// Swapped out (`Swap`).
    pub swap: u64,
    /// Runs: how many pieces the engine has to deal with.
    pub runs: u64,
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// The space in numbers; exact when nothing runs.
    pub fn stats(&self) -> SpaceStats {
        let peak = self.note_peak();
        let count = |c| sum(self.tables.slots, c) << FRAME_SHIFT;
        let areas = self.read();
        SpaceStats {
            mapped: areas.mapped,
            locked: areas.locked,
            anon: count(SpaceCounter::Anon),
            file: count(SpaceCounter::File),
            shmem: count(SpaceCounter::Shmem),
            swap: count(SpaceCounter::Swap),
            peak: peak.max(self.peak.load(Relaxed)) << FRAME_SHIFT,
            tables: count(SpaceCounter::Tables),
            areas: areas.tree.iter_from(0).filter(|v| v.state != State::Dying).count(),
        }
    }

    /// Show each area from `addr` on, in order, until `visit` answers `false`. The areas don't change meanwhile: `visit`
    /// must be quick, and must not call back into a changing method of this space.
    pub fn areas(&self, addr: u64, mut visit: impl FnMut(&Vma) -> bool) {
        let areas = self.read();
        for area in areas.tree.iter_from(addr).filter(|v| v.state != State::Dying) {
            if !visit(area) {
                return;
            }
        }
    }

    /// Show each run in `range`, in order. Holes come as runs of [`Kind::None`] at level 1. Each table is locked while its
    /// runs are shown: `visit` must be quick, and must not call back into the space.
    pub fn runs(&self, range: VirtRange, mut visit: impl FnMut(&Run)) {
        let arch = &self.tables.arch;
        let mut at = range.start;
        while at < range.end {
            match self.tables.find(at, range.end) {
                Found::Hole(end) => {
                    let len = (end - at).div_ceil(1 << arch.page_shift()) as usize;
                    visit(&Run { va: at, len, level: 1, kind: Kind::None, raw: 0 });
                    at = end;
                }
                Found::Table(table) => {
                    let end = range.end.min(table.end());
                    while at < end
                        && let Some(run) = table.run(at, end)
                    {
                        visit(&run);
                        at = run.range(arch).end;
                    }
                    table.release();
                }
            }
            self.tables.platform().resched();
        }
    }

    /// For each page of the range, whether touching it would find it in memory (`mincore`): mapped, or in the object behind it. The answer may be outdated
    /// before the caller sees it.
    ///
    /// # Errors
    /// See [`QueryError`].
    pub fn resident(&self, addr: u64, len: u64, answer: &mut [bool]) -> Result<(), QueryError> {
        let shift = self.page_shift();
        if addr & ((1 << shift) - 1) != 0 {
            return Err(QueryError::Unaligned(addr));
        }
        let len = align_up(len, shift).ok_or(QueryError::NotMapped)?;
        let range = VirtRange::new(addr, len).ok_or(QueryError::NotMapped)?;
        let pages = (len >> shift) as usize;
        let answer = answer.get_mut(..pages).ok_or(QueryError::TooShort(pages))?;
        if !range.is_empty() && !self.read().covers(range) {
            return Err(QueryError::NotMapped);
        }
        self.runs(range, |run| {
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
        let mut usage = Usage::default();
        self.runs(range, |run| {
            let bytes = run.range(arch).intersect(&range).len();
            match run.kind {
                Kind::Leaf if !self.tables.machine.zeros_folio().contains(run.pfn(arch)) => {
                    let attrs = run.attrs(arch);
                    usage.runs += 1;
                    usage.resident += bytes;
                    usage.dirty += if attrs.contains(Attrs::DIRTY) { bytes } else { 0 };
                    usage.referenced += if attrs.contains(Attrs::ACCESSED) { bytes } else { 0 };
                    usage.huge += if run.level > 1 { bytes } else { 0 };
                }
                Kind::Swap => usage.swap += bytes,
                _ => {}
            }
        });
        usage
    }
}
