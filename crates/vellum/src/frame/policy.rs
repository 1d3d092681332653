//! Controls the folio sizes that page faults may use: Linux's settings under
//! `/sys/kernel/mm/transparent_hugepage`, by their names.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

pub(crate) use super::shmem::ShmemOrders;
pub use super::shmem::{ShmemFolios, ShmemKnob, ShmemPolicy};
use super::{HUGE_ORDER, LARGEST_FOLIO};

/// The setting of one order (`hugepages-<size>kB/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Knob {
    /// The size is not used.
    Never = 0,
    /// The machine-wide setting applies.
    Inherit = 1,
    /// The size is used in VMAs with `MADV_HUGEPAGE`.
    Madvise = 2,
    /// The size is used in every VMA without `MADV_NOHUGEPAGE`.
    Always = 3,
}

impl Knob {
    /// Returns the name that Linux uses for the setting.
    pub const fn name(self) -> &'static str {
        match self {
            Knob::Never => "never",
            Knob::Inherit => "inherit",
            Knob::Madvise => "madvise",
            Knob::Always => "always",
        }
    }

    /// Reads a setting; a value that stands for no setting reads as [`Knob::Never`].
    fn load(cell: &AtomicU8) -> Knob {
        match cell.load(Relaxed) {
            1 => Knob::Inherit,
            2 => Knob::Madvise,
            3 => Knob::Always,
            _ => Knob::Never,
        }
    }
}

/// Whether a page fault that finds no block for a large folio has the host compact memory first
/// (`transparent_hugepage/defrag`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Defrag {
    /// In every VMA without `MADV_NOHUGEPAGE`.
    Always = 0,
    /// Never: like [`Defrag::Never`]. On Linux such a fault wakes kcompactd.
    Defer = 1,
    /// In VMAs with `MADV_HUGEPAGE`, like [`Defrag::Madvise`]. On Linux other faults wake
    /// kcompactd.
    DeferMadvise = 2,
    /// In VMAs with `MADV_HUGEPAGE`.
    #[default]
    Madvise = 3,
    /// Never: the fault falls back to a smaller folio.
    Never = 4,
}

impl Defrag {
    /// All settings.
    pub const ALL: [Defrag; 5] = [Defrag::Always, Defrag::Defer, Defrag::DeferMadvise, Defrag::Madvise, Defrag::Never];

    /// Returns the name that Linux uses for the setting.
    pub const fn name(self) -> &'static str {
        match self {
            Defrag::Always => "always",
            Defrag::Defer => "defer",
            Defrag::DeferMadvise => "defer+madvise",
            Defrag::Madvise => "madvise",
            Defrag::Never => "never",
        }
    }
}

/// The advice that a program gave for a VMA (`MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Advice {
    /// No advice.
    #[default]
    None,
    /// Large folios are wanted.
    Huge,
    /// No large folios.
    NoHuge,
}

/// The memory of a space for which policy decides about large folios; for the rest there are none
/// (`PR_SET_THP_DISABLE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum LargeFolios {
    /// All.
    #[default]
    All,
    /// VMAs with `MADV_HUGEPAGE`.
    Advised,
    /// Nothing.
    None,
}

/// All orders that folios of page-cache objects may have, as a bit set.
const ALL_ORDERS: u32 = (2 << HUGE_ORDER) - 1;
/// The default order of preallocated folios of objects without a store: 64 KiB.
const MEMORY_ORDER: u8 = 4;

/// The settings of all orders, by default Linux's: 2 MiB inherits the machine-wide setting
/// `madvise`, other sizes are never used.
///
/// Linux has no sizes above 2 MiB. Here a fault that uses a larger size zeroes the whole folio, up
/// to 32 MiB, before the program continues.
#[derive(Debug)]
pub struct FolioPolicy {
    /// The machine-wide setting.
    global: AtomicU8,
    /// The setting of each order.
    orders: [AtomicU8; LARGEST_FOLIO as usize + 1],
    /// The permitted orders that follow from the settings, as bit sets: for VMAs without advice,
    /// and for VMAs with `MADV_HUGEPAGE`. A page fault reads one of the two and nothing else.
    allowed: [AtomicU32; 2],
    /// The [`Defrag`].
    defrag: AtomicU8,
    /// True if new spaces map cont blocks.
    cont_blocks: AtomicBool,
    /// The settings of shared memory.
    shmem: ShmemPolicy,
    /// The orders of folios that continue a stretch of mapped pages, as a bit set.
    growth_orders: AtomicU32,
    /// The orders of folios that fit into what is read or written of an object with a store, as a
    /// bit set.
    file_orders: AtomicU32,
    /// The orders of preallocated folios of objects without a store, as a bit set.
    memory_orders: AtomicU32,
}

impl Default for FolioPolicy {
    fn default() -> Self {
        let policy = FolioPolicy {
            global: AtomicU8::new(Knob::Madvise as u8),
            orders: Default::default(),
            allowed: Default::default(),
            defrag: AtomicU8::new(Defrag::default() as u8),
            cont_blocks: AtomicBool::new(true),
            shmem: ShmemPolicy::default(),
            growth_orders: AtomicU32::new(0),
            file_orders: AtomicU32::new(ALL_ORDERS),
            memory_orders: AtomicU32::new(1 << MEMORY_ORDER),
        };
        policy.set(HUGE_ORDER, Knob::Inherit);
        policy
    }
}

impl FolioPolicy {
    /// Sets the machine-wide setting (`enabled`). [`Knob::Inherit`] means never here.
    pub fn set_global(&self, knob: Knob) {
        self.global.store(knob as u8, Relaxed);
        self.update();
    }

