//! Which folio sizes an anonymous fault may use: Linux's knobs under `/sys/kernel/mm/transparent_hugepage`, by their names.

use core::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering::Relaxed};

use super::{HUGE_ORDER, LARGEST_FOLIO};

/// One order's knob (`hugepages-<size>kB/enabled`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Knob {
    /// Not this size.
    Never = 0,
    /// As the machine-wide knob says.
    Inherit = 1,
    /// Where the program asked for it (`MADV_HUGEPAGE`).
    Madvise = 2,
    /// Everywhere, unless the program asked not to (`MADV_NOHUGEPAGE`).
    Always = 3,
}

impl Knob {
    /// The names that Linux uses.
    pub const fn name(self) -> &'static str {
        match self {
            Knob::Never => "never",
            Knob::Inherit => "inherit",
            Knob::Madvise => "madvise",
            Knob::Always => "always",
        }
    }

    fn load(cell: &AtomicU8) -> Knob {
        match cell.load(Relaxed) {
            1 => Knob::Inherit,
            2 => Knob::Madvise,
            3 => Knob::Always,
            _ => Knob::Never,
        }
    }
}

/// What a program said of a VMA (`MADV_HUGEPAGE`, `MADV_NOHUGEPAGE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Advice {
    /// Nothing.
    #[default]
    None,
    /// Large folios, please.
    Huge,
    /// No large folios.
    NoHuge,
}

/// All orders that the folios of objects may have.
const ALL: u32 = (2 << HUGE_ORDER) - 1;
/// 64 KiB.
const FILL_ORDER: u8 = 4;

/// All knobs. Linux's defaults: 2 MiB inherits, the machine says `madvise`, other sizes never. Linux has none above 2 MiB; who turns
/// one on should know that a fault fills all of such a folio with zeros.
#[derive(Debug)]
pub struct FolioPolicy {
    global: AtomicU8,
    orders: [AtomicU8; LARGEST_FOLIO as usize + 1],
    /// What follows from the knobs for VMAs that did not ask for large folios, and for those that did: a fault reads one
    /// of these and nothing else.
    allowed: [AtomicU32; 2],
    joins: AtomicBool,
    /// For objects: what a fault may bring, and what may be filled ahead.
    objects: AtomicU32,
    fills: AtomicU32,
}

impl Default for FolioPolicy {
    fn default() -> Self {
        let policy = FolioPolicy {
            global: AtomicU8::new(Knob::Madvise as u8),
            orders: Default::default(),
            allowed: Default::default(),
            joins: AtomicBool::new(true),
            objects: AtomicU32::new(0),
            fills: AtomicU32::new(1 << FILL_ORDER),
        };
        policy.set(HUGE_ORDER, Knob::Inherit);
        policy
    }
}

impl FolioPolicy {
    /// The machine-wide knob (`enabled`). [`Knob::Inherit`] here means never.
    pub fn set_global(&self, knob: Knob) {
        self.global.store(knob as u8, Relaxed);
        self.update();
    }

    /// The machine-wide knob.
    pub fn global(&self) -> Knob {
        Knob::load(&self.global)
    }

    /// One order's knob; orders 1 to [`LARGEST_FOLIO`] have one, others ignore it.
    pub fn set(&self, order: u8, knob: Knob) {
        if let (1.., Some(cell)) = (order, self.orders.get(order as usize)) {
            cell.store(knob as u8, Relaxed);
            self.update();
        }
    }

    /// One order's knob.
    pub fn get(&self, order: u8) -> Knob {
        self.orders.get(order as usize).map_or(Knob::Never, Knob::load)
    }

    /// The orders, as a bit set, of folios that a fault may bring into an object, besides single pages, where they lie in the
    /// object and in the VMA entirely (Linux: `hugepages-<size>kB/shmem_enabled`, `within_size`). None unless told so.
    pub fn objects(&self) -> u32 {
        self.objects.load(Relaxed)
    }

    /// See [`FolioPolicy::objects`]; orders above [`HUGE_ORDER`] are ignored.
    pub fn set_objects(&self, orders: u32) {
        self.objects.store(orders & ALL, Relaxed);
    }

    /// The orders of folios that hold what is filled ahead ([`crate::page_cache::Object::allocate`]), where they lie in what is filled
    /// entirely: 64 KiB unless told otherwise. So a program's text is in folios that a contiguous block maps (Linux's
    /// `exec_folio_order`).
    pub fn fills(&self) -> u32 {
        self.fills.load(Relaxed)
    }

    /// See [`FolioPolicy::fills`]; orders above [`HUGE_ORDER`] are ignored.
    pub fn set_fills(&self, orders: u32) {
        self.fills.store(orders & ALL, Relaxed);
    }

    /// Whether spaces made from now on let a TLB hold as one translation what the format has blocks for (AArch64's contiguous
    /// bit, RISC-V's Svnapot). They do unless told not to.
    pub fn set_joins(&self, joins: bool) {
        self.joins.store(joins, Relaxed);
    }

    /// See [`FolioPolicy::set_joins`].
    pub fn joins(&self) -> bool {
        self.joins.load(Relaxed)
    }

    /// Knobs are turned by hand, one at a time; two at once may leave the outcome of either until the next turn.
    fn update(&self) {
        for asked in [false, true] {
            let mut set = 0;
            for (order, cell) in self.orders.iter().enumerate().skip(1) {
                let knob = match Knob::load(cell) {
                    Knob::Inherit => self.global(),
                    knob => knob,
                };
                if knob == Knob::Always || knob == Knob::Madvise && asked {
                    set |= 1 << order;
                }
            }
            self.allowed[asked as usize].store(set, Relaxed);
        }
    }

    /// The orders, as a bit set, that a fault in a VMA with this advice may use besides single pages.
    #[inline]
    pub fn orders(&self, advice: Advice) -> u32 {
        match advice {
            Advice::NoHuge => 0,
            Advice::None => self.allowed[0].load(Relaxed),
            Advice::Huge => self.allowed[1].load(Relaxed),
        }
    }
}
