//! Truncation, holes, forks and shared memory of page-cache objects, with several CPUs in several
//! spaces, on threads of the host or under a deterministic scheduler (INV-12).

use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};

use vellum::addr::VirtRange;
use vellum::arch::{Kind, X86_64};
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{Advise, FaultError, Limits, MapFlags, MapRequest, Spaces, unmap_removed};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Fault, Refusal, Schedule, Strict, Strictness};

use crate::fixtures::jobs::side_by_side;
use crate::fixtures::random::dice::{Dice, derive};

type Space<'m> = AddressSpace<'m, Strict>;

const PAGE: u64 = 4096;
const RW: Prot = Prot::READ.union(Prot::WRITE);
/// The address at which both spaces map the object shared, across a boundary of page tables.
const SHARED: u64 = 0x5000_0000_0000 - 2 * PAGE;
/// The address of each actor's private VMAs.
const PRIVATE: u64 = 0x5100_0000_0000;

/// The size of a case.
#[derive(Clone, Copy, Debug)]
struct Load {
    pages: u64,
    rounds: u64,
}

fn map(space: &Space<'_>, addr: u64, pages: u64, flags: MapFlags) -> MapRequest {
    let _ = space;
    MapRequest { addr, len: pages * PAGE, prot: RW, flags: MapFlags::FIXED | flags }
}

/// Maps an object shared in two spaces on a strict machine of three CPUs; when `body` is done, all
/// of it must be freed.
fn with_two_spaces(
    seed: u64,
    schedule: Schedule,
    pages: u64,
    body: impl FnOnce(&Strict, &Object<'_, Strict>, [&Space<'_>; 2]),
) {
    let sim = Config::new(8 << 20).cpus(3).strict(Strictness::new(seed).schedule(schedule)).expect("memory");
    let seat = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).expect("enough memory to boot");
    sim.baseline();
    let arch = X86_64::four_levels();
    let spaces = [(); 2].map(|()| AddressSpace::new(&machine, arch, MemcgId::ROOT, Limits::default()).expect("memory"));
    let object = Object::new(&machine, &arch, MemcgId::ROOT, 7, pages * PAGE).expect("memory");
    for space in &spaces {
        let request = map(space, SHARED, pages, MapFlags::SHARED);
        assert_eq!(space.map_object(request, &object, 0), Ok(SHARED));
    }
    drop(seat);
    body(&sim, &object, [&spaces[0], &spaces[1]]);
    let _seat = sim.cpu(0);
    sim.refuse(Refusal::Never);
    drop(object);
    drop(spaces);
    sim.finish();
}

/// All CPUs add to counters in shared pages, through either space. No addition is lost, whatever is
/// unmapped, dropped and copied around them; private copies are not shared.
fn share(seed: u64, schedule: Schedule, load: Load) {
    with_two_spaces(seed, schedule, load.pages, |sim, object, spaces| {
        let begun: Vec<AtomicU64> = (0..load.pages).map(|_| AtomicU64::new(0)).collect();
        let made: Vec<AtomicU64> = (0..load.pages).map(|_| AtomicU64::new(0)).collect();
        let actor = |nth: usize| {
            let (begun, made) = (&begun, &made);
            move || {
                let dice = &mut Dice::new(derive(seed, nth as u64));
                let cpu = sim.cpu(nth);
                let space = spaces[nth % 2];
                let program = cpu.enter(space);
                let own = PRIVATE + nth as u64 * (PAGE << 9);
                let mapped = space.map_object(map(space, own, load.pages, MapFlags::empty()), object, 0);
                assert_eq!(mapped, Ok(own));
                let mut copies = vec![None; load.pages as usize];
                for _ in 0..load.rounds {
                    let page = dice.below(load.pages);
                    let (there, here) = (SHARED + page * PAGE, own + page * PAGE);
                    let at = page as usize;
                    match dice.below(11) {
                        0..=3 => {
                            begun[at].fetch_add(1, SeqCst);
                            program.add_u64(there, 1).expect("shared memory may be written");
                            made[at].fetch_add(1, SeqCst);
                        }
                        4 => space.advise(SHARED, load.pages * PAGE, Advise::DontNeed).expect("all is mapped"),
                        5 => space.unmap(SHARED + (load.pages - 1) * PAGE, PAGE).map_or((), |()| {
                            let again = map(space, SHARED + (load.pages - 1) * PAGE, 1, MapFlags::SHARED);
                            space.map_object(again, object, (load.pages - 1) * PAGE).expect("memory for a node");
                        }),
                        6 => {
                            program.store_u64(here, dice.any() | 1 << 63).expect("one's own");
                            copies[at] = Some(program.load_u64(here).expect("one's own"));
                        }
                        // A child shares shared memory, and inherits the private copies.
                        10 => {
                            let child = space.fork().expect("memory");
                            {
                                let least = made[at].load(SeqCst);
                                let inside = cpu.enter(&child);
                                let seen = inside.load_u64(there).expect("shared memory may be read");
                                assert!((least..=begun[at].load(SeqCst)).contains(&seen));
                                if let Some(copy) = copies[at] {
                                    assert_eq!(inside.load_u64(here), Ok(copy));
                                    inside.store_u64(here, 1).expect("a copy of the child's own");
                                    assert_eq!(program.load_u64(here), Ok(copy));
                                }
                            }
                            drop(child);
                        }
                        7 => {
                            space.advise(here, PAGE, Advise::DontNeed).expect("one's own");
                            copies[at] = None;
                        }
                        _ => {
                            let least = made[at].load(SeqCst);
                            let seen = program.load_u64(here).expect("one's own");
                            let most = begun[at].load(SeqCst);
                            match copies[at] {
                                Some(copy) => assert_eq!(seen, copy),
                                None => assert!((least..=most).contains(&seen), "{seen}, not {least} to {most}"),
                            }
                        }
                    }
                }
            }
        };
        // Two actors in one space would unmap the last page under each other.
        let jobs: Vec<Box<dyn FnOnce() + Send + '_>> = (0..2).map(|nth| Box::new(actor(nth)) as Box<_>).collect();
        side_by_side(schedule, jobs);
        let _seat = sim.cpu(0);
        for (page, made) in made.iter().enumerate() {
            let mut word = [0; 8];
            object.page(page as u64).expect("memory").map(|page| page.read(0, &mut word));
            assert_eq!(u64::from_ne_bytes(word), made.load(SeqCst), "page {page}");
        }
    });
}

