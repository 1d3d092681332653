//! Two CPUs that want the same: small cases under a deterministic scheduler, one for each way in which they may meet that
//! plots keep apart.

use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::{Runner, thread};
use vellum::addr::VirtRange;
use vellum::arch::{Kind, X86_64};
use vellum::frame::policy::Knob;
use vellum::group::GroupId;
use vellum::space::{Access, Advise, FaultError, Limits, MapFlags, MapRequest};
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Fault, Hostility, Refusal, Schedule, Strict, Strictness};

const PAGE: u64 = 4096;
const BASE: u64 = 0x4000_0000_0000;
const RW: Prot = Prot::READ.union(Prot::WRITE);

type Space<'m> = AddressSpace<'m, Strict, X86_64>;

fn strict() -> Strict {
    let strictness = Strictness::new(1)
        .schedule(Schedule::Shuttle)
        .hostility(Hostility::NONE);
    Config::new(4 << 20).cpus(3).strict(strictness).unwrap()
}

fn space<'m>(machine: &'m Machine<'m, Strict>) -> Space<'m> {
    AddressSpace::new(machine, X86_64::four_levels(), GroupId::ROOT, Limits::default()).unwrap()
}

/// Many schedules, always the same: ones that switch whenever they can, and ones that switch seldom and so leave a CPU in
/// the middle of something for long.
fn every(run: impl Fn() + Clone + Send + Sync + 'static) {
    Runner::new(RandomScheduler::new_from_seed(1, 1500), Default::default()).run(run.clone());
    Runner::new(PctScheduler::new_from_seed(1, 3, 1500), Default::default()).run(run);
}

fn at(page: u64) -> u64 {
    BASE + page * PAGE
}

fn fixed(page: u64, pages: u64, flags: MapFlags) -> MapRequest {
    MapRequest {
        addr: at(page),
        len: pages * PAGE,
        prot: RW,
        flags: MapFlags::FIXED | flags,
    }
}

/// What is mapped is what areas say, and nothing is resident outside of them (of the first pages).
fn check(space: &Space<'_>) {
    let mut areas = Vec::new();
    space.areas(0, |area| {
        areas.push(area.range);
        true
    });
    let stats = space.stats();
    assert_eq!(
        stats.mapped,
        areas.iter().map(|area| area.len()).sum::<u64>(),
        "bytes mapped, and areas {areas:?}"
    );
    // Nothing may fail while runs are shown: a table is locked then.
    let mut resident = Vec::new();
    space.runs(VirtRange::new(BASE, 4 << 20).unwrap(), |run| {
        if run.kind != Kind::None {
            resident.push(run.range(space.arch()));
        }
    });
    for range in resident {
        assert!(
            areas.iter().any(|area| area.covers(&range)),
            "{range:?} is resident, and mapped is {areas:?}"
        );
    }
}

/// Two CPUs unmap the two halves of a folio, while a third holds the lock that both need. Whoever comes first queues the
/// folio to be split; the other frees it. When it is free, it is not queued.
#[test]
fn two_cpus_free_one_folio() {
    let run = || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(1, Knob::Always);
        let space = space(&machine);
        space.map(fixed(0, 2, MapFlags::POPULATE)).unwrap();
        // Folios that are not side by side are freed one by one, under the lock of the list that they were on.
        space.map(fixed(10, 3, MapFlags::empty())).unwrap();
        space.map(fixed(20, 3, MapFlags::empty())).unwrap();
        for page in 0..3 {
            space.fault(at(10 + page), Access::Write).unwrap();
            space.fault(at(20 + page), Access::Write).unwrap();
        }
        let forget = |cpu: usize, page: u64, pages: u64| {
            let _cpu = sim.cpu(cpu);
            space.advise(at(page), pages * PAGE, Advise::DontNeed).unwrap();
        };
        thread::scope(|s| {
            s.spawn(|| forget(1, 0, 1));
            s.spawn(|| forget(2, 1, 1));
            forget(0, 10, 3);
        });
        let usage = machine.groups().usage(machine.frames(), GroupId::ROOT).unwrap();
        assert_eq!(usage.deferred, 0, "{usage:?}");
        drop(space);
        drop(boot);
    };
    every(run);
}

