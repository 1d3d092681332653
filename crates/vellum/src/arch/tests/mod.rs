//! Tests of every page-table format against memory management units written from the manuals.
//!
//! The MMUs in `mmu` know nothing of [`Arch`]: their walkers are plain arithmetic on bits. So an
//! encoder and its decoder cannot be wrong in the same way.

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

/// A page-table format to test, with the properties that the manuals define for it.
struct Case<A> {
    arch: A,
    mmu: Mmu,
    page_shift: u32,
    /// The size of user addresses in bits.
    va_bits: u32,
    /// The size of physical addresses in bits.
    pa_bits: u32,
    /// log2 of the number of bytes that a PTE maps at each level, from level 1 to the root.
    level_shifts: &'static [u32],
    /// The highest level that allows leaf PTEs.
    leaf_levels: u8,
    /// The attributes that a leaf PTE stores; the others are dropped.
    supported: Attrs,
    /// The attributes of every leaf PTE that allows at least one kind of access.
    implied: Attrs,
    /// The last swap slot that a swap PTE can name.
    max_slot: u64,
}

macro_rules! formats {
    ($($name:ident: $case:expr;)*) => { $(
        mod $name {
            use super::*;

            formats!(@tests $case;
                levels_and_sizes_match_the_manual, each_address_bit_belongs_to_one_level,
                leaf_attributes_round_trip, each_pte_has_exactly_one_kind, swap_ptes_round_trip,
                hardware_bits_are_accessed_and_dirty, runs_compare_without_hardware_bits,
                hardware_bits_of_a_run_can_be_ored, carry_keeps_accessed_and_dirty,
                hardware_idle_means_the_mmu_changes_nothing, step_advances_leaf_and_swap_ptes,
                the_mmu_decodes_what_the_format_encodes, the_mmu_faults_on_ptes_that_are_not_leaves,
                the_mmu_faults_from_user_end_on);
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
        mmu: Mmu::X86 { levels: levels as u32, nxe },
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
        mmu: Mmu::Arm { tcr: arch.tcr_el1(), pa_bits: bits },
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
        mmu: Mmu::Riscv { levels: levels as u32, rsw60t59b },
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

// ---- Properties of single formats ----

#[test]
fn aarch64_tcr_el1_matches_the_format() {
    // T0SZ; write-back, inner shareable tables (0x3500); TG0 at 14; DS at 59.
    assert_eq!(Aarch64::granule_4k().tcr_el1(), 16 | 0x3500);
    assert_eq!(Aarch64::granule_16k().tcr_el1(), 16 | 0x3500 | 0b10 << 14);
    assert_eq!(Aarch64::granule_64k().tcr_el1(), 16 | 0x3500 | 0b01 << 14);
    assert_eq!(Aarch64::granule_4k().wide().tcr_el1(), 12 | 0x3500 | 1 << 59);
    assert_eq!(Aarch64::granule_16k().wide().tcr_el1(), 12 | 0x3500 | 0b10 << 14 | 1 << 59);
    assert_eq!(Aarch64::granule_64k().wide().tcr_el1(), 12 | 0x3500 | 0b01 << 14);
}

/// The 64 KiB format stores bits 48–51 below the rest of the address, the others store bits 50–51
/// in the place of the shareability field.
#[test]
fn aarch64_stores_the_top_of_52_bit_addresses_apart() {
    let top = PhysAddr(0b1010 << 48);
    let moved = |arch: Aarch64, level| arch.leaf(top, Attrs::READ, level) ^ arch.leaf(PhysAddr(0), Attrs::READ, level);
    for level in 1..=2 {
        assert_eq!(moved(Aarch64::granule_64k().wide(), level), 0b1010 << 12);
        assert_eq!(moved(Aarch64::granule_4k().wide(), level), 0b10 << 8 | 0b10 << 48);
        assert_eq!(moved(Aarch64::granule_16k().wide(), level), 0b10 << 8 | 0b10 << 48);
    }
}

/// A dirty leaf that loses write permission stays dirty, and the CPU does not treat it as writable.
#[test]
fn aarch64_write_protection_keeps_dirty() {
    let arch = Aarch64::granule_4k();
    let written = arch.leaf(PhysAddr(0), Attrs::READ | Attrs::WRITE | Attrs::HARDWARE, 1);
    let protected = arch.leaf(PhysAddr(0), arch.attrs(written, 1) - Attrs::WRITE, 1);
    assert_eq!(arch.attrs(protected, 1), Attrs::READ | Attrs::HARDWARE);
    assert!(bit(protected, 7) && !bit(protected, 51) && !bit(written, 7) && bit(written, 51));
}

/// A leaf PTE in a cont block differs from one in no cont block by the bit [`Arch::CONT`], and on
/// RISC-V by the address field. `without_cont` restores the original PTE.
#[test]
fn cont_blocks_fold_and_unfold() {
    fn check<A: Arch>(arch: A, pa: u64) {
        for (attrs, index) in all_attrs().zip(0..) {
            let index = index % ((1 << arch.cont_bits(1)) - 1);
            let leaf = arch.leaf(PhysAddr(pa + ((index as u64) << arch.page_shift())), attrs, 1);
            assert_eq!(leaf & A::CONT, 0);
            let folded = arch.with_cont(leaf);
            assert_ne!(folded & A::CONT, 0);
            assert_eq!(arch.attrs(folded, 1), arch.attrs(leaf, 1));
            assert_eq!((arch.without_cont(folded, index), arch.without_cont(leaf, index)), (leaf, leaf));
            assert_eq!(arch.at_index(folded, index), leaf | A::CONT);
            let next = arch.with_cont(arch.leaf(PhysAddr(pa + ((index as u64 + 1) << arch.page_shift())), attrs, 1));
            assert_eq!(folded.wrapping_add(arch.cont_step(leaf, 1)), next);
        }
    }
    check(Aarch64::granule_4k(), 0xffff_0000_0000);
    check(Aarch64::granule_16k(), 0xffff_0000_0000);
    check(Aarch64::granule_64k().wide(), 0xffff_0000_0000);
    check(Riscv64::sv57().with_napot(), 0xff_ffff_0000_0000);
    let napot = Riscv64::sv39().with_napot();
    let leaf = napot.leaf(PhysAddr(0x1_2345_0000), Attrs::READ, 1);
    assert_eq!(napot.with_cont(leaf), leaf | 1 << 63 | 0b1000 << 10, "PPN[3:0] = 1000 encodes 64 KiB (Svnapot)");
}

/// The number of PTEs per cont block is that of Arm ARM D8.7.1 for AArch64, and of Svnapot for
/// RISC-V.
#[test]
fn cont_block_sizes_match_the_manuals() {
    let bits = |arch: Aarch64| [1, 2, 3].map(|level| arch.cont_bits(level));
    assert_eq!(bits(Aarch64::granule_4k()), [4, 4, 0]);
    assert_eq!(bits(Aarch64::granule_16k()), [7, 5, 0]);
    assert_eq!(bits(Aarch64::granule_64k()), [5, 5, 0]);
    assert_eq!([1, 2].map(|level| Riscv64::sv48().with_napot().cont_bits(level)), [4, 0]);
    assert_eq!((Riscv64::sv48().cont_bits(1), X86_64::four_levels().cont_bits(1)), (0, 0));
    assert_eq!((Aarch64::CONTIGUOUS, Riscv64::NAPOT), (1 << 52, 1 << 63));
}

#[test]
fn riscv64_soft_dirty_needs_svrsw60t59b() {
    assert_eq!(Riscv64::sv39().supported(), Attrs::all() - Attrs::SOFT_DIRTY);
    assert_eq!(Riscv64::sv39().with_rsw60t59b().supported(), Attrs::all());
}

/// The fields of swap PTEs and markers are where the tables of the formats' modules put them.
#[test]
fn swap_ptes_and_markers_have_the_documented_layout() {
    let entry = |attrs| SwapEntry { device: 0b10101, slot: 0x5_4321, attrs };
    let all = Attrs::EXCLUSIVE | Attrs::UFFD_WP | Attrs::SOFT_DIRTY;
    let x86_64 = X86_64::four_levels();
    assert_eq!(x86_64.swap_pte(entry(all)), 1 << 1 | 0b111 << 4 | 0b10101 << 9 | !0x5_4321 << 14);
    assert_eq!(x86_64.swap_pte(entry(Attrs::UFFD_WP)), 1 << 1 | 0b010 << 4 | 0b10101 << 9 | !0x5_4321 << 14);
    assert_eq!((x86_64.marker_pte(Marker::Poison), x86_64.busy_pte()), (2 << 1 | 3 << 4, 3 << 1));
    let aarch64 = Aarch64::granule_4k();
    assert_eq!(aarch64.swap_pte(entry(all)), 1 << 1 | 0b111 << 4 | 0x5_4321 << 12 | 0b10101 << 56);
    assert_eq!((aarch64.marker_pte(Marker::Poison), aarch64.busy_pte()), (2 << 1 | 3 << 4, 3 << 1));
    let riscv64 = Riscv64::sv39();
    assert_eq!(riscv64.swap_pte(entry(all)), 1 << 1 | 0b111 << 8 | 0b10101 << 11 | 0x5_4321 << 16);
    assert_eq!((riscv64.marker_pte(Marker::Poison), riscv64.busy_pte()), (2 << 1 | 3 << 8, 3 << 1));
    assert_eq!((X86_64::MAX_SLOT, Aarch64::MAX_SLOT, Riscv64::MAX_SLOT), ((1 << 50) - 1, (1 << 43) - 1, (1 << 48) - 1));
}
