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
pub use ground::{Families, Limits};
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

use core::sync::atomic::{AtomicBool, AtomicU32};

use crate::addr::Pfn;
use crate::arch::{Arch, UserRange};
use crate::frame::Family;
use crate::machine::Machine;
use crate::memcg::{MemcgError, MemcgId, Refused};
use crate::platform::{Platform, SpaceId};
use crate::sync::PerCpuLock;
use crate::table::PageTables;
use ground::{PeakRss, SlotFrames, Vmas, Zap};

/// An address space (Linux: `mm_struct`). All methods but [`AddressSpace::cap_runs`] take `&self`
/// and may be called from any CPU at any time.
pub struct AddressSpace<'m, P: Platform, A: Arch> {
    /// The page tables, the TLB shootdown state and the per-CPU counters.
    tables: PageTables<'m, P, A>,
    /// The VMAs, their limits, and the claims.
    vmas: PerCpuLock<Vmas>,
    /// The number of claims that have ended or changed their ranges. Changes that wait for a claim
    /// poll it.
    claims_ended: AtomicU32,
    /// True if PTEs that are not soft-dirty must not be writable. Set with the VMAs locked for
    /// writing.
    soft_dirty_on: AtomicBool,
    /// The fork family that the rmap keys of new folios name: the last of `families`.
    family: Family,
    /// The fork families that the space is in.
    families: Families,
    /// The peak of the resident set.
    peak: PeakRss,
    /// The frames of the per-CPU counters.
    slot_frames: SlotFrames,
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// Makes an empty space that charges its memory to `memcg`.
    ///
    /// # Errors
    /// There is no memory for its root page table and counters, or the memcg is at its limit or
    /// does not exist.
    pub fn new(machine: &'m Machine<'m, P>, arch: A, memcg: MemcgId, limits: Limits) -> Result<Self, Refused> {
        let memcgs = machine.memcgs();
        if !memcgs.pin(memcg) {
            return Err(Refused::OutOfMemory);
        }
        let made = SlotFrames::new(machine, memcg).and_then(|slot_frames| {
            let slots = slot_frames.slots(machine);
            let tables = PageTables::new(machine, arch, memcg, slots).inspect_err(|_| slot_frames.free(machine))?;
            Ok(AddressSpace {
                family: Family::of(tables.tlb.space.0),
                families: Families::new(tables.tlb.space),
                vmas: PerCpuLock::new(Vmas::new(limits, &arch, tables.tlb.space)),
                claims_ended: AtomicU32::new(0),
                tables,
                soft_dirty_on: AtomicBool::new(false),
                peak: PeakRss::default(),
                slot_frames,
            })
        });
        made.inspect_err(|_| memcgs.unpin(memcg))
    }

    /// Limits runs to `entries` PTEs, before the first use of the space. With 1 the engine works
    /// page by page, as kernels without runs do: the benchmarks' `page` column.
    pub fn cap_runs(&mut self, entries: usize) {
        self.tables.max_run = entries.max(1);
        self.tables.uses_cont_blocks &= entries > 1;
    }

    /// Returns the number of the space on this machine.
    pub fn id(&self) -> SpaceId {
        self.tables.tlb.space
    }

    /// Returns the fork families that the space is in, by which the host may index its spaces
    /// ([`Spaces::each_in_family`]). They never change.
    pub fn families(&self) -> &Families {
        &self.families
    }

    /// Returns the frame of the root page table, which the host loads into a CPU's register. The
    /// host fills in the part that translates addresses from the format's [`Arch::user_end`] on,
    /// rounded up to whole PTEs.
    pub fn root(&self) -> Pfn {
        self.tables.root
    }

    /// Returns the memcg that memory of the space is charged to.
    pub fn memcg(&self) -> MemcgId {
        self.tables.memcg()
    }

    /// Charges memory to another memcg from now on. Memory that is charged already, page tables
    /// included, stays charged where it is until it is freed.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn set_memcg(&self, memcg: MemcgId) -> Result<(), MemcgError> {
        // Faults charge with the VMAs locked, so no fault charges the old memcg once this returns.
        let _vmas = self.write();
        let memcgs = self.machine().memcgs();
        if !memcgs.pin(memcg) {
            return Err(MemcgError::NoSuchMemcg(memcg));
        }
        let before = self.tables.memcg();
        self.tables.set_memcg(memcg);
        memcgs.unpin(before);
        Ok(())
    }

    /// Returns the page-table format.
    pub fn arch(&self) -> &A {
        &self.tables.arch
    }

    /// Returns the machine that the space lives on.
    #[inline]
    pub fn machine(&self) -> &'m Machine<'m, P> {
        self.tables.machine
    }

    /// Includes a CPU that is about to load the root in TLB shootdowns.
    pub fn cpu_enter(&self, cpu: usize) {
        self.tables.tlb.enter(cpu);
    }

    /// Excludes a CPU from TLB shootdowns. The CPU has loaded another root, and its TLB caches no
    /// translation of this space any more.
    pub fn cpu_leave(&self, cpu: usize) {
        self.tables.tlb.leave(cpu);
    }
}

impl<P: Platform, A: Arch> Drop for AddressSpace<'_, P, A> {
    /// Unmaps and frees everything (exit). CPUs that have not left the space
    /// ([`AddressSpace::cpu_leave`]) take part in the shootdown.
    fn drop(&mut self) {
        let all = UserRange::all(&self.tables.arch);
        Zap::of(self).all(all);
        self.tables.free_root();
        let machine = self.machine();
        self.vmas.get_mut().clear(machine);
        self.slot_frames.free(machine);
        machine.memcgs().unpin(self.tables.memcg());
    }
}
