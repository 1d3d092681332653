//! Hints about memory: `madvise`.

use crate::addr::{VirtRange, align_up};
use crate::arch::Arch;
use crate::errno::Errno;
use crate::frame::OutOfMemory;
use crate::frame::policy::Advice;
use crate::platform::Platform;
use crate::vma::{AreaFlags, State};

use super::zap::Keep;
use super::{AddressSpace, ProtectError};

/// What is said about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advise {
    /// Its contents are not needed; the next touch finds zeros (`MADV_DONTNEED`).
    DontNeed,
    /// Large folios, please (`MADV_HUGEPAGE`).
    Huge,
    /// No large folios (`MADV_NOHUGEPAGE`).
    NoHuge,
}

/// Why an advice was not taken, or not in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdviseError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The end is beyond the last address.
    Overflow,
    /// Not all of the range is mapped. [`Advise::DontNeed`] was done where it is, as Linux does; other advice was not taken.
    NotMapped,
    /// An area is locked; those before it are done.
    Locked(VirtRange),
    /// What is there can't be written, so neither can holes be made in it.
    Denied(VirtRange),
    /// No memory object stands behind this area, so that no hole can be made there.
    NoObject(VirtRange),
    /// The space has as many areas as it may.
    TooManyAreas,
    /// No memory to split areas or huge mappings at the ends.
    OutOfMemory,
}

impl AdviseError {
    /// What Linux's `madvise` answers.
    pub const fn errno(&self) -> Errno {
        match self {
            AdviseError::Unaligned(_) | AdviseError::Overflow | AdviseError::Locked(_) | AdviseError::NoObject(_) => {
                Errno::EINVAL
            }
            AdviseError::Denied(_) => Errno::EACCES,
            AdviseError::NotMapped => Errno::ENOMEM,
            AdviseError::TooManyAreas | AdviseError::OutOfMemory => Errno::EAGAIN,
        }
    }
}

impl core::fmt::Display for AdviseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AdviseError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            AdviseError::Overflow => f.write_str("beyond the last address"),
            AdviseError::NotMapped => f.write_str("not all of the range is mapped"),
            AdviseError::Locked(range) => write!(f, "{range:?} is locked"),
            AdviseError::Denied(range) => write!(f, "{range:?} is not shared memory that may be written"),
            AdviseError::NoObject(range) => write!(f, "no memory object stands behind {range:?}"),
            AdviseError::TooManyAreas => f.write_str("too many areas"),
            AdviseError::OutOfMemory => OutOfMemory.fmt(f),
        }
    }
}

impl core::error::Error for AdviseError {}

impl From<OutOfMemory> for AdviseError {
    fn from(_: OutOfMemory) -> Self {
        AdviseError::OutOfMemory
    }
}

impl From<ProtectError> for AdviseError {
    fn from(error: ProtectError) -> Self {
        match error {
            ProtectError::Unaligned(addr) => AdviseError::Unaligned(addr),
            ProtectError::Overflow => AdviseError::Overflow,
            ProtectError::NotMapped => AdviseError::NotMapped,
            ProtectError::Denied(range) => AdviseError::Denied(range),
            ProtectError::TooManyAreas => AdviseError::TooManyAreas,
            ProtectError::OutOfMemory => AdviseError::OutOfMemory,
        }
    }
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Take advice about a range.
    ///
    /// # Errors
    /// See [`AdviseError`].
    pub fn advise(&self, addr: u64, len: u64, advice: Advise) -> Result<(), AdviseError> {
        let shift = self.page_shift();
        if addr & ((1 << shift) - 1) != 0 {
            return Err(AdviseError::Unaligned(addr));
        }
        let len = align_up(len, shift).ok_or(AdviseError::Overflow)?;
        let range = VirtRange::new(addr, len).ok_or(AdviseError::Overflow)?;
        if range.is_empty() {
            return Ok(());
        }
        match advice {
            Advise::DontNeed => self.dont_need(range),
            Advise::Huge => self.set_advice(range, Advice::Huge),
            Advise::NoHuge => self.set_advice(range, Advice::NoHuge),
        }
    }

    /// Nothing in the page tables depends on it, so there is nothing to do but to change the areas.
    fn set_advice(&self, range: VirtRange, advice: Advice) -> Result<(), AdviseError> {
        self.set_areas(&mut self.change(range), range, |v| v.advice == advice, |v| v.advice = advice)?;
        Ok(())
    }

    /// As a reader, side by side with faults; between preemption points it comes in anew and looks again what is there.
    fn dont_need(&self, range: VirtRange) -> Result<(), AdviseError> {
        // What can fail comes first, so that failing changes nothing.
        self.split_edges(range)?;
        self.note_peak();
        let mut gather = self.gather(range);
        let mut holes = false;
        let mut at = range.start;
        while at < range.end {
            let areas = self.read();
            let next = areas.overlapping(VirtRange { start: at, ..range }).find(|v| v.state != State::Dying);
            let Some(area) = next else { return Err(AdviseError::NotMapped) };
            if area.state == State::Held {
                drop(areas);
                self.tables.platform().wait();
                continue;
            }
            if area.flags.contains(AreaFlags::LOCKED) {
                return Err(AdviseError::Locked(area.range));
            }
            holes |= area.range.start > at;
            at = self.zap(
                range.intersect(&area.range).intersect(&VirtRange { start: at, ..range }),
                Keep::Guards,
                &mut gather,
            )?;
        }
        if holes { Err(AdviseError::NotMapped) } else { Ok(()) }
    }
}
