//! The lock with a door for each CPU: readers on different doors and a writer keep apart, and the
//! writer gets its turn.

use loom::sync::Arc;
use loom::sync::atomic::AtomicU32;
use loom::thread;
use vellum::platform::Cpus;
use vellum::sync::PerCpuLock;

use super::{Cpu, Outside, Watched, explore, wait};

/// A pair that is equal whenever nobody writes, and the doors.
#[derive(Default)]
struct House {
    lock: PerCpuLock<[Watched; 2]>,
    doors: [AtomicU32; 2],
}

impl House {
    fn read(&self, cpu: &Cpu, door: usize) -> u32 {
        let pair = self.lock.read(cpu, &self.doors[door]);
        let first = pair[0].get();
        assert_eq!(first, pair[1].get());
        first
    }

    fn write<C: Cpus>(&self, cpu: &C) {
        let pair = self.lock.write(cpu, self.doors.iter());
        let next = pair[0].get() + 1;
        pair[0].set(next);
        pair[1].set(next);
    }
}

/// Two readers at two doors, and a writer.
///
/// Catches: `read` without `after_seqcst_rmw`; `write` without it; a reader that leaves, or a
/// writer that leaves, with `Relaxed`; a reader that looks for writers with `Relaxed`, or a writer
/// for readers with no acquire at all; a writer that waits at the first door alone; a reader that
/// does not look whether a writer is about.
#[test]
fn readers_see_all_of_a_write_or_nothing() {
    explore(|| {
        let house = Arc::new(House::default());
        let reader = |door: usize| {
            let house = house.clone();
            thread::spawn(move || house.read(&Cpu(door), door))
        };
        let readers = [reader(0), reader(1)];
        house.write(&Cpu(2));
        for reader in readers {
            assert!(reader.join().unwrap() <= 1);
        }
        assert_eq!(house.read(&Cpu(0), 0), 1);
    });
}

/// Two readers at one door, as when a task moves to another CPU before it leaves: the door counts,
/// it is no flag.
///
/// Catches: `read` that stores 1 into the slot instead of adding to it.
#[test]
fn a_door_counts_its_readers() {
    explore(|| {
        let house = Arc::new(House::default());
        let other = {
            let house = house.clone();
            thread::spawn(move || house.read(&Cpu(0), 0))
        };
        let writer = {
            let house = house.clone();
            thread::spawn(move || house.write(&Cpu(2)))
        };
        house.read(&Cpu(1), 0);
        other.join().unwrap();
        writer.join().unwrap();
    });
}

/// Two writers and a reader that comes twice: writes are not lost, and what a reader has seen it
/// sees again.
///
/// Catches: `write` that does not wait for its turn; a reader that queues without counting itself
/// out (nobody ever gets in again); one that gives its turn on before it is counted in.
#[test]
fn writers_take_turns() {
    explore(|| {
        let house = Arc::new(House::default());
        let writer = {
            let house = house.clone();
            thread::spawn(move || house.write(&Cpu(2)))
        };
        let reader = {
            let house = house.clone();
            thread::spawn(move || {
                let first = house.read(&Cpu(0), 0);
                assert!(first <= house.read(&Cpu(0), 0));
            })
        };
        house.write(&Cpu(1));
        writer.join().unwrap();
        reader.join().unwrap();
        assert_eq!(house.read(&Cpu(1), 1), 2);
    });
}

/// A writer's CPU, which says when it waits.
struct Waiting(Arc<Outside>);

// SAFETY: as for `Cpu`, which it is number 2 of.
unsafe impl Cpus for Waiting {
    fn count(&self) -> usize {
        3
    }

    fn current(&self) -> usize {
        2
    }

    fn relax(&self) {
        self.0.raise();
        wait();
    }
}

/// Once a writer waits for readers to leave, nobody who comes later enters before it: so it waits
/// for each CPU's present reader at most, however many follow.
///
/// Catches: `read` without `after_seqcst_rmw`; `read` that lets a reader in that met a writer's
/// ticket.
#[test]
fn nobody_overtakes_a_writer_that_waits() {
    explore(|| {
        let house = Arc::new(House::default());
        let waits = Arc::new(Outside::default());
        let writer = {
            let (house, waits) = (house.clone(), waits.clone());
            thread::spawn(move || house.write(&Waiting(waits)))
        };
        for _ in 0..2 {
            let late = waits.is_raised();
            let seen = house.read(&Cpu(0), 0);
            assert!(!late || seen == 1, "came in before a writer that waited already");
        }
        writer.join().unwrap();
    });
}

/// A reader that met a writer is in the queue: a writer that comes after it does not overtake it.
///
/// Catches: a reader that waits for the end of the writer without a ticket of its own.
#[test]
fn no_writer_overtakes_a_reader_that_waits() {
    explore(|| {
        let house = Arc::new(House::default());
        let waits = Arc::new(Outside::default());
        let first = house.lock.write(&Cpu(2), house.doors.iter());
        let reader = {
            let (house, waits) = (house.clone(), waits.clone());
            thread::spawn(move || {
                let pair = house.lock.read(&Waiting(waits), &house.doors[0]);
                pair[0].get()
            })
        };
        let late = waits.is_raised();
        drop(first);
        house.write(&Cpu(1));
        let seen = reader.join().unwrap();
        assert!(!late || seen == 0, "a writer came in before a reader that waited already");
    });
}
