//! What a family has is reclaimed, while others reclaim, use and change it.

use std::collections::BTreeSet;

use vellum::Machine;
use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Arch, Attrs, Kind, X86_64};
use vellum::group::GroupId;
use vellum::reclaim::reclaim;
use vellum::space::{Advise, MapFlags};
use vellum_sim::{Cpu, Disk, Strict};

use super::{PAGE, Space, at, both, every_swapping, fixed, space};

/// Pages that a parent and a child have together, in one folio; and one of which each has its own.
const PAGES: u64 = 2;

/// What a case has: a parent whose pages hold 100, 101, …, and a child that has the same, but for 200 in the last page.
struct Scene<'s, 'm> {
    machine: &'m Machine<'m, Strict>,
    disk: &'s Disk,
    parent: &'s Space<'m>,
    child: &'s Space<'m>,
    cpu: &'s Cpu<'s, Strict>,
}

impl Scene<'_, '_> {
    fn load(&self, space: &Space<'_>, page: u64) -> u64 {
        self.cpu.enter(space).load_u64(at(page)).unwrap()
    }

    fn store(&self, space: &Space<'_>, page: u64, value: u64) {
        self.cpu.enter(space).store_u64(at(page), value).unwrap();
    }

    /// These pages hold what they held in the beginning.
    fn holds(&self, space: &Space<'_>, pages: impl IntoIterator<Item = u64>) {
        pages.into_iter().for_each(|page| assert_eq!(self.load(space, page), 100 + page, "page {page}"));
    }
}

/// After somebody has done something, two do something at once; then the third looks, and nothing is left in the end.
fn after_that(
    before: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    one: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
) {
    every_swapping(move |sim, boot, machine, disk| {
        let parent = space(machine);
        parent.map(fixed(0, PAGES, MapFlags::empty())).unwrap();
        parent.map(fixed(PAGES, 1, MapFlags::empty())).unwrap();
        (0..=PAGES).for_each(|page| boot.enter(&parent).store_u64(at(page), 100 + page).unwrap());
        let child = parent.fork().unwrap();
        boot.enter(&child).store_u64(at(PAGES), 200).unwrap();
        // Nobody has used any of it.
        for space in [&parent, &child] {
            let all = VirtRange { start: at(0), end: at(PAGES + 1) };
            space.forget_recorded(all, Attrs::ACCESSED, |_, _| ());
        }
        let here = Scene { machine, disk, parent: &parent, child: &child, cpu: boot };
        before(&here);
        both(sim, |cpu| one(&Scene { cpu, ..here }), |cpu| other(&Scene { cpu, ..here }));
        look(&here);
    });
}

/// The same without anything before.
fn at_once(
    one: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Scene<'_, '_>) + Clone + Send + Sync + 'static,
) {
    after_that(|_| (), one, other, look);
}

/// How many pages of a space are swapped out.
fn swapped(space: &Space<'_>) -> u64 {
    let mut pages = 0;
    let all = VirtRange { start: at(0), end: at(PAGES + 1) };
    space.runs(all, |run| pages += if run.kind == Kind::Swap { run.len as u64 } else { 0 });
    assert_eq!(space.stats().swap, pages * PAGE);
    pages
}

