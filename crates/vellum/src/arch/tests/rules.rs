//! The properties that every format has.

use std::vec::Vec;

use super::*;

pub(super) fn levels_and_sizes_match_the_manual<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    assert_eq!(arch.page_shift(), case.page_shift);
    assert_eq!(arch.page_order() as u32, case.page_shift - 12);
    assert_eq!(arch.levels() as usize, case.level_shifts.len());
    assert!(arch.user_end() <= 1 << case.va_bits && arch.user_end() > 1 << (case.va_bits - 1));
    assert_eq!(arch.user_end() % (1 << case.page_shift), 0);
    for level in case.all_levels() {
        assert_eq!(arch.level_shift(level), case.level_shifts[level as usize - 1]);
        assert_eq!(arch.leaf_at(level), level <= case.leaf_levels, "level {level}");
    }
}

pub(super) fn each_address_bit_belongs_to_one_level<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for bit in 0..case.va_bits {
        // Each address bit is in the offset in the page, or in the index of exactly one level.
        let users = case.all_levels().filter(|l| arch.index(1 << bit, *l) != 0).count();
        assert_eq!(users, (bit >= case.page_shift) as usize, "bit {bit}");
    }
    for va in case.addresses() {
        let mut sum = va % (1 << case.page_shift);
        for level in case.all_levels() {
            let index = arch.index(va, level);
            assert!(index < 1 << (case.page_shift - 3), "{va:#x} level {level}");
            sum += index as u64 * case.level_size(level);
        }
        assert_eq!(sum, va);
    }
}

pub(super) fn leaf_attributes_round_trip<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.leaf_levels() {
        for pa in case.frames(level) {
            for attrs in all_attrs() {
                let raw = case.leaf(pa, attrs, level);
                assert_eq!(arch.attrs(raw, level), case.stored(attrs), "{attrs:?} level {level} {raw:#x}");
                assert_eq!(arch.leaf_addr(raw, level), PhysAddr(pa), "{attrs:?} level {level} {raw:#x}");
                // A decoded leaf encodes to the same PTE.
                assert_eq!(case.leaf(pa, arch.attrs(raw, level), level), raw);
            }
        }
    }
    for pa in case.frames(1) {
        assert_eq!(arch.table_addr(arch.table_pte(PhysAddr(pa))), PhysAddr(pa));
    }
    let pfn = Pfn(0xdead_bee0);
    assert_eq!(arch.leaf_pfn(arch.leaf(pfn.addr(), Attrs::READ, 1), 1), pfn);
}

pub(super) fn each_pte_has_exactly_one_kind<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.all_levels() {
        assert_eq!(arch.kind(0, level), Kind::None);
    }
    let expect = |raw: u64, level: u8, kind: Kind| {
        assert_ne!(raw, 0, "{kind:?}");
        assert_eq!(arch.kind(raw, level), kind, "{raw:#x} level {level}");
    };
    for level in case.leaf_levels() {
        for pa in case.frames(level) {
            for attrs in all_attrs() {
                expect(case.leaf(pa, attrs, level), level, Kind::Leaf);
            }
        }
    }
    for level in case.all_levels() {
        if level > 1 {
            for pa in case.frames(1) {
                expect(arch.table_pte(PhysAddr(pa)), level, Kind::Table);
            }
        }
        for swapped in case.swaps() {
            expect(arch.swap_pte(swapped), level, Kind::Swap);
        }
        for marker in MARKERS {
            expect(arch.marker_pte(marker), level, Kind::Marker);
        }
        expect(arch.busy_pte(), level, Kind::Busy);
    }
    for marker in MARKERS {
        assert_eq!(arch.marker_of(arch.marker_pte(marker)), Some(marker));
    }
    for other in [0, arch.busy_pte(), arch.swap_pte(case.swaps()[0]), case.leaf(0, Attrs::empty(), 1)] {
        assert_eq!(arch.marker_of(other), None, "{other:#x}");
    }
}

