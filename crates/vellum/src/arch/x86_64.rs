//! x86-64 page tables, four or five levels.
//!
//! Present PTEs have the layout of Intel and AMD (Intel SDM vol. 3A §5.5, AMD APM vol. 2 §5.3–5.4);
//! bits 9–11 are free for software. In a PTE whose bit 0 is clear, hardware ignores all other bits.
//! The engine uses them so (busy: a marker at which other CPUs wait; no-access: a page of
//! `PROT_NONE`):
//!
//! | bits | swap | marker | busy | no-access leaf |
//! |---|---|---|---|---|
//! | 1–3 | 1 | 2 | 3 | as in a present leaf |
//! | 4–6 | exclusive, uffd-wp, soft-dirty | the marker | | as in a present leaf |
//! | 8 | 0 | 0 | 0 | 1 |
//! | 9–13 | device | | | as in a present leaf |
//! | 14–63 | slot, inverted | | | the frame, inverted |
//!
//! Frames and slots in PTEs that are not present are stored inverted, so that a CPU which
//! speculates on them as if they were addresses (L1 Terminal Fault, CVE-2018-3620) misses all
//! memory. Markers and busy entries hold neither a frame nor a slot. Read as an address, they name
//! frame 0, which the engine never allocates.

use super::{Arch, Attrs, Kind, Stale, SwapPteLayout, TlbRules};
use crate::addr::PhysAddr;

const PRESENT: u64 = 1 << 0;
const WRITE: u64 = 1 << 1;
const USER: u64 = 1 << 2;
const ACCESSED: u64 = 1 << 5;
const DIRTY: u64 = 1 << 6;
/// PS: set in a leaf PTE above level 1. (At level 1 this is the PAT bit, which the engine leaves
/// 0.)
const HUGE: u64 = 1 << 7;
/// Set in a PTE that is not present: marks a leaf that allows no access (`PROT_NONE`). Present
/// leaves use the bit for "global", which user memory never is.
const NO_ACCESS: u64 = 1 << 8;
const EXCLUSIVE: u64 = 1 << 9;
const UFFD_WP: u64 = 1 << 10;
const SOFT_DIRTY: u64 = 1 << 11;
const ADDR: u64 = 0x000f_ffff_ffff_f000;
/// The distance of the protection key in a leaf PTE (bits 59–62) and in [`Attrs::KEY`]. CPUs ignore
/// the bits where protection keys are off.
const KEY_SHIFT: u32 = 59 - Attrs::KEY.bits().trailing_zeros();
const NO_EXEC: u64 = 1 << 63;

/// The layout of swap PTEs and markers: the table in the module's text.
const SWAP_PTE: SwapPteLayout = SwapPteLayout {
    software_shift: 4,
    device_shift: 9,
    slot_shift: 14,
    slot_bits: 50,
    inverted: true,
    clear: NO_ACCESS,
}
.checked();

/// The x86-64 format. User mode has the lower half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct X86_64 {
    /// True with LA57: five levels.
    five_levels: bool,
    /// True with EFER.NXE: the CPU honours bit 63.
    no_exec: bool,
}

impl X86_64 {
    /// Returns the format with 48-bit addresses and no-execute, which every current CPU supports.
    pub const fn four_levels() -> Self {
        X86_64 { five_levels: false, no_exec: true }
    }

    /// Returns the format with 57-bit addresses (LA57) and no-execute.
    pub const fn five_levels() -> Self {
        X86_64 { five_levels: true, no_exec: true }
    }

    /// Returns the same format for a CPU without `EFER.NXE`, where readable memory is executable.
    pub const fn without_no_exec(self) -> Self {
        X86_64 { no_exec: false, ..self }
    }
}

impl Arch for X86_64 {
    const HARDWARE: u64 = ACCESSED | DIRTY;
    const SWAP_PTE: SwapPteLayout = SWAP_PTE;

    #[inline(always)]
    fn tlb_rules(&self) -> TlbRules {
        // The CPU sets accessed and dirty itself, so a PTE without them does not fault.
        let (not_accessed, not_dirty) = (Stale::NotCached, Stale::NotCached);
        TlbRules { not_present: Stale::NotCached, denied: Stale::UntilFault, not_accessed, not_dirty }
    }

