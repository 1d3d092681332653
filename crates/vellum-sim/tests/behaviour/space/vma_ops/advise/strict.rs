//! Ranges of all addresses that a program may name, of which next to nothing is mapped or touched: the work follows what is there,
//! and not how many addresses lie around it.

use vellum::addr::VirtRange;
use vellum::arch::X86_64;
use vellum::frame::policy::Knob;
use vellum::space::{Advise, AdviseError, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum_sim::{Hostility, Silicon};

use crate::fixtures::bench::{ADVICE, BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map, resident};

in_every_format! {
    advice_passes_holes_in_one_step => holes,
    advice_passes_what_holds_no_table_in_one_step => untouched,
}

/// The steps of advice about a range, whatever it answers; a thousand, if there are more.
fn steps<A: Silicon>(space: &Space<'_, A>, range: VirtRange, advice: Advise) -> usize {
    let Ok(mut rest) = space.begin_advice(range.start, range.end - range.start, advice) else { return 0 };
    let mut steps = 1;
    while steps < 1000 && matches!(space.advise_some(&mut rest, || false), Ok(false)) {
        steps += 1;
    }
    steps
}

/// The addresses of a program but for the first table's, in whole tables.
fn user<A: Silicon>(arch: &A) -> VirtRange {
    let table = 1 << arch.level_shift(2);
    VirtRange { start: table, end: arch.user_end() & !(table - 1) }
}

/// Two pages far from each other, and nothing else.
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

/// One VMA of half of all addresses, of which two pages were touched. Advice that makes each page something has that to do.
fn untouched<A: Silicon>(arch: A) {
    crate::fixtures::bench::on(arch, USUAL, |on: &Bench<'_, A>| {
        let makes = [Advise::PopulateRead, Advise::PopulateWrite, Advise::GuardInstall];
        for advice in ADVICE.iter().filter(|advice| !makes.contains(advice)) {
            let space = on.space();
            let user = user(&on.arch);
            let half = VirtRange { start: BASE, end: BASE + (user.end - BASE) / 2 };
            let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::FIXED | MapFlags::NORESERVE);
            space.map(MapRequest { addr: half.start, len: half.end - half.start, prot, flags }).unwrap();
            for addr in [BASE, BASE + (1 << 35)] {
                on.store(&space, addr, 1);
            }
            // What there is: two tables, of which a collapse takes each block by itself.
            let blocks = 2 * (1 << on.arch.level_shift(2)) / HUGE as usize;
            let steps = steps(&space, half, *advice);
            assert!(steps <= blocks + 20, "{advice:?} takes {steps} steps");
        }
    });
}

/// Where nothing is mapped behind huge mappings, a VMA ends all the same, and who gives memory up hears of the hole.
#[test]
fn holes_behind_huge_mappings_are_told() {
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
