//! Lazyfree memory is reclaimed while other CPUs use it: a page that is written again stays, with
//! its contents, and a page that was once read as zeros stays zero.

use shuttle::sync::atomic::{AtomicU32, Ordering::SeqCst};
use shuttle::thread;
use vellum::Machine;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::{Access, Advise, FaultError, MapFlags, RemapFlags, RemapRequest};
use vellum_sim::{Cpu, Fault, Strict};

use crate::fixtures::schedules::{PAGE, Space, at, both, every_swapping, fixed, space};

/// Lazyfree pages, of two folios.
const PAGES: u64 = 4;

/// The environment of a case: a space whose first pages hold 100, 101, … in their first and 200,
/// 201, … in their second words, all of them lazyfree.
#[derive(Clone, Copy)]
struct Context<'s, 'm> {
    machine: &'m Machine<'m, Strict>,
    space: &'s Space<'m>,
    cpu: &'s Cpu<'s, Strict>,
    /// Orders the steps of two CPUs.
    turn: &'s AtomicU32,
}

impl Context<'_, '_> {
    fn load(&self, space: &Space<'_>, va: u64) -> Result<u64, Fault<FaultError>> {
        self.cpu.enter(space).load_u64(va)
    }

    /// Checks that a page holds its first values, or zeros. Returns true for the former.
    fn old(&self, space: &Space<'_>, page: u64, va: u64) -> bool {
        match self.load(space, va) {
            Ok(0) => {
                assert_eq!(self.load(space, va + 8), Ok(0), "page {page} comes back");
                false
            }
            found => {
                assert_eq!(found, Ok(100 + page));
                true
            }
        }
    }

    /// Checks the second word of a page whose first was written.
    fn rest(&self, space: &Space<'_>, page: u64) {
        let found = self.load(space, at(page) + 8);
        assert!(found == Ok(0) || found == Ok(200 + page), "page {page}: {found:?}");
    }

    fn wait_for(&self, turn: u32) {
        while self.turn.load(SeqCst) != turn {
            thread::yield_now();
        }
    }

    fn frees(&self) {
        self.space.advise(at(0), PAGES * PAGE, Advise::Free).unwrap();
    }

    fn reclaims(&self) {
        reclaim(self.machine, &[self.space][..], MemcgId::ROOT, u64::MAX).unwrap();
    }
}

/// Reclaims memory while another CPU does something; then runs `look`, and again after another
/// reclaim of everything.
fn meanwhile(
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    at_once(|on| on.reclaims(), other, look);
}

fn at_once(
    one: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    every_swapping(move |sim, boot, machine, _| {
        let space = space(machine);
        space.map(fixed(0, PAGES, MapFlags::POPULATE)).unwrap();
        let turn = AtomicU32::new(0);
        let here = Context { machine, space: &space, cpu: boot, turn: &turn };
        for page in 0..PAGES {
            boot.enter(&space).store_u64(at(page), 100 + page).unwrap();
            boot.enter(&space).store_u64(at(page) + 8, 200 + page).unwrap();
        }
        here.frees();
        both(sim, |cpu| one(&Context { cpu, ..here }), |cpu| other(&Context { cpu, ..here }));
        look(&here);
        here.reclaims();
        look(&here);
    });
}

fn stores(on: &Context<'_, '_>) {
    let program = on.cpu.enter(on.space);
    (0..PAGES).for_each(|page| program.store_u64(at(page), 300 + page).unwrap());
}

/// Checks the stores: the rest of each page is as it was, or zero.
fn stored(on: &Context<'_, '_>) {
    for page in 0..PAGES {
        assert_eq!(on.load(on.space, at(page)), Ok(300 + page), "page {page}");
        on.rest(on.space, page);
    }
}

/// Two pages of one folio are written.
#[test]
fn stores_race_reclaim_of_lazyfree_memory() {
    meanwhile(stores, stored);
}

/// One page of a folio is written, which keeps the other.
#[test]
fn stores_to_part_of_a_lazyfree_folio_race_reclaim() {
    let store = |on: &Context<'_, '_>| on.cpu.enter(on.space).store_u64(at(1), 301).unwrap();
    meanwhile(store, |on| {
        assert_eq!(on.load(on.space, at(1)), Ok(301));
        on.rest(on.space, 1);
        [0, 2, 3].iter().for_each(|page| _ = on.old(on.space, *page, at(*page)));
    });
}

#[test]
fn counters_survive_reclaim_of_lazyfree_memory() {
    let count = |on: &Context<'_, '_>| {
        let program = on.cpu.enter(on.space);
        for page in 0..PAGES {
            let before = program.add_u64(at(page), 1).unwrap();
            assert!(before == 0 || before == 100 + page, "page {page} held {before}");
            assert_eq!(program.add_u64(at(page), 1), Ok(before + 1), "page {page}");
        }
    };
    meanwhile(count, |on| {
        for page in 0..PAGES {
            let found = on.load(on.space, at(page)).unwrap();
            assert!(found == 2 || found == 102 + page, "page {page} holds {found}");
        }
    });
}

