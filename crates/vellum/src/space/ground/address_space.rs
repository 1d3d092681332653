//! The address space: what it consists of, and its creation and end.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32};

use crate::addr::Pfn;
use crate::arch::UserRange;
use crate::frame::Family;
use crate::machine::Machine;
use crate::memcg::{MemcgError, MemcgId, Refused};
use crate::platform::{Platform, SpaceId};
use crate::sync::PerCpuLock;
use crate::table::PageTables;

use super::{Families, Limits, PeakRss, SlotFrames, Vmas, Zap};

/// An address space (Linux: `mm_struct`). All methods except [`AddressSpace::cap_runs`] take
/// `&self` and may be called from any CPU at any time.
pub struct AddressSpace<'m, P: Platform> {
    /// The page tables, the TLB shootdown state and the per-CPU counters.
    pub(in crate::space) tables: PageTables<'m, P>,
    /// The VMAs, their limits, and the claims by which changes lock ranges of addresses
    /// ([`super::claims`]).
    pub(in crate::space) vmas: PerCpuLock<Vmas>,
    /// The number of claims that have ended or changed their ranges. Changes that wait for a claim
    /// poll it.
    pub(in crate::space) claims_ended: AtomicU32,
    /// True once soft-dirty was cleared in this space, or in its parent before the fork: PTEs that
    /// are not soft-dirty must then not be writable. Set with the VMAs locked for writing.
    pub(in crate::space) soft_dirty_on: AtomicBool,
    /// [`Limits::large_folios`], for faults.
    pub(in crate::space) large_folios: AtomicU8,
    /// The fork family that the rmap keys of new folios name ([`super::families`]): the last of
    /// `families`.
    pub(in crate::space) family: Family,
    /// The fork families (a space and those forked from it, directly or not) that this space is in:
    /// its own, and those of its ancestors.
    pub(in crate::space) families: Families,
    /// The largest size that the resident set has had.
    pub(in crate::space) peak: PeakRss,
    /// The frames that hold the per-CPU counters.
    pub(in crate::space) slot_frames: SlotFrames,
}

impl<'m, P: Platform> AddressSpace<'m, P> {
    /// Makes an empty space that charges its memory to `memcg`.
    ///
    /// # Errors
    /// There is no memory for its root page table and counters, or the memcg is at its limit or
    /// does not exist.
    pub fn new(machine: &'m Machine<'m, P>, arch: P::Arch, memcg: MemcgId, limits: Limits) -> Result<Self, Refused> {
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
                large_folios: AtomicU8::new(limits.large_folios as u8),
                peak: PeakRss::default(),
                slot_frames,
            })
        });
        made.inspect_err(|_| memcgs.unpin(memcg))
    }

    /// Limits runs to `entries` PTEs. The caller does this before the first use of the space. With
    /// 1 each PTE is found and changed by itself, and there are no cont blocks (PTEs that a TLB may
    /// hold as one translation), while all else works by the call as before; the `page` column of
    /// the benchmarks measures this.
    pub fn cap_runs(&mut self, entries: usize) {
        self.tables.max_run = entries.max(1);
        self.tables.uses_cont_blocks &= entries > 1;
    }

    /// Returns the number by which the engine and the host identify the space on this machine.
    pub fn id(&self) -> SpaceId {
        self.tables.tlb.space
    }

    /// Returns the fork families that the space is in, by which the host may index its spaces
    /// ([`crate::space::Spaces::each_in_family`]). They never change.
    pub fn families(&self) -> &Families {
        &self.families
    }

    /// Returns the frame of the root page table, which the host loads into a CPU's register. The
    /// host fills in the entries of the root for the kernel's addresses: those from the format's
    /// [`Arch::user_end`](crate::arch::Arch::user_end) on, rounded up to a whole entry.
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
    pub fn arch(&self) -> &P::Arch {
        &self.tables.arch
    }

    /// Returns the machine that the space lives on.
    #[inline]
    pub fn machine(&self) -> &'m Machine<'m, P> {
        self.tables.machine
    }

    /// Includes `cpu` in TLB shootdowns of this space. The host calls this before the CPU loads the
    /// root page table.
    pub fn cpu_enter(&self, cpu: usize) {
        self.tables.tlb.enter(cpu);
    }

    /// Excludes `cpu` from TLB shootdowns of this space. The CPU has loaded another root, and its
    /// TLB caches no translation of this space any more.
    pub fn cpu_leave(&self, cpu: usize) {
        self.tables.tlb.leave(cpu);
    }
}

impl<P: Platform> Drop for AddressSpace<'_, P> {
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
