//! Page-table formats: how one PTE is encoded and decoded.
//!
//! An [`Arch`] contains no walking, locking or counting: those are the same in every format and
//! live in `table`. A format is a value and not only a type, so that spaces of different depth or
//! page size can coexist.
//!
//! Every format keeps three rules, on which the other modules rely:
//! - an empty PTE is all zero bits;
//! - levels count from 1 (the last level, where pages are) toward the root;
//! - consecutive PTEs of a run differ by a constant ([`Arch::step`]), apart from the bits that
//!   hardware sets.
//!
//! Some formats can mark the leaf PTEs of a naturally aligned group, a **cont block**, so that a
//! TLB may cache the group as one translation (AArch64: contpte; RISC-V: NAPOT). A leaf PTE in a
//! cont block differs from any other leaf PTE only in the bit [`Arch::CONT`] and, on RISC-V, in its
//! address field ([`Arch::without_cont`]).

mod aarch64;
mod riscv64;
pub mod stale;
mod swap_pte;
#[cfg(test)]
mod tests;
mod user;
mod x86_64;

pub use aarch64::Aarch64;
pub use riscv64::Riscv64;
pub use stale::{Stale, TlbRules};
pub use swap_pte::SwapPteLayout;
pub use user::{BadRange, UserRange};
pub use x86_64::X86_64;

use crate::addr::{FRAME_SHIFT, Pfn, PhysAddr};
use bitflags::bitflags;

bitflags! {
    /// The attributes of a leaf PTE, independent of the format.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Attrs: u16 {
        /// User mode may read. A leaf without it keeps its frame, but every access faults
        /// (`PROT_NONE`).
        const READ = 1 << 0;
        /// User mode may write.
        const WRITE = 1 << 1;
        /// User mode may execute.
        const EXEC = 1 << 2;
        /// Accessed (Linux: young): read, written or executed since this bit was last cleared. Set
        /// by hardware, or by the fault handler.
        const ACCESSED = 1 << 3;
        /// Written since this bit was last cleared. Set by hardware, or by the fault handler.
        const DIRTY = 1 << 4;
        /// A write may proceed in place: the page is mapped by this space alone (Linux:
        /// `PageAnonExclusive`), or is shared memory that every mapping may write.
        const EXCLUSIVE = 1 << 5;
        /// Write-protected by userfaultfd (Linux: uffd-wp): a write faults and is reported.
        const UFFD_WP = 1 << 6;
        /// Written since tracking began (Linux: soft-dirty).
        const SOFT_DIRTY = 1 << 7;
    }
}

impl Attrs {
    /// The attributes that decide which accesses succeed.
    pub const PROT: Attrs = Attrs::READ.union(Attrs::WRITE).union(Attrs::EXEC);
    /// The bits of the protection key, which are no attribute that every format has. A format
    /// without protection keys drops them.
    pub const KEY: Attrs = Attrs::from_bits_retain(0xf000);
    /// All that a VMA's protection decides.
    pub const GRANT: Attrs = Attrs::from_bits_retain(Attrs::PROT.bits() | Attrs::KEY.bits());
    /// The attributes that hardware may set at any instant.
    pub const HARDWARE: Attrs = Attrs::ACCESSED.union(Attrs::DIRTY);

    /// Returns true if a TLB entry with the attributes `self` may permit what a PTE with the
    /// attributes `new` does not: a right was removed, or the protection key is another.
    #[inline]
    pub(crate) fn must_flush(self, new: Attrs) -> bool {
        !new.contains(self & Attrs::PROT) || (self.bits() ^ new.bits()) & Attrs::KEY.bits() != 0
    }
}

/// The kind of a PTE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Empty: the PTE maps nothing and records nothing.
    None,
    /// A pointer to a page table of the next lower level.
    Table,
    /// A leaf PTE: a page, or a huge page above level 1.
    Leaf,
    /// A swap PTE: the page is in a swap slot ([`SwapEntry`]).
    Swap,
    /// A PTE marker: no page, but a property of this address ([`Marker`]).
    Marker,
    /// A busy entry: a marker that a CPU wrote in the place of a PTE that it is changing. Other
    /// CPUs that need the PTE wait, and never treat the entry as empty (INV-4).
    Busy,
}

