//! The strict machine with several CPUs at work: under a deterministic scheduler, which finds a
//! race and repeats it, and on threads of the host.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;

use crate::fixtures::tiny::{ARCH, PAGE, RW, Space, Tiny};
use shuttle::Runner;
use shuttle::scheduler::PctScheduler;
use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Arch, Attrs, Kind};
use vellum::platform::Event;
use vellum::sync::Walkers;
use vellum_sim::{Access, Config, Hostility, Schedule, Strict, Strictness};

const BASE: u64 = 0x6000_0000_0000;
const HUGE: u64 = 2 << 20;
const FULL: Attrs = RW.union(Attrs::HARDWARE);

fn machine(schedule: Schedule, seed: u64, hostility: Hostility) -> Strict {
    let strictness = Strictness::new(seed).schedule(schedule).hostility(hostility);
    Config::new(2 << 20).cpus(3).strict(strictness).unwrap()
}

fn range(pages: u64) -> VirtRange {
    VirtRange::new(BASE, pages * PAGE).unwrap()
}

/// Programs on two CPUs write to two pages while a third CPU unmaps the pages again and again.
fn fault_and_unmap(machine: &Strict, scope: impl FnOnce(&(dyn Fn(usize) + Sync), &dyn Fn()), flush: bool) {
    let (tiny, space);
    {
        let _boot = machine.cpu(0);
        tiny = Tiny::new(machine);
        space = Space::new(&tiny, 1, range(2));
        // Keeps the page table from being empty.
        space.map(BASE + 7 * PAGE, tiny.frame(), FULL, 1);
    }
    let program = |n: usize| {
        let cpu = machine.cpu(n);
        let program = cpu.enter(&space);
        for i in 0..3 {
            let va = BASE + i % 2 * PAGE + 8 * n as u64;
            program.store_u64(va, i).unwrap();
            // The page may have been unmapped, but no other program writes there.
            assert!([0, i].contains(&program.load_u64(va).unwrap()));
        }
    };
    let reclaim = || {
        let _cpu = machine.cpu(0);
        for i in 0..4 {
            let va = BASE + i % 2 * PAGE;
            let (table, index) = space.slot(va, 1);
            tiny.lock(table);
            let old = tiny.exchange(table, index, 0);
            tiny.unlock(table);
            if flush {
                space.flush(va, 1, false);
            }
            if ARCH.kind(old, 1) == Kind::Leaf {
                tiny.give_back(ARCH.leaf_pfn(old, 1), 1);
            }
        }
    };
    scope(&program, &reclaim);
}

fn on_coroutines(hostility: Hostility, flush: bool) {
    let machine = machine(Schedule::Shuttle, 1, hostility);
    fault_and_unmap(
        &machine,
        |program, reclaim| {
            shuttle::thread::scope(|s| {
                s.spawn(|| program(1));
                s.spawn(|| program(2));
                reclaim();
            });
        },
        flush,
    );
}

#[test]
fn a_correct_manager_passes_every_schedule() {
    shuttle::check_random(|| on_coroutines(Hostility::NONE, true), 300);
    shuttle::check_pct(|| on_coroutines(Hostility::USUAL, true), 100, 3);
}

/// Returns the report of the violation that some schedule leads to. A scheduler that switches
/// seldom, at points drawn in advance, leaves a CPU inside a critical section long enough.
fn failure(f: impl Fn() + Send + Sync + 'static) -> String {
    let scheduler = PctScheduler::new_from_seed(7, 2, 300);
    let run = AssertUnwindSafe(|| Runner::new(scheduler, Default::default()).run(f));
    *catch_unwind(run).unwrap_err().downcast::<String>().expect("a report")
}

#[test]
fn a_missing_flush_is_found_and_found_again() {
    let first = failure(|| on_coroutines(Hostility::NONE, false));
    assert!(first.contains("StaleTranslation"), "{first}");
    assert_eq!(first, failure(|| on_coroutines(Hostility::NONE, false)), "the same seed, the same schedule");
}

