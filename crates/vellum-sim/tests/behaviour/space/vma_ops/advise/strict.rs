//! Advice on large sparse ranges: the work depends on the mapped and touched memory, not on the
//! number of addresses.

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::frame::policy::Knob;
use vellum::space::{Advise, AdviseError, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum_sim::{Hostility, Silicon};

use crate::fixtures::bench::{ADVICE, BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map, resident};

in_every_format! {
    advice_skips_holes_in_one_step => holes,
    advice_skips_ranges_without_page_tables_in_one_step => untouched,
}

/// Returns the number of steps of an advice; at most a thousand.
fn steps<A: Silicon>(space: &Space<'_, A>, range: VirtRange, advice: Advise) -> usize {
    let Ok(mut rest) = space.begin_advice(range.start, range.end - range.start, advice) else { return 0 };
    let mut steps = 1;
    while steps < 1000 && matches!(space.advise_some(&mut rest, || false), Ok(false)) {
        steps += 1;
    }
    steps
}

/// Returns the user half without its first page table's range, in whole page tables.
fn user<A: Silicon>(arch: &A) -> VirtRange {
    let table = 1 << arch.level_shift(2);
    VirtRange { start: table, end: arch.user_end() & !(table - 1) }
}

/// Two pages far from each other.
fn holes<A: Silicon>(arch: A) {
    crate::fixtures::bench::on(arch, USUAL, |on: &Bench<'_, A>| {
        for advice in ADVICE {
            let space = on.space();
            for addr in [BASE, BASE + (1 << 35)] {
                map(&space, addr, on.page);
                on.store(&space, addr, 1);
            }
            let steps = steps(&space, user(&on.arch), advice);
            assert!(steps <= 10, "{advice:?} takes {steps} steps");
        }
    });
}

/// One VMA of half of the user half, with two touched pages. Advice that works on each page is left
/// out.
fn untouched<A: Silicon>(arch: A) {
    crate::fixtures::bench::on(arch, USUAL, |on: &Bench<'_, A>| {
        let makes = [Advise::PopulateRead, Advise::PopulateWrite, Advise::GuardInstall, Advise::Poison];
        for advice in ADVICE.iter().filter(|advice| !makes.contains(advice)) {
            let space = on.space();
            let user = user(&on.arch);
            let half = VirtRange { start: BASE, end: BASE + (user.end - BASE) / 2 };
            let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::FIXED | MapFlags::NORESERVE);
            space.map(MapRequest { addr: half.start, len: half.end - half.start, prot, flags }).unwrap();
            for addr in [BASE, BASE + (1 << 35)] {
                on.store(&space, addr, 1);
            }
            // Two page tables, of which a collapse takes each block by itself.
            let blocks = 2 * (1 << on.arch.level_shift(2)) / HUGE as usize;
            let steps = steps(&space, half, *advice);
            assert!(steps <= blocks + 20, "{advice:?} takes {steps} steps");
        }
    });
}

/// `MADV_DONTNEED` reports a hole behind a huge PTE.
#[test]
fn holes_behind_huge_mappings_are_reported() {
    let setup = Setup { cpus: 2, hostility: Hostility::NONE, ..USUAL };
    crate::fixtures::bench::on(X86_64::four_levels(), setup, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.space_of(vellum::memcg::MemcgId::ROOT);
        map(&space, BASE, 2 * HUGE);
        on.store(&space, BASE, 1);
        space.unmap(BASE + HUGE + HUGE / 2, 4096).unwrap();
        assert_eq!(space.advise(BASE, 2 * HUGE, Advise::DontNeed), Err(AdviseError::NotMapped));
        assert_eq!(resident(&space, BASE, HUGE), 0);
    });
}
