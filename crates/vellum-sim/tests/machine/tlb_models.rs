//! The models of real cores: the memory that their entries reach.

use crate::fixtures::tiny::{PAGE, RW, Space, Tiny};
use vellum::addr::{PhysAddr, VirtRange};
use vellum::arch::{Aarch64, Arch, Attrs, Riscv64, X86_64};
use vellum_sim::{Access, Config, Silicon, Simulated, Stats, TlbModel};

const BASE: u64 = 0x20_0000_0000;
const FULL: Attrs = RW.union(Attrs::EXEC).union(Attrs::HARDWARE);

/// The mapping of `blocks` times 16 pages.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mapped {
    /// Each page of a block by its own PTE, out of order.
    Scattered,
    /// By single PTEs, in order, but not aligned as the addresses are.
    Shifted,
    /// By single PTEs, in order.
    InOrder,
    /// As cont blocks.
    Joined,
}

/// Accesses each page of the blocks in turn, twice. Returns the counters of each pass.
fn touch<A: Silicon>(arch: A, model: &TlbModel, mapped: Mapped, blocks: u64, access: Access) -> [Stats; 2] {
    let machine = Config::with_arch(arch, 64 << 20).tlb(model.clone()).fast().unwrap();
    let cpu = machine.cpu(0);
    let tiny = Tiny::new(&machine);
    let range = VirtRange::new(BASE, blocks * 16 * PAGE).unwrap();
    let space = Space::with_arch(&tiny, arch, 1, range);
    for block in 0..blocks {
        let (at, head) = (BASE + block * 16 * PAGE, tiny.folio(4));
        match mapped {
            Mapped::Scattered => (0..16).for_each(|i| space.map(at + i * PAGE, head.add(i as u32 ^ 1), FULL, 1)),
            Mapped::Shifted => {
                let head = tiny.folio(5).add(1);
                (0..16).for_each(|i| space.map(at + i * PAGE, head.add(i as u32), FULL, 1));
            }
            Mapped::InOrder => (0..16).for_each(|i| space.map(at + i * PAGE, head.add(i as u32), FULL, 1)),
            Mapped::Joined => space.write(at, space.joined(head, FULL)),
        }
    }
    let program = cpu.enter(&space);
    [(), ()].map(|()| {
        machine.hardware().reset_stats();
        assert_eq!(program.touch(range, PAGE, access).unwrap().faults, 0);
        machine.stats()
    })
}

fn misses<A: Silicon>(arch: A, model: &TlbModel, mapped: Mapped) -> u64 {
    let [first, _] = touch(arch, model, mapped, 8, Access::Read);
    assert_eq!(first.misses, first.walks);
    first.misses
}

#[test]
fn a_cont_block_is_one_tlb_entry() {
    for model in [&TlbModel::NEOVERSE_N1, &TlbModel::CORTEX_A76, &TlbModel::APPLE_M1] {
        assert_eq!(misses(Aarch64::granule_4k(), model, Mapped::Joined), 8, "{}", model.name);
        assert_eq!(misses(Aarch64::granule_4k(), model, Mapped::Scattered), 128, "{}", model.name);
    }
    assert_eq!(misses(Riscv64::sv39().with_napot(), &TlbModel::KUNMINGHU, Mapped::Joined), 8);
    assert_eq!(misses(Riscv64::sv39().with_napot(), &TlbModel::KUNMINGHU, Mapped::Scattered), 128);
}

/// 32 MiB are one entry if the core has the size, else 16.
#[test]
fn a_huge_cont_block_is_one_tlb_entry() {
    const HUGE: u64 = 2 << 20;
    let arch = Aarch64::granule_4k();
    for (model, entries) in [(&TlbModel::NEOVERSE_N1, 1), (&TlbModel::ZEN_4, 16)] {
        let machine = Config::with_arch(arch, 96 << 20).tlb(model.clone()).fast().unwrap();
        let cpu = machine.cpu(0);
        let tiny = Tiny::new(&machine);
        let range = VirtRange::new(BASE, 16 * HUGE).unwrap();
        let space = Space::with_arch(&tiny, arch, 1, range);
        let head = tiny.folio(13);
        for i in 0..16 {
            let (table, index) = space.slot(BASE + i * HUGE, 2);
            let leaf = arch.leaf(PhysAddr(head.addr().0 + i * HUGE), FULL, 2);
            tiny.store(table, index, arch.with_cont(leaf));
        }
        let program = cpu.enter(&space);
        assert_eq!(program.touch(range, HUGE, Access::Read).unwrap().faults, 0);
        assert_eq!(machine.stats().misses, entries, "{}", model.name);
    }
}

