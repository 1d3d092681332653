//! The kinds of advice that `madvise` takes, and its errors.

use crate::addr::VirtRange;
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};
use crate::vma::Expected;

use super::ProtectError;
use crate::space::fault::FaultError;
use crate::space::thp::CollapseError;

/// An advice about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advise {
    /// Drops the contents: the next access finds zeros, or the object's contents (`MADV_DONTNEED`).
    DontNeed,
    /// Faults may allocate large folios (`MADV_HUGEPAGE`).
    Huge,
    /// Faults allocate no large folios (`MADV_NOHUGEPAGE`).
    NoHuge,
    /// Drops the contents as [`Advise::DontNeed`] does, of locked VMAs too
    /// (`MADV_DONTNEED_LOCKED`).
    DontNeedLocked,
    /// Makes the pages lazyfree: reclaim may drop the contents until they are written to
    /// (`MADV_FREE`). Private anonymous memory only.
    Free,
    /// Fork does not copy the VMA to the child (`MADV_DONTFORK`).
    DontFork,
    /// Fork copies the VMA to the child (`MADV_DOFORK`).
    DoFork,
    /// A forked child gets the VMA without its pages (`MADV_WIPEONFORK`). Private anonymous memory
    /// only.
    WipeOnFork,
    /// A forked child gets the VMA with its pages (`MADV_KEEPONFORK`).
    KeepOnFork,
    /// A core dump leaves the memory out (`MADV_DONTDUMP`).
    DontDump,
    /// A core dump includes the memory (`MADV_DODUMP`).
    DoDump,
    /// Equal pages of private memory may become one (`MADV_MERGEABLE`). Ignored by shared and by
    /// droppable VMAs.
    Mergeable,
    /// Equal pages stay apart (`MADV_UNMERGEABLE`).
    Unmergeable,
    /// Drops the contents, and makes every later access a bus error, as if the memory had failed
    /// (`MADV_HWPOISON`). Only this space's PTEs are changed: other spaces, and the object that a
    /// VMA maps, keep their contents.
    Poison,
    /// Gives the VMAs a name, by the host's number for it ([`Vma::name`](crate::vma::Vma::name)); 0
    /// takes it away (`PR_SET_VMA_ANON_NAME`).
    Name(u32),
    /// The reads to expect (`MADV_NORMAL`, `MADV_RANDOM`, `MADV_SEQUENTIAL`): they decide how much
    /// of a file a fault reads, and reclaim ignores accesses in a range with a pattern.
    Reads(Expected),
    /// Swaps pages in that are on swap devices, and begins to read pages of files, as far as there
    /// is memory (`MADV_WILLNEED`).
    WillNeed,
    /// Deactivates pages that only this space maps: they count as not accessed, and reclaim looks
    /// at them first (`MADV_COLD`).
    Cold,
    /// Pages out pages that only this space maps, as far as swap devices have room
    /// (`MADV_PAGEOUT`).
    PageOut,
    /// Collapses the memory into huge pages now, whatever the policy for faults is
    /// (`MADV_COLLAPSE`). Only for memory that has pages already. Leaves out pages of page-cache
    /// objects, which [`collapse_next`](crate::AddressSpace::collapse_next) collapses.
    Collapse,
    /// Faults the memory in for reading (`MADV_POPULATE_READ`).
    PopulateRead,
    /// Faults the memory in for writing (`MADV_POPULATE_WRITE`).
    PopulateWrite,
    /// Drops the contents and installs guards: every access faults until the guards are removed
    /// (`MADV_GUARD_INSTALL`).
    GuardInstall,
    /// Removes guards: the pages can be accessed again (`MADV_GUARD_REMOVE`).
    GuardRemove,
}

impl Advise {
    /// Returns true if the advice drops contents, in this space or for a child (Linux:
    /// `is_madv_discard`).
    pub(super) fn drops_contents(self) -> bool {
        matches!(
            self,
            Advise::DontNeed
                | Advise::DontNeedLocked
                | Advise::Free
                | Advise::DontFork
                | Advise::WipeOnFork
                | Advise::GuardInstall
        )
    }
}

