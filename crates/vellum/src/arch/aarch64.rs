//! AArch64, stage 1, the half of the address space that TTBR0_EL1 translates. Granules of 4, 16 and 64 KiB.
//!
//! The layout of valid entries is VMSAv8-64 with direct permissions (Arm ARM, DDI 0487, D8.3.1 and D8.4.1.2; the
//! numbers are those of issue M.a). Arm counts levels from the root, 3 being the last; the engine's level 1 is
//! Arm's 3, its 2 is Arm's 2, its 3 is Arm's 1, and so on.
//!
//! | granule | addresses | levels | entries of the root | blocks | manual |
//! |---|---|---|---|---|---|
//! | 4 KiB | 48 or 52 bits | 4 or 5 | 512 or 16 | 2 MiB, 1 GiB | D8.2.8 |
//! | 16 KiB | 48 or 52 bits | 4 | 2 or 32 | 32 MiB | D8.2.9 |
//! | 64 KiB | 48 or 52 bits | 3 | 64 or 1024 | 512 MiB | D8.2.10 |
//!
//! (The larger blocks that 52-bit formats add are above 1 GiB, more than any folio has.) A valid leaf:
//!
//! | bits | use | manual |
//! |---|---|---|
//! | 0–1 | valid; set in a page, clear in a block | D8.3.1.2 |
//! | 2–4 | memory type: [`Aarch64::NORMAL_MEMORY`] | D8.6.1 |
//! | 6 | AP\[1\]: EL0 may access; always set | D8.4.1.2.1 |
//! | 7 | AP\[2\]: read-only | D8.4.1.2.1 |
//! | 8–9 | inner shareable; address bits 50–51 in the 52-bit formats of 4 and 16 KiB | D8.6.2 |
//! | 10 | AF: accessed | D8.5.1 |
//! | 11 | nG: not global; always set | D8.3.1.2 |
//! | 12–49 | the address; bits 12–15 are address bits 48–51 in the 52-bit format of 64 KiB | D8.3.1.2 |
//! | 51 | DBM: writable | D8.5.2.1 |
//! | 52 | contiguous: one of a block of 16 (4 KiB), 128 or 32 (16 KiB, last level or above), 32 (64 KiB) | D8.7.1 |
//! | 53, 54 | PXN, always set; UXN: not executable in user mode | D8.4.1.2.3 |
//! | 55 | dirty, if the leaf is not writable | free for software |
//! | 56, 57, 58 | exclusive, watched, soft-dirty | free for software |
//!
//! An entry whose bit 0 is clear is free but for that bit; the engine's use of it:
//!
//! | bits | swap | marker | busy | no-access leaf |
//! |---|---|---|---|---|
//! | 1–3 | 1 | 2 | 3 | as in a valid leaf |
//! | 4–6 | exclusive, watched, soft-dirty | which | | as in a valid leaf |
//! | 11 | 0 | 0 | 0 | 1 |
//! | 12–54 | slot | | | as in a valid leaf |
//! | 56–60 | device | | | as in a valid leaf |
//!
//! Addresses are not inverted: no Arm CPU is known to speculate on the address of an entry that is not valid.
//!
//! # Writable and dirty
//!
//! A leaf is writable if DBM is set, and nothing else says so. While it is clean, AP\[2\] is set too. The first write
//! *clears* AP\[2\] where the CPU manages the dirty state (FEAT_HAFDBS, with TCR_EL1.HA and HD set; D8.5.2.1). Elsewhere
//! DBM means nothing to the CPU and the write faults; the fault handler finds a leaf that already allows the write, and
//! stores it anew as dirty. Accessed goes the same way, with an Access flag fault. Either way
//!
//! | | writable, clean | writable, dirty | not writable, clean | not writable, dirty |
//! |---|---|---|---|---|
//! | DBM | 1 | 1 | 0 | 0 |
//! | AP\[2\] | 1 | 0 | 1 | 1 |
//! | bit 55 | 0 | 0 | 0 | 1 |
//!
//! so that an entry that the CPU made dirty is bit for bit the one that [`Arch::leaf`] makes. Bit 55 keeps what a write
//! protection would lose: with DBM clear, AP\[2\] has to stay set.
//!
//! [`Arch::HARDWARE`] is AF, AP\[2\] and bit 55. What decides which accesses succeed is all outside (DBM, UXN, valid), so
//! two leaves equal but for these bits allow the same, and comparing without them is sound. Carrying them about is not:
//! - AP\[2\] means dirty when *clear* ([`Arch::HARDWARE_INVERTED`]); the OR of two entries forgets that one was dirty.
//! - Which bits say dirty depends on DBM. Those of a writable dirty leaf, put into one that is not writable, clear AP\[2\]
//!   there, and user mode may write; those of the latter, put into the former, are not read. [`Aarch64::carry`] translates.
//!
//! # Addresses of 52 bits
//!
//! The top of such an address is stored at the bottom of the entry, so [`Arch::step`] cannot carry into it: it holds as
//! long as a run does not cross a multiple of 2^48 (64 KiB) or 2^50 bytes (4 and 16 KiB). A naturally aligned folio never
//! does.