#[test]
fn some_cores_coalesce_contiguous_pages() {
    let pages = |model| misses(X86_64::four_levels(), model, Mapped::InOrder);
    assert_eq!([&TlbModel::ZEN_4, &TlbModel::SKYLAKE, &TlbModel::SAPPHIRE_RAPIDS].map(pages), [32, 128, 128]);
    for mapped in [Mapped::Scattered, Mapped::Shifted] {
        assert_eq!(misses(X86_64::four_levels(), &TlbModel::ZEN_4, mapped), 128);
    }
    assert_eq!(misses(Aarch64::granule_4k(), &TlbModel::NEOVERSE_N1, Mapped::InOrder), 32);
    assert_eq!(misses(Riscv64::sv39(), &TlbModel::KUNMINGHU, Mapped::InOrder), 16);
}

/// Only the second level coalesces: the first holds pages, and is refilled without a walk.
#[test]
fn small_first_levels_are_refilled_from_the_second() {
    let [first, second] = touch(Aarch64::granule_4k(), &TlbModel::CORTEX_A76, Mapped::InOrder, 8, Access::Read);
    assert_eq!((first.misses, first.later_hits), (32, 96));
    assert_eq!((second.misses, second.later_hits), (0, 128), "128 pages are more than 48");
}

#[test]
fn instruction_and_data_tlbs_are_separate() {
    for model in TlbModel::CORES {
        let [first, second] = touch(X86_64::four_levels(), model, Mapped::Scattered, 2, Access::Execute);
        assert_eq!((first.fetch_misses, first.misses), (32, 32), "{}", model.name);
        assert_eq!((second.misses, second.later_hits), (0, 0), "{}", model.name);
        // A translation cached by an instruction fetch is not cached for data.
        let machine = Config::new(8 << 20).tlb(model.clone()).fast().unwrap();
        let cpu = machine.cpu(0);
        let tiny = Tiny::new(&machine);
        let space = Space::new(&tiny, 1, VirtRange::new(BASE, PAGE).unwrap());
        space.map(BASE, tiny.frame(), FULL, 1);
        let program = cpu.enter(&space);
        assert!(program.execute(BASE).is_ok() && program.load(BASE).is_ok() && program.load(BASE).is_ok());
        assert_eq!(
            (machine.stats().hits, machine.stats().later_hits + machine.stats().misses),
            (1, 2),
            "{}",
            model.name
        );
    }
}

/// The first tier holds as many blocks as it has entries; one more evicts them (least recently used
/// first).
#[test]
fn the_first_level_evicts_least_recently_used_entries() {
    let refills =
        |blocks| touch(Aarch64::granule_4k(), &TlbModel::NEOVERSE_N1, Mapped::Joined, blocks, Access::Read)[1];
    assert_eq!((refills(48).later_hits, refills(48).misses), (0, 0));
    assert_eq!((refills(49).later_hits, refills(49).misses), (49, 0));
}

#[test]
fn every_model_names_its_source() {
    for model in TlbModel::CORES {
        assert!(model.source.len() > 40 && TlbModel::core(&model.name) == Some(model), "{}", model.name);
        assert!(model.banks.iter().all(|bank| bank.sets.is_power_of_two() && bank.ways > 0 && !bank.serves.is_empty()));
        // Each access has a bank in each tier that holds small pages.
        for access in [Access::Read, Access::Write, Access::Execute] {
            for tier in [1, 2] {
                let mut serving = model.banks.iter().filter(|bank| bank.tier == tier && bank.serves.contains(&access));
                let holds = |shift| move |bank: &vellum_sim::Bank| bank.shifts.contains(&shift);
                assert!(serving.clone().any(holds(12)) || serving.any(holds(14)), "{} {access:?} {tier}", model.name);
            }
        }
    }
}
