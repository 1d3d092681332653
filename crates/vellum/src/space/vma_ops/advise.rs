//! Hints about memory: `madvise`.

use crate::addr::VirtRange;
use crate::errno::Errno;
use crate::memcg::{Refused, may_be_refused};

use super::ProtectError;
use crate::space::fault::FaultError;
use crate::space::thp::CollapseError;

/// What is said about a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advise {
    /// Its contents are not needed; the next touch finds zeros (`MADV_DONTNEED`).
    DontNeed,
    /// Large folios, please (`MADV_HUGEPAGE`).
    Huge,
    /// No large folios (`MADV_NOHUGEPAGE`).
    NoHuge,
    /// As [`Advise::DontNeed`], locked VMAs too (`MADV_DONTNEED_LOCKED`).
    DontNeedLocked,
    /// Its contents may go when memory is short, until they are written to (`MADV_FREE`): private
    /// anonymous memory only.
    Free,
    /// A child is not to have it (`MADV_DONTFORK`).
    DontFork,
    /// A child is to have it (`MADV_DOFORK`).
    DoFork,
    /// A child is to have it empty (`MADV_WIPEONFORK`): private anonymous memory only.
    WipeOnFork,
    /// A child is to have it with its contents (`MADV_KEEPONFORK`).
    KeepOnFork,
    /// Not for core files (`MADV_DONTDUMP`).
    DontDump,
    /// For core files (`MADV_DODUMP`).
    DoDump,
    /// How it will be read (`MADV_NORMAL`, `MADV_RANDOM`, `MADV_SEQUENTIAL`). Nothing depends on
    /// it.
    ReadPattern,
    /// Needed soon: what is swapped out comes back, as far as there is memory (`MADV_WILLNEED`).
    WillNeed,
    /// Not needed soon: what is this space's alone counts as not used, and is looked at first when
    /// memory is short (`MADV_COLD`).
    Cold,
    /// Not needed soon: what is this space's alone goes to a swap device, as far as there is room
    /// (`MADV_PAGEOUT`).
    PageOut,
    /// Have it in huge pages now, whatever policy says of faults (`MADV_COLLAPSE`): private
    /// anonymous memory of which something is there.
    Collapse,
    /// Fault it in for reading (`MADV_POPULATE_READ`).
    PopulateRead,
    /// Fault it in for writing (`MADV_POPULATE_WRITE`).
    PopulateWrite,
    /// Forget what is there, and make every access a fault until the guard is removed
    /// (`MADV_GUARD_INSTALL`).
    GuardInstall,
    /// Let what was guarded be used again (`MADV_GUARD_REMOVE`).
    GuardRemove,
}

impl Advise {
    /// Whether contents go, here or for a child.
    pub(super) fn forgets(self) -> bool {
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

/// Why an advice was not taken, or not in full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdviseError {
    /// The address is not a multiple of the page size.
    Unaligned(u64),
    /// The end is beyond the last address.
    Overflow,
    /// Not all of the range is mapped. The advice was taken for what is, as Linux does; of what is
    /// to be faulted in, for what lies before the hole.
    NotMapped,
    /// This VMA is sealed, and can't be written, so what it holds may not be forgotten.
    Sealed(VirtRange),
    /// A VMA is locked; those before it are done.
    Locked(VirtRange),
    /// What is there can't be written, so neither can holes be made in it.
    Denied(VirtRange),
    /// No memory object stands behind this VMA, so that no hole can be made there.
    NoObject(VirtRange),
    /// That is for private anonymous memory only, and this VMA is something else.
    NotPrivate(VirtRange),
    /// This VMA may not be accessed so; what lies before it was faulted in.
    Inaccessible(VirtRange),
    /// A page could not be faulted in; what lies before it was.
    Fault(FaultError),
    /// Not all of it was had in huge pages.
    Collapse(CollapseError),
    /// The space has as many VMAs as it may.
    TooManyVmas,
    /// No memory to split VMAs or huge mappings at the ends, or for the tables of guards.
    NoMemory(Refused),
}

impl AdviseError {
    /// What Linux's `madvise` answers.
    pub const fn errno(&self) -> Errno {
        match self {
            AdviseError::Unaligned(_)
            | AdviseError::Overflow
            | AdviseError::Locked(_)
            | AdviseError::NoObject(_)
            | AdviseError::NotPrivate(_)
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
            AdviseError::Unaligned(addr) => write!(f, "{addr:#x} is not a multiple of the page size"),
            AdviseError::Overflow => f.write_str("beyond the last address"),
            AdviseError::NotMapped => f.write_str("not all of the range is mapped"),
            AdviseError::Sealed(range) => write!(f, "{range:?} is sealed"),
            AdviseError::Locked(range) => write!(f, "{range:?} is locked"),
            AdviseError::Denied(range) => write!(f, "{range:?} is not shared memory that may be written"),
            AdviseError::NotPrivate(range) => write!(f, "{range:?} is not private anonymous memory"),
            AdviseError::Inaccessible(range) => write!(f, "{range:?} may not be accessed so"),
            AdviseError::Fault(error) => error.fmt(f),
            AdviseError::Collapse(error) => error.fmt(f),
            AdviseError::NoObject(range) => write!(f, "no memory object stands behind {range:?}"),
            AdviseError::TooManyVmas => f.write_str("too many VMAs"),
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
