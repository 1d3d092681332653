//! The protocol of the page tables, made of the real lock and the real walkers: down without locks,
//! get in line, leave the walk, lock, look again; empty, unhook, outwait, drain, free.
//!
//! The tables themselves are `table/`'s, which knows no `loom`; this is what `PageTables::{descend,
//! draw, map_run}` and `LockedTable::{unlock, unhook}` do, step by step and with their orderings,
//! for a root with one entry and tables with one entry. `vellum-sim`'s schedules run the originals.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use loom::thread;
use vellum::platform::Cpus;
use vellum::sync::{RawSpin, Walkers};

use super::{Cpu, Watched, explore};

/// What stands in a table that was freed.
const FREED: u32 = 99;
/// The one that is there from the start, and the one that the fault brings.
const TABLES: usize = 2;

/// A table and its descriptor.
#[derive(Default)]
struct Table {
    lock: RawSpin,
    dead: AtomicBool,
    /// Written under the lock, or before anybody can find the table.
    live: Watched,
    /// The same; not an atomic as in a real table, so that `loom` reports who reads or writes it
    /// without the lock.
    entry: Watched,
    /// Written once, before the table is published, and when it is freed; read in walks.
    level: Watched,
}

struct Tree {
    walkers: Walkers<'static>,
    lock: RawSpin,
    /// 0, or one more than the number of the table.
    root: AtomicU32,
    tables: [Table; TABLES],
}

impl Tree {
    /// A tree with the first table hooked in, and 7 in its entry.
    fn new() -> Arc<Self> {
        let tree = Tree {
            walkers: Walkers::leaked(3),
            lock: RawSpin::new(),
            root: AtomicU32::new(1),
            tables: Default::default(),
        };
        tree.tables[0].born(7);
        Arc::new(tree)
    }

    /// The locked table, found as `PageTables::find` does; `None` if there is none.
    fn find(&self, cpu: &Cpu) -> Option<&Table> {
        loop {
            let walk = self.walkers.enter(cpu);
            let raw = self.root.load(Ordering::Acquire);
            if raw == 0 {
                return None;
            }
            let table = &self.tables[raw as usize - 1];
            assert_eq!(table.level.get(), 1, "a walker stands in what is no table");
            let ticket = table.lock.draw(cpu);
            drop(walk);
            table.lock.wait(cpu, ticket);
            assert_eq!(table.level.get(), 1, "what was locked is no table");
            if !table.dead.load(Ordering::Relaxed) {
                return Some(table);
            }
            table.lock.unlock(cpu);
            cpu.relax();
        }
    }

    /// `map_run`: write the entry of a new table, which only `number` can be, unless there is one
    /// already. Whether it did.
    fn map(&self, cpu: &Cpu, number: usize, value: u32) -> bool {
        loop {
            if let Some(table) = self.find(cpu) {
                let empty = table.entry.get() == 0;
                table.lock.unlock(cpu);
                assert!(!empty, "a table with nothing in it was hooked and not locked");
                return false;
            }
            self.lock.lock(cpu);
            let hole = self.root.load(Ordering::Relaxed) == 0;
            if hole {
                self.tables[number].born(value);
                self.root.store(number as u32 + 1, Ordering::Release);
            }
            self.lock.unlock(cpu);
            if hole {
                return true;
            }
        }
    }

    /// `zap`, and the gather's flush: empty the entry, and if nothing is left, unhook the table and
    /// free it.
    fn unmap(&self, cpu: &Cpu) -> Option<u32> {
        let table = self.find(cpu)?;
        let found = table.entry.get();
        table.entry.set(0);
        table.live.set(table.live.get() - 1);
        if table.live.get() != 0 {
            table.lock.unlock(cpu);
            return Some(found);
        }
        self.lock.lock(cpu);
        self.root.store(0, Ordering::Release);
        table.dead.store(true, Ordering::Relaxed);
        table.lock.unlock(cpu);
        self.lock.unlock(cpu);
        self.walkers.wait_for_walkers(cpu);
        table.lock.drain(cpu);
        // Its descriptor is anybody's, and says what they write there.
        table.dead.store(false, Ordering::Relaxed);
        table.level.set(FREED);
        table.entry.set(FREED);
        Some(found)
    }
}

impl Table {
    fn born(&self, value: u32) {
        self.level.set(1);
        self.entry.set(value);
        self.live.set(1);
    }
}

/// A fault on a page of a table that another CPU empties and frees. Either it comes first and finds
/// the page, or it comes later, and what it maps is there to be found, once.
///
/// Catches: `find` without the look at `dead`; the walk ended before the ticket is drawn; no
/// `outwait`; no `drain`; `dead` set after the table's lock was given back; the new table published
/// with `Relaxed`; the descent with `Relaxed`; each of what the models of the lock and of the
/// walkers catch.
#[test]
fn a_fault_beside_the_freeing_of_its_table() {
    explore(|| {
        let tree = Tree::new();
        let other = {
            let tree = tree.clone();
            thread::spawn(move || tree.map(&Cpu(1), 1, 8))
        };
        assert_eq!(tree.unmap(&Cpu(0)), Some(7));
        let soon = tree.unmap(&Cpu(0));
        let mapped = other.join().unwrap();
        let late = tree.unmap(&Cpu(0));
        assert_eq!([soon, late].into_iter().flatten().sum::<u32>(), if mapped { 8 } else { 0 });
    });
}

/// Two CPUs unmap the same page. One of them has it.
///
/// Catches what the first does, but for the two that concern the new table.
#[test]
fn one_of_two_has_the_page() {
    explore(|| {
        let tree = Tree::new();
        let other = {
            let tree = tree.clone();
            thread::spawn(move || tree.unmap(&Cpu(1)))
        };
        let mine = tree.unmap(&Cpu(0));
        let theirs = other.join().unwrap();
        assert_eq!([mine, theirs].iter().flatten().sum::<u32>(), 7);
        assert!(tree.find(&Cpu(0)).is_none());
    });
}
