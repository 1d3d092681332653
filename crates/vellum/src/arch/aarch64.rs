//! AArch64 stage 1 page tables for the half of the address space that TTBR0_EL1 translates.
//! Granules of 4, 16 and 64 KiB.
//!
//! Valid PTEs have the layout of VMSAv8-64 with direct permissions (Arm ARM, DDI 0487, D8.3.1 and
//! D8.4.1.2; section numbers are those of issue M.a). Arm counts levels from the root, 3 being the
//! last. The engine's level 1 is Arm's 3, its 2 is Arm's 2, its 3 is Arm's 1, and so on.
//!
//! | granule | addresses | levels | PTEs of the root | leaves above level 1 | manual |
//! |---|---|---|---|---|---|
//! | 4 KiB | 48 or 52 bits | 4 or 5 | 512 or 16 | 2 MiB, 1 GiB | D8.2.8 |
//! | 16 KiB | 48 or 52 bits | 4 | 2 or 32 | 32 MiB | D8.2.9 |
//! | 64 KiB | 48 or 52 bits | 3 | 64 or 1024 | 512 MiB | D8.2.10 |
//!
//! The 52-bit formats also allow leaves (Arm: block descriptors) above 1 GiB. The engine does not
//! use them, because no folio is that large. A valid leaf PTE:
//!
//! | bits | use | manual |
//! |---|---|---|
//! | 0–1 | valid; set in a page, clear in a block descriptor | D8.3.1.2 |
//! | 2–4 | memory type: [`Aarch64::NORMAL_MEMORY`] | D8.6.1 |
//! | 6 | AP\[1\]: EL0 may access; always set | D8.4.1.2.1 |
//! | 7 | AP\[2\]: read-only | D8.4.1.2.1 |
//! | 8–9 | inner shareable; address bits 50–51 in the 52-bit formats of 4 and 16 KiB | D8.6.2 |
//! | 10 | AF: accessed | D8.5.1 |
//! | 11 | nG: not global; always set | D8.3.1.2 |
//! | 12–49 | the address; bits 12–15 are address bits 48–51 in the 52-bit format of 64 KiB | D8.3.1.2 |
//! | 51 | DBM: writable | D8.5.2.1 |
//! | 52 | contiguous: 16 PTEs (4 KiB), 128 or 32 (16 KiB, level 1 or 2), 32 (64 KiB) | D8.7.1 |
//! | 53, 54 | PXN, always set; UXN: not executable in user mode | D8.4.1.2.3 |
//! | 55 | dirty, if the leaf is not writable | free for software |
//! | 56, 57, 58 | exclusive, uffd-wp, soft-dirty | free for software |
//!
//! In a PTE whose bit 0 is clear, hardware ignores all other bits. The engine uses them so (busy: a
//! marker at which other CPUs wait; no-access: a page of `PROT_NONE`):
//!
//! | bits | swap | marker | busy | no-access leaf |
//! |---|---|---|---|---|
//! | 1–3 | 1 | 2 | 3 | as in a valid leaf |
//! | 4–6 | exclusive, uffd-wp, soft-dirty | the marker | | as in a valid leaf |
//! | 11 | 0 | 0 | 0 | 1 |
//! | 12–54 | slot | | | as in a valid leaf |
//! | 56–60 | device | | | as in a valid leaf |
//!
//! Addresses are not inverted: no Arm CPU is known to speculate on the address of a PTE that is not
//! valid.
//!
//! # Writable and dirty
//!
//! A leaf is writable if and only if DBM is set. While it is clean, AP\[2\] is set too. The first
//! write *clears* AP\[2\] where the CPU manages the dirty state (FEAT_HAFDBS, with TCR_EL1.HA and
//! HD set; D8.5.2.1). On other CPUs DBM has no effect and the write faults. Then the fault handler
//! finds a leaf that already allows the write, and stores it again as dirty. The accessed state
//! works in the same way, with an Access flag fault. Either way the leaf ends as
//!
//! | | writable, clean | writable, dirty | not writable, clean | not writable, dirty |
//! |---|---|---|---|---|
//! | DBM | 1 | 1 | 0 | 0 |
//! | AP\[2\] | 1 | 0 | 1 | 1 |
//! | bit 55 | 0 | 0 | 0 | 1 |
//!
//! so that a PTE that the CPU made dirty equals, bit for bit, the one that [`Arch::leaf`] makes.
//! Bit 55 keeps the dirty state across a write protection: with DBM clear, AP\[2\] has to stay set
//! (Linux: `PTE_DIRTY`).
//!
//! [`Arch::HARDWARE`] is AF, AP\[2\] and bit 55. The bits that decide which accesses succeed (DBM,
//! UXN, valid) are all outside it. So two leaves that differ only in bits of [`Arch::HARDWARE`]
//! allow the same accesses, and a comparison may ignore these. But the bits of [`Arch::HARDWARE`]
//! can't be copied from one leaf to another:
//! - AP\[2\] means dirty when *clear* ([`Arch::HARDWARE_INVERTED`]). The OR of a dirty and a clean
//!   writable PTE would be clean.
//! - The encoding of dirty depends on DBM. The bits of a writable dirty leaf, copied into a leaf
//!   that is not writable, clear AP\[2\] there and let user mode write. The bits of a dirty leaf
//!   that is not writable have no meaning in a writable one. [`Aarch64::carry`] translates.
//!
//! # Addresses of 52 bits
//!
//! The top bits of such an address are stored at the bottom of the PTE, so [`Arch::step`] cannot
//! carry into them. A step is valid as long as a run does not cross a multiple of 2^48 bytes (64
//! KiB granule) or 2^50 bytes (4 and 16 KiB). A naturally aligned folio never does.

