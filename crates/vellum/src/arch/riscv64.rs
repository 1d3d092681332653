//! RISC-V page tables with 64-bit registers: Sv39, Sv48 and Sv57.
//!
//! Valid PTEs have the layout of the privileged specification, chapter "Supervisor-Level ISA",
//! sections Sv32 (which defines the low bits), Sv39, Sv48 and Sv57. A valid leaf PTE:
//!
//! | bits | use |
//! |---|---|
//! | 0 | V: valid |
//! | 1–3 | R, W, X |
//! | 4 | U: user mode; always set |
//! | 5 | G: global; never set |
//! | 6, 7 | A, D: accessed, dirty |
//! | 8, 9 | exclusive, uffd-wp: all that the base specification leaves to software |
//! | 10–53 | number of the 4 KiB frame |
//! | 59 | soft-dirty, where Svrsw60t59b frees it for software; else 0 |
//! | 61–62 | memory type (Svpbmt): 0, as the platform defines |
//! | 63 | [`Riscv64::NAPOT`] (Svnapot) |
//!
//! The engine has three software attributes, and the base specification has two software bits.
//! Exclusive decides whether a write may proceed in place, and uffd-wp whether it has to be
//! reported: losing the first corrupts memory, losing the second hides a write from userfaultfd. A
//! system can do without soft-dirty, so [`Arch::supported`] lacks it unless the CPU has Svrsw60t59b
//! ([`Riscv64::with_rsw60t59b`]). Without it soft-dirty is dropped at encoding and reads as absent.
//!
//! In a PTE whose V is clear, hardware ignores all other bits. The engine uses them so (busy: a
//! marker at which other CPUs wait; no-access: a page of `PROT_NONE`):
//!
//! | bits | swap | marker | busy | no-access leaf |
//! |---|---|---|---|---|
//! | 1–3 | 1 | 2 | 3 | 0 |
//! | 5 | 0 | 0 | 0 | 1 |
//! | 8–10 | exclusive, uffd-wp, soft-dirty | the marker | | as in a valid leaf |
//! | 11–15 | device | | | as in a valid leaf |
//! | 16–63 | slot | | | as in a valid leaf |
//!
//! Addresses are not inverted: no RISC-V CPU is known to speculate on the address of a PTE that is
//! not valid.
//!
//! A CPU sets A and D itself (Svadu) or faults where they are clear (Svade). With Svade the fault
//! handler finds a leaf that already allows the access, and stores it again with the bits set.
//!
//! A TLB may cache any PTE that it has read, valid or not, until an SFENCE.VMA ([`super::stale`]).
//!
//! Addresses are sign-extended to 64 bits. User mode has the lower half, where the sign-extended
//! bits are 0.

use super::{Arch, Attrs, Kind, Stale, SwapPteLayout, TlbRules};
use crate::addr::{FRAME_SHIFT, PhysAddr};

const VALID: u64 = 1 << 0;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXEC: u64 = 1 << 3;
const USER: u64 = 1 << 4;
/// Set in a PTE that is not valid: marks a leaf that allows no access (`PROT_NONE`). Valid leaves
/// use the bit for "global", which user memory never is.
const NO_ACCESS: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
const EXCLUSIVE: u64 = 1 << 8;
const UFFD_WP: u64 = 1 << 9;
const PFN_SHIFT: u32 = 10;
const PFN_MASK: u64 = ((1 << 44) - 1) << PFN_SHIFT;
const SOFT_DIRTY: u64 = 1 << 59;

/// log2 of the number of PTEs of a NAPOT block. Svnapot reserves all sizes except 64 KiB.
const NAPOT_BITS: u32 = 4;
/// The part of the frame number that encodes the size of the NAPOT block in its PTEs.
const NAPOT_PFN_MASK: u64 = ((1 << NAPOT_BITS) - 1) << PFN_SHIFT;
/// The value of the bits [`NAPOT_PFN_MASK`] that encodes a block of 64 KiB.
const NAPOT_SIZE: u64 = 1 << (NAPOT_BITS - 1) << PFN_SHIFT;

