//! Memory that a parent and a child share is reclaimed, while other CPUs reclaim, use and change
//! it.

use vellum::addr::VirtRange;
use vellum::frame::flag;
use vellum::space::Advise;

use crate::fixtures::schedules::family::{Context, family};
use crate::fixtures::schedules::{PAGE, at};

/// Pages that both share, in one folio.
const PAGES: u64 = 2;

/// Calls [`family`].
fn after_that(
    before: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    one: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    family((1500, 1), before, one, other, look);
}

/// Calls [`family`] with nothing before.
fn at_once(
    one: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    after_that(|_| (), one, other, look);
}

fn all(on: &Context<'_, '_>) {
    on.reclaim(u64::MAX);
}

fn as_it_was(on: &Context<'_, '_>) {
    on.holds(on.parent, 0..=PAGES);
    on.holds(on.child, 0..PAGES);
    assert_eq!(on.load(on.child, PAGES), 200);
}

#[test]
fn two_reclaims_of_one_page() {
    at_once(all, all, |on| {
        assert_eq!((on.swapped(on.parent), on.swapped(on.child)), (PAGES + 1, PAGES + 1));
        assert_eq!(on.disk.used() as u64, PAGES + 2, "shared pages are written once");
        as_it_was(on);
    });
}

/// Neither sees what the other writes, wherever the page is at the time.
#[test]
fn parent_and_child_write_during_reclaim() {
    let write = |on: &Context<'_, '_>| {
        (0..PAGES).for_each(|page| on.store(on.parent, page, 300 + page));
        on.holds(on.child, 0..1);
        on.store(on.child, 0, 400);
    };
    at_once(all, write, |on| {
        (0..PAGES).for_each(|page| assert_eq!(on.load(on.parent, page), 300 + page));
        assert_eq!(on.load(on.child, 0), 400);
        on.holds(on.child, 1..PAGES);
    });
}

/// The last user of a shared page writes to it.
#[test]
fn the_last_user_writes_during_reclaim() {
    let forget = |on: &Context<'_, '_>| {
        on.parent.advise(at(0), PAGES * PAGE, Advise::DontNeed).unwrap();
        (0..PAGES).for_each(|page| on.store(on.child, page, 400 + page));
    };
    at_once(all, forget, |on| {
        (0..PAGES).for_each(|page| assert_eq!((on.load(on.parent, page), on.load(on.child, page)), (0, 400 + page)));
    });
}

fn parent_reads(on: &Context<'_, '_>) {
    on.holds(on.parent, 0..PAGES);
}

fn and_parent_reads(on: &Context<'_, '_>) {
    all(on);
    parent_reads(on);
}

fn child_reads(on: &Context<'_, '_>) {
    on.holds(on.child, 0..PAGES);
}

#[test]
fn parent_and_child_swap_in_one_page() {
    after_that(all, parent_reads, child_reads, |on| {
        on.slots_are_had();
        assert_eq!(on.frames(on.parent), on.frames(on.child), "both map one folio");
        assert_eq!(on.disk.used() as u64, PAGES + 2);
        as_it_was(on);
    });
}

/// The pages are reclaimed again meanwhile, which may free the swap-cache page that the other is
/// about to find.
#[test]
fn shared_pages_are_reclaimed_again_during_swap_in() {
    let other = |on: &Context<'_, '_>| {
        all(on);
        child_reads(on);
    };
    for before in [all, and_parent_reads] {
        after_that(before, other, parent_reads, |on| {
            on.slots_are_had();
            all(on);
            on.slots_are_had();
            assert_eq!(on.disk.used() as u64, PAGES + 2, "it is written again");
            as_it_was(on);
        });
    }
}

/// One writes to a page that it has swapped in while the other finds it in the swap cache.
#[test]
fn writing_a_swapped_in_page_races_the_other_swap_in() {
    let write = |on: &Context<'_, '_>| (0..PAGES).for_each(|page| on.store(on.parent, page, 300 + page));
    for before in [all, and_parent_reads] {
        after_that(before, write, child_reads, |on| {
            on.slots_are_had();
            all(on);
            on.slots_are_had();
            (0..PAGES).for_each(|page| assert_eq!(on.load(on.parent, page), 300 + page));
            child_reads(on);
        });
    }
}

/// One drops a page that it has swapped in, as its last user, while the other is about to find it
/// in the swap cache.
#[test]
fn dropping_a_swapped_in_page_races_the_other_swap_in() {
    let forget = |on: &Context<'_, '_>| on.parent.advise(at(0), PAGES * PAGE, Advise::DontNeed).unwrap();
    after_that(and_parent_reads, forget, child_reads, |on| {
        on.slots_are_had();
        (0..PAGES).for_each(|page| assert_eq!((on.load(on.parent, page), on.load(on.child, page)), (0, 100 + page)));
    });
}

/// One drops a whole folio while the other finds a part of it in the swap cache: the unmapped rest
/// of the folio is queued for splitting.
#[test]
fn dropping_a_folio_races_swap_in_of_its_part() {
    let before = |on: &Context<'_, '_>| {
        and_parent_reads(on);
        on.child.unmap(at(1), PAGE).unwrap();
    };
    let forget = |on: &Context<'_, '_>| on.parent.advise(at(0), PAGES * PAGE, Advise::DontNeed).unwrap();
    after_that(
        before,
        forget,
        |on| on.holds(on.child, 0..1),
        |on| {
            on.child.runs(VirtRange { start: at(0), end: at(1) }, |run| {
                let (_, frame) = on.machine.frames().head(run.pfn(on.child.arch()));
                let all = frame.counts().maps >= 1 << frame.order();
                assert!(
                    all || frame.has(flag::PARTIALLY_MAPPED),
                    "{:?} of a folio of order {}",
                    frame.counts(),
                    frame.order()
                );
            });
        },
    );
}
