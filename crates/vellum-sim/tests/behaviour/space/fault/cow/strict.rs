//! Copy on write: the size of copies, reuse by the last user, and failed allocations.

use vellum::frame::policy::Knob;
use vellum::memcg::Refused;
use vellum::space::{Access, MapFlags};
use vellum::stats::Counter;
use vellum_sim::Refusal;

use crate::fixtures::root_memcg::{BASE, HUGE, PAGE, Space, map, range, x86};

/// A huge PTE stays one in the child. A write copies the huge page if policy allows that, else one
/// page; the other space's PTE does not change.
#[test]
fn fork_and_cow_keep_huge_ptes() {
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
            // The parent is the only user now.
            on.store(&parent, BASE + PAGE, 7);
            assert_eq!((huge(&parent), on.count(Counter::CowReuses)), (HUGE, 1));
        });
    }
}

/// Once the child has exited, its parent writes in place: the whole run after one fault, and
/// without an allocation.
#[test]
fn the_last_sharer_writes_in_place() {
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

/// A copy is as large as policy allows if all of it is shared, and replaces the pages wherever each
/// of them was.
#[test]
fn copies_are_as_large_as_policy_allows() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 32 * PAGE, MapFlags::empty());
        // Single pages, out of order.
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
        // A page that the child has copied already is not copied again.
        on.machine.policy().set(3, Knob::Never);
        on.store(&child, BASE + 17 * PAGE, 1);
        on.machine.policy().set(3, Knob::Always);
        on.store(&child, BASE + 18 * PAGE, 1);
        assert_eq!(on.count(Counter::CowCopies), 3);
        assert_eq!(child.usage(range(BASE + 16 * PAGE, 8 * PAGE)).resident, 8 * PAGE);
    });
}

/// A write without memory for the copy fails, and leaves both spaces unchanged.
#[test]
fn failed_copies_change_nothing() {
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
        // No memory for the huge page, but for a single page.
        on.store(&child, BASE, 3);
        assert_eq!((on.load(&child, BASE), on.load(&parent, BASE)), (3, 1));
    });
}