    #[inline]
    fn levels(&self) -> u8 {
        if self.five_levels { 5 } else { 4 }
    }

    #[inline]
    fn page_shift(&self) -> u32 {
        12
    }

    #[inline]
    fn user_end(&self) -> u64 {
        // The last page of the lower half stays unused. A SYSCALL in its last bytes would return to
        // a non-canonical address, on which SYSRET faults in the kernel (Intel SDM, SYSRET;
        // CVE-2012-0217).
        (1 << (if self.five_levels { 56 } else { 47 })) - 4096
    }

    #[inline]
    fn leaf_at(&self, level: u8) -> bool {
        level <= 3
    }

    #[inline]
    fn kind(&self, raw: u64, level: u8) -> Kind {
        if raw & PRESENT != 0 {
            return if level == 1 || raw & HUGE != 0 { Kind::Leaf } else { Kind::Table };
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
    fn leaf(&self, pa: PhysAddr, attrs: Attrs, level: u8) -> u64 {
        let mut raw = pa.0 & ADDR | u64::from(attrs.bits() & Attrs::KEY.bits()) << KEY_SHIFT;
        let mut set = |attr: Attrs, bit: u64| {
            if attrs.contains(attr) {
                raw |= bit;
            }
        };
        set(Attrs::WRITE, WRITE);
        set(Attrs::ACCESSED, ACCESSED);
        set(Attrs::DIRTY, DIRTY);
        set(Attrs::EXCLUSIVE, EXCLUSIVE);
        set(Attrs::UFFD_WP, UFFD_WP);
        set(Attrs::SOFT_DIRTY, SOFT_DIRTY);
        if level > 1 {
            raw |= HUGE;
        }
        if self.no_exec && !attrs.contains(Attrs::EXEC) {
            raw |= NO_EXEC;
        }
        if attrs.intersects(Attrs::PROT) { raw | USER | PRESENT } else { (raw ^ ADDR) | USER | NO_ACCESS }
    }

    #[inline]
    fn leaf_addr(&self, raw: u64, _level: u8) -> PhysAddr {
        let addr = if raw & PRESENT != 0 { raw } else { !raw };
        PhysAddr(addr & ADDR)
    }

    #[inline]
    fn attrs(&self, raw: u64, _level: u8) -> Attrs {
        let mut attrs = Attrs::from_bits_retain((raw >> 59 << Attrs::KEY.bits().trailing_zeros()) as u16);
        attrs.set(Attrs::READ, raw & PRESENT != 0);
        attrs.set(Attrs::WRITE, raw & WRITE != 0);
        attrs.set(Attrs::EXEC, raw & PRESENT != 0 && raw & NO_EXEC == 0);
        attrs.set(Attrs::ACCESSED, raw & ACCESSED != 0);
        attrs.set(Attrs::DIRTY, raw & DIRTY != 0);
        attrs.set(Attrs::EXCLUSIVE, raw & EXCLUSIVE != 0);
        attrs.set(Attrs::UFFD_WP, raw & UFFD_WP != 0);
        attrs.set(Attrs::SOFT_DIRTY, raw & SOFT_DIRTY != 0);
        attrs
    }

    #[inline]
    fn table_pte(&self, pa: PhysAddr) -> u64 {
        // Upper levels allow every access; the leaf PTE alone decides.
        pa.0 | PRESENT | WRITE | USER
    }

    #[inline]
    fn table_addr(&self, raw: u64) -> PhysAddr {
        PhysAddr(raw & ADDR)
    }

    #[inline]
    fn hardware_idle(&self, raw: u64) -> bool {
        raw & PRESENT == 0 || raw & ACCESSED != 0 && raw & (WRITE | DIRTY) != WRITE
    }

    #[inline]
    fn step(&self, raw: u64, level: u8) -> u64 {
        if raw & PRESENT != 0 {
            1 << self.level_shift(level)
        } else if raw & NO_ACCESS != 0 {
            (1u64 << self.level_shift(level)).wrapping_neg()
        } else {
            SWAP_PTE.step()
        }
    }
}
