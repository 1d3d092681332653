//! Page tables: one tree of page tables for each address space, changed one run at a time.
//!
//! # Guarantee
//! The holder of a [`LockedTable`] may read and write its PTEs, and the page table stays part of
//! the tree (INV-5). A page table is *hooked* if another page table points to it, or if it is the
//! root. A hooked page table other than the root has at least one PTE that is not empty whenever
//! its lock is free (INV-3). A page table that was unhooked goes to the [`crate::tlb::Gather`] as a
//! [`crate::tlb::DeadTable`], and the gather alone frees it (INV-1).
//!
//! # Mechanism
//! - **Lockless walks.** [`PageTables::find`] announces itself as a walker
//!   ([`crate::sync::Walkers`]), steps from the root to the page table that holds the PTE of an
//!   address, and queues for that page table's lock. If the page table was unhooked by the time
//!   that the walker has the lock, the walk begins again. The page tables above stay hooked,
//!   because a page table that points to a hooked one is not empty.
//! - **No empty page table is published.** [`PageTables::map_run`] fills the first PTEs of a new
//!   page table, and the pointers of new page tables above it, before it publishes the chain with
//!   one store. That store is made under the lock of the existing page table that gets the pointer.
//!   When memory runs out nothing has been published (INV-7).
//! - **Live counts.** The descriptor of a page table counts the PTEs that are not empty. The count
//!   changes once per run, under the page table's lock. [`LockedTable::unlock`] unhooks a page
//!   table with a live count of zero, then its parent if that became empty, up to the root: no scan
//!   for empty page tables is needed.
//! - **Lock order: child before parent.** No other nesting of page-table locks exists.
//!
//! | file | what it does |
//! |---|---|
//! | `run` | [`Run`]: consecutive PTEs that are alike |
//! | `lock` | locks a page table, and unhooks it when it is empty |
//! | `live` | counts the entries that are not empty, and marks page tables that may have private ones |
//! | `entries` | reads and writes PTEs, one run at a time |
//! | `take` | clears PTEs, or takes them out to move them |
//! | `busy` | replaces PTEs by markers, at which other CPUs wait, during work that is too long for a spin lock |
//! | `scattered` | changes and copies PTEs whose frames lie in pieces, for a fork |
//! | `stretch` | changes the attributes of PTEs, whatever frames they map |
//! | `rewrite` | changes leaf PTEs while hardware sets accessed and dirty bits |
//! | `cont_block` | folds leaf PTEs into contpte (AArch64) or NAPOT (RISC-V) blocks, and unfolds them |
//! | `cont_rewrite` | changes leaf PTEs that are in cont blocks or can be folded |
//! | `ahead` | prefetches the page table, and the folios, that a pass over a range comes to next |
//! | `walk` | walks from the root to a page table without locks |
//! | `grow` | allocates and publishes page tables |
//! | `split` | splits a huge PTE into a page table of smaller leaf PTEs |
//! | `collapse` | detaches a page table, so that a huge PTE can replace it |
//! | `relocate` | moves PTEs and whole page tables to other addresses (`mremap`) |

pub(crate) mod ahead;
mod busy;
mod collapse;
mod cont_block;
mod cont_rewrite;
mod entries;
mod grow;
mod live;
mod lock;
mod relocate;
mod rewrite;
mod run;
mod scattered;
mod split;
mod stretch;
mod take;
mod walk;

pub(crate) use busy::BusyEntries;
pub(crate) use collapse::DetachedTable;
pub(crate) use grow::{NotMapped, SpareTables};
use live::LiveCount;
pub(crate) use lock::LockedTable;
pub(crate) use relocate::Relocation;
pub use run::{Cont, Run};
pub(crate) use scattered::{MAX_PARTS, Part, Scattered, set_copies};
pub(crate) use stretch::Stretch;
pub(crate) use take::Taken;
pub(crate) use walk::{Found, Probe};

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