/// While `first` runs over two areas and the hole between them, another CPU maps something into the hole, and uses it.
/// Whoever came first, afterwards all of it is there, or nothing.
fn over_a_hole(first: impl Fn(&Space<'_>) + Clone + Send + Sync + 'static) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let space = space(&machine);
        space.map(fixed(0, 2, MapFlags::POPULATE)).unwrap();
        space.map(fixed(3, 2, MapFlags::POPULATE)).unwrap();
        let user = || {
            let cpu = sim.cpu(1);
            let program = cpu.enter(&space);
            let request = fixed(2, 1, MapFlags::empty());
            let noreplace = MapFlags::FIXED_NOREPLACE;
            if space
                .map(MapRequest {
                    flags: noreplace,
                    ..request
                })
                .is_ok()
            {
                match program.store_u64(at(2), 77) {
                    Ok(()) => {
                        let found = program.load_u64(at(2));
                        assert!(matches!(found, Ok(77 | 0) | Err(Fault::Handler(_))), "{found:?}");
                    }
                    Err(Fault::Handler(FaultError::Unmapped(_))) => {}
                    Err(other) => panic!("{other:?}"),
                }
            }
        };
        thread::scope(|s| {
            s.spawn(user);
            let _cpu = sim.cpu(0);
            first(&space);
        });
        check(&space);
        drop(space);
        drop(boot);
    };
    every(run);
}

/// What another CPU maps into a hole while the range around it is unmapped stays, or goes with all that it has.
#[test]
fn unmapping_around_a_hole() {
    over_a_hole(|space| space.unmap(at(0), 5 * PAGE).unwrap());
}

/// The same while the range is mapped anew.
#[test]
fn mapping_over_a_hole() {
    over_a_hole(|space| {
        space.map(fixed(0, 5, MapFlags::empty())).unwrap();
    });
}

/// A CPU that uses memory which another one maps anew finds the old or the new, never nothing.
#[test]
fn mapping_over_memory_in_use() {
    let run = || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let space = space(&machine);
        space.map(fixed(0, 2, MapFlags::POPULATE)).unwrap();
        thread::scope(|s| {
            s.spawn(|| {
                let cpu = sim.cpu(1);
                let program = cpu.enter(&space);
                for page in [0, 1, 0] {
                    program.store_u64(at(page), 1).unwrap();
                }
            });
            let _cpu = sim.cpu(0);
            space.map(fixed(0, 2, MapFlags::empty())).unwrap();
        });
        check(&space);
        drop(space);
        drop(boot);
    };
    every(run);
}

/// A stack grows although another CPU changes its pages, or takes some of them away, at that moment.
fn growing_while(other: impl Fn(&Space<'_>) + Clone + Send + Sync + 'static) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let space = space(&machine);
        space.map(fixed(10, 4, MapFlags::GROWSDOWN)).unwrap();
        thread::scope(|s| {
            s.spawn(|| {
                let cpu = sim.cpu(1);
                let program = cpu.enter(&space);
                program.store_u64(at(8), 1).unwrap();
            });
            let _cpu = sim.cpu(0);
            other(&space);
        });
        check(&space);
        drop(space);
        drop(boot);
    };
    every(run);
}

#[test]
fn a_stack_grows_while_it_is_protected() {
    growing_while(|space| {
        space
            .protect(at(10), 4 * PAGE, Prot::READ | Prot::WRITE | Prot::EXEC)
            .unwrap()
    });
}

#[test]
fn a_stack_grows_while_its_lowest_pages_are_unmapped() {
    growing_while(|space| space.unmap(at(10), 2 * PAGE).unwrap());
}