/// The decoded form of a swap PTE (Linux: `swp_entry_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SwapEntry {
    /// The swap device, below 32.
    pub device: u8,
    /// The slot of that device. A slot holds one page of 4 KiB.
    pub slot: u64,
    /// Those of [`Attrs::EXCLUSIVE`], [`Attrs::UFFD_WP`] and [`Attrs::SOFT_DIRTY`] that the leaf
    /// PTE had.
    pub attrs: Attrs,
}

/// The reason why a PTE without a page is not empty (Linux: PTE markers).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Marker {
    /// Write-protected by userfaultfd while no page is present (Linux: `PTE_MARKER_UFFD_WP`).
    UffdWp = 1,
    /// A guard page: every access faults as if nothing were mapped (Linux: `PTE_MARKER_GUARD`,
    /// `MADV_GUARD_INSTALL`).
    Guard = 2,
    /// The contents were lost to a hardware error, or poisoned by userfaultfd: every access is a
    /// bus error (Linux: `PTE_MARKER_POISONED`).
    Poison = 3,
}

/// A page-table format. The module's text has the rules that every format keeps.
///
/// `level` is 1 for the last level. Functions that decode a `raw` PTE expect the kind that they
/// name; for another kind the result is meaningless, but they do not panic.
pub trait Arch: Copy + Send + Sync + 'static {
    /// The bits of a leaf PTE that hardware sets. Comparisons of leaf PTEs ignore them.
    const HARDWARE: u64;

    /// The [step](Arch::step) of leaf PTEs of level 1 that permit an access. The engine compares
    /// PTEs with this step faster; it need not be exact.
    const PAGE_STEP: u64 = 1 << FRAME_SHIFT;

    /// Those bits of [`Arch::HARDWARE`] that hardware *clears* to record an access or a write. The
    /// union of the bits of several leaf PTEs is computed with these bits inverted.
    const HARDWARE_INVERTED: u64 = 0;

    /// The bit that marks a leaf PTE as part of a cont block; 0 if the format has no cont blocks.
    const CONT: u64 = 0;

    /// The bit positions of swap PTEs and markers.
    const SWAP_PTE: SwapPteLayout;

    /// The last slot of a swap device that a swap PTE can name.
    const MAX_SLOT: u64 = Self::SWAP_PTE.max_slot();

    /// Returns the number of levels. The root has the highest level.
    fn levels(&self) -> u8;

    /// Returns log2 of the page size in bytes.
    fn page_shift(&self) -> u32;

    /// Returns the first address that user mode cannot map (Linux: `TASK_SIZE`).
    fn user_end(&self) -> u64;

    /// Returns log2 of the number of PTEs of a page table. A page table of 8-byte PTEs fills a
    /// page.
    #[inline]
    fn index_bits(&self) -> u32 {
        self.page_shift() - 3
    }

    /// Returns log2 of the number of bytes that one PTE of this level maps.
    #[inline]
    fn level_shift(&self, level: u8) -> u32 {
        self.page_shift() + self.index_bits() * (level as u32 - 1)
    }

    /// Returns the index of the PTE that translates `va` in a page table of this level.
    #[inline]
    fn index(&self, va: u64, level: u8) -> usize {
        (va >> self.level_shift(level)) as usize & ((1 << self.index_bits()) - 1)
    }

    /// Returns log2 of the number of frames in a page, and in a page-table page.
    #[inline]
    fn page_order(&self) -> u8 {
        (self.page_shift() - crate::addr::FRAME_SHIFT) as u8
    }

    /// Returns true if leaf PTEs are allowed at this level.
    fn leaf_at(&self, level: u8) -> bool;

    /// Returns log2 of the number of PTEs in a cont block of this level; 0 if there are no cont
    /// blocks at this level.
    #[inline]
    fn cont_bits(&self, _level: u8) -> u32 {
        0
    }

    /// Returns true if a live cont block may be folded or unfolded without break-before-make,
    /// because the TLBs tolerate two translation sizes for one address (INV-14).
    #[inline]
    fn cont_in_place(&self) -> bool {
        false
    }

    /// Returns leaf PTE `raw`, which is not in a cont block, as part of one.
    #[inline]
    fn with_cont(&self, raw: u64) -> u64 {
        raw | Self::CONT
    }

    /// Returns the difference (wrapping) of two consecutive leaf PTEs of a cont block.
    #[inline]
    fn cont_step(&self, raw: u64, level: u8) -> u64 {
        self.step(raw, level)
    }

    /// Returns leaf PTE `raw`, at `index` of its page table, with the address that it maps in its
    /// address field: on RISC-V all PTEs of a cont block have the same address field. A PTE in a
    /// cont block keeps the bit [`Arch::CONT`].
    #[inline]
    fn at_index(&self, raw: u64, _index: usize) -> u64 {
        raw
    }

    /// Returns leaf PTE `raw`, at `index` of its page table, as it would be outside a cont block.
    #[inline]
    fn without_cont(&self, raw: u64, index: usize) -> u64 {
        self.at_index(raw, index) & !Self::CONT
    }

    /// Returns the kind of a PTE of this level.
    fn kind(&self, raw: u64, level: u8) -> Kind;

    /// Encodes a leaf PTE. `pa` is aligned to the size that a PTE of this level maps. Attributes
    /// outside [`Arch::supported`] are dropped.
    fn leaf(&self, pa: PhysAddr, attrs: Attrs, level: u8) -> u64;

    /// Returns the physical address in a leaf PTE.
    fn leaf_addr(&self, raw: u64, level: u8) -> PhysAddr;

    /// Returns the attributes of a leaf PTE.
    fn attrs(&self, raw: u64, level: u8) -> Attrs;

    /// Encodes a pointer to the page table at `pa`. The pointer restricts no access: the leaf PTE
    /// alone decides which accesses succeed.
    fn table_pte(&self, pa: PhysAddr) -> u64;

    /// Returns the physical address of the page table to which `raw` points.
    fn table_addr(&self, raw: u64) -> PhysAddr;

    /// Returns how long a TLB may keep an outdated copy of a PTE after a plain store made the PTE
    /// allow more, so that accesses still fault (INV-20; [`stale`]). If all CPUs of a format behave
    /// alike, the result is a compile-time constant.
    fn tlb_rules(&self) -> TlbRules;

    /// Returns the attributes that leaf PTEs of this format can store. Others are dropped at
    /// encoding and read as absent.
    fn supported(&self) -> Attrs {
        Attrs::all()
    }

    /// Returns `new` with the accessed and dirty state of `old` (INV-6).
    #[inline]
    fn carry(&self, new: u64, old: u64) -> u64 {
        new & !Self::HARDWARE | old & Self::HARDWARE
    }

    /// Returns a leaf PTE with all of [`Attrs::HARDWARE`]. The PTE stays in its cont block.
    #[inline]
    fn set_hardware(&self, raw: u64) -> u64 {
        raw | Self::HARDWARE
    }

    /// Returns a leaf PTE without those of [`Attrs::HARDWARE`] that are in `cleared` (Linux:
    /// `pte_mkold`, `pte_mkclean`). The PTE stays in its cont block.
    #[inline]
    fn clear_hardware(&self, raw: u64, cleared: Attrs, level: u8) -> u64 {
        self.leaf(self.leaf_addr(raw, level), self.attrs(raw, level) - cleared, level) | raw & Self::CONT
    }

    /// Returns true if hardware has nothing left to set in this leaf PTE: all that it may set is
    /// set, or the PTE is not valid. Such a PTE may be changed by a plain store (INV-6).
    fn hardware_idle(&self, raw: u64) -> bool;

    /// Returns the difference (wrapping) of two consecutive leaf or swap PTEs of a run.
    fn step(&self, raw: u64, level: u8) -> u64;

    /// Encodes a swap PTE.
    #[inline]
    fn swap_pte(&self, swapped: SwapEntry) -> u64 {
        Self::SWAP_PTE.swap_pte(swapped)
    }

    /// Decodes a swap PTE.
    #[inline]
    fn swap_entry(&self, raw: u64) -> SwapEntry {
        Self::SWAP_PTE.swap_entry(raw)
    }

    /// Encodes a marker.
    #[inline]
    fn marker_pte(&self, marker: Marker) -> u64 {
        Self::SWAP_PTE.marker_pte(marker)
    }

    /// Decodes a marker. Returns `None` if `raw` is not a marker that the engine writes.
    #[inline]
    fn marker_of(&self, raw: u64) -> Option<Marker> {
        Self::SWAP_PTE.marker_of(raw)
    }

    /// Returns the busy entry: see [`Kind::Busy`].
    #[inline]
    fn busy_pte(&self) -> u64 {
        swap_pte::BUSY
    }

    /// Returns the frame number in a leaf PTE.
    #[inline]
    fn leaf_pfn(&self, raw: u64, level: u8) -> Pfn {
        self.leaf_addr(raw, level).pfn()
    }
}