use super::{Arch, Attrs, Kind, Stale, SwapPteLayout, TlbRules, swap_pte};
use crate::addr::PhysAddr;

const VALID: u64 = 1 << 0;
/// In a valid entry above level 1: a table. At level 1, where there is nothing else, it has to be set in a page.
const TABLE_OR_PAGE: u64 = 1 << 1;
const TYPE_OF_MEMORY_SHIFT: u32 = 2;
const USER: u64 = 1 << 6;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const ACCESSED: u64 = 1 << 10;
/// In every leaf, valid or not, and in nothing else that is not valid: tells a no-access leaf.
const NOT_GLOBAL: u64 = 1 << 11;
/// Dirty Bit Modifier.
const WRITE: u64 = 1 << 51;
const PRIVILEGED_NO_EXEC: u64 = 1 << 53;
const USER_NO_EXEC: u64 = 1 << 54;
const DIRTY_NOT_WRITABLE: u64 = 1 << 55;
const EXCLUSIVE: u64 = 1 << 56;
const WATCHED: u64 = 1 << 57;
const SOFT_DIRTY: u64 = 1 << 58;

const SWAP_PTE: SwapPteLayout = SwapPteLayout {
    software_shift: 4,
    device_shift: 56,
    slot_shift: 12,
    slot_bits: 43,
    inverted: false,
    clear: NOT_GLOBAL,
}
.checked();

/// The format. User mode has all that TTBR0_EL1 translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aarch64 {
    page_shift: u32,
    wide: bool,
    joins_in_place: bool,
}

impl Aarch64 {
    /// The contiguous bit of a leaf: one of an aligned group of entries that a TLB may hold as one.
    pub const CONTIGUOUS: u64 = 1 << 52;

    /// The index that leaves have into MAIR_EL1. The host must have put 0xff there: normal memory, write-back, allocating
    /// on reads and writes. (Hardware updates of entries need the tables themselves to be write-back as well.)
    pub const NORMAL_MEMORY: u64 = 0;

    /// Pages of 4 KiB, 48-bit addresses.
    pub const fn granule_4k() -> Self {
        Aarch64 { page_shift: 12, wide: false, joins_in_place: false }
    }

    /// Pages of 16 KiB, 48-bit addresses.
    pub const fn granule_16k() -> Self {
        Aarch64 { page_shift: 14, wide: false, joins_in_place: false }
    }

    /// Pages of 64 KiB, 48-bit addresses.
    pub const fn granule_64k() -> Self {
        Aarch64 { page_shift: 16, wide: false, joins_in_place: false }
    }

    /// The same with 52-bit addresses, virtual and physical: FEAT_LPA2 for pages of 4 and 16 KiB, FEAT_LVA and FEAT_LPA
    /// for 64 KiB.
    pub const fn wide(self) -> Self {
        Aarch64 { wide: true, ..self }
    }

    /// For CPUs that change the contiguous bit of live leaves in place: FEAT_BBML2 or more
    /// (ID_AA64MMFR2_EL1.BBM; D8.17.2, "Support levels for changing table or block size"), and known
    /// not to answer with conflict aborts. On any other CPU that is forbidden.
    pub const fn with_bbm2(self) -> Self {
        Aarch64 { joins_in_place: true, ..self }
    }

