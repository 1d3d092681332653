//! Fork of lazyfree memory while another CPU writes to it: a store that the child has seen is never
//! dropped.

use std::sync::Mutex;

use shuttle::Runner;
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use vellum::arch::{Aarch64, Riscv64, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::{Advise, Limits};
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Hostility, Schedule, Silicon, Strictness};

use crate::fixtures::bench::{BASE, map};

/// Schedules of each kind.
const SCHEDULES: usize = 1000;

/// A folio of this order is lazyfree, and forked while another CPU stores to each of these pages of
/// it. A child that has seen the stores still sees them after reclaim; so does a grandchild.
fn stores_survive_reclaim<A: Silicon>(arch: A, order: u8, bytes: u64, pages: &'static [u64]) {
    let case = move || {
        let strictness = Strictness::new(1).schedule(Schedule::Shuttle).hostility(Hostility::NONE);
        let sim = Config::with_arch(arch, bytes).cpus(2).strict(strictness).unwrap();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(order, Knob::Always);
        let at = |page: u64| BASE + (page << arch.page_shift());
        let space = AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).unwrap();
        map(&space, BASE, 4096 << order);
        for page in pages {
            boot.enter(&space).store_u64(at(*page), 100).unwrap();
        }
        space.advise(BASE, 4096 << order, Advise::Free).unwrap();
        // A clean translation is cached.
        boot.enter(&space).load_u64(BASE).unwrap();
        let child = Mutex::new(None);
        drop(boot);
        shuttle::thread::scope(|s| {
            s.spawn(|| {
                let cpu = sim.cpu(1);
                let program = cpu.enter(&space);
                pages.iter().for_each(|page| program.store_u64(at(*page), 300).unwrap());
            });
            let _cpu = sim.cpu(0);
            *child.lock().unwrap() = Some(space.fork().unwrap());
        });
        let boot = sim.cpu(0);
        let child = child.into_inner().unwrap().unwrap();
        let grandchild = child.fork().unwrap();
        let words = |space: &AddressSpace<'_, _>| {
            pages.iter().map(|page| boot.enter(space).load_u64(at(*page)).unwrap()).collect::<Vec<_>>()
        };
        let spaces = [&child, &grandchild, &space];
        let before = spaces.map(words);
        reclaim(&machine, &spaces[..], MemcgId::ROOT, u64::MAX).unwrap();
        for (space, before) in spaces.into_iter().zip(before) {
            for (found, before) in words(space).into_iter().zip(before) {
                assert!(found == before || found == 0 && before == 100, "{before} was loaded, and then {found}");
            }
        }
        drop((grandchild, child, space));
        drop(boot);
    };
    Runner::new(RandomScheduler::new_from_seed(1, SCHEDULES), Default::default()).run(case);
    Runner::new(PctScheduler::new_from_seed(1, 3, SCHEDULES), Default::default()).run(case);
}

#[test]
fn a_store_beside_fork_keeps_a_lazily_freed_page() {
    stores_survive_reclaim(X86_64::four_levels(), 0, 4 << 20, &[0]);
    stores_survive_reclaim(Aarch64::granule_4k(), 0, 4 << 20, &[0]);
    stores_survive_reclaim(Aarch64::granule_16k(), 2, 8 << 20, &[0]);
    stores_survive_reclaim(Riscv64::sv39(), 0, 4 << 20, &[0]);
}

#[test]
fn a_store_beside_fork_keeps_a_lazily_freed_folio() {
    stores_survive_reclaim(X86_64::four_levels(), 2, 4 << 20, &[2, 1]);
}

#[test]
fn a_store_beside_fork_keeps_a_lazily_freed_cont_block() {
    stores_survive_reclaim(Aarch64::granule_4k(), 4, 4 << 20, &[5]);
    stores_survive_reclaim(Aarch64::granule_4k().with_bbm2(), 4, 4 << 20, &[5]);
    stores_survive_reclaim(Riscv64::sv39().with_napot(), 4, 4 << 20, &[5]);
}

#[test]
fn a_store_beside_fork_keeps_a_lazily_freed_huge_page() {
    stores_survive_reclaim(X86_64::four_levels(), 9, 12 << 20, &[77]);
    stores_survive_reclaim(Aarch64::granule_4k(), 9, 12 << 20, &[77]);
}