use super::{Arch, Attrs, Kind, Stale, SwapPteLayout, TlbRules};
use crate::addr::PhysAddr;

const VALID: u64 = 1 << 0;
/// Above level 1: set in a pointer to a page table, clear in a leaf. At level 1: set in every valid
/// leaf.
const TABLE_OR_PAGE: u64 = 1 << 1;
const MEMORY_TYPE_SHIFT: u32 = 2;
const USER: u64 = 1 << 6;
const READ_ONLY: u64 = 1 << 7;
const INNER_SHAREABLE: u64 = 0b11 << 8;
const ACCESSED: u64 = 1 << 10;
/// Set in every leaf PTE, valid or not, and in no other PTE that is not valid: identifies a
/// no-access leaf.
const NOT_GLOBAL: u64 = 1 << 11;
/// DBM, the Dirty Bit Modifier.
const WRITE: u64 = 1 << 51;
const PRIVILEGED_NO_EXEC: u64 = 1 << 53;
const USER_NO_EXEC: u64 = 1 << 54;
const DIRTY_NOT_WRITABLE: u64 = 1 << 55;
const EXCLUSIVE: u64 = 1 << 56;
const UFFD_WP: u64 = 1 << 57;
const SOFT_DIRTY: u64 = 1 << 58;

/// The layout of swap PTEs and markers: the table in the module's text.
const SWAP_PTE: SwapPteLayout = SwapPteLayout {
    software_shift: 4,
    device_shift: 56,
    slot_shift: 12,
    slot_bits: 43,
    inverted: false,
    clear: NOT_GLOBAL,
}
.checked();

/// The AArch64 format. User mode has all that TTBR0_EL1 translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Aarch64 {
    /// log2 of the granule in bytes.
    page_shift: u32,
    /// True if virtual and physical addresses have 52 bits; false if they have 48.
    wide: bool,
    /// True with FEAT_BBML2: see [`Aarch64::with_bbm2`].
    bbm2: bool,
}

impl Aarch64 {
    /// The contiguous bit of a leaf PTE: part of a contpte block, an aligned group of PTEs that a
    /// TLB may cache as one translation.
    pub const CONTIGUOUS: u64 = 1 << 52;

