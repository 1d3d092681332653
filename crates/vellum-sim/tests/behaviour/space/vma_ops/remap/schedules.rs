//! `mremap` moves memory while other CPUs use it (INV-13).

use shuttle::thread;
use vellum::Machine;
use vellum::space::{Advise, FaultError, MapFlags, RemapFlags, RemapRequest};
use vellum_sim::Fault;

use crate::fixtures::schedules::{PAGE, Space, at, check, every, fixed, space, strict};

/// Moves pages.
fn moves(space: &Space<'_>, page: u64, pages: u64, to: u64, flags: RemapFlags) {
    let flags = flags | RemapFlags::MAYMOVE | RemapFlags::FIXED;
    let len = pages * PAGE;
    let request = RemapRequest { addr: at(page), old_len: len, new_len: len, flags, new_addr: at(to) };
    assert_eq!(space.remap(request), Ok(at(to)));
}

/// A program counts in a page that is moved: all its successful additions are found at the new
/// address.
fn counting(flags: RemapFlags) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let space = space(&machine);
        space.map(fixed(0, 2, MapFlags::POPULATE)).unwrap();
        let made = thread::scope(|s| {
            let user = s.spawn(|| {
                let cpu = sim.cpu(1);
                let program = cpu.enter(&space);
                // The counts in the page that is moved, and in an empty page at the old address
                // afterwards.
                let (mut moved, mut left) = (0, 0);
                for _ in 0..4 {
                    match program.add_u64(at(0), 1) {
                        Ok(before) if before == moved && left == 0 => moved += 1,
                        Ok(before) if before == left => left += 1,
                        Ok(before) => panic!("{before} was counted, and not {moved} or {left}"),
                        Err(Fault::Handler(FaultError::Unmapped(_))) => {}
                        Err(other) => panic!("{other:?}"),
                    }
                }
                (moved, left)
            });
            let _cpu = sim.cpu(0);
            moves(&space, 0, 2, 700, flags);
            user.join().unwrap()
        });
        let program = boot.enter(&space);
        let found = program.load_u64(at(700)).unwrap();
        if flags.contains(RemapFlags::DONTUNMAP) {
            // The program may have found the empty page before it had counted: then the two can't
            // be told apart.
            let left = program.load_u64(at(0)).unwrap();
            assert_eq!(found + left, made.0 + made.1);
        } else {
            assert_eq!(found, made.0);
        }
        drop(program);
        check(&space);
        drop(space);
        drop(boot);
    };
    every(run);
}

#[test]
fn counters_survive_mremap() {
    counting(RemapFlags::empty());
}

#[test]
fn counters_survive_mremap_dontunmap() {
    counting(RemapFlags::DONTUNMAP);
}

/// Moves memory while another CPU does something at the old and new addresses; afterwards VMAs and
/// pages agree.
fn beside(other: impl Fn(&Space<'_>) + Clone + Send + Sync + 'static) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let free = machine.frames().free_frames();
        let space = space(&machine);
        space.map(fixed(0, 4, MapFlags::POPULATE)).unwrap();
        space.map(fixed(700, 2, MapFlags::POPULATE)).unwrap();
        thread::scope(|s| {
            s.spawn(|| {
                let _cpu = sim.cpu(1);
                other(&space);
            });
            let _cpu = sim.cpu(0);
            moves(&space, 1, 2, 700, RemapFlags::empty());
        });
        check(&space);
        drop(space);
        assert_eq!(machine.frames().free_frames(), free);
        drop(boot);
    };
    every(run);
}

#[test]
fn dontneed_races_mremap() {
    beside(|space| {
        let _ = space.advise(at(0), 4 * PAGE, Advise::DontNeed);
        let _ = space.advise(at(701), PAGE, Advise::DontNeed);
    });
}

#[test]
fn guard_install_races_mremap() {
    beside(|space| {
        let _ = space.advise(at(1), PAGE, Advise::GuardInstall);
        let _ = space.advise(at(1), PAGE, Advise::GuardRemove);
        let _ = space.advise(at(700), PAGE, Advise::GuardRemove);
    });
}

#[test]
fn munmap_races_mremap() {
    beside(|space| {
        space.unmap(at(2), 2 * PAGE).unwrap();
        space.unmap(at(701), PAGE).unwrap();
    });
}

#[test]
fn fork_races_mremap() {
    beside(|space| {
        let child = space.fork().unwrap();
        check(&child);
    });
}

/// Two CPUs move memory to each other's place: the second moves what the first has left there.
#[test]
fn two_mremaps_to_each_others_place() {
    let run = || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let space = space(&machine);
        space.map(fixed(0, 2, MapFlags::POPULATE)).unwrap();
        space.map(fixed(700, 2, MapFlags::POPULATE)).unwrap();
        let remap = |from: u64, to: u64| {
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let len = 2 * PAGE;
            space.remap(RemapRequest { addr: at(from), old_len: len, new_len: len, flags, new_addr: at(to) })
        };
        let both = thread::scope(|s| {
            let other = s.spawn(|| {
                let _cpu = sim.cpu(1);
                remap(700, 0)
            });
            let _cpu = sim.cpu(0);
            (remap(0, 700), other.join().unwrap())
        });
        assert_eq!(both, (Ok(at(700)), Ok(at(0))));
        check(&space);
        assert_eq!(space.stats().anon, 2 * PAGE);
        drop(space);
        drop(boot);
    };
    every(run);
}
