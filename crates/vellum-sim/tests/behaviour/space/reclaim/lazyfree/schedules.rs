//! Memory that was freed lazily is reclaimed while others use it: what is written again stays, with its contents, and whoever has
//! found nothing where something was finds nothing from then on.

use shuttle::sync::atomic::{AtomicU32, Ordering::SeqCst};
use shuttle::thread;
use vellum::Machine;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::{Access, Advise, FaultError, MapFlags, RemapFlags, RemapRequest};
use vellum_sim::{Cpu, Fault, Strict};

use crate::fixtures::schedules::{PAGE, Space, at, both, every_swapping, fixed, space};

/// Pages that were freed lazily, of two folios.
const PAGES: u64 = 4;

/// What a case has: a space whose first pages hold 100, 101, … and then 200, 201, … in their next words, all of it freed lazily.
#[derive(Clone, Copy)]
struct Scene<'s, 'm> {
    machine: &'m Machine<'m, Strict>,
    space: &'s Space<'m>,
    cpu: &'s Cpu<'s, Strict>,
    /// For those who take turns.
    turn: &'s AtomicU32,
}

impl Scene<'_, '_> {
    fn load(&self, space: &Space<'_>, va: u64) -> Result<u64, Fault<FaultError>> {
        self.cpu.enter(space).load_u64(va)
    }

    /// A page holds what it held, or nothing: which of them is the answer, and it is both words'.
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

    /// The second word of a page whose first was written.
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
        reclaim::<_, vellum::arch::X86_64>(self.machine, &[self.space][..], MemcgId::ROOT, u64::MAX).unwrap();
    }
}

/// Memory is reclaimed while another CPU does something; then somebody looks, and again when all was reclaimed once more that can be.
fn meanwhile(
    other: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
) {
    at_once(|on| on.reclaims(), other, look);
}

fn at_once(
    one: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
) {
    every_swapping(move |sim, boot, machine, _| {
        let space = space(machine);
        space.map(fixed(0, PAGES, MapFlags::POPULATE)).unwrap();
        let turn = AtomicU32::new(0);
        let here = Scene { machine, space: &space, cpu: boot, turn: &turn };
        for page in 0..PAGES {
            boot.enter(&space).store_u64(at(page), 100 + page).unwrap();
            boot.enter(&space).store_u64(at(page) + 8, 200 + page).unwrap();
        }
        here.frees();
        both(sim, |cpu| one(&Scene { cpu, ..here }), |cpu| other(&Scene { cpu, ..here }));
        look(&here);
        here.reclaims();
        look(&here);
    });
}

fn stores(on: &Scene<'_, '_>) {
    let program = on.cpu.enter(on.space);
    (0..PAGES).for_each(|page| program.store_u64(at(page), 300 + page).unwrap());
}

/// What was stored is there, and the rest of the page is what it was, or nothing.
fn stored(on: &Scene<'_, '_>) {
    for page in 0..PAGES {
        assert_eq!(on.load(on.space, at(page)), Ok(300 + page), "page {page}");
        on.rest(on.space, page);
    }
}

/// Two pages of one folio are written.
#[test]
fn stores_to_what_was_freed() {
    meanwhile(stores, stored);
}

/// Of a folio one page, which keeps the other.
#[test]
fn stores_to_a_part_of_what_was_freed() {
    let store = |on: &Scene<'_, '_>| on.cpu.enter(on.space).store_u64(at(1), 301).unwrap();
    meanwhile(store, |on| {
        assert_eq!(on.load(on.space, at(1)), Ok(301));
        on.rest(on.space, 1);
        [0, 2, 3].iter().for_each(|page| _ = on.old(on.space, *page, at(*page)));
    });
}

#[test]
fn counting_in_what_was_freed() {
    let count = |on: &Scene<'_, '_>| {
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
fn reading_what_was_freed() {
    let read = |on: &Scene<'_, '_>| {
        for page in 0..PAGES {
            let first = on.old(on.space, page, at(page));
            assert!(first || !on.old(on.space, page, at(page)), "page {page} comes back");
        }
    };
    meanwhile(read, |on| (0..PAGES).for_each(|page| _ = on.old(on.space, page, at(page))));
}

/// Somebody frees while another writes: what was written after that stays, but who comes first nobody knows.
#[test]
fn freeing_what_is_written() {
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

/// Who wrote before it was freed, and goes on, has what he writes: no TLB says any more that it was written already.
#[test]
fn freeing_beside_who_goes_on_writing() {
    let frees = |on: &Scene<'_, '_>| {
        on.wait_for(1);
        on.frees();
        on.turn.store(2, SeqCst);
        on.wait_for(3);
        on.reclaims();
    };
    let writes = |on: &Scene<'_, '_>| {
        let program = on.cpu.enter(on.space);
        (0..PAGES).for_each(|page| program.store_u64(at(page), 1).unwrap());
        on.turn.store(1, SeqCst);
        on.wait_for(2);
        (0..PAGES).for_each(|page| program.store_u64(at(page), 300 + page).unwrap());
        on.turn.store(3, SeqCst);
    };
    at_once(frees, writes, stored);
}

/// It is freed once more while it goes.
#[test]
fn freeing_what_goes() {
    meanwhile(|on| on.frees(), |on| (0..PAGES).for_each(|page| _ = on.old(on.space, page, at(page))));
}

#[test]
fn two_reclaim_what_was_freed() {
    meanwhile(|on| on.reclaims(), |on| (0..PAGES).for_each(|page| _ = on.old(on.space, page, at(page))));
}

/// Parent and child each have what was there, or nothing, and neither sees what the other writes.
#[test]
fn a_child_of_what_was_freed() {
    let fork = |on: &Scene<'_, '_>| {
        let child = on.space.fork().unwrap();
        on.cpu.enter(&child).store_u64(at(0), 400).unwrap();
        stores(on);
        assert_eq!(on.load(&child, at(0)), Ok(400));
        (0..PAGES).for_each(|page| on.rest(&child, page));
        (1..PAGES).for_each(|page| _ = on.old(&child, page, at(page)));
    };
    meanwhile(fork, stored);
}

/// Who has pinned a page and writes to it writes to what the space has, and has it still when the pin is gone.
#[test]
fn pinning_what_was_freed() {
    let pin = |on: &Scene<'_, '_>| {
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
fn unmapping_and_forgetting_what_was_freed() {
    let away = |on: &Scene<'_, '_>| {
        on.space.advise(at(0), PAGE, Advise::DontNeed).unwrap();
        on.space.unmap(at(1), 2 * PAGE).unwrap();
    };
    meanwhile(away, |on| {
        assert_eq!(on.load(on.space, at(0)), Ok(0));
        _ = on.old(on.space, 3, at(3));
    });
}

#[test]
fn moving_what_was_freed() {
    let moves = |on: &Scene<'_, '_>| {
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

/// Locked memory stays, whatever it was before.
#[test]
fn locking_what_was_freed() {
    let lock = |on: &Scene<'_, '_>| {
        on.space.lock(at(1), 2 * PAGE, false).unwrap();
        for page in 1..3 {
            let first = on.old(on.space, page, at(page));
            on.reclaims();
            assert_eq!(on.old(on.space, page, at(page)), first, "page {page} is locked");
        }
    };
    meanwhile(lock, |on| {
        let mut resident = [false; 2];
        on.space.resident(at(1), 2 * PAGE, &mut resident).unwrap();
        assert_eq!(resident, [true; 2], "locked memory is in memory");
    });
}