    /// What the format needs in TCR_EL1, the control of translation: T0SZ, TG0, DS, and how TTBR0's tables are read
    /// (write-back, inner shareable). The host adds TTBR1's half, the size of physical addresses (IPS), and HA and HD if
    /// the CPU has them.
    ///
    /// With DS set (52-bit addresses in pages of 4 or 16 KiB) leaves have no room for their shareability: SH0 decides for
    /// memory too, not for the tables alone (D8.6.2). It is inner shareable here as it is in the leaves of the others.
    pub const fn tcr_el1(&self) -> u64 {
        let t0sz = 64 - self.va_bits() as u64;
        let write_back = 0b01 << 8 | 0b01 << 10;
        let inner_shareable = 0b11 << 12;
        let tg0 = match self.page_shift {
            12 => 0b00,
            16 => 0b01,
            _ => 0b10,
        };
        t0sz | write_back | inner_shareable | tg0 << 14 | (self.is_lpa2() as u64) << 59
    }

    const fn va_bits(&self) -> u32 {
        if self.wide { 52 } else { 48 }
    }

    /// Whether bits 8–9 of an entry belong to the address.
    const fn is_lpa2(&self) -> bool {
        self.wide && self.page_shift < 16
    }

    /// Which bits of an address keep their place in an entry, which are moved, and how far down.
    const fn places(&self) -> (u64, u64, u32) {
        let page = 1 << self.page_shift;
        match (self.wide, self.is_lpa2()) {
            (false, _) => ((1 << 48) - page, 0, 0),
            (true, false) => ((1 << 48) - page, 0b1111 << 48, 48 - 12),
            (true, true) => ((1 << 50) - page, 0b11 << 50, 50 - 8),
        }
    }

    #[inline]
    fn pack(&self, pa: PhysAddr) -> u64 {
        let (kept, moved, down) = self.places();
        pa.0 & kept | (pa.0 & moved) >> down
    }

    #[inline]
    fn unpack(&self, raw: u64) -> PhysAddr {
        let (kept, moved, down) = self.places();
        PhysAddr(raw & kept | raw << down & moved)
    }
}

/// How a leaf says that it is dirty or that it is clean.
#[inline]
const fn dirty_bits(writable: bool, dirty: bool) -> u64 {
    match (writable, dirty) {
        (true, true) => 0,
        (false, true) => READ_ONLY | DIRTY_NOT_WRITABLE,
        (_, false) => READ_ONLY,
    }
}

/// Whether a leaf is dirty: all that are clean say so in the same way.
#[inline]
const fn is_dirty(raw: u64) -> bool {
    raw & (READ_ONLY | DIRTY_NOT_WRITABLE) != READ_ONLY
}

impl Arch for Aarch64 {
    const HARDWARE: u64 = ACCESSED | READ_ONLY | DIRTY_NOT_WRITABLE;
    const HARDWARE_INVERTED: u64 = READ_ONLY;
    const JOINED: u64 = Self::CONTIGUOUS;
    const SWAP_PTE: SwapPteLayout = SWAP_PTE;

    #[inline(always)]
    fn tlb_rules(&self) -> TlbRules {
        // To a CPU that leaves dirty to software, a clean entry is one that denies writing.
        let (denied, not_dirty) = (Stale::UntilInvalidated, Stale::UntilInvalidated);
        TlbRules { not_present: Stale::NotCached, denied, not_accessed: Stale::NotCached, not_dirty }
    }

    // Which bits say dirty depends on whether the leaf is writable, and the two need not be alike in that.
    #[inline]
    fn carry(&self, new: u64, old: u64) -> u64 {
        new & !Self::HARDWARE | old & ACCESSED | dirty_bits(new & WRITE != 0, is_dirty(old))
    }

    #[inline]
    fn levels(&self) -> u8 {
        match self.page_shift {
            12 => 4 + self.wide as u8,
            14 => 4,
            _ => 3,
        }
    }

    #[inline]
    fn page_shift(&self) -> u32 {
        self.page_shift
    }

    #[inline]
    fn user_end(&self) -> u64 {
        1 << self.va_bits()
    }

    #[inline]
    fn leaf_at(&self, level: u8) -> bool {
        level <= if self.page_shift == 12 { 3 } else { 2 }
    }

    #[inline]
    fn block_bits(&self, level: u8) -> u32 {
        // D8.7.1, table of contiguous sizes: above the last level, of the level of 2 MiB, 32 MiB or 512 MiB only.
        match (self.page_shift, level) {
            (12, 1 | 2) => 4,
            (14, 1) => 7,
            (14 | 16, 1 | 2) => 5,
            _ => 0,
        }
    }