/// The maximum number of runs of one page table that an operation handles before it releases the
/// page table's lock (INV-11). In a page table of scattered pages each page is a run, and each run
/// costs an access to a folio's descriptor.
pub(crate) const MAX_RUNS_PER_HOLD: usize = 64;
/// The maximum number of PTEs of one page table that an operation handles before it releases the
/// page table's lock (INV-11). Most formats have fewer PTEs in a page table. A PTE that is read
/// again, because the run that it ended was shortened, counts again.
pub(crate) const MAX_ENTRIES_PER_HOLD: u64 = 4096;
/// The maximum number of PTEs that an operation handles under one page table's lock if it reads the
/// mapcount of a folio for each PTE (INV-11). Most formats have no more PTEs in a page table.
pub(crate) const MAX_FOLIOS_PER_HOLD: u64 = 512;

/// The page tables of one address space, with what page-table code needs from that space.
pub(crate) struct PageTables<'m, P: Platform> {
    pub(crate) machine: &'m Machine<'m, P>,
    pub(crate) arch: P::Arch,
    pub(crate) root: Pfn,
    pub(crate) tlb: Shootdown<'m, P>,
    /// The memcg that is charged for page tables and memory. It changes under the VMA lock held as
    /// writer; faults read it under the same lock as readers.
    memcg: AtomicU16,
    pub(crate) slots: SpaceSlots<'m>,
    /// The maximum number of PTEs of a run. With the value 1 the engine works page by page:
    /// benchmarks use that to measure what runs save.
    pub(crate) max_run: usize,
    /// True if leaf PTEs are folded into cont blocks.
    pub(crate) uses_cont_blocks: bool,
    /// The gate of this space. An operation that was retried too often closes it, and other
    /// operations wait at the closed gate before they take the VMA lock (INV-21).
    pub(crate) gate: Gate,
}

impl<'m, P: Platform> PageTables<'m, P> {
    /// Returns an empty tree: a root, charged to `memcg`. The engine uses the entries of the root
    /// that translate user addresses; the other entries are the host's (INV-17).
    ///
    /// # Errors
    /// [`Refused`] if no frame is free for the root, or `memcg` is at its limit.
    pub(crate) fn new(
        machine: &'m Machine<'m, P>,
        arch: P::Arch,
        memcg: MemcgId,
        slots: SpaceSlots<'m>,
    ) -> Result<Self, Refused> {
        let space = machine.next_space();
        let tlb = Shootdown::new(machine, space, Pfn::NONE, slots);
        let memcg = AtomicU16::new(memcg.0);
        let uses_cont_blocks = machine.policy().cont_blocks();
        let mut tables = PageTables {
            machine,
            arch,
            root: Pfn::NONE,
            tlb,
            memcg,
            slots,
            max_run: usize::MAX,
            uses_cont_blocks,
            gate: Gate::default(),
        };
        (tables.root, _) = tables.alloc_table(arch.levels(), true)?;
        tables.tlb.root = tables.root;
        tables.count_hooked(1);
        Ok(tables)
    }

    /// Returns the memcg that is charged for this space.
    #[inline]
    pub(crate) fn memcg(&self) -> MemcgId {
        MemcgId(self.memcg.load(Ordering::Relaxed))
    }

    /// Sets the memcg that is charged from now on. Earlier charges stay with the former memcg. The
    /// caller holds the VMA lock as writer.
    pub(crate) fn set_memcg(&self, memcg: MemcgId) {
        self.memcg.store(memcg.0, Ordering::Relaxed);
    }

