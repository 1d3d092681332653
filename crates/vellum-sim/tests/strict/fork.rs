//! Fork and copy on write on the strict machine: what parent and child have together, and what it takes to part.

use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Aarch64, Kind, Riscv64, X86_64};
use vellum::frame::FrameKind;
use vellum::frame::policy::Knob;
use vellum::memcg::Refused;
use vellum::memcg::{MemcgError, MemcgId};
use vellum::space::{Access, Advise, AdviseError, ForkError, Limits, MapFlags, MapRequest, Split};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum::{AddressSpace, Machine};
use vellum_sim::{Config, Cpu, Hostility, Refusal, Silicon, Strict, Strictness};

const BASE: u64 = 0x20_0000_0000;
const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

type Space<'m, A> = AddressSpace<'m, Strict<A>, A>;

/// A machine, and the CPU that the test runs on.
struct Bench<'m, A: Silicon = X86_64> {
    sim: &'m Strict<A>,
    cpu: &'m Cpu<'m, Strict<A>>,
    machine: &'m Machine<'m, Strict<A>>,
    arch: A,
}

/// A test that gives back all it takes.
fn on<A: Silicon>(arch: A, bytes: u64, hostility: Hostility, test: impl FnOnce(&Bench<'_, A>)) {
    let sim = Config::with_arch(arch, bytes).cpus(1).strict(Strictness::new(7).hostility(hostility)).unwrap();
    let cpu = sim.cpu(0);
    let machine = Machine::boot(&sim, Default::default()).unwrap();
    // What a memcg takes is kept for the next, so it is no loss.
    let memcg = machine.memcgs().create(machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
    machine.memcgs().remove(machine.frames(), memcg).unwrap();
    sim.baseline();
    let free = machine.frames().free_frames();
    test(&Bench { sim: &sim, cpu: &cpu, machine: &machine, arch });
    assert_eq!(machine.frames().free_frames(), free);
    sim.finish();
}

fn x86(bytes: u64, test: impl FnOnce(&Bench<'_>)) {
    on(X86_64::four_levels(), bytes, Hostility::NONE, test);
}

impl<'m, A: Silicon> Bench<'m, A> {
    fn space(&self) -> Space<'m, A> {
        AddressSpace::new(self.machine, self.arch, MemcgId::ROOT, Limits::default()).unwrap()
    }

    /// What a program in the space finds.
    fn load(&self, space: &Space<'_, A>, va: u64) -> u64 {
        self.cpu.enter(space).load_u64(va).unwrap()
    }

    fn store(&self, space: &Space<'_, A>, va: u64, value: u64) {
        self.cpu.enter(space).store_u64(va, value).unwrap();
    }

    fn count(&self, counter: Counter) -> u64 {
        self.machine.counter(counter)
    }
}

fn map<A: Silicon>(space: &Space<'_, A>, addr: u64, len: u64, flags: MapFlags) {
    let request = MapRequest { addr, len, prot: Prot::READ | Prot::WRITE, flags: flags | MapFlags::FIXED };
    space.map(request).unwrap();
}

fn range(start: u64, len: u64) -> VirtRange {
    VirtRange { start, end: start + len }
}

fn each_keeps_its_own<A: Silicon>(arch: A) {
    on(arch, 32 << 20, Hostility::USUAL, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let at = |i: u64| BASE + i * page;
        let parent = on.space();
        map(&parent, BASE, 60 * page, MapFlags::empty());
        (0..50).for_each(|i| on.store(&parent, at(i), 1000 + i));
        let child = parent.fork().unwrap();
        let grandchild = child.fork().unwrap();
        let spaces = [&parent, &child, &grandchild];
        for (n, space) in spaces.into_iter().enumerate() {
            (0..50).filter(|i| i % 3 == n as u64).for_each(|i| on.store(space, at(i), n as u64));
        }
        for (n, space) in spaces.into_iter().enumerate() {
            for i in 0..60 {
                let held = if i % 3 == n as u64 { n as u64 } else { 1000 + i };
                assert_eq!(on.load(space, at(i)), if i < 50 { held } else { 0 }, "page {i} of space {n}");
            }
        }
    });
}

/// What one of a family writes, no other sees; in every format.
#[test]
fn each_of_a_family_keeps_what_it_writes() {
    each_keeps_its_own(X86_64::four_levels());
    each_keeps_its_own(Aarch64::granule_4k());
    each_keeps_its_own(Aarch64::granule_16k());
    each_keeps_its_own(Riscv64::sv39());
}

/// A huge mapping is one in the child too; who writes copies it in one piece where policy allows that, and otherwise the page,
/// and the other one's mapping stays as it was.
#[test]
fn huge_mappings_stay_huge() {
    for copied_huge in [true, false] {
        x86(64 << 20, |on| {
            on.machine.policy().set(9, Knob::Always);
            let parent = on.space();
            map(&parent, BASE, HUGE, MapFlags::POPULATE);
            on.store(&parent, BASE + HUGE - 8, 5);
            let child = parent.fork().unwrap();
            let huge = |space: &Space<'_, _>| space.usage(range(BASE, HUGE)).huge;
            assert_eq!((huge(&parent), huge(&child)), (HUGE, HUGE));
            on.machine.policy().set(9, if copied_huge { Knob::Always } else { Knob::Never });
            on.store(&child, BASE, 6);
            assert_eq!((huge(&parent), huge(&child)), (HUGE, if copied_huge { HUGE } else { 0 }));
            assert_eq!((on.load(&child, BASE), on.load(&child, BASE + HUGE - 8)), (6, 5));
            assert_eq!((on.load(&parent, BASE), on.load(&parent, BASE + HUGE - 8)), (0, 5));
            assert_eq!(on.count(Counter::CowCopies), 1);
            drop(child);
            // Nobody else has it now.
            on.store(&parent, BASE + PAGE, 7);
            assert_eq!((huge(&parent), on.count(Counter::CowReuses)), (HUGE, 1));
        });
    }
}

/// What two spaces map counts half in each; what one of them has written is its own again, and the other's too.
#[test]
fn shares_add_up() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 8 * PAGE, MapFlags::empty());
        (0..8).for_each(|i| on.store(&parent, BASE + i * PAGE, i));
        let usage = |space: &Space<'_, _>, from: u64, pages: u64| space.usage(range(BASE + from * PAGE, pages * PAGE));
        let split = |all| Split { all, anonymous: all, dirty: all };
        let alone = usage(&parent, 0, 8);
        assert_eq!((alone.proportional, alone.shared), (split(8 * PAGE), split(0)));
        assert_eq!((alone.anonymous, alone.dirty), (8 * PAGE, 8 * PAGE));
        let child = parent.fork().unwrap();
        for space in [&parent, &child] {
            let both = usage(space, 0, 8);
            assert_eq!((both.resident, both.proportional, both.shared), (8 * PAGE, split(4 * PAGE), split(8 * PAGE)));
        }
        on.store(&child, BASE + 3 * PAGE, 9);
        for space in [&parent, &child] {
            assert_eq!((usage(space, 3, 1).proportional, usage(space, 3, 1).shared), (split(PAGE), split(0)));
            // Of part of what is mapped, that part.
            assert_eq!(usage(space, 2, 3).proportional, split(2 * PAGE));
        }
    });
}