#[test]
fn reads_race_reclaim_of_lazyfree_memory() {
    let read = |on: &Context<'_, '_>| {
        for page in 0..PAGES {
            let first = on.old(on.space, page, at(page));
            assert!(first || !on.old(on.space, page, at(page)), "page {page} comes back");
        }
    };
    meanwhile(read, |on| (0..PAGES).for_each(|page| _ = on.old(on.space, page, at(page))));
}

/// `MADV_FREE` beside stores: a store after it stays, and the order of the two is open.
#[test]
fn lazyfree_races_stores() {
    at_once(
        |on| on.frees(),
        stores,
        |on| {
            for page in 0..PAGES {
                let found = on.load(on.space, at(page));
                assert!(found == Ok(0) || found == Ok(300 + page), "page {page}: {found:?}");
            }
        },
    );
}

/// A program that wrote before `MADV_FREE`, and goes on, keeps what it writes: its TLB does not
/// cache the dirty bit any more.
#[test]
fn lazyfree_keeps_later_writes_of_a_writer() {
    let frees = |on: &Context<'_, '_>| {
        on.wait_for(1);
        on.frees();
        on.turn.store(2, SeqCst);
        on.wait_for(3);
        on.reclaims();
    };
    let writes = |on: &Context<'_, '_>| {
        let program = on.cpu.enter(on.space);
        (0..PAGES).for_each(|page| program.store_u64(at(page), 1).unwrap());
        on.turn.store(1, SeqCst);
        on.wait_for(2);
        (0..PAGES).for_each(|page| program.store_u64(at(page), 300 + page).unwrap());
        on.turn.store(3, SeqCst);
    };
    at_once(frees, writes, stored);
}

/// `MADV_FREE` again while the memory is reclaimed.
#[test]
fn lazyfree_races_reclaim() {
    meanwhile(|on| on.frees(), |on| (0..PAGES).for_each(|page| _ = on.old(on.space, page, at(page))));
}

#[test]
fn two_reclaims_of_lazyfree_memory() {
    meanwhile(|on| on.reclaims(), |on| (0..PAGES).for_each(|page| _ = on.old(on.space, page, at(page))));
}

/// Parent and child each have the old contents, or zeros, and neither sees what the other writes.
#[test]
fn fork_races_reclaim_of_lazyfree_memory() {
    let fork = |on: &Context<'_, '_>| {
        let child = on.space.fork().unwrap();
        on.cpu.enter(&child).store_u64(at(0), 400).unwrap();
        stores(on);
        assert_eq!(on.load(&child, at(0)), Ok(400));
        (0..PAGES).for_each(|page| on.rest(&child, page));
        (1..PAGES).for_each(|page| _ = on.old(&child, page, at(page)));
    };
    meanwhile(fork, stored);
}

/// A write through a pin goes to the page of the space, which keeps it when the pin is gone.
#[test]
fn pins_race_reclaim_of_lazyfree_memory() {
    let pin = |on: &Context<'_, '_>| {
        let pin = on.space.pin(at(1), Access::Write).unwrap();
        pin.write(0, &55u64.to_ne_bytes());
        assert_eq!(on.load(on.space, at(1)), Ok(55));
        pin.write(0, &66u64.to_ne_bytes());
    };
    meanwhile(pin, |on| {
        assert_eq!(on.load(on.space, at(1)), Ok(66));
        on.rest(on.space, 1);
    });
}

#[test]
fn munmap_and_dontneed_race_reclaim_of_lazyfree_memory() {
    let away = |on: &Context<'_, '_>| {
        on.space.advise(at(0), PAGE, Advise::DontNeed).unwrap();
        on.space.unmap(at(1), 2 * PAGE).unwrap();
    };
    meanwhile(away, |on| {
        assert_eq!(on.load(on.space, at(0)), Ok(0));
        _ = on.old(on.space, 3, at(3));
    });
}

#[test]
fn mremap_races_reclaim_of_lazyfree_memory() {
    let moves = |on: &Context<'_, '_>| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let request = RemapRequest { addr: at(1), old_len: 2 * PAGE, new_len: 2 * PAGE, flags, new_addr: at(700) };
        assert_eq!(on.space.remap(request), Ok(at(700)));
        on.cpu.enter(on.space).store_u64(at(700), 9).unwrap();
    };
    meanwhile(moves, |on| {
        assert_eq!(on.load(on.space, at(700)), Ok(9));
        [(0, at(0)), (2, at(701)), (3, at(3))].iter().for_each(|(page, va)| _ = on.old(on.space, *page, *va));
    });
}

/// Locked memory stays resident, lazyfree or not.
#[test]
fn mlock_races_reclaim_of_lazyfree_memory() {
    let lock = |on: &Context<'_, '_>| {
        on.space.lock(at(1), 2 * PAGE, false).unwrap();
        for page in 1..3 {
            let first = on.old(on.space, page, at(page));
            on.reclaims();
            assert_eq!(on.old(on.space, page, at(page)), first, "page {page} is locked");
        }
    };
    meanwhile(lock, |on| {
        let mut resident = [false; 2];
        on.space.mincore(at(1), 2 * PAGE, &mut resident).unwrap();
        assert_eq!(resident, [true; 2], "locked memory is in memory");
    });
}