/// The layout of swap PTEs and markers: the table in the module's text.
const SWAP_PTE: SwapPteLayout = SwapPteLayout {
    software_shift: 8,
    device_shift: 11,
    slot_shift: 16,
    slot_bits: 48,
    inverted: false,
    clear: NO_ACCESS,
}
.checked();

/// The RISC-V format. User mode has the lower half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Riscv64 {
    /// 3, 4 or 5 (Sv39, Sv48, Sv57).
    levels: u8,
    /// True with Svrsw60t59b: bit 59 stores soft-dirty.
    rsw60t59b: bool,
    /// True with Svnapot: cont blocks of 64 KiB.
    napot: bool,
    /// True with Svvptc: TLBs cache a PTE that is not valid for a bounded time only.
    vvptc: bool,
}

impl Riscv64 {
    /// The N bit of a leaf PTE (Svnapot): part of a NAPOT block, an aligned group of 16 PTEs that a
    /// TLB may cache as one translation. All 16 PTEs have the same address field, whose low four
    /// bits, 1000, encode the size of the block.
    pub const NAPOT: u64 = 1 << 63;

    /// Returns the format with 39-bit addresses, three levels.
    pub const fn sv39() -> Self {
        Riscv64 { levels: 3, rsw60t59b: false, napot: false, vvptc: false }
    }

    /// Returns the format with 48-bit addresses, four levels.
    pub const fn sv48() -> Self {
        Riscv64 { levels: 4, rsw60t59b: false, napot: false, vvptc: false }
    }

    /// Returns the format with 57-bit addresses, five levels.
    pub const fn sv57() -> Self {
        Riscv64 { levels: 5, rsw60t59b: false, napot: false, vvptc: false }
    }

    /// Returns the same format for a CPU with Svnapot, where an aligned 64 KiB can be one
    /// translation. On any other CPU a NAPOT PTE faults.
    pub const fn with_napot(self) -> Self {
        Riscv64 { napot: true, ..self }
    }

    /// Returns the same format for a CPU with Svvptc, which observes within bounded time that a PTE
    /// became valid. Any other CPU may keep a cached "not valid" until it is invalidated.
    pub const fn with_vvptc(self) -> Self {
        Riscv64 { vvptc: true, ..self }
    }

    /// Returns the same format for a CPU with Svrsw60t59b, which leaves bits 59 and 60 to software,
    /// so that soft-dirty works. On any other CPU a PTE with such a bit set faults.
    pub const fn with_rsw60t59b(self) -> Self {
        Riscv64 { rsw60t59b: true, ..self }
    }
}

/// Returns the frame-number field of a PTE for `pa`.
#[inline]
fn frame_bits(pa: PhysAddr) -> u64 {
    pa.0 >> FRAME_SHIFT << PFN_SHIFT & PFN_MASK
}

impl Arch for Riscv64 {
    const HARDWARE: u64 = ACCESSED | DIRTY;
    const CONT: u64 = Self::NAPOT;
    const SWAP_PTE: SwapPteLayout = SWAP_PTE;

    #[inline(always)]
    fn tlb_rules(&self) -> TlbRules {
        let not_present = if self.vvptc { Stale::Bounded } else { Stale::UntilInvalidated };
        let denied = Stale::UntilInvalidated;
        TlbRules { not_present, denied, not_accessed: denied, not_dirty: denied }
    }

    fn supported(&self) -> Attrs {
        if self.rsw60t59b { Attrs::all() } else { Attrs::all() - Attrs::SOFT_DIRTY }
    }

    #[inline]
    fn levels(&self) -> u8 {
        self.levels
    }

    #[inline]
    fn page_shift(&self) -> u32 {
        12
    }

    #[inline]
    fn user_end(&self) -> u64 {
        1 << (self.level_shift(self.levels) + self.index_bits() - 1)
    }

    #[inline]
    fn leaf_at(&self, level: u8) -> bool {
        // The specification allows leaves at every level. No folio is large enough to fill a leaf
        // above 1 GiB.
        level <= 3
    }

    #[inline]
    fn cont_bits(&self, level: u8) -> u32 {
        if self.napot && level == 1 { NAPOT_BITS } else { 0 }
    }

