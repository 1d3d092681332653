//! Residency of the pages of a range (Linux: `mincore`).

use crate::arch::{BadRange, Kind, UserRange};
use crate::errno::Errno;
use crate::page_cache::{ExistingPage, Object};
use crate::platform::Platform;
use crate::vma::Vma;

use super::Observe;

/// The reason why the residency of a range can't be determined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MincoreError {
    /// This address is not a multiple of the page size.
    Unaligned(u64),
    /// The range reaches beyond the addresses of user mode, or VMAs don't cover all of it.
    NotMapped,
    /// The caller's slice is too short: this number of elements is needed, one for each page.
    TooShort(usize),
}

impl MincoreError {
    /// Returns the error number of Linux's `mincore`.
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
            MincoreError::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of the page size"),
            MincoreError::NotMapped => f.write_str("VMAs do not cover all of the range: map it first"),
            MincoreError::TooShort(needed) => write!(f, "the result has {needed} elements: pass a longer slice"),
        }
    }
}

impl core::error::Error for MincoreError {}

impl<P: Platform> Observe<'_, '_, P> {
    /// Implements [`AddressSpace::mincore`](crate::space::AddressSpace::mincore).
    pub(super) fn mincore(self, addr: u64, len: u64, resident: &mut [bool]) -> Result<(), MincoreError> {
        let shift = self.page_shift();
        let range = UserRange::new(self.arch(), addr, len).map_err(|bad| match bad {
            BadRange::Unaligned(addr) => MincoreError::Unaligned(addr),
            BadRange::Overflow | BadRange::Beyond(_) => MincoreError::NotMapped,
        })?;
        let pages = (range.len() >> shift) as usize;
        let resident = resident.get_mut(..pages).ok_or(MincoreError::TooShort(pages))?;
        if !range.is_empty() && !self.space.read().covers(self.platform(), range) {
            return Err(MincoreError::NotMapped);
        }
        self.runs(*range, |run| {
            let part = run.range(self.arch()).intersect(&range);
            let first = ((part.start - addr) >> shift) as usize;
            resident[first..first + (part.len() >> shift) as usize].fill(run.kind == Kind::Leaf);
        });
        self.add_resident_in_objects(range, resident);
        Ok(())
    }

    /// Sets the element of `resident` to true for each page of `range` that the page-cache object
    /// behind its VMA has in memory, whether or not a PTE maps it.
    fn add_resident_in_objects(self, range: UserRange, resident: &mut [bool]) {
        self.each_page_in_objects(range, |_, addr, is_resident| {
            resident[((addr - range.start) >> self.page_shift()) as usize] |= is_resident;
        });
    }

    /// Calls `visit` for each page of `range` that exists in the page-cache object behind its VMA,
    /// in memory or on a swap device. Passes the VMA, the address at which the VMA maps the page,
    /// and true if the page is in memory. Leaves out huge pages of the pool, which count only if a
    /// PTE maps them (Linux: `mincore_hugetlb`). The VMAs are locked for reading during the calls.
    pub(super) fn each_page_in_objects(self, range: UserRange, mut visit: impl FnMut(&Vma, u64, bool)) {
        let shift = self.page_shift();
        let vmas = self.space.read();
        for vma in vmas.overlapping(self.platform(), range).filter(|vma| vma.may_swap_object()) {
            // SAFETY: the VMA maps an object, and keeps its reference to it as long as `vmas` holds
            // the VMA lock.
            let object = unsafe { Object::of_backing(self.machine(), &vma.backing) };
            let part = vma.range.intersect(&range);
            let first = vma.backing.offset(part.start) >> shift;
            let mut at = first;
            while let Some(ExistingPage { page, is_resident }) = object.next_existing(at)
                && page - first < part.len() >> shift
            {
                visit(vma, part.start + ((page - first) << shift), is_resident);
                at = page + 1;
                self.platform().resched();
            }
        }
    }
}