    /// The index into MAIR_EL1 of leaf PTEs. The host must have set that entry to 0xff: normal
    /// memory, write-back, allocating on reads and writes. (Hardware updates of PTEs need page
    /// tables in write-back memory too.)
    pub const NORMAL_MEMORY: u64 = 0;

    /// Returns the format with pages of 4 KiB and 48-bit addresses.
    pub const fn granule_4k() -> Self {
        Aarch64 { page_shift: 12, wide: false, bbm2: false }
    }

    /// Returns the format with pages of 16 KiB and 48-bit addresses.
    pub const fn granule_16k() -> Self {
        Aarch64 { page_shift: 14, wide: false, bbm2: false }
    }

    /// Returns the format with pages of 64 KiB and 48-bit addresses.
    pub const fn granule_64k() -> Self {
        Aarch64 { page_shift: 16, wide: false, bbm2: false }
    }

    /// Returns the same format with 52-bit addresses, virtual and physical: FEAT_LPA2 for pages of
    /// 4 and 16 KiB, FEAT_LVA and FEAT_LPA for 64 KiB.
    pub const fn wide(self) -> Self {
        Aarch64 { wide: true, ..self }
    }

    /// Returns the same format for CPUs that may change the contiguous bit of live leaf PTEs in
    /// place: FEAT_BBML2 or more (ID_AA64MMFR2_EL1.BBM; D8.17.2, "Support levels for changing table
    /// or block size"), and known not to raise conflict aborts (Linux:
    /// `system_supports_bbml2_noabort`). On any other CPU such a change is forbidden.
    pub const fn with_bbm2(self) -> Self {
        Aarch64 { bbm2: true, ..self }
    }

    /// Returns the fields of TCR_EL1 that the format needs: T0SZ, TG0, DS, and the cacheability of
    /// TTBR0's page tables (write-back, inner shareable). The host adds TTBR1's half, the physical
    /// address size (IPS), and HA and HD if the CPU has them.
    ///
    /// With DS set (52-bit addresses in pages of 4 or 16 KiB) leaf PTEs have no shareability field:
    /// SH0 applies to memory as well as to page tables (D8.6.2). It is inner shareable here, as in
    /// the leaf PTEs of the other formats.
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

    /// Returns the size of virtual and physical addresses in bits.
    const fn va_bits(&self) -> u32 {
        if self.wide { 52 } else { 48 }
    }

    /// Returns true if bits 8–9 of a PTE belong to the address.
    const fn is_lpa2(&self) -> bool {
        self.wide && self.page_shift < 16
    }

    /// Returns the positions of an address's bits in a PTE of this format.
    #[inline]
    const fn address_bits(&self) -> AddressBits {
        let page = 1 << self.page_shift;
        match (self.wide, self.is_lpa2()) {
            (false, _) => AddressBits { in_place: (1 << 48) - page, moved: 0, shift: 0 },
            (true, false) => AddressBits { in_place: (1 << 48) - page, moved: 0b1111 << 48, shift: 48 - 12 },
            (true, true) => AddressBits { in_place: (1 << 50) - page, moved: 0b11 << 50, shift: 50 - 8 },
        }
    }

    /// Returns the address bits of a PTE for `pa`.
    #[inline]
    fn pack(&self, pa: PhysAddr) -> u64 {
        let AddressBits { in_place, moved, shift } = self.address_bits();
        pa.0 & in_place | (pa.0 & moved) >> shift
    }

    /// Returns the address in a PTE.
    #[inline]
    fn unpack(&self, raw: u64) -> PhysAddr {
        let AddressBits { in_place, moved, shift } = self.address_bits();
        PhysAddr(raw & in_place | raw << shift & moved)
    }
}

/// The positions of an address's bits in a PTE.
struct AddressBits {
    /// The address bits that are stored at their own position.
    in_place: u64,
    /// The address bits that are stored `shift` bits lower.
    moved: u64,
    /// The number of bits by which the moved bits are lower; 0 if there are no moved bits.
    shift: u32,
}

