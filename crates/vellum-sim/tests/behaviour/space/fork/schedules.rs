//! Fork while the parent goes on, and copy on write by several CPUs at once.

use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::thread;
use vellum::Machine;
use vellum::frame::policy::Knob;
use vellum::space::{Access, Advise, MapFlags};
use vellum_sim::{Cpu, Strict};

use crate::fixtures::schedules::{PAGE, Space, at, check, every, fixed, space, strict};

/// A program stores to page 0 and then to page 1 while its space is forked. The child sees neither
/// store, the first, or both.
fn the_child_has_a_snapshot(prepare: impl Fn(&Space<'_>) + Clone + Send + Sync + 'static) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let parent = space(&machine);
        parent.map(fixed(0, 2, MapFlags::empty())).unwrap();
        // Keeps the page table hooked.
        parent.map(fixed(40, 1, MapFlags::POPULATE)).unwrap();
        prepare(&parent);
        let ready = AtomicBool::new(false);
        let child = thread::scope(|s| {
            s.spawn(|| {
                let cpu = sim.cpu(1);
                let program = cpu.enter(&parent);
                // This CPU may write to page 1 without a fault.
                program.store_u64(at(1), 1).unwrap();
                ready.store(true, Ordering::SeqCst);
                program.store_u64(at(0), 7).unwrap();
                program.store_u64(at(1), 7).unwrap();
            });
            while !ready.load(Ordering::SeqCst) {
                thread::yield_now();
            }
            parent.fork().unwrap()
        });
        let program = boot.enter(&child);
        let found = (program.load_u64(at(0)).unwrap(), program.load_u64(at(1)).unwrap());
        assert!(matches!(found, (0 | 7, 1) | (7, 7)), "the child finds {found:?}");
        drop(program);
        let program = boot.enter(&parent);
        assert_eq!((program.load_u64(at(0)), program.load_u64(at(1))), (Ok(7), Ok(7)));
        drop(program);
        check(&parent);
        drop((parent, child));
        drop(boot);
    };
    every(run);
}

/// A program counts in two pinned pages, always in the first one first, while its space is forked.
/// The child, which gets copies, never has the second page ahead.
#[test]
fn a_child_has_a_snapshot_of_pinned_memory() {
    let run = || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        let parent = space(&machine);
        parent.map(fixed(0, 2, MapFlags::empty())).unwrap();
        let pins = [0, 1].map(|page| parent.pin(at(page), Access::Write).unwrap());
        let child = thread::scope(|s| {
            s.spawn(|| {
                let cpu = sim.cpu(1);
                let program = cpu.enter(&parent);
                for n in 1..60 {
                    program.store_u64(at(0), n).unwrap();
                    program.store_u64(at(1), n).unwrap();
                }
            });
            parent.fork().unwrap()
        });
        let program = boot.enter(&child);
        let found = (program.load_u64(at(0)).unwrap(), program.load_u64(at(1)).unwrap());
        assert!(found.0 == found.1 || found.0 == found.1 + 1, "the child finds {found:?}");
        drop(program);
        drop((parent, child, pins));
        drop(boot);
    };
    every(run);
}

#[test]
fn a_child_has_a_snapshot_of_untouched_memory() {
    the_child_has_a_snapshot(|_| {});
}

#[test]
fn a_child_has_a_snapshot_of_zeros() {
    the_child_has_a_snapshot(|space| _ = space.fault(at(0), Access::Read).unwrap());
}

#[test]
fn a_child_has_a_snapshot_of_memory_shared_before() {
    the_child_has_a_snapshot(|space| {
        space.fault(at(0), Access::Write).unwrap();
        drop(space.fork().unwrap());
    });
}

