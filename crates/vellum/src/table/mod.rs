//! Page tables: one tree of them for each address space.
//!
//! # Guarantee
//! Whoever holds a [`LockedTable`] may read and write its entries, and the table stays part of the tree. A table that is
//! hooked into the tree and whose lock nobody holds has at least one entry that is not empty (INV-3), apart from the root.
//! A table that was unhooked goes to the [`crate::tlb::Gather`] as a [`crate::tlb::DeadTable`] and nowhere else.
//!
//! # Mechanism
//! - **Down without locks.** [`PageTables::find`] steps from the root to the table in which an address's entry stands,
//!   announced as a walker ([`crate::sync::Walkers`]), takes that table's lock, and looks whether the table was unhooked
//!   meanwhile; if so it starts again. The tables above stay, because none of them is empty while this one is hooked.
//! - **Born with the first run.** [`PageTables::map_run`] writes the first entries of a new table, and the pointers of any
//!   tables above it, before it publishes the whole chain with one store under the lock of the table where the chain is
//!   hooked in. So no table is ever visible and empty, and running out of memory leaves no trace.
//! - **Live counts.** A table's descriptor counts its entries that are not empty. The count changes once a run, under the
//!   lock that the run holds anyway. Whoever brings it to zero unhooks the table as it unlocks it, and so on upward: no
//!   scan, no path that forgets to.
//! - **Locks from the leaf to the root.** The only nesting there is: a table, then its parent.
//!
//! | file | story |
//! |---|---|
//! | `run` | what a walk yields |
//! | `lock` | a locked table; unhooking |
//! | `entries` | its entries, one run at a time |
//! | `take` | how they leave it |
//! | `occupy` | entries that are busy while something takes long |
//! | `rewrite` | how leaves change beside hardware |
//! | `block` | of which some are one translation together |
//! | `walk` | down to a table |
//! | `grow` | new tables |
//! | `split` | a huge mapping becomes a table of pages |
//! | `collapse` | and the other way round |
//! | `relocate` | entries come to stand at other addresses |

mod block;
mod collapse;
mod entries;
mod grow;
mod lock;
mod occupy;
mod relocate;
mod rewrite;
mod run;
mod split;
mod take;
mod walk;

pub(crate) use collapse::Supplanted;
pub(crate) use grow::{NotMapped, Spares};
pub(crate) use lock::LockedTable;
pub(crate) use occupy::Occupied;
pub(crate) use relocate::Route;
pub use run::{Joined, Run};
pub(crate) use walk::Found;

use core::ops::Range;
use core::sync::atomic::{AtomicU16, AtomicU64, Ordering};

use crate::addr::{Pfn, PhysAddr};
use crate::arch::Arch;
use crate::frame::Frame;
use crate::machine::Machine;
use crate::memcg::{MemcgId, Refused};
use crate::platform::{Event, Platform, trace};
use crate::stats::{SpaceCounter, SpaceSlot, SpaceSlots};
use crate::sync::Gate;
use crate::tlb::Shootdown;

/// Runs of one table that an operation deals with before it gives the table's lock back. A table of
/// scattered pages, in which each page is a run, would else be locked for as many descriptors of
/// folios as it has entries (INV-11).
pub(crate) const RUNS_A_HOLD: usize = 64;
/// Entries of one table that an operation deals with before it gives the table's lock back: more
/// than most formats have in one.
const ENTRIES_A_HOLD: u64 = 4096;
/// The same, if each entry may have a folio of its own, of which it is to be known whether others have
/// it: no more than most formats have in a table.
pub(crate) const FOLIOS_A_HOLD: u64 = 512;

/// The page tables of one address space.
pub(crate) struct PageTables<'m, P: Platform, A: Arch> {
    pub(crate) machine: &'m Machine<'m, P>,
    pub(crate) arch: A,
    pub(crate) root: Pfn,
    pub(crate) tlb: Shootdown<'m, P>,
    /// Changed under the lock of the VMAs, in which faults read it.
    memcg: AtomicU16,
    pub(crate) slots: SpaceSlots<'m>,
    /// Runs are cut at this many entries: one makes the engine work page by page, to measure what runs are worth.
    pub(crate) max_run: usize,
    /// Whether leaves are joined to blocks.
    pub(crate) joins: bool,
    /// Closed by operations that have begun again too often. All that enters the lock of the VMAs
    /// passes it first.
    pub(crate) gate: Gate,
}