/// Returns the bits that encode the dirty state of a leaf.
#[inline]
const fn dirty_bits(writable: bool, dirty: bool) -> u64 {
    match (writable, dirty) {
        (true, true) => 0,
        (false, true) => READ_ONLY | DIRTY_NOT_WRITABLE,
        (_, false) => READ_ONLY,
    }
}

/// Returns true if a leaf is dirty. All clean leaves have the same encoding, writable or not.
#[inline]
const fn is_dirty(raw: u64) -> bool {
    raw & (READ_ONLY | DIRTY_NOT_WRITABLE) != READ_ONLY
}

impl Arch for Aarch64 {
    const HARDWARE: u64 = ACCESSED | READ_ONLY | DIRTY_NOT_WRITABLE;
    const HARDWARE_INVERTED: u64 = READ_ONLY;
    const CONT: u64 = Self::CONTIGUOUS;
    const SWAP_PTE: SwapPteLayout = SWAP_PTE;

    #[inline(always)]
    fn tlb_rules(&self) -> TlbRules {
        // On a CPU that leaves the dirty state to software, a clean PTE denies writing.
        let (denied, not_dirty) = (Stale::UntilInvalidated, Stale::UntilInvalidated);
        TlbRules { not_present: Stale::NotCached, denied, not_accessed: Stale::NotCached, not_dirty }
    }

    // The encoding of dirty depends on whether the leaf is writable, which may differ between `new`
    // and `old`.
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
    fn cont_bits(&self, level: u8) -> u32 {
        // D8.7.1, table of contiguous sizes. Above level 1, only PTEs of 2 MiB, 32 MiB or 512 MiB
        // can be in a cont block.
        match (self.page_shift, level) {
            (12, 1 | 2) => 4,
            (14, 1) => 7,
            (14 | 16, 1 | 2) => 5,
            _ => 0,
        }
    }

    #[inline]
    fn cont_in_place(&self) -> bool {
        self.bbm2
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
        SWAP_PTE.kind(raw)
    }

    // Most callers pass constant attributes, so that most of an inlined call is computed at compile
    // time.
    #[inline(always)]
    fn leaf(&self, pa: PhysAddr, attrs: Attrs, level: u8) -> u64 {
        let mut raw = self.pack(pa) | Self::NORMAL_MEMORY << MEMORY_TYPE_SHIFT | USER | NOT_GLOBAL;
        // The kernel must never execute memory that user mode may write.
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
        set(Attrs::UFFD_WP, UFFD_WP);
        set(Attrs::SOFT_DIRTY, SOFT_DIRTY);
        // Execute-only is not offered: such a leaf has AP[1] clear, like kernel memory, and PAN
        // would let the kernel read it by mistake (until FEAT_PAN3).
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
        attrs.set(Attrs::UFFD_WP, raw & UFFD_WP != 0);
        attrs.set(Attrs::SOFT_DIRTY, raw & SOFT_DIRTY != 0);
        attrs
    }

    #[inline]
    fn table_pte(&self, pa: PhysAddr) -> u64 {
        // Bits 59–63 would restrict all levels below (D8.4.1.2, `APTable`, `UXNTable`, `PXNTable`).
        // The leaf alone decides.
        self.pack(pa) | VALID | TABLE_OR_PAGE
    }

    #[inline]
    fn table_addr(&self, raw: u64) -> PhysAddr {
        self.unpack(raw)
    }

    #[inline]
    fn set_hardware(&self, raw: u64) -> u64 {
        raw & !(READ_ONLY | DIRTY_NOT_WRITABLE) | dirty_bits(raw & WRITE != 0, true) | ACCESSED
    }

    #[inline]
    fn clear_hardware(&self, raw: u64, cleared: Attrs, _level: u8) -> u64 {
        let mut raw = raw;
        if cleared.contains(Attrs::ACCESSED) {
            raw &= !ACCESSED;
        }
        if cleared.contains(Attrs::DIRTY) {
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