/// Programs touch an object in two spaces, shared and private, while it shrinks and grows. When the
/// spaces have been notified that it has shrunk, nothing beyond its end is mapped, and an access
/// there fails until it grows; then it reads zeros.
fn truncate(seed: u64, schedule: Schedule, load: Load) {
    with_two_spaces(seed, schedule, load.pages, |sim, object, spaces| {
        {
            let _seat = sim.cpu(0);
            for space in spaces {
                let request = map(space, PRIVATE, load.pages, MapFlags::empty());
                assert_eq!(space.map_object(request, object, 0), Ok(PRIVATE));
            }
        }
        let toucher = |nth: usize| {
            move || {
                let dice = &mut Dice::new(derive(seed, nth as u64));
                let cpu = sim.cpu(nth);
                let program = cpu.enter(spaces[nth % 2]);
                for _ in 0..load.rounds {
                    let base = dice.one_of(&[SHARED, PRIVATE]);
                    let va = base + dice.below(load.pages) * PAGE;
                    let beyond = Err(Fault::Handler(FaultError::BeyondEnd(va)));
                    match dice.below(3) {
                        0 => assert!([Ok(0), Ok(1), beyond].contains(&program.load_u64(va))),
                        _ => {
                            let stored = program.store_u64(va, 1);
                            assert!(stored == Ok(()) || stored == beyond.map(|_| ()), "{stored:?}");
                        }
                    }
                }
            }
        };
        let cutter = move || {
            let dice = &mut Dice::new(derive(seed, 77));
            let _cpu = sim.cpu(0);
            for _ in 0..load.rounds.div_ceil(3) {
                let left = dice.below(load.pages);
                let gone = object.set_size(left * PAGE).expect("memory");
                unmap_removed(&spaces[..], object, &gone);
                assert_eq!(object.next_data(left), None);
                for (space, base) in spaces.into_iter().flat_map(|space| [(space, SHARED), (space, PRIVATE)]) {
                    let beyond = VirtRange { start: base + left * PAGE, end: base + load.pages * PAGE };
                    space.runs(beyond, |run| assert_ne!(run.kind, Kind::Leaf, "{run:?} beyond page {left}"));
                }
                let gone = object.set_size(load.pages * PAGE).expect("memory");
                assert!(gone.is_empty());
            }
        };
        let jobs: Vec<Box<dyn FnOnce() + Send + '_>> =
            vec![Box::new(cutter), Box::new(toucher(1)), Box::new(toucher(2))];
        side_by_side(schedule, jobs);
    });
}

