//! Which pages of a range are in memory (`mincore`).

use crate::arch::{Arch, BadRange, Kind, UserRange};
use crate::errno::Errno;
use crate::page_cache::Object;
use crate::platform::Platform;
use crate::vma::Vma;

use super::Observe;

/// Why a query can't be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MincoreError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The end is beyond the last address, or not all of the range is mapped.
    NotMapped,
    /// The answer does not fit: this many entries are needed.
    TooShort(usize),
}

impl MincoreError {
    /// What Linux's `mincore` answers.
    pub const fn errno(&self) -> Errno {
        match self {
            MincoreError::Unaligned(_) => Errno::EINVAL,
            MincoreError::NotMapped => Errno::ENOMEM,
            MincoreError::TooShort(_) => Errno::EFAULT,
        }
    }
}

impl core::fmt::Display for MincoreError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            MincoreError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            MincoreError::NotMapped => f.write_str("not all of the range is mapped"),
            MincoreError::TooShort(needed) => write!(f, "the answer has {needed} entries"),
        }
    }
}

impl core::error::Error for MincoreError {}

impl<P: Platform, A: Arch> Observe<'_, '_, P, A> {
    /// Implements [`AddressSpace::resident`].
    pub(super) fn mincore(self, addr: u64, len: u64, answer: &mut [bool]) -> Result<(), MincoreError> {
        let shift = self.page_shift();
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => MincoreError::Unaligned(addr),
            BadRange::Overflow | BadRange::Beyond(_) => MincoreError::NotMapped,
        })?;
        let pages = (range.len() >> shift) as usize;
        let answer = answer.get_mut(..pages).ok_or(MincoreError::TooShort(pages))?;
        if !range.is_empty() && !self.space.read().covers(self.platform(), range) {
            return Err(MincoreError::NotMapped);
        }
        self.runs(*range, |run| {
            let part = run.range(self.arch()).intersect(&range);
            let first = ((part.start - addr) >> shift) as usize;
            answer[first..first + (part.len() >> shift) as usize].fill(run.kind == Kind::Leaf);
        });
        self.resident_in_objects(range, answer);
        Ok(())
    }

    /// Pages of a range that the objects behind it have in memory, though they are not mapped.
    fn resident_in_objects(self, range: UserRange, answer: &mut [bool]) {
        self.each_page_in_objects(range, |_, addr, here| {
            answer[((addr - range.start) >> self.page_shift()) as usize] |= here;
        });
    }

    /// Show each page that the objects behind a range have: the VMA, where it would be mapped, and
    /// whether it is in memory.
    pub(super) fn each_page_in_objects(self, range: UserRange, mut visit: impl FnMut(&Vma, u64, bool)) {
        let shift = self.page_shift();
        let vmas = self.space.read();
        for vma in vmas.overlapping(self.platform(), range).filter(|vma| !vma.backing.is_anonymous()) {
            // SAFETY: the VMAs are locked.
            let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
            let part = vma.range.intersect(&range);
            let first = vma.backing.offset(part.start) >> shift;
            let mut at = first;
            while let Some((page, here)) = object.next_present(at)
                && page - first < part.len() >> shift
            {
                visit(vma, part.start + ((page - first) << shift), here);
                at = page + 1;
                self.platform().resched();
            }
        }
    }
}