/// Parent and child write to one shared folio at once: each finds what it wrote, and in the end all
/// memory is free.
fn parent_and_child_write(order: u8) {
    let run = move || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(2, if order == 2 { Knob::Always } else { Knob::Never });
        let free = machine.frames().free_frames();
        let parent = space(&machine);
        parent.map(fixed(0, 4, MapFlags::POPULATE)).unwrap();
        let child = parent.fork().unwrap();
        let write = |cpu: &Cpu<'_, Strict>, space: &Space<'_>, value: u64| {
            let program = cpu.enter(space);
            for page in [1, 2] {
                program.store_u64(at(page), value).unwrap();
            }
            for page in [2, 1] {
                assert_eq!(program.load_u64(at(page)), Ok(value));
            }
            assert_eq!(program.load_u64(at(0)), Ok(0));
        };
        thread::scope(|s| {
            s.spawn(|| write(&sim.cpu(1), &parent, 10));
            s.spawn(|| {
                let cpu = sim.cpu(2);
                write(&cpu, &child, 20);
                // Exits while the other CPU may find that it is the only user of the folio.
                drop(child);
            });
        });
        check(&parent);
        drop(parent);
        assert_eq!(machine.frames().free_frames(), free);
        drop(boot);
    };
    every(run);
}

#[test]
fn parent_and_child_write_to_shared_pages() {
    parent_and_child_write(0);
}

#[test]
fn parent_and_child_write_to_a_shared_large_folio() {
    parent_and_child_write(2);
}

/// Two threads of the parent write to the same shared pages, while a third one forks again: no
/// store is lost.
#[test]
fn writes_of_two_threads_race_fork() {
    let run = || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(1, Knob::Always);
        let parent = space(&machine);
        parent.map(fixed(0, 2, MapFlags::POPULATE)).unwrap();
        let first = parent.fork().unwrap();
        let write = |cpu: usize, word: u64| {
            let cpu = sim.cpu(cpu);
            let program = cpu.enter(&parent);
            for value in 1..4 {
                program.store_u64(at(0) + 8 * word, value).unwrap();
                assert_eq!(program.load_u64(at(0) + 8 * word), Ok(value));
            }
        };
        let second = thread::scope(|s| {
            s.spawn(|| write(1, 1));
            s.spawn(|| write(2, 2));
            parent.fork().unwrap()
        });
        let program = boot.enter(&first);
        assert_eq!((program.load_u64(at(0) + 8), program.load_u64(at(0) + 16)), (Ok(0), Ok(0)));
        drop(program);
        let program = boot.enter(&parent);
        assert_eq!((program.load_u64(at(0) + 8), program.load_u64(at(0) + 16)), (Ok(3), Ok(3)));
        drop(program);
        check(&parent);
        drop((parent, first, second));
        drop(boot);
    };
    every(run);
}

/// The parent drops and unmaps pages while it is forked: the child has each page or zeros, and all
/// memory is free in the end.
#[test]
fn dontneed_and_munmap_race_fork() {
    let run = || {
        let sim = strict();
        let boot = sim.cpu(0);
        let machine = Machine::boot(&sim, Default::default()).unwrap();
        machine.policy().set(2, Knob::Always);
        let free = machine.frames().free_frames();
        let parent = space(&machine);
        parent.map(fixed(0, 4, MapFlags::POPULATE)).unwrap();
        parent.map(fixed(8, 4, MapFlags::POPULATE)).unwrap();
        [0, 2, 8, 10].iter().for_each(|page| boot.enter(&parent).store_u64(at(*page), 5).unwrap());
        let child = thread::scope(|s| {
            s.spawn(|| {
                let _cpu = sim.cpu(1);
                parent.advise(at(1), 2 * PAGE, Advise::DontNeed).unwrap();
                parent.unmap(at(9), 2 * PAGE).unwrap();
            });
            parent.fork().unwrap()
        });
        let program = boot.enter(&child);
        assert_eq!((program.load_u64(at(0)), program.load_u64(at(8))), (Ok(5), Ok(5)));
        assert!(matches!(program.load_u64(at(2)), Ok(0 | 5)));
        drop(program);
        check(&child);
        check(&parent);
        drop((parent, child));
        assert_eq!(machine.frames().free_frames(), free);
        drop(boot);
    };
    every(run);
}
