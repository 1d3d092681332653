//! The same questions to every format, and the answers of a memory management unit that knows the manuals and nothing of
//! [`Arch`]: its walkers are plain arithmetic on bits, so that an encoder and its decoder cannot be wrong together.

extern crate std;

mod cases;
mod mmu;
mod rules;
mod walks;

use super::*;
use crate::addr::{FRAME_SIZE, align_down};
use cases::*;
use mmu::{Access, Memory, Mmu, bit};
use rules::*;
use walks::*;

/// A format, and what the manuals say of it.
struct Case<A> {
    arch: A,
    mmu: Mmu,
    page_shift: u32,
    /// Bits of the addresses of user mode.
    va_bits: u32,
    /// Bits of physical addresses.
    pa_bits: u32,
    /// log2 of the bytes that an entry maps at each level, from level 1 to the root.
    level_shifts: &'static [u32],
    /// Up to which level there are leaves.
    leaf_levels: u8,
    /// What a leaf can hold; what else it is given it forgets.
    supported: Attrs,
    /// What a leaf that allows anything allows besides.
    implied: Attrs,
    max_slot: u64,
}

macro_rules! formats {
    ($($name:ident: $case:expr;)*) => { $(
        mod $name {
            use super::*;

            formats!(@tests $case;
                geometry, indices_split_an_address, attributes_round_trip, kinds_exclude_each_other, swap_round_trips,
                hardware_bits_are_accessed_and_dirty, runs_compare_without_hardware_bits, hardware_bits_collect,
                hardware_bits_are_carried, hardware_is_idle_when_it_has_nothing_to_set, steps_walk_a_run, mmu_agrees,
                mmu_faults_on_all_else, user_half_ends_where_it_says);
        }
    )* };
    (@tests $case:expr; $($test:ident),*) => { $(
        #[test]
        fn $test() {
            super::$test(&$case);
        }
    )* };
}

const X86_LEVELS: [u32; 5] = [12, 21, 30, 39, 48];

fn x86_64(arch: X86_64, levels: usize, nxe: bool) -> Case<X86_64> {
    Case {
        arch,
        mmu: Mmu::X86(levels as u32, nxe),
        page_shift: 12,
        va_bits: 12 + 9 * levels as u32 - 1,
        pa_bits: 52,
        level_shifts: &X86_LEVELS[..levels],
        leaf_levels: 3,
        supported: Attrs::all(),
        implied: if nxe { Attrs::READ } else { Attrs::READ.union(Attrs::EXEC) },
        max_slot: (1 << 50) - 1,
    }
}

fn aarch64(arch: Aarch64, bits: u32, level_shifts: &'static [u32], leaf_levels: u8) -> Case<Aarch64> {
    Case {
        arch,
        mmu: Mmu::Arm(arch.tcr_el1(), bits),
        page_shift: level_shifts[0],
        va_bits: bits,
        pa_bits: bits,
        level_shifts,
        leaf_levels,
        supported: Attrs::all(),
        implied: Attrs::READ,
        max_slot: Aarch64::MAX_SLOT,
    }
}

fn riscv64(arch: Riscv64, levels: usize, rsw60t59b: bool) -> Case<Riscv64> {
    Case {
        arch,
        mmu: Mmu::Riscv(levels as u32, rsw60t59b),
        page_shift: 12,
        va_bits: 12 + 9 * levels as u32 - 1,
        pa_bits: 56,
        level_shifts: &X86_LEVELS[..levels],
        leaf_levels: 3,
        supported: arch.supported(),
        implied: Attrs::READ,
        max_slot: Riscv64::MAX_SLOT,
    }
}

formats! {
    x86_64_four_levels: x86_64(X86_64::four_levels(), 4, true);
    x86_64_five_levels: x86_64(X86_64::five_levels(), 5, true);
    x86_64_without_no_exec: x86_64(X86_64::four_levels().without_no_exec(), 4, false);
    aarch64_4k: aarch64(Aarch64::granule_4k(), 48, &[12, 21, 30, 39], 3);
    aarch64_16k: aarch64(Aarch64::granule_16k(), 48, &[14, 25, 36, 47], 2);
    aarch64_64k: aarch64(Aarch64::granule_64k(), 48, &[16, 29, 42], 2);
    aarch64_4k_wide: aarch64(Aarch64::granule_4k().wide(), 52, &[12, 21, 30, 39, 48], 3);
    aarch64_16k_wide: aarch64(Aarch64::granule_16k().wide(), 52, &[14, 25, 36, 47], 2);
    aarch64_64k_wide: aarch64(Aarch64::granule_64k().wide(), 52, &[16, 29, 42], 2);
    riscv64_sv39: riscv64(Riscv64::sv39(), 3, false);
    riscv64_sv48: riscv64(Riscv64::sv48(), 4, false);
    riscv64_sv57: riscv64(Riscv64::sv57(), 5, false);
    riscv64_sv57_rsw60t59b: riscv64(Riscv64::sv57().with_rsw60t59b(), 5, true);
}

// ---- What single formats add --------------------------------------------------------------------------------------

