//! The spaces that reclaim visits for anonymous memory (rmap): all that may map it, and few others.

use std::cell::Cell;

use vellum::frame::Family;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::Spaces;
use vellum_sim::{Hostility, Silicon, Strict};

use crate::fixtures::bench::{Bench, Setup, Space, USUAL, in_every_format, map};

const BASE: u64 = 1 << 33;
const CHILDREN: u64 = 12;

in_every_format! {
    memory_of_a_child_is_looked_up_in_that_child => of_a_child,
    memory_of_a_parent_is_looked_up_in_the_parent_first => of_a_parent,
    swap_cache_pages_are_found_in_sibling_spaces => brought_back,
    rmap_finds_deep_fork_families => deep,
}

/// Counts the visited spaces.
struct Counted<'s, 'm, A: Silicon> {
    spaces: Vec<&'s Space<'m, A>>,
    shown: Cell<usize>,
}

impl<'m, A: Silicon> Spaces<'m, Strict<A>> for Counted<'_, 'm, A> {
    fn each(&self, visit: &mut dyn FnMut(&Space<'m, A>)) {
        self.spaces[..].each(visit);
    }

    fn each_in_family(&self, family: Family, visit: &mut dyn FnMut(&Space<'m, A>) -> bool) {
        self.spaces[..].each_in_family(family, &mut |space| {
            self.shown.set(self.shown.get() + 1);
            visit(space)
        });
    }
}

fn on<A: Silicon>(arch: A, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { slots: 4096, hostility: Hostility::NONE, ..USUAL }, test);
}

/// Reclaims everything. Returns the number of visited spaces.
fn shown<'m, A: Silicon>(on: &Bench<'m, A>, spaces: Vec<&Space<'m, A>>) -> usize {
    let spaces = Counted { spaces, shown: Cell::new(0) };
    reclaim(on.machine, &spaces, MemcgId::ROOT, u64::MAX).unwrap();
    spaces.shown.get()
}

fn resident<A: Silicon>(spaces: &[Space<'_, A>]) -> u64 {
    spaces.iter().map(|space| space.stats().anon).sum()
}

fn of_a_child<A: Silicon>(arch: A) {
    on(arch, |on| {
        let parent = on.space_of(MemcgId::ROOT);
        map(&parent, BASE, CHILDREN * on.page);
        let children: Vec<_> = (0..CHILDREN).map(|_| parent.fork().unwrap()).collect();
        for (nth, child) in (0..).zip(&children) {
            (0..CHILDREN).for_each(|page| on.store(child, BASE + page * on.page, 100 * nth + page));
        }
        let all = [&parent].into_iter().chain(&children).collect();
        let shown = shown(on, all);
        assert_eq!(resident(&children), 0);
        // Each child a few times: to check whether its memory was accessed, and to page it out; not
        // for each page of its siblings.
        assert!(shown as u64 <= 6 * CHILDREN, "{shown} spaces were searched");
        for (nth, child) in (0..).zip(&children) {
            (0..CHILDREN).for_each(|page| assert_eq!(on.load(child, BASE + page * on.page), 100 * nth + page));
        }
    });
}

fn of_a_parent<A: Silicon>(arch: A) {
    on(arch, |on| {
        let parent = on.space_of(MemcgId::ROOT);
        map(&parent, BASE, 8 * on.page);
        let children: Vec<_> = (0..CHILDREN).map(|_| parent.fork().unwrap()).collect();
        (0..8).for_each(|page| on.store(&parent, BASE + page * on.page, page));
        let all = [&parent].into_iter().chain(&children).collect();
        // The children might map it, but none of their folios is left.
        let shown = shown(on, all);
        assert_eq!(parent.stats().anon, 0);
        assert!((shown as u64) < CHILDREN, "{shown} spaces were searched");
        (0..8).for_each(|page| assert_eq!(on.load(&parent, BASE + page * on.page), page));
    });
}

fn brought_back<A: Silicon>(arch: A) {
    on(arch, |on| {
        let parent = on.space_of(MemcgId::ROOT);
        map(&parent, BASE, 8 * on.page);
        (0..8).for_each(|page| on.store(&parent, BASE + page * on.page, page));
        let children = [parent.fork().unwrap(), parent.fork().unwrap()];
        let all = || [&parent].into_iter().chain(&children).collect::<Vec<_>>();
        shown(on, all());
        for child in &children {
            (0..8).for_each(|page| assert_eq!(on.load(child, BASE + page * on.page), page));
        }
        // They share the folios that one of them swapped in.
        assert_eq!(on.machine.memcgs().usage(on.machine.frames(), MemcgId::ROOT).unwrap().lru.iter().sum::<u64>(), {
            8 << (on.page.ilog2() - 12)
        });
        shown(on, all());
        assert_eq!(resident(&children), 0);
        for child in &children {
            (0..8).for_each(|page| assert_eq!(on.load(child, BASE + page * on.page), page));
        }
    });
}

fn deep<A: Silicon>(arch: A) {
    on(arch, |on| {
        let first = on.space_of(MemcgId::ROOT);
        map(&first, BASE, 16 * on.page);
        let mut line = vec![first];
        for generation in 0..8 {
            on.store(&line[generation], BASE + generation as u64 * on.page, generation as u64);
            line.push(line[generation].fork().unwrap());
        }
        // The last of the line shares the pages of all its ancestors, those that have exited
        // included.
        line.drain(2..6);
        shown(on, line.iter().collect());
        assert_eq!(resident(&line), 0);
        let last = line.last().unwrap();
        (0..8).for_each(|page| assert_eq!(on.load(last, BASE + page * on.page), page));
    });
}