pub(super) fn swap_ptes_round_trip<A: Arch>(case: &Case<A>) {
    for swapped in case.swaps() {
        assert_eq!(case.arch.swap_entry(case.arch.swap_pte(swapped)), swapped);
    }
}

pub(super) fn hardware_bits_are_accessed_and_dirty<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.leaf_levels() {
        let pa = case.frames(level).pop().unwrap();
        for attrs in all_attrs() {
            let raw = case.leaf(pa, attrs, level);
            assert_eq!(arch.set_hardware(raw), case.leaf(pa, attrs | Attrs::HARDWARE, level), "{attrs:?}");
            for flipped in subsets(A::HARDWARE).map(|f| raw ^ f) {
                assert_eq!(arch.kind(flipped, level), Kind::Leaf);
                assert_eq!(arch.leaf_addr(flipped, level), PhysAddr(pa));
                let changed = arch.attrs(flipped, level) ^ case.stored(attrs);
                assert_eq!(changed - Attrs::HARDWARE, Attrs::empty(), "{attrs:?} {raw:#x} {flipped:#x}");
            }
            // Conversely, no bit outside `HARDWARE` stores accessed or dirty.
            for seen in [Attrs::empty(), Attrs::ACCESSED, Attrs::DIRTY, Attrs::HARDWARE] {
                let other = case.leaf(pa, (attrs - Attrs::HARDWARE) | seen, level);
                assert_eq!((raw ^ other) & !A::HARDWARE, 0, "{attrs:?} {seen:?}");
            }
        }
    }
}

pub(super) fn runs_compare_without_hardware_bits<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    let same = |a: u64, b: u64| (a ^ b) & !A::HARDWARE == 0;
    for level in case.leaf_levels() {
        let (pa, next) = (0, case.level_size(level));
        for one in all_attrs() {
            let raw = case.leaf(pa, one, level);
            let expected = raw.wrapping_add(arch.step(raw, level));
            for two in all_attrs() {
                let alike = case.stored(one) - Attrs::HARDWARE == case.stored(two) - Attrs::HARDWARE;
                assert_eq!(same(expected, case.leaf(next, two, level)), alike, "{one:?} {two:?} level {level}");
            }
            assert!(!same(expected, case.leaf(2 * next, one, level)), "{one:?}");
        }
    }
    // Swap PTEs are compared in all bits: they have no bits that hardware sets.
    for attrs in SOFTWARE {
        let entry = |device, slot, attrs| arch.swap_pte(SwapEntry { device, slot, attrs });
        let raw = entry(3, 7, attrs);
        let expected = raw.wrapping_add(arch.step(raw, 1));
        for other in SOFTWARE {
            assert_eq!(expected == entry(3, 8, other), attrs == other, "{attrs:?} {other:?}");
        }
        assert_ne!(expected, entry(4, 8, attrs));
        assert_ne!(expected, entry(3, 9, attrs));
    }
}

/// The accessed and dirty bits of a run's PTEs can be combined without decoding: invert the bits of
/// `HARDWARE_INVERTED`, OR the PTEs, and invert these bits again.
pub(super) fn hardware_bits_of_a_run_can_be_ored<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    assert_eq!(A::HARDWARE_INVERTED & !A::HARDWARE, 0);
    for one in all_attrs() {
        for two in subsets(Attrs::HARDWARE.bits() as u64).map(|h| Attrs::from_bits_retain(h as u16)) {
            let two = (one - Attrs::HARDWARE) | two;
            let (a, b) = (case.leaf(0, one, 1), case.leaf(0, two, 1));
            let collected = ((a ^ A::HARDWARE_INVERTED) | (b ^ A::HARDWARE_INVERTED)) ^ A::HARDWARE_INVERTED;
            assert_eq!(arch.attrs(collected, 1), case.stored(one | two));
            assert_eq!(collected, case.leaf(0, one | two, 1));
        }
    }
}

/// `carry` takes accessed and dirty from the old leaf, whatever else differs between the two.
pub(super) fn carry_keeps_accessed_and_dirty<A: Arch>(case: &Case<A>) {
    for old in all_attrs() {
        for new in all_attrs() {
            let got = case.arch.carry(case.leaf(0, new, 1), case.leaf(0, old, 1));
            let expected = (new - Attrs::HARDWARE) | (old & Attrs::HARDWARE);
            assert_eq!(got, case.leaf(0, expected, 1), "{old:?} {new:?}");
        }
    }
}