    #[inline]
    fn with_cont(&self, raw: u64) -> u64 {
        raw & !NAPOT_PFN_MASK | NAPOT_SIZE | Self::NAPOT
    }

    #[inline]
    fn cont_step(&self, _raw: u64, _level: u8) -> u64 {
        0
    }

    #[inline]
    fn at_index(&self, raw: u64, index: usize) -> u64 {
        let own = raw & !NAPOT_PFN_MASK | ((index as u64) << PFN_SHIFT) & NAPOT_PFN_MASK;
        if raw & Self::NAPOT != 0 { own } else { raw }
    }

    #[inline]
    fn kind(&self, raw: u64, _level: u8) -> Kind {
        if raw & VALID != 0 {
            return if raw & (READ | WRITE | EXEC) != 0 { Kind::Leaf } else { Kind::Table };
        }
        if raw == 0 {
            return Kind::None;
        }
        if raw & NO_ACCESS != 0 {
            return Kind::Leaf;
        }
        SWAP_PTE.kind(raw)
    }

    // Most callers pass constant attributes, so that most of an inlined call is computed at compile
    // time.
    #[inline(always)]
    fn leaf(&self, pa: PhysAddr, attrs: Attrs, _level: u8) -> u64 {
        let mut raw = frame_bits(pa) | USER;
        let mut set = |attr: Attrs, bit: u64| {
            if attrs.contains(attr) {
                raw |= bit;
            }
        };
        set(Attrs::WRITE, WRITE);
        set(Attrs::EXEC, EXEC);
        set(Attrs::ACCESSED, ACCESSED);
        set(Attrs::DIRTY, DIRTY);
        set(Attrs::EXCLUSIVE, EXCLUSIVE);
        set(Attrs::UFFD_WP, UFFD_WP);
        if self.rsw60t59b {
            set(Attrs::SOFT_DIRTY, SOFT_DIRTY);
        }
        if attrs.intersects(Attrs::PROT) {
            // Write without read is reserved. Execute without read is not offered, because no other
            // format has it.
            raw | READ | VALID
        } else {
            raw | NO_ACCESS
        }
    }

    #[inline]
    fn leaf_addr(&self, raw: u64, _level: u8) -> PhysAddr {
        self.table_addr(raw)
    }

    #[inline]
    fn attrs(&self, raw: u64, _level: u8) -> Attrs {
        let mut attrs = Attrs::empty();
        attrs.set(Attrs::READ, raw & READ != 0);
        attrs.set(Attrs::WRITE, raw & WRITE != 0);
        attrs.set(Attrs::EXEC, raw & EXEC != 0);
        attrs.set(Attrs::ACCESSED, raw & ACCESSED != 0);
        attrs.set(Attrs::DIRTY, raw & DIRTY != 0);
        attrs.set(Attrs::EXCLUSIVE, raw & EXCLUSIVE != 0);
        attrs.set(Attrs::UFFD_WP, raw & UFFD_WP != 0);
        attrs.set(Attrs::SOFT_DIRTY, raw & SOFT_DIRTY != 0);
        attrs
    }

    #[inline]
    fn table_pte(&self, pa: PhysAddr) -> u64 {
        // A pointer to a page table has R, W and X clear; its U, A and D are reserved and stay 0.
        frame_bits(pa) | VALID
    }

    #[inline]
    fn table_addr(&self, raw: u64) -> PhysAddr {
        PhysAddr((raw & PFN_MASK) >> PFN_SHIFT << FRAME_SHIFT)
    }

    #[inline]
    fn hardware_idle(&self, raw: u64) -> bool {
        raw & VALID == 0 || raw & ACCESSED != 0 && raw & (WRITE | DIRTY) != WRITE
    }

    #[inline]
    fn step(&self, raw: u64, level: u8) -> u64 {
        if raw & (VALID | NO_ACCESS) != 0 {
            1 << (self.level_shift(level) - FRAME_SHIFT + PFN_SHIFT)
        } else {
            SWAP_PTE.step()
        }
    }
}