/// An unmap that fails leaves what another CPU did in a hole meanwhile as that left it.
#[test]
fn failing_to_unmap_around_a_hole() {
    let run = || {
        let sim = Config::new(12 << 20).cpus(3);
        let strictness = Strictness::new(1)
            .schedule(Schedule::Shuttle)
            .hostility(Hostility::NONE);
        let sim = sim.strict(strictness).unwrap();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(9, Knob::Always);
        let space = space(&machine);
        // A huge page, of which only a part is to go: that takes a table, which is not to be had.
        space.map(fixed(0, 512, MapFlags::POPULATE)).unwrap();
        space.map(fixed(600, 2, MapFlags::empty())).unwrap();
        space.fault(at(600), Access::Read).unwrap();
        sim.refuse(Refusal::Percent(100));
        thread::scope(|s| {
            s.spawn(|| {
                let _cpu = sim.cpu(1);
                if space.map(fixed(520, 1, MapFlags::FIXED_NOREPLACE)).is_ok() {
                    space.unmap(at(520), PAGE).unwrap();
                }
            });
            s.spawn(|| {
                let _cpu = sim.cpu(2);
                // Whether it is there or not; zeros take no memory.
                for _ in 0..3 {
                    let _ = space.fault(at(520), Access::Read);
                }
            });
            let _cpu = sim.cpu(0);
            space.unmap(at(100), 501 * PAGE).unwrap_err();
        });
        check(&space);
        sim.refuse(Refusal::Never);
        drop(space);
        drop(boot);
    };
    every(run);
}

/// A CPU that has a translation of page 1 cached, and uses it when another one says that it is done: `first` and `then` run on
/// two more CPUs, and whatever `first` is in the middle of, after `then` this CPU must see what `see` expects.
fn seen_by_a_third(
    access: Access,
    first: impl Fn(&Space<'_>, &Ran<'_>) + Clone + Send + Sync + 'static,
    then: impl Fn(&Space<'_>, &Ran<'_>) + Clone + Send + Sync + 'static,
    see: impl Fn(Result<u64, Fault<FaultError>>) -> bool + Clone + Send + Sync + 'static,
) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(2, Knob::Always);
        let space = space(&machine);
        space.map(fixed(0, 4, MapFlags::empty())).unwrap();
        // So that the table stays whatever happens to the others.
        space.map(fixed(40, 1, MapFlags::POPULATE)).unwrap();
        let (ready, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let wait = |flag: &AtomicBool| {
            while !flag.load(Ordering::SeqCst) {
                thread::yield_now();
            }
        };
        thread::scope(|s| {
            s.spawn(|| {
                let cpu = sim.cpu(2);
                let program = cpu.enter(&space);
                if access == Access::Write {
                    program.store_u64(at(1), 1).unwrap();
                } else {
                    // Two pages of zeros that one fault will take away together.
                    assert_eq!((program.load_u64(at(1)), program.load_u64(at(2))), (Ok(0), Ok(0)));
                }
                ready.store(true, Ordering::SeqCst);
                wait(&done);
                let seen = program.load_u64(at(1));
                assert!(see(seen), "CPU 2 sees {seen:?}");
            });
            s.spawn(|| {
                let cpu = sim.cpu(1);
                wait(&ready);
                then(&space, &Ran(&cpu));
                done.store(true, Ordering::SeqCst);
            });
            wait(&ready);
            first(&space, &Ran(&boot));
        });
        check(&space);
        drop(space);
        drop(boot);
    };
    every(run);
}

/// The CPU that something runs on.
struct Ran<'c>(&'c Cpu<'c, Strict>);

/// When memory was forgotten, nobody sees what was in it: not even if another CPU was about to forget the same, and had
/// taken it out of the page table before.
#[test]
fn forgetting_what_another_cpu_forgets() {
    let forget = |space: &Space<'_>, _: &Ran<'_>| space.advise(at(1), PAGE, Advise::DontNeed).unwrap();
    seen_by_a_third(Access::Write, forget, forget, |seen| seen == Ok(0));
}

/// When memory was unmapped, nobody reaches it.
#[test]
fn unmapping_what_another_cpu_forgets() {
    seen_by_a_third(
        Access::Write,
        |space, _| drop(space.advise(at(1), PAGE, Advise::DontNeed)),
        |space, _| space.unmap(at(1), PAGE).unwrap(),
        |seen| seen == Err(Fault::Handler(FaultError::Unmapped(at(1)))),
    );
}

/// A store is seen by all that hear of it, though they had zeros there that another CPU is about to take away.
#[test]
fn writing_to_zeros_that_another_cpu_replaces() {
    seen_by_a_third(
        Access::Read,
        |space, cpu| cpu.0.enter(space).store_u64(at(2), 5).unwrap(),
        |space, cpu| cpu.0.enter(space).store_u64(at(1), 7).unwrap(),
        |seen| seen == Ok(7),
    );
}