fn all(on: &Scene<'_, '_>) {
    let family: &[&Space<'_>] = &[on.parent, on.child];
    reclaim::<_, X86_64>(on.machine, family, GroupId::ROOT, u64::MAX).unwrap();
}

fn as_it_was(on: &Scene<'_, '_>) {
    on.holds(on.parent, 0..=PAGES);
    on.holds(on.child, 0..PAGES);
    assert_eq!(on.load(on.child, PAGES), 200);
}

#[test]
fn two_reclaim_the_same() {
    at_once(all, all, |on| {
        assert_eq!((swapped(on.parent), swapped(on.child)), (PAGES + 1, PAGES + 1));
        assert_eq!(on.disk.used() as u64, PAGES + 2, "what both have is written once");
        as_it_was(on);
    });
}

/// Neither has what the other writes, wherever it is at the time.
#[test]
fn a_family_writes_to_what_is_reclaimed() {
    let write = |on: &Scene<'_, '_>| {
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

/// Who is left with what both had writes to it.
#[test]
fn a_parent_forgets_what_is_reclaimed_and_its_child_writes() {
    let forget = |on: &Scene<'_, '_>| {
        on.parent.advise(at(0), PAGES * PAGE, Advise::DontNeed).unwrap();
        (0..PAGES).for_each(|page| on.store(on.child, page, 400 + page));
    };
    at_once(all, forget, |on| {
        (0..PAGES).for_each(|page| assert_eq!((on.load(on.parent, page), on.load(on.child, page)), (0, 400 + page)));
    });
}

/// The frames of the pages that both have.
fn frames(space: &Space<'_>) -> Vec<Pfn> {
    let mut frames = Vec::new();
    space.runs(VirtRange { start: at(0), end: at(PAGES) }, |run| {
        assert_eq!(run.kind, Kind::Leaf, "{run:?}");
        frames.extend((0..run.len as u32).map(|i| run.pfn(space.arch()).add(i)));
    });
    frames
}

/// No slot has a copy that somebody may write to, and no slot is in use that neither an entry names nor a copy has.
fn slots_are_had(on: &Scene<'_, '_>) {
    let (mut named, mut cached) = (BTreeSet::new(), BTreeSet::new());
    for space in [on.parent, on.child] {
        let arch = space.arch();
        space.runs(VirtRange { start: at(0), end: at(PAGES + 1) }, |run| {
            for i in 0..run.len as u32 {
                if run.kind == Kind::Swap {
                    named.insert(arch.swapped(run.raw).slot as u32 + i);
                } else if run.kind == Kind::Leaf
                    && let Some(copied) = on.machine.swaps().slot_of(on.machine.platform(), run.pfn(arch).add(i))
                {
                    assert!(!run.attrs(arch).contains(Attrs::EXCLUSIVE), "{copied:?} is written by {run:?}");
                    cached.insert(copied.slots.first);
                }
            }
        });
    }
    let usage = on.machine.swaps().usage(on.machine.platform(), 0).unwrap();
    let expected = (named.union(&cached).count(), cached.len());
    assert_eq!((usage.used as usize, usage.cached as usize), expected, "{named:?}, and with copies {cached:?}");
}

fn parent_reads(on: &Scene<'_, '_>) {
    on.holds(on.parent, 0..PAGES);
}

fn and_parent_reads(on: &Scene<'_, '_>) {
    all(on);
    parent_reads(on);
}

fn child_reads(on: &Scene<'_, '_>) {
    on.holds(on.child, 0..PAGES);
}

#[test]
fn two_bring_back_what_both_have() {
    after_that(all, parent_reads, child_reads, |on| {
        slots_are_had(on);
        assert_eq!(frames(on.parent), frames(on.child), "both have one folio");
        assert_eq!(on.disk.used() as u64, PAGES + 2);
        as_it_was(on);
    });
}

/// The same while it is reclaimed again, which may free what the other is about to find.
#[test]
fn what_both_have_is_brought_back_and_reclaimed() {
    let other = |on: &Scene<'_, '_>| {
        all(on);
        child_reads(on);
    };
    for before in [all, and_parent_reads] {
        after_that(before, other, parent_reads, |on| {
            slots_are_had(on);
            all(on);
            slots_are_had(on);
            assert_eq!(on.disk.used() as u64, PAGES + 2, "it is written again");
            as_it_was(on);
        });
    }
}

/// One writes to what it has brought back while the other finds it there.
#[test]
fn what_one_has_brought_back_is_written() {
    let write = |on: &Scene<'_, '_>| (0..PAGES).for_each(|page| on.store(on.parent, page, 300 + page));
    for before in [all, and_parent_reads] {
        after_that(before, write, child_reads, |on| {
            slots_are_had(on);
            all(on);
            slots_are_had(on);
            (0..PAGES).for_each(|page| assert_eq!(on.load(on.parent, page), 300 + page));
            child_reads(on);
        });
    }
}

/// One forgets what it has brought back, the last who had it in memory, while the other is about to find it.
#[test]
fn what_one_has_brought_back_is_forgotten() {
    let forget = |on: &Scene<'_, '_>| on.parent.advise(at(0), PAGES * PAGE, Advise::DontNeed).unwrap();
    after_that(and_parent_reads, forget, child_reads, |on| {
        slots_are_had(on);
        (0..PAGES).for_each(|page| assert_eq!((on.load(on.parent, page), on.load(on.child, page)), (0, 100 + page)));
    });
}
