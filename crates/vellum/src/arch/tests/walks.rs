//! Tests that an MMU translates exactly what a format encodes.

use std::vec;

use super::*;

/// The page tables on the way to one PTE.
pub(super) struct Path {
    /// The physical address of the root page table.
    pub(super) root: u64,
    /// The physical address of the PTE.
    pub(super) pte: u64,
}

/// Builds page tables of every level down to `level` on the way to `va`. The PTE at `level` is
/// empty.
pub(super) fn build_tables<A: Arch>(case: &Case<A>, memory: &mut Memory, va: u64, level: u8) -> Path {
    let entries = 1 << (case.page_shift - 3);
    let mut pte = None;
    let mut root = 0;
    for l in (level..=case.arch.levels()).rev() {
        // The page tables are far apart, so that most bits of an address are tested.
        let scatter = 0x0009_e377_9b97_f4a7u64.wrapping_mul(2 * l as u64 + 1);
        let table = align_down(scatter & ((1 << case.pa_bits) - 1), case.page_shift);
        assert!(memory.tables.iter().all(|(at, _)| at.abs_diff(table) >= 1 << case.page_shift));
        memory.tables.push((table, vec![0; entries]));
        match pte {
            None => root = table,
            Some(pte) => *memory.word(pte) = case.arch.table_pte(PhysAddr(table)),
        }
        pte = Some(table + case.arch.index(va, l) as u64 * 8);
    }
    Path { root, pte: pte.unwrap() }
}

pub(super) fn the_mmu_decodes_what_the_format_encodes<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.leaf_levels() {
        let frames = case.frames(level);
        for (n, va) in case.addresses().into_iter().enumerate() {
            let mut memory = Memory::default();
            let Path { root, pte } = build_tables(case, &mut memory, va, level);
            let pa = frames[n % frames.len()];
            for attrs in all_attrs() {
                for access in [Access::Read, Access::Write, Access::Exec] {
                    for updates in [true, false] {
                        *memory.word(pte) = arch.leaf(PhysAddr(pa), attrs, level);
                        let got = case.mmu.access(&mut memory, root, va, access, updates);
                        let (needs, leaves) = match access {
                            Access::Read => (Attrs::READ, Attrs::ACCESSED),
                            Access::Exec => (Attrs::EXEC, Attrs::ACCESSED),
                            Access::Write => (Attrs::WRITE, Attrs::HARDWARE),
                        };
                        let updates = updates || matches!(case.mmu, Mmu::X86 { .. });
                        let stored = case.stored(attrs);
                        let allowed = stored.contains(needs) && (updates || stored.contains(leaves));
                        let what = (level, va, attrs, access, updates);
                        let offset = va % case.level_size(level);
                        assert_eq!(got, allowed.then_some(pa + offset), "{what:x?}");
                        // The PTE that the CPU leaves equals the one that the engine would have
                        // encoded.
                        let after = if allowed { stored | leaves } else { stored };
                        assert_eq!(arch.attrs(*memory.word(pte), level), after, "{what:x?}");
                        assert_eq!(*memory.word(pte), case.leaf(pa, after, level), "{what:x?}");
                    }
                }
            }
        }
    }
}

pub(super) fn the_mmu_faults_on_ptes_that_are_not_leaves<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    let mut others = vec![0, arch.busy_pte()];
    others.extend(MARKERS.map(|m| arch.marker_pte(m)));
    others.extend(case.swaps().into_iter().map(|s| arch.swap_pte(s)));
    for level in case.all_levels() {
        let va = case.addresses().pop().unwrap();
        let mut memory = Memory::default();
        let Path { root, pte } = build_tables(case, &mut memory, va, level);
        for other in &others {
            *memory.word(pte) = *other;
            for access in [Access::Read, Access::Write, Access::Exec] {
                assert_eq!(case.mmu.access(&mut memory, root, va, access, true), None, "{other:#x} level {level}");
                assert_eq!(*memory.word(pte), *other);
            }
        }
    }
}