/// A space that moves to another memcg leaves there what it has, and is charged for what it gets; so is a child of it.
#[test]
fn a_space_moves_to_another_memcg() {
    x86(16 << 20, |on| {
        let memcgs = on.machine.memcgs();
        let memcg = memcgs.create(on.machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
        let charged = || memcgs.usage(on.machine.frames(), memcg).unwrap().charged;
        let space = on.space();
        map(&space, BASE, 8 * PAGE, MapFlags::empty());
        (0..4).for_each(|i| on.store(&space, BASE + i * PAGE, i));
        assert_eq!(charged(), 0);
        space.set_memcg(memcg).unwrap();
        assert_eq!((space.memcg(), charged()), (memcg, 0));
        (0..6).for_each(|i| on.store(&space, BASE + i * PAGE, i));
        assert_eq!(charged(), 2);
        let child = space.fork().unwrap();
        // Its tables: one a level, for what lies side by side; a node, and the slots of the CPUs.
        assert_eq!((child.stats().kernel, child.memcg(), charged()), (2 << 12, memcg, 2 + 4 + 2));
        drop((space, child));
        assert_eq!(charged(), 0);
        memcgs.remove(on.machine.frames(), memcg).unwrap();
        assert_eq!(on.space().set_memcg(memcg), Err(MemcgError::NoSuchMemcg(memcg)));
    });
}

/// When the child is gone its parent writes in place: the whole run after one fault, and without taking memory.
#[test]
fn who_is_alone_again_writes_in_place() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 300 * PAGE, MapFlags::POPULATE);
        drop(parent.fork().unwrap());
        let (faults, free) = (on.count(Counter::Faults), on.machine.frames().free_frames());
        (0..300).for_each(|i| on.store(&parent, BASE + i * PAGE, i));
        let runs = parent.usage(range(BASE, 300 * PAGE)).runs;
        assert!(on.count(Counter::Faults) - faults <= runs, "{} faults", on.count(Counter::Faults) - faults);
        assert_eq!(on.count(Counter::CowReuses), on.count(Counter::Faults) - faults);
        assert_eq!((on.count(Counter::CowCopies), on.machine.frames().free_frames()), (0, free));
    });
}