    /// Returns the host.
    #[inline]
    pub(crate) fn platform(&self) -> &'m P {
        self.machine.platform()
    }

    /// Returns this CPU's slot of the space's per-CPU data: its share of the counters, and its
    /// reader count of the VMA lock.
    #[inline]
    pub(crate) fn slot(&self) -> &'m SpaceSlot {
        self.slots.of(self.platform().current())
    }

    /// Returns the virtual address of physical address 0 in the direct map. The entries of a page
    /// table begin at this address plus the page table's physical address
    /// ([`PageTables::entries`]).
    #[inline]
    fn direct_map(&self) -> *const AtomicU64 {
        self.machine.frames().at(PhysAddr(0)).as_ptr().cast()
    }

    /// Returns a pointer to the entries of the page table at `table`. Making the pointer is always
    /// safe; using it is safe under the conditions of [`PageTables::entry`].
    #[inline]
    fn entries(&self, table: Pfn) -> *const AtomicU64 {
        self.direct_map().wrapping_byte_add(table.addr().0 as usize)
    }

    /// Returns an entry of a page table.
    ///
    /// # Safety
    /// `table` is a page table of this tree. It can't be freed while the reference lives, because
    /// the caller is in a walk (it holds the guard of [`PageTables::begin_walk`]), holds the page
    /// table's lock, or has not published the page table yet. `index` is below the number of its
    /// entries.
    #[inline]
    unsafe fn entry(&self, table: Pfn, index: usize) -> &AtomicU64 {
        // SAFETY: the caller guarantees that the page table is not freed and that `index` is in
        // range, and the pointer is that of `direct_map`.
        unsafe { self.entry_in(self.direct_map(), table, index) }
    }

    /// Returns an entry of a page table, for a caller that keeps the value of
    /// [`PageTables::direct_map`] in a register.
    ///
    /// # Safety
    /// The conditions of [`PageTables::entry`] hold, and `memory` is the value that
    /// [`PageTables::direct_map`] returns.
    #[inline]
    unsafe fn entry_in(&self, memory: *const AtomicU64, table: Pfn, index: usize) -> &AtomicU64 {
        debug_assert!(index < 1 << self.arch.index_bits());
        // SAFETY: the page table's frames are in the direct map and hold nothing but 8-byte
        // entries, which the engine and hardware access as atomics only. The caller guarantees that
        // the frame is still a page table, and that the index is in range.
        unsafe { &*memory.wrapping_byte_add(table.addr().0 as usize).add(index) }
    }

    /// Returns consecutive entries of a page table.
    ///
    /// # Safety
    /// The conditions of [`PageTables::entry`] hold for each of the entries.
    #[inline]
    unsafe fn entry_slice(&self, table: Pfn, entries: Range<usize>) -> &[AtomicU64] {
        debug_assert!(entries.end <= 1 << self.arch.index_bits());
        // SAFETY: the caller guarantees that the page table is not freed and that the entries are
        // in range. The engine and hardware access page tables as atomics only.
        unsafe { core::slice::from_raw_parts(self.entries(table).add(entries.start), entries.len()) }
    }

    /// Allocates a page table of `level`, charged to the memcg, and returns its frame and
    /// descriptor. The page table is not published: no walk can find it. With `zero` it is empty;
    /// otherwise its entries have any value. No page table's lock is held (INV-8).
    ///
    /// # Errors
    /// [`Refused`] if no frame is free, or the memcg is at its limit.
    fn alloc_table(&self, level: u8, zero: bool) -> Result<(Pfn, &'m Frame), Refused> {
        let frames = self.machine.frames();
        let order = self.arch.page_order();
        let (pfn, desc) = self.machine.memcgs().alloc(frames, self.memcg(), order, zero)?;
        desc.set_table(level, order);
        trace(self.platform(), || Event::TableAllocated(pfn, level, self.tlb.space));
        Ok((pfn, desc))
    }

    /// Frees a page table that no walk can find: one that was never published, or the root of a
    /// space that is being dropped. With `zero`, the caller guarantees that all its bytes are zero
    /// (INV-10).
    fn free_private(&self, table: Pfn, zero: bool) {
        let frames = self.machine.frames();
        // SAFETY: no other reference to the page table exists, and the caller guarantees that it is
        // zero if `zero` is set.
        unsafe { self.machine.memcgs().free(frames, table, self.arch.page_order(), zero) };
    }

    /// Adds `n` page tables to the space's statistics. `n` is negative if page tables left the
    /// tree.
    fn count_hooked(&self, n: i64) {
        self.slot().add(SpaceCounter::Tables, n << self.arch.page_order());
    }

    /// Frees the root of an empty tree.
    ///
    /// # Panics
    /// In debug builds, if the root still has a PTE that is not empty.
    pub(crate) fn free_root(&mut self) {
        debug_assert_eq!(
            LiveCount::of(self.machine.frames().frame(self.root)).get(),
            0,
            "the root page table still has live entries"
        );
        self.count_hooked(-1);
        // The host may have written the entries of the root that translate its own addresses, so
        // the frame may not be zero.
        self.free_private(self.root, false);
        self.root = Pfn::NONE;
    }
}
