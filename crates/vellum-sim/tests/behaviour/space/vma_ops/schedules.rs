//! `mmap`, `munmap`, `mprotect` and stack growth by several CPUs at once.

use shuttle::thread;
use vellum::Machine;
use vellum::addr::VirtRange;
use vellum::arch::Attrs;
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{Access, Advise, FaultError, MapFlags, MapRequest, Resolved};
use vellum::vma::Prot;
use vellum_sim::{Config, Fault, Hostility, Refusal, Schedule, Strictness};

use crate::fixtures::schedules::{PAGE, Space, at, both, check, every, fixed, space, strict};

/// Two CPUs unmap the two halves of a folio, while a third holds the lock that both need. The first
/// one queues the folio for splitting, and the other frees it. A free folio is not queued.
#[test]
fn two_munmaps_free_one_folio() {
    let run = || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(1, Knob::Always);
        let space = space(&machine);
        space.map(fixed(0, 2, MapFlags::POPULATE)).unwrap();
        // Folios that are not adjacent are freed one by one, under the lock of their LRU list.
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
        let usage = machine.memcgs().usage(machine.frames(), MemcgId::ROOT).unwrap();
        assert_eq!(usage.deferred, 0, "{usage:?}");
        drop(space);
        drop(boot);
    };
    every(run);
}

/// A VMA gets the protection of its neighbour while another operation is under way at the
/// neighbour's far end: the last of the two merges the VMAs.
#[test]
fn equal_neighbours_merge_in_the_end() {
    every(|| {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let space = space(&machine);
        space.map(fixed(0, 6, MapFlags::POPULATE)).unwrap();
        space.protect(at(1), 5 * PAGE, Prot::READ).unwrap();
        both(
            &sim,
            |_| space.protect(at(0), PAGE, Prot::READ).unwrap(),
            |_| space.clear_accessed_dirty(VirtRange { start: at(4), end: at(5) }, Attrs::HARDWARE, |_, _| ()),
        );
        assert_eq!(space.stats().vmas, 1);
        check(&space);
        drop(space);
        drop(boot);
    });
}

/// Runs `first` over two VMAs and the hole between them, while another CPU maps a page into the
/// hole and uses it. Afterwards the page is mapped with all its state, or not at all.
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
            if space.map(MapRequest { flags: noreplace, ..request }).is_ok() {
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

/// A page that another CPU maps into a hole while the range around it is unmapped stays, or is
/// unmapped completely.
#[test]
fn mapping_into_a_hole_races_munmap() {
    over_a_hole(|space| space.unmap(at(0), 5 * PAGE).unwrap());
}

/// The same while the range is mapped anew.
#[test]
fn mapping_into_a_hole_races_map_fixed() {
    over_a_hole(|space| {
        space.map(fixed(0, 5, MapFlags::empty())).unwrap();
    });
}

/// A CPU that uses memory which another one maps anew finds the old or the new mapping.
#[test]
fn accesses_race_map_fixed() {
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

/// A stack grows while another CPU changes its pages, or unmaps some of them.
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
fn stack_growth_races_mprotect() {
    growing_while(|space| space.protect(at(10), 4 * PAGE, Prot::READ | Prot::WRITE | Prot::EXEC).unwrap());
}

#[test]
fn stack_growth_races_munmap() {
    growing_while(|space| space.unmap(at(10), 2 * PAGE).unwrap());
}

/// An unmap that fails keeps what another CPU did in a hole meanwhile.
#[test]
fn a_failed_munmap_keeps_what_was_mapped_into_a_hole() {
    let run = || {
        let sim = Config::new(12 << 20).cpus(3);
        let strictness = Strictness::new(1).schedule(Schedule::Shuttle).hostility(Hostility::NONE);
        let sim = sim.strict(strictness).unwrap();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(9, Knob::Always);
        let space = space(&machine);
        // Unmapping a part of a huge page takes a page table, and allocations fail.
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
                // The page may be mapped or not; zeros take no memory.
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

/// A fault in memory that is being unmapped waits for the outcome. If the unmap fails, nothing has
/// changed.
#[test]
fn faults_wait_for_a_failing_munmap() {
    let run = || {
        let strictness = Strictness::new(1).schedule(Schedule::Shuttle).hostility(Hostility::NONE);
        let sim = Config::new(12 << 20).cpus(3).strict(strictness).unwrap();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(9, Knob::Always);
        let space = space(&machine);
        // Unmapping a part of a huge page takes a page table, and allocations fail.
        space.map(fixed(0, 512, MapFlags::POPULATE)).unwrap();
        space.map(fixed(600, 3, MapFlags::empty())).unwrap();
        space.fault(at(600), Access::Read).unwrap();
        sim.refuse(Refusal::Percent(100));
        thread::scope(|s| {
            s.spawn(|| {
                let _cpu = sim.cpu(1);
                // Zeros take no memory, and their page table exists.
                (601..603).for_each(|page| assert_eq!(space.fault(at(page), Access::Read), Ok(Resolved::Minor)));
            });
            let _cpu = sim.cpu(0);
            space.unmap(at(100), 503 * PAGE).unwrap_err();
        });
        check(&space);
        sim.refuse(Refusal::Never);
        drop(space);
        drop(boot);
    };
    every(run);
}