/// A copy is as large as policy allows where all of it is shared, and takes its place page for page, wherever each was.
#[test]
fn copies_are_as_large_as_policy_allows() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 32 * PAGE, MapFlags::empty());
        // Single pages, in no order.
        (0..32).for_each(|i| on.store(&parent, BASE + i * 7 % 32 * PAGE, i * 7 % 32));
        let child = parent.fork().unwrap();
        on.machine.policy().set(3, Knob::Always);
        on.store(&child, BASE + 10 * PAGE, 99);
        let faults = on.count(Counter::Faults);
        let other = |i| if i == 10 { 99 } else { i };
        (8..16).for_each(|i| on.store(&child, BASE + i * PAGE, other(i)));
        assert_eq!((on.count(Counter::CowCopies), on.count(Counter::Faults)), (1, faults));
        (0..32).for_each(|i| {
            assert_eq!((on.load(&parent, BASE + i * PAGE), on.load(&child, BASE + i * PAGE)), (i, other(i)))
        });
        // Not where a page is the child's own already: what it has there is not copied again.
        on.machine.policy().set(3, Knob::Never);
        on.store(&child, BASE + 17 * PAGE, 1);
        on.machine.policy().set(3, Knob::Always);
        on.store(&child, BASE + 18 * PAGE, 1);
        assert_eq!(on.count(Counter::CowCopies), 3);
        assert_eq!(child.usage(range(BASE + 16 * PAGE, 8 * PAGE)).resident, 8 * PAGE);
    });
}

/// Wherever memory runs out there is no child, and the parent has and does what it did.
#[test]
fn a_child_that_can_not_be_had_leaves_no_trace() {
    x86(24 << 20, |on| {
        on.machine.policy().set(2, Knob::Always);
        let parent = on.space();
        for i in 0..6 {
            map(&parent, BASE + i * (1 << 30), 40 * PAGE, MapFlags::POPULATE);
        }
        let (before, free) = (parent.stats(), on.machine.frames().free_frames());
        let mut failed = 0;
        let child = loop {
            on.sim.refuse(Refusal::From(failed + 1));
            match parent.fork() {
                Ok(child) => break child,
                Err(error) => assert_eq!(error, ForkError::NoMemory(Refused::OutOfMemory)),
            }
            on.sim.refuse(Refusal::Never);
            failed += 1;
            assert_eq!((parent.stats(), on.machine.frames().free_frames()), (before, free), "refusal {failed}");
            on.store(&parent, BASE + failed % 240 * PAGE % (40 * PAGE), failed);
            assert_eq!(on.machine.frames().free_frames(), free, "the parent is alone, and copies nothing");
        };
        on.sim.refuse(Refusal::Never);
        assert!(failed > 10, "{failed} allocations");
        assert_eq!(child.stats().anon, before.anon);
    });
}

/// A write for which there is no memory fails, and leaves both with what they had.
#[test]
fn a_copy_that_can_not_be_had_changes_nothing() {
    x86(24 << 20, |on| {
        on.machine.policy().set(9, Knob::Always);
        let parent = on.space();
        map(&parent, BASE, HUGE + 8 * PAGE, MapFlags::POPULATE);
        on.store(&parent, BASE, 1);
        on.store(&parent, BASE + HUGE, 2);
        let child = parent.fork().unwrap();
        on.sim.refuse(Refusal::From(1));
        for va in [BASE, BASE + 5 * PAGE, BASE + HUGE] {
            assert_eq!(child.fault(va, Access::Write), Err(vellum::space::FaultError::NoMemory(Refused::OutOfMemory)));
        }
        on.sim.refuse(Refusal::Never);
        assert_eq!((on.load(&child, BASE), on.load(&child, BASE + HUGE)), (1, 2));
        on.sim.refuse(Refusal::Nth(1));
        // Not in one piece, but there is memory for a page.
        on.store(&child, BASE, 3);
        assert_eq!((on.load(&child, BASE), on.load(&parent, BASE)), (3, 1));
    });
}

