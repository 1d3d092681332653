//! An address space: what stands behind `mmap`, a page fault, `munmap`, `mprotect` and `madvise`.
//!
//! # Who keeps out of whose way
//! The VMAs are behind a lock with a door for each CPU ([`crate::sync::PerCpuLock`]). A fault goes in by its CPU's door
//! and stays in until it is done, so faults share no line; what two of them might both want is decided under the lock of
//! the one table where their entries stand.
//!
//! Who changes VMAs comes in as the writer, twice and briefly: first to mark the VMAs of the range ([`crate::vma`]'s
//! states), having split them at its ends; then, the page tables done, to finish. Between the two only others that want to
//! change the same VMAs wait. `unmap` thus returns to its addresses being free, and two CPUs unmap two ranges side by side.
//!
//! # All or nothing
//! Each operation first finds out whether it can be done, and gets all memory that it will need (nodes of the tree of VMAs,
//! tables to split huge mappings at the ends of the range). What follows can't fail.
//!
//! | file | story |
//! |---|---|
//! | `vmas` | the VMAs and what limits them: split, merge, count |
//! | `claims` | which ranges are being changed, and which change waits for which |
//! | `map` | new VMAs |
//! | `fault` | a page is touched |
//! | `spurious` | the entry allows what the CPU faulted on: its TLB is to see that |
//! | `zeros` | pages that were only read |
//! | `fork` | a child |
//! | `family` | which spaces may have anonymous memory together |
//! | `cow` | what parent and child both have is written |
//! | `collapse` | small pieces become one large folio |
//! | `replace` | how either is done: by a copy |
//! | `split` | one large folio becomes small pieces |
//! | `guard` | pages that may not be touched |
//! | `evict` | memory is wanted elsewhere |
//! | `transfer` | it goes to a folio of its own |
//! | `isolated` | what was taken off its list for that |
//! | `lazy` | what may go then without being kept |
//! | `swap_out` | what goes to a swap device |
//! | `swap_in` | and comes back |
//! | `pin` | a page is kept, for the host to use |
//! | `lock` | memory that is to stay |
//! | `seal` | VMAs that stay as they are |
//! | `object` | what stands behind a VMA: faults on it |
//! | `discard` | pages that an object has lost |
//! | `spaces` | what concerns several spaces |
//! | `sync` | `msync` |
//! | `stack` | VMAs that grow by being touched |
//! | `zap` | emptying a range of page tables by the run |
//! | `unmap` | VMAs go |
//! | `remap` | VMAs change their size or their place |
//! | `relocate` | how they change their place |
//! | `protect` | VMAs change what may be done with them |
//! | `advise` | hints |
//! | `pieces` | hints, and faulting in, a piece after the other |
//! | `cold` | hints about what is in memory or not |
//! | `query` | what is mapped, what is resident |
//! | `watch` | somebody is told what happens to pages, or says so in their place |
//! | `supply` | what he puts there |
//! | `scan` | what pages are, and which were written since they were protected |
//! | `track` | which pages were written since somebody asked |
//! | `recorded` | what hardware knows of that |

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

pub use fault::{Access, FaultError, Happening, Resolved, Watched};
pub use fork::ForkError;
pub(crate) use ground::Ptes;
pub use ground::{Families, Limits};
pub use observe::{CantTrack, Categories, QueryError, Region, Scan, ScanError, Scanned, SpaceStats, Split, Usage};
pub(crate) use reclaim::{BATCH, Copies, Isolated, Pageout, Rmap};
pub(crate) use spaces::each_mapper;
pub use spaces::{Spaces, discard};
pub(crate) use thp::Thp;
pub use thp::{CollapseError, CollapseLimits, Collapsed};
pub use uffd::{Stopped, SupplyError, WatchError};
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

/// An address space. All methods take `&self` and may be called from any CPU at any time.
pub struct AddressSpace<'m, P: Platform, A: Arch> {
    tables: PageTables<'m, P, A>,
    vmas: PerCpuLock<Vmas>,
    /// How many claims have ended, or have become claims of something else: what waits for one
    /// looks here.
    ended: AtomicU32,
    /// Whether no entry may be written that does not say that it was. Set in the lock of the VMAs.
    tracks: AtomicBool,
    /// What its new folios name: its own of [`Families`].
    family: Family,
    families: Families,
    /// The most pages that were ever resident, as far as looked at.
    peak: PeakRss,
    slots_in: SlotFrames,
}

