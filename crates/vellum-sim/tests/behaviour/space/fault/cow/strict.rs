//! Copy on write: the size of copies, reuse by the last user, and failed allocations.

use vellum::frame::policy::Knob;
use vellum::memcg::Refused;
use vellum::space::{Access, MapFlags};
use vellum::stats::Counter;
use vellum_sim::Refusal;

use crate::fixtures::root_memcg::{BASE, HUGE, PAGE, Space, map, range, x86};

/// A huge PTE stays one in the child until the child writes to it. The write copies one page,
/// whatever policy allows; the other space's PTE does not change.
#[test]
fn fork_and_cow_keep_huge_ptes() {
    x86(64 << 20, |on| {
        on.machine.policy().set(9, Knob::Always);
        let parent = on.space();
        map(&parent, BASE, HUGE, MapFlags::POPULATE);
        on.store(&parent, BASE + HUGE - 8, 5);
        let child = parent.fork().unwrap();
        let huge = |space: &Space<'_, _>| space.usage(range(BASE, HUGE)).huge;
        assert_eq!((huge(&parent), huge(&child)), (HUGE, HUGE));
        let free = on.machine.frames().free_frames();
        on.store(&child, BASE, 6);
        assert_eq!((huge(&parent), huge(&child)), (HUGE, 0));
        assert_eq!(on.machine.frames().free_frames(), free - 2, "a page and a page table");
        assert_eq!((on.load(&child, BASE), on.load(&child, BASE + HUGE - 8)), (6, 5));
        assert_eq!((on.load(&parent, BASE), on.load(&parent, BASE + HUGE - 8)), (0, 5));
        assert_eq!(on.count(Counter::CowCopies), 1);
        drop(child);
        // The parent is the only user now.
        on.store(&parent, BASE + PAGE, 7);
        assert_eq!((huge(&parent), on.count(Counter::CowReuses)), (HUGE, 1));
    });
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

/// A copy has as many pages as the program wrote to just before, up to what policy allows, if all
/// of them are shared; it replaces the pages wherever each of them was. A page to which nothing was
/// written before it is copied alone.
#[test]
fn copies_are_as_large_as_what_was_written_before() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 64 * PAGE, MapFlags::empty());
        // Single pages, out of order.
        (0..64).for_each(|i| on.store(&parent, BASE + i * 7 % 64 * PAGE, i * 7 % 64));
        let child = parent.fork().unwrap();
        (1..=3).for_each(|order| on.machine.policy().set(order, Knob::Always));
        let copied = |page: u64| {
            let before = (on.count(Counter::CowCopies), child.usage(range(BASE, 64 * PAGE)).pss.all);
            on.store(&child, BASE + page * PAGE, 100 + page);
            assert!(on.count(Counter::CowCopies) <= before.0 + 1);
            // A page that both spaces map counts half in each.
            (child.usage(range(BASE, 64 * PAGE)).pss.all - before.1) / (PAGE / 2)
        };
        let in_order: Vec<u64> = (0..33).map(copied).filter(|pages| *pages > 0).collect();
        assert_eq!(in_order, [1, 1, 2, 4, 8, 8, 8, 8]);
        assert_eq!([60, 55, 51].map(copied), [1; 3], "nothing was written before these");
        // The pair of 56 and 57 follows 54, which is shared, and that of 58 and 59 follows 57.
        assert_eq!([56, 58].map(copied), [1, 1]);
        let written = |page| page < 33 || [60, 55, 51, 56, 58].contains(&page);
        (0..64).for_each(|page| {
            let other = if written(page) { 100 + page } else { page };
            assert_eq!((on.load(&parent, BASE + page * PAGE), on.load(&child, BASE + page * PAGE)), (page, other));
        });
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
        (0..2).for_each(|page| on.store(&child, BASE + HUGE + page * PAGE, 3));
        on.machine.policy().set(1, Knob::Always);
        let copies = on.count(Counter::CowCopies);
        on.sim.refuse(Refusal::Nth(1));
        // No memory for two pages, but for one.
        (2..4).for_each(|page| on.store(&child, BASE + HUGE + page * PAGE, 3));
        assert_eq!(on.count(Counter::CowCopies), copies + 2);
        assert_eq!((on.load(&child, BASE + HUGE + 2 * PAGE), on.load(&parent, BASE + HUGE)), (3, 2));
    });
}