/// No frame beside the zeros that reads map is ever a program's: so zeros and what is counted never make one run.
#[test]
fn zeros_have_no_neighbours() {
    x86(12 << 20, |on| {
        let space = on.space();
        map(&space, BASE, 4 * PAGE, MapFlags::empty());
        on.load(&space, BASE);
        let mut zeros = Pfn(0);
        space.runs(range(BASE, PAGE), |run| {
            assert_eq!(run.kind, Kind::Leaf);
            zeros = run.pfn(space.arch());
        });
        let (head, frame) = on.machine.frames().head(zeros);
        let beside = [Pfn(head.0 - 1), head.add(1 << frame.order())];
        // All the memory there is.
        map(&space, BASE + (1 << 30), 12 << 20, MapFlags::POPULATE | MapFlags::NORESERVE);
        assert_eq!(on.machine.frames().free_frames(), 0);
        for pfn in beside {
            assert_ne!(on.machine.frames().head(pfn).1.kind(), FrameKind::Folio, "{pfn:?}");
        }
    });
}

/// A child does not have what it is not to have, and finds zeros where it is to find them; guards go with it.
#[test]
fn what_a_child_has_is_as_advised() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 6 * PAGE, MapFlags::POPULATE);
        (0..6).for_each(|i| on.store(&parent, BASE + i * PAGE, 1 + i));
        let advise = |page: u64, advise| parent.advise(BASE + page * PAGE, PAGE, advise).unwrap();
        advise(1, Advise::DontFork);
        advise(2, Advise::WipeOnFork);
        advise(3, Advise::GuardInstall);
        let child = parent.fork().unwrap();
        let found = |space: &Space<'_, _>| {
            (0..6).map(|i| on.cpu.enter(space).load_u64(BASE + i * PAGE).ok()).collect::<Vec<_>>()
        };
        assert_eq!(found(&parent), [Some(1), Some(2), Some(3), None, Some(5), Some(6)]);
        assert_eq!(found(&child), [Some(1), None, Some(0), None, Some(5), Some(6)]);
        child.advise(BASE + 3 * PAGE, PAGE, Advise::GuardRemove).unwrap();
        assert_eq!((found(&child)[3], found(&parent)[3]), (Some(0), None));
    });
}

/// Where memory for more guards is refused, those that were there stay, and so do pages that nothing was done with yet.
#[test]
fn guards_outlive_a_refusal_of_more() {
    x86(32 << 20, |on| {
        let space = on.space();
        map(&space, BASE, 2 * HUGE, MapFlags::empty());
        space.advise(BASE + PAGE, PAGE, Advise::GuardInstall).unwrap();
        on.sim.refuse(Refusal::From(1));
        let more = space.advise(BASE, 2 * HUGE, Advise::GuardInstall);
        on.sim.refuse(Refusal::Never);
        assert!(matches!(more, Err(AdviseError::NoMemory(_))), "{more:?}");
        assert!(on.cpu.enter(&space).load_u64(BASE + PAGE).is_err());
        assert_eq!(on.load(&space, BASE + HUGE), 0);
    });
}

/// Guards over several tables and a huge mapping: what is forgotten is free, what lies beside stays, and tables go with the last
/// guard in them.
#[test]
fn guards_take_the_place_of_what_they_guard() {
    x86(32 << 20, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.space();
        map(&space, BASE, 3 * HUGE, MapFlags::POPULATE);
        on.store(&space, BASE, 1);
        on.store(&space, BASE + 3 * HUGE - PAGE, 2);
        space.advise(BASE + PAGE, 3 * HUGE - 2 * PAGE, Advise::GuardInstall).unwrap();
        assert_eq!(space.usage(range(BASE, 3 * HUGE)).resident, 2 * PAGE);
        assert!(on.cpu.enter(&space).load_u64(BASE + HUGE).is_err());
        assert_eq!((on.load(&space, BASE), on.load(&space, BASE + 3 * HUGE - PAGE)), (1, 2));
        let tables = space.stats().tables;
        space.advise(BASE, 3 * HUGE, Advise::GuardRemove).unwrap();
        assert_eq!(space.stats().tables, tables - PAGE, "nothing is left in the middle one");
        assert_eq!(on.load(&space, BASE + HUGE), 0);
    });
}

