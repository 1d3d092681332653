//! Guard markers: installing over mapped memory, and allocations that fail.

use vellum::frame::policy::Knob;
use vellum::space::{Advise, AdviseError, FaultError, MapFlags};
use vellum_sim::{Fault, Refusal};

use crate::fixtures::root_memcg::{BASE, HUGE, PAGE, map, range, x86};

/// A guard install that runs out of memory keeps the earlier guards and the pages that it has not
/// come to.
#[test]
fn a_failed_guard_install_keeps_earlier_guards() {
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

/// Guards over several page tables and a huge PTE: dropped pages are freed, pages beside them stay,
/// and page tables are freed with their last guard.
#[test]
fn guards_replace_pages_and_page_tables() {
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
        assert_eq!(space.stats().tables, tables - PAGE, "the middle page table is empty");
        assert_eq!(on.load(&space, BASE + HUGE), 0);
    });
}

/// Poisoned pages are lost, and stay so until they are dropped; guards stay guards.
#[test]
fn poisoned_pages_fault_until_they_are_dropped() {
    x86(32 << 20, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.space();
        map(&space, BASE, 2 * HUGE, MapFlags::empty());
        on.store(&space, BASE, 1);
        on.store(&space, BASE + PAGE, 2);
        space.advise(BASE + 4 * PAGE, PAGE, Advise::GuardInstall).unwrap();
        space.advise(BASE + PAGE, 4 * PAGE, Advise::Poison).unwrap();
        let fault = |va| on.cpu.enter(&space).load_u64(va).unwrap_err();
        assert_eq!(fault(BASE + PAGE), Fault::Handler(FaultError::Poisoned(BASE + PAGE)));
        assert_eq!(fault(BASE + 4 * PAGE), Fault::Handler(FaultError::Denied(BASE + 4 * PAGE)));
        assert_eq!((on.load(&space, BASE), on.load(&space, BASE + 5 * PAGE)), (1, 0));
        space.advise(BASE + PAGE, 4 * PAGE, Advise::DontNeed).unwrap();
        assert_eq!(on.load(&space, BASE + PAGE), 0);
        fault(BASE + 4 * PAGE);
    });
}