    /// Returns the machine-wide setting.
    pub fn global(&self) -> Knob {
        Knob::load(&self.global)
    }

    /// Sets the setting of one order. Only orders 1 to [`LARGEST_FOLIO`] have one; the call is
    /// ignored for others.
    pub fn set(&self, order: u8, knob: Knob) {
        if let (1.., Some(cell)) = (order, self.orders.get(order as usize)) {
            cell.store(knob as u8, Relaxed);
            self.update();
        }
    }

    /// Returns the setting of one order; [`Knob::Never`] for an order without one.
    pub fn get(&self, order: u8) -> Knob {
        self.orders.get(order as usize).map_or(Knob::Never, Knob::load)
    }

    /// Sets whether faults have the host compact memory (`defrag`).
    pub fn set_defrag(&self, defrag: Defrag) {
        self.defrag.store(defrag as u8, Relaxed);
    }

    /// Returns what [`FolioPolicy::set_defrag`] has set.
    pub fn defrag(&self) -> Defrag {
        let raw = self.defrag.load(Relaxed);
        Defrag::ALL.get(usize::from(raw)).copied().unwrap_or_default()
    }

    /// Returns whether a fault in a VMA with this advice has the host compact memory.
    #[inline]
    pub(crate) fn compacts(&self, advice: Advice) -> bool {
        match self.defrag() {
            Defrag::Always => advice != Advice::NoHuge,
            Defrag::DeferMadvise | Defrag::Madvise => advice == Advice::Huge,
            Defrag::Defer | Defrag::Never => false,
        }
    }

    /// Returns the settings of shared memory.
    pub fn shmem(&self) -> &ShmemPolicy {
        &self.shmem
    }

    /// Returns the orders, as a bit set, of the folios that continue a stretch; none by default.
    /// They count in VMAs in which the settings permit no large folios, without
    /// `MADV_NOHUGEPAGE`: a write fault at the end of a stretch of mapped pages allocates a folio
    /// that is no larger than the stretch before it. So a heap that grows takes few faults, and at
    /// most half of its memory is unused.
    #[inline]
    pub fn growth_orders(&self) -> u32 {
        self.growth_orders.load(Relaxed)
    }

    /// Sets what [`FolioPolicy::growth_orders`] returns. Orders above [`HUGE_ORDER`] are ignored.
    pub fn set_growth_orders(&self, orders: u32) {
        self.growth_orders.store(orders & ALL_ORDERS & !1, Relaxed);
    }

    /// Returns the orders, as a bit set, of the folios that reads and writes of whole pages insert
    /// into objects with a store, besides single pages, where a whole folio lies within the pages
    /// that are read or written together; by default all orders up to [`HUGE_ORDER`] (Linux:
    /// `mapping_set_large_folios`). So a stream, or a program's text, is in folios that a cont
    /// block maps.
    pub fn file_orders(&self) -> u32 {
        self.file_orders.load(Relaxed)
    }

    /// Returns the orders, as a bit set, of the folios that
    /// [`Object::allocate`](crate::page_cache::Object::allocate) inserts into objects without a
    /// store, besides those that the settings of shared memory permit; 64 KiB by default. The
    /// memory of a page that is removed from such an object is used until the others of its folio
    /// are removed, too, as reclaim can't drop them.
    pub fn memory_orders(&self) -> u32 {
        self.memory_orders.load(Relaxed)
    }

    /// Sets what [`FolioPolicy::memory_orders`] returns. Orders above [`HUGE_ORDER`] are ignored.
    pub fn set_memory_orders(&self, orders: u32) {
        self.memory_orders.store(orders & ALL_ORDERS, Relaxed);
    }

    /// Sets what [`FolioPolicy::file_orders`] returns. Orders above [`HUGE_ORDER`] are ignored.
    pub fn set_file_orders(&self, orders: u32) {
        self.file_orders.store(orders & ALL_ORDERS, Relaxed);
    }

    /// Sets whether spaces created from now on map cont blocks, which a TLB may cache as one
    /// translation (AArch64's contiguous bit, RISC-V's Svnapot), if the format has them. Set by
    /// default.
    pub fn set_cont_blocks(&self, enabled: bool) {
        self.cont_blocks.store(enabled, Relaxed);
    }

    /// Returns what [`FolioPolicy::set_cont_blocks`] has set.
    pub fn cont_blocks(&self) -> bool {
        self.cont_blocks.load(Relaxed)
    }

    /// Recomputes the permitted orders from the settings. An administrator changes one setting at a
    /// time; two concurrent changes may leave the result of either until the next change.
    fn update(&self) {
        for advised in [false, true] {
            let mut set = 0;
            for (order, cell) in self.orders.iter().enumerate().skip(1) {
                let knob = match Knob::load(cell) {
                    Knob::Inherit => self.global(),
                    knob => knob,
                };
                if knob == Knob::Always || knob == Knob::Madvise && advised {
                    set |= 1 << order;
                }
            }
            self.allowed[advised as usize].store(set, Relaxed);
        }
    }

    /// Returns the orders, as a bit set, that an anonymous page fault in a VMA with this advice may
    /// use besides single pages (Linux: `thp_vma_allowable_orders`).
    #[inline]
    pub fn orders(&self, advice: Advice) -> u32 {
        match advice {
            Advice::NoHuge => 0,
            Advice::None => self.allowed[0].load(Relaxed),
            Advice::Huge => self.allowed[1].load(Relaxed),
        }
    }
}