#[test]
fn aarch64_control_register() {
    // T0SZ; write-back, inner shareable tables (0x3500); TG0 at 14; DS at 59.
    assert_eq!(Aarch64::granule_4k().tcr_el1(), 16 | 0x3500);
    assert_eq!(Aarch64::granule_16k().tcr_el1(), 16 | 0x3500 | 0b10 << 14);
    assert_eq!(Aarch64::granule_64k().tcr_el1(), 16 | 0x3500 | 0b01 << 14);
    assert_eq!(Aarch64::granule_4k().wide().tcr_el1(), 12 | 0x3500 | 1 << 59);
    assert_eq!(Aarch64::granule_16k().wide().tcr_el1(), 12 | 0x3500 | 0b10 << 14 | 1 << 59);
    assert_eq!(Aarch64::granule_64k().wide().tcr_el1(), 12 | 0x3500 | 0b01 << 14);
}

/// Where 52-bit addresses keep their top: in the 64 KiB format below the rest, in the others instead of shareability.
#[test]
fn aarch64_keeps_the_top_of_an_address_apart() {
    let top = PhysAddr(0b1010 << 48);
    let moved = |arch: Aarch64, level| arch.leaf(top, Attrs::READ, level) ^ arch.leaf(PhysAddr(0), Attrs::READ, level);
    for level in 1..=2 {
        assert_eq!(moved(Aarch64::granule_64k().wide(), level), 0b1010 << 12);
        assert_eq!(moved(Aarch64::granule_4k().wide(), level), 0b10 << 8 | 0b10 << 48);
        assert_eq!(moved(Aarch64::granule_16k().wide(), level), 0b10 << 8 | 0b10 << 48);
    }
}

/// A dirty leaf that loses write permission stays dirty, and does not become writable by the CPU's rules.
#[test]
fn aarch64_write_protection_keeps_dirty() {
    let arch = Aarch64::granule_4k();
    let written = arch.leaf(PhysAddr(0), Attrs::READ | Attrs::WRITE | Attrs::HARDWARE, 1);
    let protected = arch.leaf(PhysAddr(0), arch.attrs(written, 1) - Attrs::WRITE, 1);
    assert_eq!(arch.attrs(protected, 1), Attrs::READ | Attrs::HARDWARE);
    assert!(bit(protected, 7) && !bit(protected, 51) && !bit(written, 7) && bit(written, 51));
}

/// A leaf that joins its block differs by the mark, and on RISC-V by where its address is to be found; as if it stood for
/// itself, it is what it was.
#[test]
fn leaves_join_and_part() {
    fn check<A: Arch>(arch: A, pa: u64) {
        for (attrs, index) in all_attrs().zip(0..) {
            let index = index % ((1 << arch.block_bits(1)) - 1);
            let leaf = arch.leaf(PhysAddr(pa + ((index as u64) << arch.page_shift())), attrs, 1);
            assert_eq!(leaf & A::JOINED, 0);
            let joined = arch.join(leaf);
            assert_ne!(joined & A::JOINED, 0);
            assert_eq!(arch.attrs(joined, 1), arch.attrs(leaf, 1));
            assert_eq!((arch.single(joined, index), arch.single(leaf, index)), (leaf, leaf));
            assert_eq!(arch.placed(joined, index), leaf | A::JOINED);
            let next = arch.join(arch.leaf(PhysAddr(pa + ((index as u64 + 1) << arch.page_shift())), attrs, 1));
            assert_eq!(joined.wrapping_add(arch.joined_step(leaf, 1)), next);
        }
    }
    check(Aarch64::granule_4k(), 0xffff_0000_0000);
    check(Aarch64::granule_16k(), 0xffff_0000_0000);
    check(Aarch64::granule_64k().wide(), 0xffff_0000_0000);
    check(Riscv64::sv57().with_napot(), 0xff_ffff_0000_0000);
    let napot = Riscv64::sv39().with_napot();
    let leaf = napot.leaf(PhysAddr(0x1_2345_0000), Attrs::READ, 1);
    assert_eq!(napot.join(leaf), leaf | 1 << 63 | 0b1000 << 10, "PPN[3:0] = 1000 says 64 KiB (Svnapot)");
}

/// Entries of a block, by the manuals: D8.7.1 for AArch64, Svnapot for RISC-V.
#[test]
fn sizes_of_blocks() {
    let bits = |arch: Aarch64| [1, 2, 3].map(|level| arch.block_bits(level));
    assert_eq!(bits(Aarch64::granule_4k()), [4, 4, 0]);
    assert_eq!(bits(Aarch64::granule_16k()), [7, 5, 0]);
    assert_eq!(bits(Aarch64::granule_64k()), [5, 5, 0]);
    assert_eq!([1, 2].map(|level| Riscv64::sv48().with_napot().block_bits(level)), [4, 0]);
    assert_eq!((Riscv64::sv48().block_bits(1), X86_64::four_levels().block_bits(1)), (0, 0));
    assert_eq!((Aarch64::CONTIGUOUS, Riscv64::NAPOT), (1 << 52, 1 << 63));
}

#[test]
fn riscv64_has_soft_dirty_only_with_more_software_bits() {
    assert_eq!(Riscv64::sv39().supported(), Attrs::all() - Attrs::SOFT_DIRTY);
    assert_eq!(Riscv64::sv39().with_rsw60t59b().supported(), Attrs::all());
}