/// The reason why an advice was not applied, or not to all of the range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdviseError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The range ends beyond the last address.
    Overflow,
    /// Not all of the range is mapped. As on Linux, the advice was applied to the mapped parts;
    /// advice that faults memory in was applied only up to the first hole.
    NotMapped,
    /// This VMA is sealed and read-only, so its contents may not be dropped.
    Sealed(VirtRange),
    /// This VMA is locked. The advice was applied to the VMAs before it.
    Locked(VirtRange),
    /// This VMA is not writable shared memory, so no hole can be punched there.
    Denied(VirtRange),
    /// This VMA maps no object, so no hole can be punched there.
    NoObject(VirtRange),
    /// The advice is for private anonymous memory, and this VMA is something else.
    NotPrivate(VirtRange),
    /// The advice would have droppable memory copied by fork or dumped, which it never is.
    Droppable(VirtRange),
    /// The protection of this VMA forbids the access. The range before it was faulted in.
    Inaccessible(VirtRange),
    /// A page could not be faulted in. The range before it was faulted in.
    Fault(FaultError),
    /// Not all of the range could be collapsed into huge pages.
    Collapse(CollapseError),
    /// The limit on the number of VMAs would be exceeded.
    TooManyVmas,
    /// There is no memory to split VMAs or huge PTEs at the ends of the range, or for page tables
    /// that hold guard markers.
    NoMemory(Refused),
}

impl AdviseError {
    /// Returns the errno that Linux's `madvise` reports.
    pub const fn errno(&self) -> Errno {
        match self {
            AdviseError::Unaligned(_)
            | AdviseError::Overflow
            | AdviseError::Locked(_)
            | AdviseError::NoObject(_)
            | AdviseError::NotPrivate(_)
            | AdviseError::Droppable(_)
            | AdviseError::Inaccessible(_) => Errno::EINVAL,
            AdviseError::Fault(FaultError::Poisoned(_)) => Errno::EHWPOISON,
            AdviseError::Fault(error) => error.errno(),
            AdviseError::Collapse(error) => error.errno(),
            AdviseError::Denied(_) => Errno::EACCES,
            AdviseError::Sealed(_) => Errno::EPERM,
            AdviseError::NotMapped => Errno::ENOMEM,
            AdviseError::TooManyVmas | AdviseError::NoMemory(_) => Errno::EAGAIN,
        }
    }
}

impl core::fmt::Display for AdviseError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            AdviseError::Unaligned(addr) => write!(f, "address {addr:#x} is not a multiple of the page size: align it"),
            AdviseError::Overflow => f.write_str("the range ends beyond the last address: shorten it"),
            AdviseError::NotMapped => f.write_str("not all of the range is mapped: pass a mapped range"),
            AdviseError::Sealed(range) => {
                write!(f, "the VMA {range:?} is sealed and read-only: its contents can't be dropped")
            }
            AdviseError::Locked(range) => write!(f, "the VMA {range:?} is locked: unlock it"),
            AdviseError::Denied(range) => write!(f, "the VMA {range:?} is not writable shared memory"),
            AdviseError::NotPrivate(range) => write!(f, "the VMA {range:?} is not private anonymous memory"),
            AdviseError::Droppable(range) => {
                write!(f, "the VMA {range:?} is droppable, so it is neither copied by fork nor dumped")
            }
            AdviseError::Inaccessible(range) => {
                write!(f, "the protection of the VMA {range:?} forbids the access: change it")
            }
            AdviseError::Fault(error) => error.fmt(f),
            AdviseError::Collapse(error) => error.fmt(f),
            AdviseError::NoObject(range) => {
                write!(f, "the VMA {range:?} maps no page-cache object: pass a shared mapping")
            }
            AdviseError::TooManyVmas => f.write_str("too many VMAs: raise the limit, or unmap some"),
            AdviseError::NoMemory(why) => why.fmt(f),
        }
    }
}

impl core::error::Error for AdviseError {}

may_be_refused!(AdviseError, Fault);

impl From<ProtectError> for AdviseError {
    fn from(error: ProtectError) -> Self {
        match error {
            ProtectError::Unaligned(addr) => AdviseError::Unaligned(addr),
            ProtectError::Overflow => AdviseError::Overflow,
            ProtectError::NotMapped => AdviseError::NotMapped,
            ProtectError::Denied(range) | ProtectError::ExecGain(range) => AdviseError::Denied(range),
            ProtectError::Sealed(range) => AdviseError::Sealed(range),
            ProtectError::TooManyVmas => AdviseError::TooManyVmas,
            ProtectError::NoMemory(why) => AdviseError::NoMemory(why),
            ProtectError::DataLimit => AdviseError::NoMemory(Refused::OutOfMemory),
        }
    }
}
