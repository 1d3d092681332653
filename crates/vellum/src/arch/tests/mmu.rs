//! Memory management units as the manuals define them: plain arithmetic on bits, independent of
//! [`super::Arch`].

use std::vec;
use std::vec::Vec;

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Access {
    Read,
    Write,
    Exec,
}

/// The configuration of a CPU's memory management unit.
#[derive(Clone, Copy)]
pub(super) enum Mmu {
    /// x86-64 with this number of levels. `nxe` is EFER.NXE.
    X86 { levels: u32, nxe: bool },
    /// AArch64 with this TCR_EL1 and physical addresses of `pa_bits` bits.
    Arm { tcr: u64, pa_bits: u32 },
    /// RISC-V with this number of levels, with or without Svrsw60t59b.
    Riscv { levels: u32, rsw60t59b: bool },
}

/// Page tables, with their physical addresses.
#[derive(Default)]
pub(super) struct Memory {
    pub(super) tables: Vec<(u64, Vec<u64>)>,
}

impl Memory {
    pub(super) fn word(&mut self, pa: u64) -> &mut u64 {
        let found = self.tables.iter_mut().find(|(at, words)| pa.wrapping_sub(*at) / 8 < words.len() as u64);
        let (at, words) =
            found.unwrap_or_else(|| panic!("no page table at {pa:#x}: the walker followed a wrong address"));
        &mut words[((pa - *at) / 8) as usize]
    }
}

pub(super) fn bits(x: u64, high: u32, low: u32) -> u64 {
    x >> low & ((1 << (high - low + 1)) - 1)
}

pub(super) fn bit(x: u64, at: u32) -> bool {
    bits(x, at, at) == 1
}

impl Mmu {
    /// Translates an access from user mode, and sets the accessed and dirty bits as the CPU does.
    /// Returns the physical address, or `None` for a fault. `updates` is false for a CPU that
    /// leaves accessed and dirty to software; x86 always sets them.
    pub(super) fn access(&self, memory: &mut Memory, root: u64, va: u64, access: Access, updates: bool) -> Option<u64> {
        match *self {
            Mmu::X86 { levels, nxe } => walk_x86(memory, root, va, access, levels, nxe),
            Mmu::Arm { tcr, pa_bits } => walk_arm(memory, root, va, access, tcr, pa_bits, updates),
            Mmu::Riscv { levels, rsw60t59b } => walk_riscv(memory, root, va, access, levels, rsw60t59b, updates),
        }
    }
}

/// Translates as in Intel SDM vol. 3A: 5.5 (walk, reserved bits), 5.6 (access rights), 5.8
/// (accessed and dirty).
fn walk_x86(memory: &mut Memory, root: u64, va: u64, access: Access, levels: u32, nxe: bool) -> Option<u64> {
    let top = 12 + 9 * levels;
    if va != ((va << (64 - top)) as i64 >> (64 - top)) as u64 {
        return None;
    }
    let (mut table, mut user, mut write, mut no_exec) = (root, true, true, false);
    let mut level = levels;
    let mut path = vec![];
    loop {
        let low = 12 + 9 * (level - 1);
        let at = table + bits(va, low + 8, low) * 8;
        let entry = *memory.word(at);
        path.push(at);
        if !bit(entry, 0) || (bit(entry, 63) && !nxe) {
            return None;
        }
        write &= bit(entry, 1);
        user &= bit(entry, 2);
        no_exec |= bit(entry, 63);
        let large = level > 1 && bit(entry, 7);
        let addr = bits(entry, 51, 12) << 12;
        if large && (level > 3 || bits(addr, low - 1, 13) != 0) {
            return None;
        }
        if level > 1 && !large {
            table = addr;
            level -= 1;
            continue;
        }
        // PAT (bit 12 in a large page, 7 in a small one), cache disable and write-through are
        // clear: all memory is write-back.
        assert!(!bit(entry, 3) && !bit(entry, 4) && !bit(entry, if large { 12 } else { 7 }));
        // A global translation would survive the switch to another space.
        assert!(!bit(entry, 8));
        let allowed = match access {
            Access::Read => user,
            Access::Write => user && write,
            Access::Exec => user && !no_exec,
        };
        if !allowed {
            return None;
        }
        for at in path {
            *memory.word(at) |= 1 << 5;
        }
        if access == Access::Write {
            *memory.word(at) |= 1 << 6;
        }
        return Some(addr | bits(va, low - 1, 0));
    }
}