impl<'m, P: Platform, A: Arch> AddressSpace<'m, P, A> {
    /// An empty space whose memory is charged to `memcg`.
    ///
    /// # Errors
    /// No memory for its root table and counters, or the memcg may not have it (or does not exist).
    pub fn new(machine: &'m Machine<'m, P>, arch: A, memcg: MemcgId, limits: Limits) -> Result<Self, Refused> {
        let memcgs = machine.memcgs();
        if !memcgs.pin(memcg) {
            return Err(Refused::OutOfMemory);
        }
        let made = SlotFrames::new(machine, memcg).and_then(|slots_in| {
            let slots = slots_in.slots(machine);
            let tables = PageTables::new(machine, arch, memcg, slots).inspect_err(|_| slots_in.free(machine))?;
            Ok(AddressSpace {
                family: Family::of(tables.tlb.space.0),
                families: Families::new(tables.tlb.space),
                vmas: PerCpuLock::new(Vmas::new(limits, &arch, tables.tlb.space)),
                ended: AtomicU32::new(0),
                tables,
                tracks: AtomicBool::new(false),
                peak: PeakRss::default(),
                slots_in,
            })
        });
        made.inspect_err(|_| memcgs.unpin(memcg))
    }

    /// Cut runs at `entries` entries. One makes the engine work page by page, as kernels without runs do: the benchmarks'
    /// `page` column. Not to be changed while the space is in use.
    pub fn cap_runs(&mut self, entries: usize) {
        self.tables.max_run = entries.max(1);
        self.tables.joins &= entries > 1;
    }

    /// Its number on this machine.
    pub fn id(&self) -> SpaceId {
        self.tables.tlb.space
    }

    /// The families that it is in, for a host that keeps its spaces by them ([`Spaces::each_of`]).
    /// They never change.
    pub fn families(&self) -> &Families {
        &self.families
    }

    /// The frame of the root table, for the CPU's register. The part of it that translates addresses from the format's
    /// [`Arch::user_end`] (rounded up to whole entries) is the host's to fill in.
    pub fn root(&self) -> Pfn {
        self.tables.root
    }

    /// The memcg that its memory is charged to.
    pub fn memcg(&self) -> MemcgId {
        self.tables.memcg()
    }

    /// From now on its memory is charged to another memcg. What was charged stays so, its tables included, until it is freed.
    ///
    /// # Errors
    /// There is no such memcg.
    pub fn set_memcg(&self, memcg: MemcgId) -> Result<(), MemcgError> {
        // Faults charge inside the lock: none that began before goes on with the old memcg once this returns.
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

    /// Its page-table format.
    pub fn arch(&self) -> &A {
        &self.tables.arch
    }

    /// Returns the machine that the space lives on.
    #[inline]
    pub fn machine(&self) -> &'m Machine<'m, P> {
        self.tables.machine
    }

    /// A CPU is about to load the root. From now on it takes part in invalidations.
    pub fn cpu_enter(&self, cpu: usize) {
        self.tables.tlb.enter(cpu);
    }

    /// A CPU has loaded another root and holds no translation of this space any more.
    pub fn cpu_leave(&self, cpu: usize) {
        self.tables.tlb.leave(cpu);
    }

    /// Returns the base-2 logarithm of the page size in bytes.
    #[inline]
    fn page_shift(&self) -> u32 {
        self.tables.arch.page_shift()
    }
}

impl<P: Platform, A: Arch> Drop for AddressSpace<'_, P, A> {
    /// Exit: everything is unmapped and freed. Every CPU must have left the space ([`AddressSpace::cpu_leave`]), or will
    /// take part in the invalidation.
    fn drop(&mut self) {
        let all = UserRange::all(&self.tables.arch);
        Zap::of(self).all(all);
        self.tables.free_root();
        let machine = self.machine();
        self.vmas.get_mut().clear(machine);
        self.slots_in.free(machine);
        machine.memcgs().unpin(self.tables.memcg());
    }
}
