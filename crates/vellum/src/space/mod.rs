//! Address spaces: page faults, `mmap`, `munmap`, `mprotect`, `madvise`, `fork` and the rest.
//!
//! # Locks
//! The VMAs are protected by a lock with a reader count for each CPU ([`crate::sync::PerCpuLock`]).
//! A fault holds the lock for reading until it ends, by its CPU's count, so that faults share no
//! cache line. Two faults that change the same PTEs are ordered by the lock of the page table that
//! has them.
//!
//! A change of VMAs takes the lock for writing twice and briefly: first to split the VMAs at the
//! ends of its range and to mark them (`State`); then, when the page tables are done, to finish. In
//! between only changes of the same range wait, so two CPUs unmap two ranges at the same time, and
//! the addresses are free when `unmap` returns.
//!
//! # All or nothing
//! Each operation first checks whether it can succeed, and allocates all memory that it will need
//! (nodes of the VMA tree, page tables to split huge PTEs at the ends of the range). After that it
//! can't fail.
//!
//! # Folders
//! [`AddressSpace`] has the public calls. Each folder implements its part of them on a handle, a
//! type of its own that is no more than a reference to the space: other folders can call what the
//! handle makes visible, and nothing else. A folder imports only from modules above it in this
//! table:
//!
//! | folder | contents |
//! |---|---|
//! | `ground` | VMAs, limits, claims, PTE rights, walks, zapping |
//! | `anon` | anonymous folios: allocation, mapping, replacement by a copy |
//! | `fault` | page faults: copy-on-write, zero folio, objects, stacks, swap-in, uffd events, pinning |
//! | `fork` | the child of a space |
//! | `reclaim` | rmap, pageout, swap-out, migration, lazyfree |
//! | `thp` | collapse and split of large folios |
//! | `observe` | queries: statistics, mincore, soft-dirty, accessed and dirty bits, `PAGEMAP_SCAN` |
//! | `vma_ops` | `mmap`, `munmap`, `mremap`, `mprotect`, `madvise`, `mlock`, `mseal`, `msync` |
//! | `uffd` | userfaultfd: registration, write protection, filling |
//! | `spaces` | operations on all spaces that map an object or share a fork family |

mod anon;
mod fault;
mod fork;
mod ground;
mod observe;
mod reclaim;
mod spaces;
#[cfg(test)]
mod tests;
mod thp;
mod uffd;
mod vma_ops;

pub use fault::{Access, FaultError, Resolved, UffdEvent, UffdMode};
pub use fork::ForkError;
pub(crate) use ground::Ptes;
pub use ground::{AddressSpace, Families, Limits};
pub use observe::{
    Categories, MincoreError, Region, Scan, ScanError, Scanned, SoftDirtyUnsupported, SpaceStats, Usage, UsageSplit,
};
pub(crate) use reclaim::{ISOLATION_BATCH, IsolationBatch, MigratedPages, Pageout, Rmap};
pub(crate) use spaces::each_mapper;
pub use spaces::{Spaces, unmap_removed};
pub(crate) use thp::Thp;
pub use thp::{CollapseError, CollapseLimits, Collapsed};
pub use uffd::{UffdError, UffdFillError, UffdFillStopped};
pub use vma_ops::{
    Advise, AdviseError, Advising, LockAll, LockError, MapError, MapFlags, MapRequest, Populating, ProtectError,
    RemapError, RemapFlags, RemapRequest, SealError, SharedKey, SyncError, UnmapError,
};
