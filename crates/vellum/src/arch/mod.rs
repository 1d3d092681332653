//! Page-table formats.
//!
//! An [`Arch`] says how one entry is written and read, and nothing about walking, locking or counting: those are the same
//! everywhere and live in `table`. A format is a value, not a type alone, so that spaces of different depth or
//! page size live side by side.
//!
//! Three rules hold in every format, and the code above relies on them:
//! - an empty entry is all zero bits;
//! - levels count from 1 (the last, where pages are) toward the root;
//! - consecutive entries of a run differ by a constant ([`Arch::step`]), apart from the bits that hardware sets.
//!
//! Some formats can mark the leaves of an aligned group, a **block**, so that a TLB may hold it as one translation. A leaf that is
//! *joined* to its block is a leaf like any other but for [`Arch::JOINED`], and perhaps for its address ([`Arch::single`]).

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

use crate::addr::{Pfn, PhysAddr};
use bitflags::bitflags;

bitflags! {
    /// What a leaf says besides the frame, in the engine's own terms.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    pub struct Attrs: u16 {
        /// User mode may read. Without it the entry keeps its frame but no access succeeds (`PROT_NONE`).
        const READ = 1 << 0;
        /// User mode may write.
        const WRITE = 1 << 1;
        /// User mode may execute.
        const EXEC = 1 << 2;
        /// Read, written or executed since this was last cleared. Set by hardware.
        const ACCESSED = 1 << 3;
        /// Written since this was last cleared. Set by hardware.
        const DIRTY = 1 << 4;
        /// A write may go ahead in place: the frames belong to this space alone (Linux: `PageAnonExclusive`), or are there to be
        /// written by all who share them.
        const EXCLUSIVE = 1 << 5;
        /// Write-protected because somebody watches for writes (Linux: uffd-wp).
        const WATCHED = 1 << 6;
        /// Written since tracking began (Linux: soft-dirty).
        const SOFT_DIRTY = 1 << 7;
    }
}

impl Attrs {
    /// The bits that decide which accesses succeed.
    pub const PROT: Attrs = Attrs::READ.union(Attrs::WRITE).union(Attrs::EXEC);
    /// The bits that hardware may set at any instant.
    pub const HARDWARE: Attrs = Attrs::ACCESSED.union(Attrs::DIRTY);
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    None,
    /// A pointer to the table of the next lower level.
    Table,
    /// A page, or at an upper level a huge page.
    Leaf,
    /// Where the contents went: see [`Swapped`].
    Swap,
    /// Not a mapping, but something to remember about this page: see [`Marker`].
    Marker,
    /// In transition, by somebody who holds the table's lock: occupied, never to be mistaken for empty (INV-4).
    Busy,
}

/// Where a page went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Swapped {
    /// Which swap device, below 32.
    pub device: u8,
    /// Which slot there, in pages.
    pub slot: u64,
    /// Of [`Attrs::EXCLUSIVE`], [`Attrs::WATCHED`] and [`Attrs::SOFT_DIRTY`], which were set.
    pub attrs: Attrs,
}

/// Why an entry without a page is not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Marker {
    /// Watched for writes although there is no page (yet).
    Watched = 1,
    /// Any access is a fault, as if nothing were mapped (Linux: `MADV_GUARD_INSTALL`).
    Guard = 2,
    /// The contents were lost to a hardware error; any access is a bus error.
    Poison = 3,
}