impl<'m, P: Platform, A: Arch> PageTables<'m, P, A> {
    /// An empty tree: a root, whose lower part (user mode's) is the engine's and whose upper part is the host's.
    pub(crate) fn new(
        machine: &'m Machine<'m, P>,
        arch: A,
        memcg: MemcgId,
        slots: SpaceSlots<'m>,
    ) -> Result<Self, Refused> {
        let space = machine.next_space();
        let tlb = Shootdown::new(machine, space, Pfn::NONE, slots);
        let memcg = AtomicU16::new(memcg.0);
        let joins = machine.policy().cont_blocks();
        let mut tables = PageTables {
            machine,
            arch,
            root: Pfn::NONE,
            tlb,
            memcg,
            slots,
            max_run: usize::MAX,
            joins,
            gate: Gate::default(),
        };
        (tables.root, _) = tables.alloc_table(arch.levels())?;
        tables.tlb.root = tables.root;
        tables.hooked(1);
        Ok(tables)
    }

    /// The memcg that is charged.
    #[inline]
    pub(crate) fn memcg(&self) -> MemcgId {
        MemcgId(self.memcg.load(Ordering::Relaxed))
    }

    pub(crate) fn set_memcg(&self, memcg: MemcgId) {
        self.memcg.store(memcg.0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn platform(&self) -> &'m P {
        self.machine.platform()
    }

    /// This CPU's slot of the space's counts.
    #[inline]
    pub(crate) fn slot(&self) -> &'m SpaceSlot {
        self.slots.of(self.platform().current())
    }

    /// Returns the memory that holds all tables: [`PageTables::entries`] begin so many bytes in it
    /// as their table's address says.
    #[inline]
    fn memory(&self) -> *const AtomicU64 {
        self.machine.frames().at(PhysAddr(0)).as_ptr().cast()
    }

    /// The entries of a table, wherever it is in its life.
    #[inline]
    fn entries(&self, table: Pfn) -> *const AtomicU64 {
        self.memory().wrapping_byte_add(table.addr().0 as usize)
    }

    /// An entry of a table that nobody can free meanwhile.
    ///
    /// # Safety
    /// `table` is a table of this tree, kept from being freed by a walk, a lock on it, or because it was never published;
    /// `index` is below the number of its entries.
    #[inline]
    unsafe fn entry(&self, table: Pfn, index: usize) -> &AtomicU64 {
        // SAFETY: by contract.
        unsafe { self.entry_in(self.memory(), table, index) }
    }

    /// The same for a caller that keeps what [`PageTables::memory`] returned.
    ///
    /// # Safety
    /// As for [`PageTables::entry`]; and `memory` is this tree's.
    #[inline]
    unsafe fn entry_in(&self, memory: *const AtomicU64, table: Pfn, index: usize) -> &AtomicU64 {
        debug_assert!(index < 1 << self.arch.index_bits());
        // SAFETY: the table's frames are in the direct map and hold nothing but entries of 8 bytes, which the engine
        // accesses as atomics only (hardware does too); the caller vouches that it is still a table, and for the index.
        unsafe { &*memory.wrapping_byte_add(table.addr().0 as usize).add(index) }
    }

    /// Entries of a table that nobody can free meanwhile, in a row.
    ///
    /// # Safety
    /// As for [`PageTables::entry`], for each of them.
    #[inline]
    unsafe fn part(&self, table: Pfn, entries: Range<usize>) -> &[AtomicU64] {
        debug_assert!(entries.end <= 1 << self.arch.index_bits());
        // SAFETY: as in `entry`.
        unsafe { core::slice::from_raw_parts(self.entries(table).add(entries.start), entries.len()) }
    }

    /// A table of this level, empty, charged to the memcg, and the caller's alone.
    fn alloc_table(&self, level: u8) -> Result<(Pfn, &'m Frame), Refused> {
        let frames = self.machine.frames();
        let order = self.arch.page_order();
        let (pfn, desc) = self.machine.memcgs().alloc(frames, self.memcg(), order, true)?;
        desc.set_table(level, order);
        trace(self.platform(), || Event::TableAllocated(pfn, level, self.tlb.space));
        Ok((pfn, desc))
    }

    /// Free a table that nobody else can find: never published, or the root of a space that is no more. `zero`: it holds
    /// zeros only.
    fn free_private(&self, table: Pfn, zero: bool) {
        let frames = self.machine.frames();
        // SAFETY: only the caller knows of it, who vouches for the zeros.
        unsafe { self.machine.memcgs().free(frames, table, self.arch.page_order(), zero) };
    }

    /// Count tables that became part of the tree.
    fn hooked(&self, n: i64) {
        self.slot().add(SpaceCounter::Tables, n << self.arch.page_order());
    }

    /// Free the root of a tree that is empty.
    ///
    /// # Panics
    /// In debug builds, if something is still mapped.
    pub(crate) fn free_root(&mut self) {
        debug_assert_eq!(
            self.machine.frames().frame(self.root).link(1).load(Ordering::Relaxed),
            0,
            "the root is not empty"
        );
        self.hooked(-1);
        // The host may have written its own half.
        self.free_private(self.root, false);
        self.root = Pfn::NONE;
    }
}
