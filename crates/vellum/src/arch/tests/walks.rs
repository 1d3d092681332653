//! What is encoded is what a memory management unit finds.

use std::vec;

use super::*;

/// Tables of every level down to one for entries of `level`, on the way to `va`; the place of that entry.
pub(super) fn build<A: Arch>(case: &Case<A>, memory: &mut Memory, va: u64, level: u8) -> (u64, u64) {
    let entries = 1 << (case.page_shift - 3);
    let mut place = None;
    let mut root = 0;
    for l in (level..=case.arch.levels()).rev() {
        // Far apart, with most bits of an address in use.
        let scatter = 0x0009_e377_9b97_f4a7u64.wrapping_mul(2 * l as u64 + 1);
        let table = align_down(scatter & ((1 << case.pa_bits) - 1), case.page_shift);
        assert!(memory.tables.iter().all(|(at, _)| at.abs_diff(table) >= 1 << case.page_shift));
        memory.tables.push((table, vec![0; entries]));
        match place {
            None => root = table,
            Some(place) => *memory.word(place) = case.arch.table(PhysAddr(table)),
        }
        place = Some(table + case.arch.index(va, l) as u64 * 8);
    }
    (root, place.unwrap())
}

pub(super) fn mmu_agrees<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    for level in case.leaf_levels() {
        let frames = case.frames(level);
        for (n, va) in case.addresses().into_iter().enumerate() {
            let mut memory = Memory::default();
            let (root, place) = build(case, &mut memory, va, level);
            let pa = frames[n % frames.len()];
            for attrs in all_attrs() {
                for access in [Access::Read, Access::Write, Access::Exec] {
                    for updates in [true, false] {
                        *memory.word(place) = arch.leaf(PhysAddr(pa), attrs, level);
                        let got = case.mmu.access(&mut memory, root, va, access, updates);
                        let (needs, leaves) = match access {
                            Access::Read => (Attrs::READ, Attrs::ACCESSED),
                            Access::Exec => (Attrs::EXEC, Attrs::ACCESSED),
                            Access::Write => (Attrs::WRITE, Attrs::HARDWARE),
                        };
                        let updates = updates || matches!(case.mmu, Mmu::X86(..));
                        let stored = case.stored(attrs);
                        let allowed = stored.contains(needs) && (updates || stored.contains(leaves));
                        let what = (level, va, attrs, access, updates);
                        let offset = va % case.level_size(level);
                        assert_eq!(got, allowed.then_some(pa + offset), "{what:x?}");
                        // What the CPU leaves behind is what the engine would have written.
                        let after = if allowed { stored | leaves } else { stored };
                        assert_eq!(arch.attrs(*memory.word(place), level), after, "{what:x?}");
                        assert_eq!(*memory.word(place), case.leaf(pa, after, level), "{what:x?}");
                    }
                }
            }
        }
    }
}

pub(super) fn mmu_faults_on_all_else<A: Arch>(case: &Case<A>) {
    let arch = case.arch;
    let mut others = vec![0, arch.busy()];
    others.extend(MARKERS.map(|m| arch.marker(m)));
    others.extend(case.swaps().into_iter().map(|s| arch.swap(s)));
    for level in case.all_levels() {
        let va = case.addresses().pop().unwrap();
        let mut memory = Memory::default();
        let (root, place) = build(case, &mut memory, va, level);
        for other in &others {
            *memory.word(place) = *other;
            for access in [Access::Read, Access::Write, Access::Exec] {
                assert_eq!(case.mmu.access(&mut memory, root, va, access, true), None, "{other:#x} level {level}");
                assert_eq!(*memory.word(place), *other);
            }
        }
    }
}