/// Translates as in the Arm ARM: D8.2.8 to D8.2.10 (walk), D8.3.1 (descriptors), D8.4.1.2 (direct
/// permissions), D8.5 (hardware updates).
fn walk_arm(
    memory: &mut Memory,
    root: u64,
    va: u64,
    access: Access,
    tcr: u64,
    pa_bits: u32,
    updates: bool,
) -> Option<u64> {
    let granule = match bits(tcr, 15, 14) {
        0b00 => 12,
        0b10 => 14,
        0b01 => 16,
        _ => return None,
    };
    let ds = bit(tcr, 59);
    let lpa_64k = granule == 16 && pa_bits == 52;
    let input = 64 - bits(tcr, 5, 0) as u32;
    if va >> input != 0 {
        return None;
    }
    let stride = granule - 3;
    // Arm's levels: the last is 3, and each level before it resolves `stride` bits more.
    let mut level = 4 - (input - granule).div_ceil(stride) as i32;
    let mut table = root;
    loop {
        let low = granule + stride * (3 - level) as u32;
        let at = table + bits(va, (low + stride).min(input) - 1, low) * 8;
        let entry = *memory.word(at);
        if !bit(entry, 0) || (level == 3 && !bit(entry, 1)) {
            return None;
        }
        let mut addr = bits(entry, 47, granule) << granule;
        if ds {
            addr |= bits(entry, 49, 48) << 48 | bits(entry, 9, 8) << 50;
        } else if lpa_64k {
            addr |= bits(entry, 15, 12) << 48;
        }
        // Address bits that this format does not have are reserved and zero (RES0).
        assert!(ds || bits(entry, 49, 48) == 0);
        assert!(granule == 12 || lpa_64k || bits(entry, granule - 1, 12) == 0);
        if level < 3 && bit(entry, 1) {
            // A pointer to a page table has no other bit set: one would restrict the page tables
            // below, or change their meaning.
            assert_eq!((bits(entry, 63, 50), bits(entry, 7, 2)), (0, 0));
            table = addr;
            level += 1;
            continue;
        }
        if level < 3 {
            let block = match granule {
                12 => level == 2 || level == 1 || (level == 0 && ds),
                14 => level == 2 || (level == 1 && ds),
                _ => level == 2 || (level == 1 && lpa_64k),
            };
            if !block {
                return None;
            }
            // The bits below the address, with nT, are reserved and zero (RES0).
            assert_eq!(bits(entry, low - 1, 16), 0);
        }
        // User memory: attribute 0 of MAIR_EL1, inner shareable, nG, PXN; not contiguous, not
        // guarded.
        assert_eq!(bits(entry, 4, 2), 0);
        assert_eq!(if ds { bits(tcr, 13, 12) } else { bits(entry, 9, 8) }, 0b11);
        assert!(bit(entry, 11) && bit(entry, 53) && !bit(entry, 52) && !bit(entry, 50));
        // Of the remaining bits, 55 to 58 are free for software on every CPU. The others have a
        // meaning on some CPUs, so they must be clear.
        assert_eq!((bits(entry, 63, 59), bit(entry, 5)), (0, false));
        let mut updated = entry;
        if !bit(entry, 10) {
            if !updates {
                return None;
            }
            updated |= 1 << 10;
        }
        let el0 = bit(entry, 6);
        let allowed = match access {
            Access::Read => el0,
            Access::Write if bit(entry, 7) => {
                updated &= !(1 << 7);
                el0 && updates && bit(entry, 51)
            }
            Access::Write => el0,
            Access::Exec => !bit(entry, 54),
        };
        if !allowed {
            return None;
        }
        *memory.word(at) = updated;
        return Some(addr | bits(va, low - 1, 0));
    }
}

/// Translates as in the RISC-V privileged specification, "Virtual Address Translation Process",
/// with the constants of Sv39, Sv48 and Sv57.
fn walk_riscv(
    memory: &mut Memory,
    root: u64,
    va: u64,
    access: Access,
    levels: u32,
    rsw60t59b: bool,
    updates: bool,
) -> Option<u64> {
    let top = 12 + 9 * levels;
    if va != ((va << (64 - top)) as i64 >> (64 - top)) as u64 {
        return None;
    }
    let mut a = root;
    for i in (0..levels).rev() {
        let low = 12 + 9 * i;
        let at = a + bits(va, low + 8, low) * 8;
        let pte = *memory.word(at);
        let (r, w, x) = (bit(pte, 1), bit(pte, 2), bit(pte, 3));
        if !bit(pte, 0) || (w && !r) {
            return None;
        }
        let reserved = bits(pte, 63, 61) != 0
            || bits(pte, 58, 54) != 0
            || (bits(pte, 60, 59) != 0 && !rsw60t59b)
            || (!r && !x && (bit(pte, 4) || bit(pte, 6) || bit(pte, 7)));
        assert!(!reserved, "PTE {pte:#x} sets a reserved bit, which is a page fault");
        let ppn = bits(pte, 53, 10);
        if !r && !x {
            a = ppn << 12;
            continue;
        }
        if i > 0 && bits(ppn, 9 * i - 1, 0) != 0 {
            return None;
        }
        // A global translation would survive the switch to another space.
        assert!(!bit(pte, 5));
        let allowed = match access {
            Access::Read => r,
            Access::Write => w,
            Access::Exec => x,
        };
        if !allowed || !bit(pte, 4) {
            return None;
        }
        let store = access == Access::Write;
        if !bit(pte, 6) || (store && !bit(pte, 7)) {
            if !updates {
                return None;
            }
            *memory.word(at) |= 1 << 6 | (store as u64) << 7;
        }
        return Some(ppn << 12 | bits(va, low - 1, 0));
    }
    None
}
