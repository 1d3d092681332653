//! Address spaces: page faults, `mmap`, `munmap`, `mprotect`, `madvise`, `fork` and the rest.
//!
//! # Locks
//! The VMA lock protects the VMAs of a space. It is a reader-writer lock with a reader count for
//! each CPU ([`crate::sync::PerCpuLock`]). A fault holds it for reading until the fault ends, and
//! changes only the count of its own CPU, so that faults on different CPUs write no common cache
//! line. The lock of a page table orders two faults that change the same PTEs.
//!
//! A change of VMAs (`mmap`, `munmap`, `mprotect`, ...) takes the lock for writing twice, each time
//! briefly: first to split the VMAs at the ends of its range and to mark them
//! (`vma::State`); and again, after it has changed the page tables, to finish the
//! VMAs. While the lock is free between these two times, other changes of the same range wait, and
//! changes of other ranges run. So two CPUs can unmap two ranges at the same time. The addresses
//! are free when `unmap` returns.
//!
//! # All or nothing
//! Each operation first checks whether it can succeed, and allocates all memory that it will need
//! (nodes of the VMA tree, page tables to split huge PTEs at the ends of the range). After that it
//! can't fail.
//!
//! # Folders
//! [`AddressSpace`] has the public calls. Each folder implements its part of these calls as methods
//! of a handle: a type of the folder that wraps a reference to the space. Other folders can call
//! the visible methods of the handle, and nothing else. A folder imports only from modules above it
//! in this table:
//!
//! | folder | contents |
//! |---|---|
//! | `ground` | VMAs, limits, claims of ranges by changes, PTE rights, visits of PTEs, zapping |
//! | `anon` | anonymous folios: allocation, mapping, replacement by a copy |
//! | `fault` | page faults: copy-on-write, zero folio, objects, stacks, swap-in, uffd events, pinning |
//! | `fork` | creates the child of a space |
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
pub use fork::{ForkError, fork_with_uffds};
pub(crate) use ground::Ptes;
pub use ground::{AddressSpace, Families, Limits};
pub use observe::{
    Categories, MincoreError, Region, Scan, ScanError, Scanned, SoftDirtyUnsupported, SpaceStats, Usage, UsageSplit,
    peak_rss,
};
pub(crate) use reclaim::{ISOLATION_BATCH, IsolationBatch, MigratedPages, Pageout, Rmap};
pub(crate) use spaces::each_mapper;
pub use spaces::{Spaces, collapse_object, invalidate, unmap_removed, write_back};
pub(crate) use thp::Thp;
pub use thp::{CollapseError, CollapseLimits, Collapsed};
pub use uffd::{UffdError, UffdFillError, UffdFillStopped, uffd_continue, uffd_move};
pub use vma_ops::{
    Advise, AdviseError, Advising, LockAll, LockError, MapError, MapFlags, MapRequest, NewProt, Populating,
    ProtectError, RemapError, RemapFlags, RemapRequest, SealError, SharedKey, SyncError, UnmapError,
};