#[test]
fn a_correct_manager_passes_on_host_threads() {
    for seed in 0..20 {
        let machine = machine(Schedule::Host, seed, Hostility::WORST);
        fault_and_unmap(
            &machine,
            |program, reclaim| {
                std::thread::scope(|s| {
                    s.spawn(|| program(1));
                    s.spawn(|| program(2));
                    reclaim();
                });
            },
            true,
        );
        assert!(machine.violations().is_empty());
    }
}

/// One CPU walks to a page table without locks while another unhooks and frees it, with or without
/// waiting for walkers.
fn walk_and_free(outwait: bool) {
    let machine = machine(Schedule::Shuttle, 1, Hostility::NONE);
    let (tiny, space, walkers);
    {
        let _boot = machine.cpu(0);
        tiny = Tiny::new(&machine);
        space = Space::new(&tiny, 1, range(0));
        space.map(BASE, tiny.frame(), FULL, 1);
        space.map(BASE + HUGE, tiny.frame(), FULL, 1);
        let at = machine_at(&machine, tiny.frame());
        // SAFETY: a zeroed frame that no other code uses, with room for three slots.
        walkers = unsafe { Walkers::new(at, 3) };
    }
    let look_up = || {
        let _cpu = machine.cpu(1);
        let guard = walkers.enter(&machine);
        tiny.event(Event::WalkBegin);
        let mut table = space.root;
        for level in (1..=4).rev() {
            let index = ARCH.index(BASE, level) as u16;
            tiny.event(Event::Descend(table, index));
            let raw = tiny.entry(table, index);
            if ARCH.kind(raw, level) != Kind::Table {
                break;
            }
            table = ARCH.table_addr(raw).pfn();
        }
        tiny.event(Event::WalkEnd);
        drop(guard);
    };
    let unhook = || {
        let _cpu = machine.cpu(0);
        let (table, index) = space.slot(BASE, 1);
        let (above, hook) = space.slot(BASE, 2);
        tiny.lock(table);
        let old = tiny.discard(table, index);
        tiny.lock(above);
        tiny.store(above, hook, 0);
        tiny.unlock(table);
        tiny.unlock(above);
        space.invalidate(&[], 12, true);
        if outwait {
            walkers.wait_for_walkers(&machine);
        }
        tiny.event(Event::TableFreed(table));
        tiny.give_back(table, 1);
        tiny.give_back(ARCH.leaf_pfn(old, 1), 1);
    };
    shuttle::thread::scope(|s| {
        s.spawn(look_up);
        unhook();
    });
}

fn machine_at(machine: &Strict, pfn: Pfn) -> *mut u8 {
    vellum::platform::Memory::direct_map(machine).wrapping_add(pfn.addr().0 as usize)
}

#[test]
fn freeing_a_page_table_waits_for_walkers() {
    shuttle::check_random(|| walk_and_free(true), 500);
    let report = failure(|| walk_and_free(false));
    assert!(report.contains("TableUnderWalker"), "{report}");
}

/// Two CPUs add to one word of one page at once. No addition is lost, under any hardware behaviour
/// and schedule.
#[test]
fn atomic_additions_of_two_cpus_are_not_lost() {
    shuttle::check_random(
        || {
            let machine = machine(Schedule::Shuttle, 9, Hostility::WORST);
            let (tiny, space);
            {
                let _boot = machine.cpu(0);
                tiny = Tiny::new(&machine);
                space = Space::new(&tiny, 1, range(1));
            }
            let add = |n: usize| {
                let cpu = machine.cpu(n);
                let program = cpu.enter(&space);
                (0..3).for_each(|_| assert!(program.add_u64(BASE, 1).unwrap() < 6));
            };
            shuttle::thread::scope(|s| {
                s.spawn(|| add(1));
                add(2);
            });
            let cpu = machine.cpu(0);
            let program = cpu.enter(&space);
            assert_eq!(program.load_u64(BASE), Ok(6));
            assert_eq!(program.touch(range(1), 512, Access::Read).unwrap().accesses, 8);
            assert!(tiny.word(space.root, 0).load(Ordering::Relaxed) == 0);
        },
        200,
    );
}
