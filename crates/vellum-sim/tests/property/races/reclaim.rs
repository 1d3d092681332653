//! What a family has is reclaimed, while others reclaim, use and change it.

use vellum::Machine;
use vellum::addr::VirtRange;
use vellum::arch::{Attrs, Kind, X86_64};
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

/// Two do something at once; then the third looks, and nothing is left in the end.
fn at_once(
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
        both(sim, |cpu| one(&Scene { cpu, ..here }), |cpu| other(&Scene { cpu, ..here }));
        look(&here);
    });
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