    #[inline]
    fn joins_in_place(&self) -> bool {
        self.joins_in_place
    }

    #[inline]
    fn kind(&self, raw: u64, level: u8) -> Kind {
        if raw & VALID != 0 {
            return if level > 1 && raw & TABLE_OR_PAGE != 0 { Kind::Table } else { Kind::Leaf };
        }
        if raw == 0 {
            return Kind::None;
        }
        if raw & NOT_GLOBAL != 0 {
            return Kind::Leaf;
        }
        swap_pte::kind(raw)
    }

    // The attributes are mostly known where it is called.
    #[inline(always)]
    fn leaf(&self, pa: PhysAddr, attrs: Attrs, level: u8) -> u64 {
        let mut raw = self.pack(pa) | Self::NORMAL_MEMORY << TYPE_OF_MEMORY_SHIFT | USER | NOT_GLOBAL;
        // What user mode may write the kernel must never execute.
        raw |= PRIVILEGED_NO_EXEC;
        if !self.is_lpa2() {
            raw |= INNER_SHAREABLE;
        }
        if level == 1 {
            raw |= TABLE_OR_PAGE;
        }
        raw |= dirty_bits(attrs.contains(Attrs::WRITE), attrs.contains(Attrs::DIRTY));
        if !attrs.contains(Attrs::EXEC) {
            raw |= USER_NO_EXEC;
        }
        let mut set = |attr: Attrs, bit: u64| {
            if attrs.contains(attr) {
                raw |= bit;
            }
        };
        set(Attrs::WRITE, WRITE);
        set(Attrs::ACCESSED, ACCESSED);
        set(Attrs::EXCLUSIVE, EXCLUSIVE);
        set(Attrs::WATCHED, WATCHED);
        set(Attrs::SOFT_DIRTY, SOFT_DIRTY);
        // Execute-only is not offered: such a leaf has AP[1] clear, like kernel memory, and PAN would let the kernel
        // read it by mistake (until FEAT_PAN3).
        if attrs.intersects(Attrs::PROT) {
            raw |= VALID;
        }
        raw
    }

    #[inline]
    fn leaf_addr(&self, raw: u64, _level: u8) -> PhysAddr {
        self.unpack(raw)
    }

    #[inline]
    fn attrs(&self, raw: u64, _level: u8) -> Attrs {
        let mut attrs = Attrs::empty();
        attrs.set(Attrs::READ, raw & VALID != 0);
        attrs.set(Attrs::WRITE, raw & WRITE != 0);
        attrs.set(Attrs::EXEC, raw & USER_NO_EXEC == 0);
        attrs.set(Attrs::ACCESSED, raw & ACCESSED != 0);
        attrs.set(Attrs::DIRTY, is_dirty(raw));
        attrs.set(Attrs::EXCLUSIVE, raw & EXCLUSIVE != 0);
        attrs.set(Attrs::WATCHED, raw & WATCHED != 0);
        attrs.set(Attrs::SOFT_DIRTY, raw & SOFT_DIRTY != 0);
        attrs
    }

    #[inline]
    fn table(&self, pa: PhysAddr) -> u64 {
        // Bits 59–63 would restrict all that is below (D8.4.1.2, of `APTable`, `UXNTable` and `PXNTable`); the leaf alone decides.
        self.pack(pa) | VALID | TABLE_OR_PAGE
    }

    #[inline]
    fn table_addr(&self, raw: u64) -> PhysAddr {
        self.unpack(raw)
    }

    #[inline]
    fn forget(&self, raw: u64, what: Attrs, _level: u8) -> u64 {
        let mut raw = raw;
        if what.contains(Attrs::ACCESSED) {
            raw &= !ACCESSED;
        }
        if what.contains(Attrs::DIRTY) {
            raw = raw & !DIRTY_NOT_WRITABLE | READ_ONLY;
        }
        raw
    }

    #[inline]
    fn hardware_idle(&self, raw: u64) -> bool {
        let writable_clean = WRITE | READ_ONLY;
        raw & VALID == 0 || raw & ACCESSED != 0 && raw & writable_clean != writable_clean
    }

    #[inline]
    fn step(&self, raw: u64, level: u8) -> u64 {
        if raw & (VALID | NOT_GLOBAL) != 0 { 1 << self.level_shift(level) } else { SWAP_PTE.step() }
    }
}
