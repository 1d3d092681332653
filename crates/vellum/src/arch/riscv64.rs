//! RISC-V with 64-bit registers: Sv39, Sv48 and Sv57.
//!
//! The layout of valid entries is that of the privileged specification, chapter "Supervisor-Level ISA", sections Sv32
//! (which defines the low bits), Sv39, Sv48 and Sv57. A valid leaf:
//!
//! | bits | use |
//! |---|---|
//! | 0 | V: valid |
//! | 1–3 | R, W, X |
//! | 4 | U: user mode; always set |
//! | 5 | G: global; never set |
//! | 6, 7 | A, D: accessed, dirty |
//! | 8, 9 | exclusive, watched: all that the base specification leaves to software |
//! | 10–53 | number of the 4 KiB frame |
//! | 59 | soft-dirty, where Svrsw60t59b frees it for software; else 0 |
//! | 61–62 | memory type (Svpbmt): 0, as the platform says |
//! | 63 | [`Riscv64::NAPOT`] (Svnapot) |
//!
//! There are three software bits to keep and two to keep them in. Exclusive decides whether a write may go ahead in
//! place, and watched whether it has to be reported: memory is corrupted or a watcher misses a write if either is lost.
//! Soft-dirty is the one that a system can do without, and does: [`Arch::supported`] lacks it unless the CPU has
//! Svrsw60t59b ([`Riscv64::with_rsw60t59b`]). A leaf is then stored without it and read as not having it.
//!
//! An entry whose V is clear is free but for that bit; the engine's use of it:
//!
//! | bits | swap | marker | busy | no-access leaf |
//! |---|---|---|---|---|
//! | 1–3 | 1 | 2 | 3 | 0 |
//! | 5 | 0 | 0 | 0 | 1 |
//! | 8–10 | exclusive, watched, soft-dirty | which | | as in a valid leaf |
//! | 11–15 | device | | | as in a valid leaf |
//! | 16–63 | slot | | | as in a valid leaf |
//!
//! Addresses are not inverted: no RISC-V CPU is known to speculate on the address of an entry that is not valid.
//!
//! A CPU sets A and D by itself (Svadu) or faults where they are clear (Svade). In the latter case the fault handler finds
//! a leaf that already allows the access, and stores it anew with the bits set.
//!
//! A TLB may hold any entry that it has read, valid or not, until a fence ([`super::stale`]).
//!
//! Addresses are sign-extended to 64 bits; user mode has the lower half, where the bits above are 0.

use super::{Arch, Attrs, Kind, Stale, SwapPteLayout, TlbRules, swap_pte};
use crate::addr::{FRAME_SHIFT, PhysAddr};

const VALID: u64 = 1 << 0;
const READ: u64 = 1 << 1;
const WRITE: u64 = 1 << 2;
const EXEC: u64 = 1 << 3;
const USER: u64 = 1 << 4;
/// In an entry that is not valid: a leaf that nobody may access. Valid leaves use the bit for "global", which user memory
/// never is.
const NO_ACCESS: u64 = 1 << 5;
const ACCESSED: u64 = 1 << 6;
const DIRTY: u64 = 1 << 7;
const EXCLUSIVE: u64 = 1 << 8;
const WATCHED: u64 = 1 << 9;
const FRAME_AT: u32 = 10;
const FRAME: u64 = ((1 << 44) - 1) << FRAME_AT;
const SOFT_DIRTY: u64 = 1 << 59;

/// log2 of the entries of a block: all sizes but 64 KiB are reserved (Svnapot).
const NAPOT_BITS: u32 = 4;
/// The part of the frame's number that is the size of the block instead, in a leaf of one.
const NAPOT_FRAME: u64 = ((1 << NAPOT_BITS) - 1) << FRAME_AT;
const NAPOT_SIZE: u64 = 1 << (NAPOT_BITS - 1) << FRAME_AT;

const SWAP_PTE: SwapPteLayout = SwapPteLayout {
    software_shift: 8,
    device_shift: 11,
    slot_shift: 16,
    slot_bits: 48,
    inverted: false,
    clear: NO_ACCESS,
}
.checked();

/// The format. User mode has the lower half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Riscv64 {
    levels: u8,
    rsw60t59b: bool,
    napot: bool,
    vvptc: bool,
}