/// `hardware_idle` returns true for a leaf PTE if and only if the MMU changes it on no user access.
pub(super) fn hardware_idle_means_the_mmu_changes_nothing<A: Arch>(case: &Case<A>) {
    for level in case.leaf_levels() {
        let mut memory = Memory::default();
        let Path { root, pte } = build_tables(case, &mut memory, 0, level);
        for attrs in all_attrs() {
            let raw = case.leaf(0, attrs, level);
            let mut idle = true;
            for access in [Access::Read, Access::Write, Access::Exec] {
                *memory.word(pte) = raw;
                case.mmu.access(&mut memory, root, 0, access, true);
                idle &= *memory.word(pte) == raw;
            }
            assert_eq!(case.arch.hardware_idle(raw), idle, "{attrs:?} {raw:#x}");
        }
    }
}

/// Adding `step` advances through naturally aligned folios up to the largest, also where an address
/// changes many bits at once or bits that a PTE stores apart, and through swap slots.
pub(super) fn step_advances_leaf_and_swap_ptes<A: Arch>(case: &Case<A>) {
    const FOLIO: u64 = 1 << 30;
    let end = 1u64 << case.pa_bits;
    let borders = [0, 1 << 36, 1 << 44, 1 << 47, 1 << 48, 1 << 49, 1 << 50, 1 << 51, end];
    let folios: Vec<u64> = borders.iter().flat_map(|b| [b.wrapping_sub(FOLIO), *b]).filter(|f| *f < end).collect();
    let some_attrs = [Attrs::PROT, Attrs::all(), Attrs::empty(), Attrs::all() - Attrs::PROT];
    for level in case.leaf_levels() {
        let size = case.level_size(level);
        for folio in &folios {
            for attrs in some_attrs {
                let mut raw = case.leaf(*folio, attrs, level);
                let step = case.arch.step(raw, level);
                for n in 0..FOLIO / size {
                    let pa = folio + n * size;
                    assert_eq!(raw, case.leaf(pa, attrs, level), "{pa:#x} {attrs:?} level {level}");
                    assert_eq!(case.arch.step(raw, level), step);
                    raw = raw.wrapping_add(step);
                }
            }
        }
    }
    for level in case.all_levels() {
        for first in [0, 0xffff, (1 << 32) - 512, case.max_slot / 3, case.max_slot - 1023] {
            for attrs in SOFTWARE {
                let mut raw = case.arch.swap_pte(SwapEntry { device: 21, slot: first, attrs });
                let step = case.arch.step(raw, level);
                for slot in first..first + 1024 {
                    assert_eq!(raw, case.arch.swap_pte(SwapEntry { device: 21, slot, attrs }));
                    assert_eq!(case.arch.step(raw, level), step);
                    raw = raw.wrapping_add(step);
                }
            }
        }
    }
}

/// User mode has the lower half. No address above `user_end` is translated by user page tables, not
/// even by its lower bits.
pub(super) fn the_mmu_faults_from_user_end_on<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    let page = 1 << case.page_shift;
    let mut reached = 0;
    for va in [arch.user_end() - page, arch.user_end() - 1, 1 << case.va_bits, 1 << (case.va_bits + 1), 1 << 63] {
        let mut memory = Memory::default();
        let Path { root, pte } = build_tables(case, &mut memory, va % (1 << case.va_bits), 1);
        *memory.word(pte) = arch.leaf(PhysAddr(FRAME_SIZE * 16), Attrs::all(), 1);
        // The kernel's half of a shared root (x86-64, RISC-V) is empty here.
        let got = case.mmu.access(&mut memory, root, va, Access::Read, true);
        assert_eq!(got.is_some(), va < arch.user_end(), "{va:#x}");
        reached += got.is_some() as u32;
    }
    assert_eq!(reached, 2);
}