/// A page-table format. See the module's text for what every format keeps.
///
/// `level` is 1 for the last level. Functions that take a `raw` entry expect one of the kind they name; given another they
/// return something meaningless, but do not panic.
pub trait Arch: Copy + Send + Sync + 'static {
    /// The bits of a leaf that hardware sets in this format: what a comparison of leaves leaves out.
    const HARDWARE: u64;

    /// Of those, the ones that hardware clears to say that something happened: the union of several leaves' bits is taken
    /// with these inverted.
    const HARDWARE_INVERTED: u64 = 0;

    /// The bit that marks a leaf as one of a block; 0 if the format has no blocks.
    const JOINED: u64 = 0;

    /// The bit positions of swap PTEs and markers.
    const SWAP_PTE: SwapPteLayout;

    /// The last slot of a swap device that a swap PTE can name.
    const MAX_SLOT: u64 = Self::SWAP_PTE.max_slot();

    /// How many levels there are, the root's being the highest.
    fn levels(&self) -> u8;

    /// log2 of the page size in bytes.
    fn page_shift(&self) -> u32;

    /// First address that user mode can't have.
    fn user_end(&self) -> u64;

    /// log2 of the number of entries of a table; one of 8 bytes each fills a page.
    #[inline]
    fn index_bits(&self) -> u32 {
        self.page_shift() - 3
    }

    /// log2 of the bytes that one entry of this level maps.
    #[inline]
    fn level_shift(&self, level: u8) -> u32 {
        self.page_shift() + self.index_bits() * (level as u32 - 1)
    }

    /// Which entry of a table of this level translates `va`.
    #[inline]
    fn index(&self, va: u64, level: u8) -> usize {
        (va >> self.level_shift(level)) as usize & ((1 << self.index_bits()) - 1)
    }

    /// log2 of the frames that one page (and one table) takes.
    #[inline]
    fn page_order(&self) -> u8 {
        (self.page_shift() - crate::addr::FRAME_SHIFT) as u8
    }

    /// Whether a leaf may stand at this level.
    fn leaf_at(&self, level: u8) -> bool;

    /// log2 of how many entries of this level make a block; 0 if there are no blocks.
    #[inline]
    fn block_bits(&self, _level: u8) -> u32 {
        0
    }

    /// Whether leaves may be joined to their block, or taken apart, without there being no translation meanwhile, because TLBs
    /// are known to get along with two sizes of translation for one address.
    #[inline]
    fn joins_in_place(&self) -> bool {
        false
    }

    /// What a leaf becomes as one of a block, of the leaf that it would be by itself.
    #[inline]
    fn join(&self, raw: u64) -> u64 {
        raw | Self::JOINED
    }

    /// What to add to one joined leaf for the next of its block.
    #[inline]
    fn joined_step(&self, raw: u64, level: u8) -> u64 {
        self.step(raw, level)
    }

    /// The leaf with this index in its table, with its own address, whether it is joined (and still marked) or not.
    #[inline]
    fn placed(&self, raw: u64, _index: usize) -> u64 {
        raw
    }

    /// The same without the mark: the leaf as if it stood for itself.
    #[inline]
    fn single(&self, raw: u64, index: usize) -> u64 {
        self.placed(raw, index) & !Self::JOINED
    }

    /// What an entry of this level is.
    fn kind(&self, raw: u64, level: u8) -> Kind;

    /// A leaf. `pa` is aligned to the level's size.
    fn leaf(&self, pa: PhysAddr, attrs: Attrs, level: u8) -> u64;

    /// The address in a leaf.
    fn leaf_addr(&self, raw: u64, level: u8) -> PhysAddr;

    /// What a leaf says besides.
    fn attrs(&self, raw: u64, level: u8) -> Attrs;

    /// A pointer to a table.
    fn table(&self, pa: PhysAddr) -> u64;

    /// The address in a pointer to a table.
    fn table_addr(&self, raw: u64) -> PhysAddr;

    /// Returns what TLBs may hold of entries that have since come to allow more. Constant where
    /// CPUs do not differ.
    fn tlb_rules(&self) -> TlbRules;

    /// What leaves of this format can remember; the rest is dropped when a leaf is made, and read as absent.
    fn supported(&self) -> Attrs {
        Attrs::all()
    }

    /// `new`, with what hardware has recorded in `old`: a leaf changes, and its accessed and dirty state stays.
    #[inline]
    fn carry(&self, new: u64, old: u64) -> u64 {
        new & !Self::HARDWARE | old & Self::HARDWARE
    }

    /// A leaf without some of what hardware has recorded in it.
    #[inline]
    fn forget(&self, raw: u64, what: Attrs, level: u8) -> u64 {
        self.leaf(self.leaf_addr(raw, level), self.attrs(raw, level) - what, level) | raw & Self::JOINED
    }

    /// Whether hardware has nothing left to write in this leaf: whatever it may set is set already, or it can't reach the
    /// entry. Such an entry may be changed by a plain store.
    fn hardware_idle(&self, raw: u64) -> bool;

    /// What to add (wrapping) to a leaf or swap entry for the next one of its run.
    fn step(&self, raw: u64, level: u8) -> u64;

    /// A swap entry.
    #[inline]
    fn swap(&self, swapped: Swapped) -> u64 {
        Self::SWAP_PTE.swap_pte(swapped)
    }

    /// What a swap entry says.
    #[inline]
    fn swapped(&self, raw: u64) -> Swapped {
        Self::SWAP_PTE.swap_entry(raw)
    }

    /// A marker.
    #[inline]
    fn marker(&self, marker: Marker) -> u64 {
        Self::SWAP_PTE.marker_pte(marker)
    }

    /// Which marker this is; `None` if it is none that the engine wrote.
    #[inline]
    fn marked(&self, raw: u64) -> Option<Marker> {
        Self::SWAP_PTE.marker_of(raw)
    }

    /// The entry of somebody at work.
    #[inline]
    fn busy(&self) -> u64 {
        swap_pte::BUSY
    }

    /// The frame in a leaf.
    #[inline]
    fn leaf_pfn(&self, raw: u64, level: u8) -> Pfn {
        self.leaf_addr(raw, level).pfn()
    }
}