/// A hole is punched in written pages, while programs read: after all spaces have been notified,
/// shared VMAs and private ones without a copy read zeros, and copies keep their contents.
fn punch(seed: u64, schedule: Schedule, load: Load) {
    with_two_spaces(seed, schedule, load.pages, |sim, object, spaces| {
        {
            let cpu = sim.cpu(0);
            for space in spaces {
                let request = map(space, PRIVATE, load.pages, MapFlags::empty());
                assert_eq!(space.map_object(request, object, 0), Ok(PRIVATE));
            }
            for page in 0..load.pages {
                cpu.enter(spaces[0]).store_u64(SHARED + page * PAGE, 5).expect("memory");
            }
            cpu.enter(spaces[1]).store_u64(PRIVATE, 9).expect("memory");
        }
        let done = AtomicU64::new(0);
        let looker = |nth: usize| {
            let done = &done;
            move || {
                let dice = &mut Dice::new(derive(seed, nth as u64));
                let cpu = sim.cpu(nth);
                let program = cpu.enter(spaces[nth % 2]);
                for _ in 0..load.rounds {
                    let (base, page) = (dice.one_of(&[SHARED, PRIVATE]), dice.below(load.pages));
                    let holes = done.load(SeqCst);
                    let seen = program.load_u64(base + page * PAGE).expect("memory");
                    if base == PRIVATE && page == 0 && nth % 2 == 1 {
                        assert_eq!(seen, 9, "the copy");
                    } else {
                        assert!(seen == 0 || seen == 5 && page >= holes, "page {page}: {seen} after {holes} holes");
                    }
                }
            }
        };
        let puncher = || {
            let _cpu = sim.cpu(0);
            for page in 0..load.pages {
                let gone = object.punch_hole(page * PAGE..(page + 1) * PAGE).expect("memory");
                unmap_removed(&spaces[..], object, &gone);
                done.store(page + 1, SeqCst);
            }
        };
        let jobs: Vec<Box<dyn FnOnce() + Send + '_>> =
            vec![Box::new(puncher), Box::new(looker(1)), Box::new(looker(2))];
        side_by_side(schedule, jobs);
    });
}

/// Spaces that become known to the host when their forks have returned.
struct Known<'a, 'm>([&'a Space<'m>; 2], &'a Mutex<Vec<Arc<Space<'m>>>>);

impl<'m> Spaces<'m, Strict> for Known<'_, 'm> {
    fn each(&self, visit: &mut dyn FnMut(&Space<'m>)) {
        self.0.into_iter().for_each(&mut *visit);
        let children = self.1.lock().unwrap().clone();
        children.iter().for_each(|child| visit(child));
    }
}

/// An object shrinks while a space with private copies is forked, and its child too: in the end no
/// space has a copy beyond the end, whichever was made when.
fn children(seed: u64, schedule: Schedule, load: Load) {
    with_two_spaces(seed, schedule, load.pages, |sim, object, spaces| {
        {
            let cpu = sim.cpu(0);
            for space in spaces {
                let request = map(space, PRIVATE, load.pages, MapFlags::empty());
                assert_eq!(space.map_object(request, object, 0), Ok(PRIVATE));
                (0..load.pages).for_each(|page| {
                    cpu.enter(space).store_u64(PRIVATE + page * PAGE, 1).expect("memory");
                });
            }
        }
        let children = Mutex::new(Vec::new());
        let known = Known(spaces, &children);
        let forker = || {
            let _cpu = sim.cpu(1);
            let parent = spaces[seed as usize % 2];
            let child = Arc::new(parent.fork().expect("memory"));
            children.lock().unwrap().push(child.clone());
            let grandchild = Arc::new(child.fork().expect("memory"));
            children.lock().unwrap().push(grandchild);
        };
        let cutter = || {
            let _cpu = sim.cpu(0);
            let gone = object.set_size(PAGE).expect("memory");
            unmap_removed(&known, object, &gone);
        };
        let jobs: Vec<Box<dyn FnOnce() + Send + '_>> = vec![Box::new(cutter), Box::new(forker)];
        side_by_side(schedule, jobs);
        let _seat = sim.cpu(0);
        let beyond = VirtRange { start: PRIVATE + PAGE, end: PRIVATE + load.pages * PAGE };
        known.each(&mut |space| space.runs(beyond, |run| assert_eq!(run.kind, Kind::None, "{run:?} beyond the end")));
        drop(children);
    });
}

const LOAD: Load = Load { pages: 6, rounds: 60 };

/// A store to shared memory is seen in each space, and private copies are not shared.
#[test]
fn spaces_share_pages() {
    (0..40).for_each(|seed| share(seed, Schedule::Host, LOAD));
}

/// Once all spaces have been notified that an object shrank, nothing beyond its end can be mapped
/// or accessed.
#[test]
fn truncation_races_faults() {
    (0..40).for_each(|seed| truncate(seed, Schedule::Host, LOAD));
}

/// Once all spaces have been notified of a hole, it reads as zeros.
#[test]
fn hole_punches_race_faults() {
    (0..40).for_each(|seed| punch(seed, Schedule::Host, LOAD));
}

/// A child that is forked during a truncation has no truncated pages.
#[test]
fn truncation_races_forks() {
    (0..40).for_each(|seed| children(seed, Schedule::Host, LOAD));
}

/// The same under deterministic schedules.
#[cfg(feature = "shuttle")]
mod scheduled {
    use super::*;
    use crate::fixtures::jobs::in_schedules;

    const LOAD: Load = Load { pages: 2, rounds: 5 };

    fn all(f: fn(u64, Schedule, Load)) {
        in_schedules(move |seed| f(seed, Schedule::Shuttle, LOAD));
    }

    #[test]
    fn of_spaces_that_share_pages() {
        all(share);
    }

    #[test]
    fn of_truncation_and_faults() {
        all(truncate);
    }

    #[test]
    fn of_truncation_and_forks() {
        all(children);
    }

    #[test]
    fn of_hole_punches_and_faults() {
        all(punch);
    }
}