/// A page that is pinned stays what it is: unmapped, it is not free before it is let go of; and whoever shares it copies it.
#[test]
fn a_pinned_page_stays() {
    x86(16 << 20, |on| {
        let space = on.space();
        map(&space, BASE, 2 * PAGE, MapFlags::empty());
        on.store(&space, BASE + PAGE, 5);
        drop(space.fork().unwrap());
        let pin = space.pin(BASE + PAGE + 8, Access::Read).unwrap();
        on.store(&space, BASE + PAGE, 6);
        assert_eq!((on.count(Counter::CowCopies), on.count(Counter::CowReuses)), (1, 0), "the pin has it too");
        let mut word = [0; 8];
        pin.read(0, &mut word);
        assert_eq!(u64::from_ne_bytes(word), 5);
        drop(pin);
        let pin = space.pin(BASE, Access::Write).unwrap();
        pin.write(16, &7u64.to_ne_bytes());
        assert_eq!(on.load(&space, BASE + 16), 7);
        let free = on.machine.frames().free_frames();
        space.unmap(BASE, PAGE).unwrap();
        assert_eq!(on.machine.frames().free_frames(), free);
        drop(pin);
        assert_eq!(on.machine.frames().free_frames(), free + 1);
        assert!(space.pin(BASE, Access::Read).is_err());
        assert!(space.pin(u64::MAX, Access::Read).is_err());
    });
}

/// A page that is pinned when there is a child stays the parent's: what is written through the pin, before and after, the parent
/// finds there, and writes beside it without a copy; the child has a copy of what was there.
fn pinned_with_a_child(pages: u64, knob: Knob) {
    x86(32 << 20, |on| {
        on.machine.policy().set_global(knob);
        let parent = on.space();
        map(&parent, BASE, pages * PAGE, MapFlags::empty());
        (0..pages).for_each(|page| on.store(&parent, BASE + page * PAGE, page + 1));
        let pin = parent.pin(BASE + PAGE, Access::Write).unwrap();
        pin.write(8, &10u64.to_ne_bytes());
        let child = parent.fork().unwrap();
        pin.write(16, &11u64.to_ne_bytes());
        on.store(&parent, BASE + PAGE, 12);
        let words = |space: &Space<'_, X86_64>| [0, 8, 16].map(|word| on.load(space, BASE + PAGE + word));
        assert_eq!((words(&parent), words(&child)), ([12, 10, 11], [2, 10, 0]));
        assert_eq!(on.count(Counter::CowCopies), 0, "the parent keeps the page that is pinned");
        on.store(&child, BASE + PAGE, 13);
        assert_eq!((words(&parent), words(&child)), ([12, 10, 11], [13, 10, 0]));
        for page in (0..pages).filter(|page| *page != 1) {
            assert_eq!(
                (on.load(&parent, BASE + page * PAGE), on.load(&child, BASE + page * PAGE)),
                (page + 1, page + 1)
            );
        }
        drop(child);
        pin.write(16, &14u64.to_ne_bytes());
        assert_eq!(words(&parent), [12, 10, 14]);
    });
}

#[test]
fn a_pinned_page_is_copied_for_a_child() {
    pinned_with_a_child(4, Knob::Never);
    pinned_with_a_child(4, Knob::Always);
    pinned_with_a_child(1024, Knob::Always);
}

/// Where there is no memory for the copy there is no child, and the parent goes on as if nothing had been.
#[test]
fn no_memory_for_a_copy_of_a_pinned_page() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 2 * PAGE, MapFlags::empty());
        on.store(&parent, BASE, 1);
        let pin = parent.pin(BASE, Access::Write).unwrap();
        let mut failures = 0;
        for nth in 1.. {
            on.sim.refuse(Refusal::Nth(nth));
            let forked = parent.fork();
            on.sim.refuse(Refusal::Never);
            match forked {
                Err(ForkError::NoMemory(_)) => failures += 1,
                Err(ForkError::TooManyReferences) => panic!("nothing is swapped out"),
                Ok(_) => break,
            }
            pin.write(0, &nth.to_ne_bytes());
            assert_eq!(on.load(&parent, BASE), nth);
            on.store(&parent, BASE, nth + 1);
        }
        assert!(failures > 3, "the child takes a root, tables and the copy");
    });
}
