//! `fork`: the child gets copies of its parent's VMAs and of the PTEs in them; no memory is copied.
//! Private memory that parent and child share after the fork is read-only in both until one of them
//! writes to it (copy-on-write, [`fault`](super::fault)). In this module, *shared* means shared in
//! this way, not `MAP_SHARED`.
//!
//! The parent's page tables are visited once. For a run of PTEs that map private memory the fork
//! takes references and mappings for the child, folio by folio; removes
//! [`Attrs::EXCLUSIVE`](crate::arch::Attrs::EXCLUSIVE) and the right to write from all PTEs of the
//! run; and maps the same run in the child.
//!
//! # The child's contents
//! The child sees the parent's memory as of the final TLB flush. Until that flush, CPUs with a
//! stale writable translation still write to shared pages; a CPU that takes a fault waits
//! ([`State::Locked`](crate::vma::State::Locked)). So a thread's later store is never in the child
//! without its earlier ones.
//!
//! # Pinned pages
//! The host writes to a pinned page ([`AddressSpace::pin`]) without using the PTEs, so that
//! read-only PTEs do not stop it. So a pinned page stays exclusive to the parent, and the child
//! gets a copy of it after the flush.
//!
//! | file | contents |
//! |---|---|
//! | `parent` | visits the parent's page tables |
//! | `run` | shares a run: the references and mappings of its folios |
//! | `copies` | copies pinned pages |
//! | `child` | copies VMAs, and maps runs, in the child |

mod child;
mod copies;
mod parent;
mod run;

use crate::addr::VirtRange;
use crate::arch::{Arch, UserRange};
use crate::errno::Errno;
use crate::frame::TooManyReferences;
use crate::machine::Machine;
use crate::memcg::{Refused, may_be_refused};
use crate::platform::Platform;
use crate::space::ground::handle;
use crate::swap::Saturated;
use crate::table::PageTables;
use crate::vma::UffdId;

use super::AddressSpace;

/// The reason why a fork failed. Nothing was changed in the parent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForkError {
    /// There is no memory for the child's VMAs and page tables, or the memcg is at its limit.
    NoMemory(Refused),
    /// A swap slot or a folio of the parent has the maximum number of references. Reclaim does not
    /// help.
    TooManyReferences,
}

impl ForkError {
    /// Returns the error of Linux's `fork`.
    pub const fn errno(&self) -> Errno {
        match self {
            ForkError::NoMemory(_) => Errno::ENOMEM,
            ForkError::TooManyReferences => Errno::EAGAIN,
        }
    }
}

impl core::fmt::Display for ForkError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            ForkError::NoMemory(why) => why.fmt(f),
            ForkError::TooManyReferences => f.write_str(
                "a swap slot or a folio of the parent already has the largest number of references: \
                 unmap shared memory, or end spaces that share it",
            ),
        }
    }
}

impl core::error::Error for ForkError {}

may_be_refused!(ForkError);

impl From<TooManyReferences> for ForkError {
    fn from(_: TooManyReferences) -> Self {
        ForkError::TooManyReferences
    }
}

impl From<Saturated> for ForkError {
    fn from(_: Saturated) -> Self {
        ForkError::TooManyReferences
    }
}

handle! {
    /// A reference to the space that is being forked, with the methods that share its memory.
    struct Parent
}

handle! {
    /// A reference to the new space, with the methods that map its parent's memory in it.
    struct Child
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Forks the space. Returns a child with the same limits and the same memcg; shared memory
    /// stays charged where it was. The child has no `VM_DONTFORK` VMAs, and none of its VMAs is
    /// locked or registered with a userfaultfd. In VMAs of page-cache objects only private copies
    /// are mapped in the child, which faults in the rest.
    ///
    /// Claims the whole space; faults wait until this returns.
    ///
    /// # Errors
    /// See [`ForkError`]: there is no child, and nothing was changed.
    pub fn fork(&self) -> Result<Self, ForkError> {
        fork_with_uffds(self, |_| false)
    }
}

/// Forks a space as [`AddressSpace::fork`] does, but VMAs that are registered with a userfaultfd
/// for which `keeps` returns true stay registered in the child, by the same number, and their pages
/// stay write-protected (`UFFD_FEATURE_EVENT_FORK`).
///
/// # Errors
/// As for [`AddressSpace::fork`].
pub fn fork_with_uffds<'m, P: Platform>(
    space: &AddressSpace<'m, P>,
    keeps: impl Fn(UffdId) -> bool,
) -> Result<AddressSpace<'m, P>, ForkError> {
    Parent::of(space).fork(&keeps)
}