impl Riscv64 {
    /// The N bit of a leaf: one of an aligned group of 16 entries that a TLB may hold as one (Svnapot). The 16 entries have
    /// the same address: the low bits of the frame's number, 1000, say the size of the memcg.
    pub const NAPOT: u64 = 1 << 63;

    /// 39-bit addresses, three levels.
    pub const fn sv39() -> Self {
        Riscv64 { levels: 3, rsw60t59b: false, napot: false, vvptc: false }
    }

    /// 48-bit addresses, four levels.
    pub const fn sv48() -> Self {
        Riscv64 { levels: 4, rsw60t59b: false, napot: false, vvptc: false }
    }

    /// 57-bit addresses, five levels.
    pub const fn sv57() -> Self {
        Riscv64 { levels: 5, rsw60t59b: false, napot: false, vvptc: false }
    }

    /// For a CPU with Svnapot: aligned 64 KiB can be one translation. On any other CPU such an entry faults.
    pub const fn with_napot(self) -> Self {
        Riscv64 { napot: true, ..self }
    }

    /// For a CPU with Svvptc: an entry that becomes valid is seen in bounded time. Any other CPU
    /// may hold that there is nothing, and is to be told.
    pub const fn with_vvptc(self) -> Self {
        Riscv64 { vvptc: true, ..self }
    }

    /// For a CPU with Svrsw60t59b, which leaves bits 59 and 60 to software: soft-dirty works. On any other CPU an entry
    /// with such a bit set faults.
    pub const fn with_rsw60t59b(self) -> Self {
        Riscv64 { rsw60t59b: true, ..self }
    }
}

/// An address as an entry holds it.
#[inline]
fn frame_bits(pa: PhysAddr) -> u64 {
    pa.0 >> FRAME_SHIFT << FRAME_AT & FRAME
}

impl Arch for Riscv64 {
    const HARDWARE: u64 = ACCESSED | DIRTY;
    const JOINED: u64 = Self::NAPOT;
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
        // The specification has leaves at every level; above 1 GiB there is no folio to fill one.
        level <= 3
    }

    #[inline]
    fn block_bits(&self, level: u8) -> u32 {
        if self.napot && level == 1 { NAPOT_BITS } else { 0 }
    }

    #[inline]
    fn join(&self, raw: u64) -> u64 {
        raw & !NAPOT_FRAME | NAPOT_SIZE | Self::NAPOT
    }

    #[inline]
    fn joined_step(&self, _raw: u64, _level: u8) -> u64 {
        0
    }

    #[inline]
    fn placed(&self, raw: u64, index: usize) -> u64 {
        let own = raw & !NAPOT_FRAME | ((index as u64) << FRAME_AT) & NAPOT_FRAME;
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
        swap_pte::kind(raw)
    }

    // The attributes are mostly known where it is called.
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
        set(Attrs::WATCHED, WATCHED);
        if self.rsw60t59b {
            set(Attrs::SOFT_DIRTY, SOFT_DIRTY);
        }
        if attrs.intersects(Attrs::PROT) {
            // Write without read is reserved, and execute without read is not offered: no other format has it.
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
        attrs.set(Attrs::WATCHED, raw & WATCHED != 0);
        attrs.set(Attrs::SOFT_DIRTY, raw & SOFT_DIRTY != 0);
        attrs
    }

    #[inline]
    fn table(&self, pa: PhysAddr) -> u64 {
        // A pointer is an entry that allows nothing; its U, A and D are reserved and stay 0.
        frame_bits(pa) | VALID
    }

    #[inline]
    fn table_addr(&self, raw: u64) -> PhysAddr {
        PhysAddr((raw & FRAME) >> FRAME_AT << FRAME_SHIFT)
    }

    #[inline]
    fn hardware_idle(&self, raw: u64) -> bool {
        raw & VALID == 0 || raw & ACCESSED != 0 && raw & (WRITE | DIRTY) != WRITE
    }

    #[inline]
    fn step(&self, raw: u64, level: u8) -> u64 {
        if raw & (VALID | NO_ACCESS) != 0 {
            1 << (self.level_shift(level) - FRAME_SHIFT + FRAME_AT)
        } else {
            SWAP_PTE.step()
        }
    }
}
