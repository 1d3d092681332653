//! The swap cache: a page that was swapped in by a read keeps its slot, and a page that a fork
//! family shares in one slot is swapped in once.

use std::ops::Deref;

use vellum::AddressSpace;
use vellum::addr::{Pfn, VirtRange};
use vellum::arch::{Kind, X86_64};
use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::space::{Advise, Limits, MapFlags, MapRequest};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::{Disk, Silicon};

use crate::fixtures::bench::{BASE, Bench, Space, USUAL, in_every_format, map};

/// Pages of each test.
const PAGES: u64 = 48;

/// A machine with a disk to swap to.
struct Disked<'m, A: Silicon = X86_64> {
    bench: &'m Bench<'m, A>,
    disk: &'m Disk,
}

impl<'m, A: Silicon> Deref for Disked<'m, A> {
    type Target = Bench<'m, A>;

    fn deref(&self) -> &Self::Target {
        self.bench
    }
}

/// Runs a test with room for this many pages on the disk; it must free all its memory and slots.
fn on<A: Silicon>(arch: A, pages: u64, test: impl FnOnce(&Disked<'_, A>)) {
    crate::fixtures::bench::on(arch, USUAL, |bench| {
        let disk = Disk::new(1);
        let on = Disked { bench, disk: &disk };
        on.attach(pages);
        test(&on);
        on.detach();
        assert_eq!(disk.used(), 0, "leaked slots");
    });
}

impl<'m, A: Silicon> Disked<'m, A> {
    fn attach(&self, pages: u64) {
        let slots = (pages << self.arch.page_order()) as u32;
        // SAFETY: no other code uses it, and it outlives the machine's use of it.
        unsafe { self.machine.swaps().attach(self.machine.frames(), self.disk, slots, 0) }.unwrap();
    }

    fn detach(&self) {
        self.machine.swaps().close(self.sim, 0).unwrap();
        self.machine.swaps().detach(self.machine.frames(), 0).unwrap();
    }

    /// Returns a space with pages that hold 1000, 1001, ….
    fn space(&self) -> Space<'m, A> {
        self.space_of(self.memcg)
    }

    fn space_of(&self, memcg: MemcgId) -> Space<'m, A> {
        let space = self.bench.space_of(memcg);
        map(&space, BASE, PAGES * self.page);
        (0..PAGES).for_each(|i| self.store(&space, i, 1000 + i));
        space
    }

    fn at(&self, page: u64) -> u64 {
        BASE + page * self.page
    }

    fn store(&self, space: &Space<'_, A>, page: u64, value: u64) {
        self.cpu.enter(space).store_u64(self.at(page), value).unwrap();
    }

    fn load(&self, space: &Space<'_, A>, page: u64) -> u64 {
        self.cpu.enter(space).load_u64(self.at(page)).unwrap()
    }

    /// Reads all pages, and checks their first values.
    fn read(&self, space: &Space<'_, A>) {
        (0..PAGES).for_each(|i| assert_eq!(self.load(space, i), 1000 + i, "page {i}"));
    }

    fn out(&self, space: &Space<'_, A>) {
        space.advise(BASE, PAGES * self.page, Advise::PageOut).unwrap();
        assert_eq!(self.frames(space), [], "some of it stays");
    }

    /// Returns the first frame of each resident page.
    fn frames(&self, space: &Space<'_, A>) -> Vec<Pfn> {
        let mut frames = Vec::new();
        space.runs(VirtRange { start: BASE, end: self.at(PAGES) }, |run| {
            if run.kind == Kind::Leaf {
                let pages = run.range(&self.arch).len() >> self.arch.page_shift();
                frames.extend((0..pages as u32).map(|i| run.pfn(&self.arch).add(i << self.arch.page_order())));
            }
        });
        frames
    }

    /// Returns the number of pages written to swap, pages with slots, and pages in the swap cache.
    fn counts(&self) -> [u64; 3] {
        let usage = self.machine.swaps().usage(self.sim, 0).unwrap();
        [self.machine.counter(Counter::SwapOut), usage.used.into(), usage.cached.into()]
            .map(|frames| frames >> self.arch.page_order())
    }
}

in_every_format! {
    clean_swap_cache_pages_are_not_written_again => read_only,
    dirty_swap_cache_pages_are_written_again => written,
    swap_cache_pages_are_shared_by_a_fork_family => family,
    writes_to_a_swap_cache_page_copy_it => family_writes,
    swap_in_by_a_write_keeps_no_slots => written_at_once,
    no_slots_are_kept_when_slots_are_short => crowded,
    slots_of_swap_cache_pages_are_reclaimed => makes_room,
    swap_cache_pages_are_reclaimed_without_free_slots => full,
    locked_pages_keep_no_slots => locked,
    devices_with_swap_cache_pages_can_be_detached => detached,
    dropped_swap_cache_pages_free_their_slots => dropped,
    swap_cache_pages_count_in_their_memcg => memcgs,
}

fn read_only<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let space = on.space();
        on.out(&space);
        for _ in 0..3 {
            assert_eq!(on.counts(), [PAGES, PAGES, 0]);
            on.read(&space);
            assert_eq!(on.counts(), [PAGES; 3]);
            on.out(&space);
        }
        on.read(&space);
        on.reclaim_all(&[&space]);
        assert_eq!((on.frames(&space), on.counts()), (vec![], [PAGES, PAGES, 0]));
        on.read(&space);
    });
}

fn memcgs<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let other = MemcgId::ROOT;
        let spaces = [on.memcg, other].map(|memcg| on.space_of(memcg));
        spaces.iter().for_each(|space| on.out(space));
        let cached = |memcg| on.machine.swap_cached(|of| of == memcg) >> arch.page_order();
        (0..PAGES / 4).for_each(|i| assert_eq!(on.load(&spaces[1], i), 1000 + i));
        // With readahead.
        let came = on.frames(&spaces[1]).len() as u64;
        assert_eq!([on.memcg, other].map(cached), [0, came]);
        on.read(&spaces[0]);
        assert_eq!([on.memcg, other].map(cached), [PAGES, came]);
        assert_eq!(on.machine.swap_cached(|_| true) >> arch.page_order(), on.counts()[2]);
        drop(spaces);
        assert_eq!(on.machine.swap_cached(|_| true), 0);
    });
}

fn written<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let space = on.space();
        on.out(&space);
        on.read(&space);
        let before = on.frames(&space);
        (0..PAGES).step_by(3).for_each(|i| on.store(&space, i, 2000 + i));
        assert_eq!(on.frames(&space), before, "the pages are mapped exclusively");
        assert_eq!(on.counts(), [PAGES, 2 * PAGES / 3, 2 * PAGES / 3]);
        on.out(&space);
        assert_eq!(on.counts(), [PAGES + PAGES / 3, PAGES, 0]);
        (0..PAGES).for_each(|i| assert_eq!(on.load(&space, i), if i % 3 == 0 { 2000 + i } else { 1000 + i }));
    });
}

fn family<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let parent = on.space();
        let child = parent.fork().unwrap();
        let grandchild = child.fork().unwrap();
        let all = [&parent, &child, &grandchild];
        on.reclaim_all(&all);
        assert_eq!(on.counts(), [PAGES, PAGES, 0]);
        for _ in 0..2 {
            let swapped_in = on.machine.counter(Counter::SwapIn);
            all.iter().for_each(|space| on.read(space));
            assert_eq!(on.machine.counter(Counter::SwapIn) - swapped_in, PAGES << arch.page_order());
            let frames = all.map(|space| on.frames(space));
            assert_eq!((&frames[0], &frames[0]), (&frames[1], &frames[2]));
            assert_eq!(on.counts(), [PAGES; 3]);
            on.reclaim_all(&all);
            assert_eq!(on.counts(), [PAGES, PAGES, 0]);
        }
        all.iter().for_each(|space| on.read(space));
    });
}

fn family_writes<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let parent = on.space();
        let child = parent.fork().unwrap();
        on.reclaim_all(&[&parent, &child]);
        (0..PAGES).step_by(2).for_each(|i| on.store(&child, i, 3000 + i));
        on.read(&parent);
        (0..PAGES).step_by(4).for_each(|i| on.store(&parent, i, 4000 + i));
        for _ in 0..2 {
            for i in 0..PAGES {
                assert_eq!(on.load(&child, i), if i % 2 == 0 { 3000 + i } else { 1000 + i });
                assert_eq!(on.load(&parent, i), if i % 4 == 0 { 4000 + i } else { 1000 + i });
            }
            on.reclaim_all(&[&parent, &child]);
        }
        // All pages once, half of them for the child, and a quarter for the parent.
        assert_eq!(on.counts()[0], PAGES + PAGES / 2 + PAGES / 4);
    });
}

fn written_at_once<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let space = on.space();
        on.out(&space);
        on.store(&space, 0, 1000);
        assert_eq!(on.counts()[2], 0, "nor do its neighbours");
        (0..PAGES).for_each(|i| on.store(&space, i, 1000 + i));
        assert_eq!(on.counts(), [PAGES, 0, 0]);
    });
}

fn crowded<A: Silicon>(arch: A) {
    on(arch, 2 * PAGES - 2, |on| {
        let space = on.space();
        on.out(&space);
        let first = on.load(&space, 0);
        assert_eq!((first, on.counts()[2]), (1000, 0), "more than half of the slots are in use");
        on.read(&space);
        let [_, used, cached] = on.counts();
        assert!(used == cached && cached < PAGES, "{used} {cached}");
    });
}

fn makes_room<A: Silicon>(arch: A) {
    on(arch, 2 * PAGES, |on| {
        let [one, other, third] = [on.space(), on.space(), on.space()];
        on.out(&one);
        on.read(&one);
        assert_eq!(on.counts(), [PAGES; 3]);
        on.out(&other);
        on.out(&third);
        assert_eq!(on.counts(), [3 * PAGES, 2 * PAGES, 0]);
        [&one, &other, &third].into_iter().for_each(|space| on.read(space));
    });
}

/// Swap-cache pages can be reclaimed when no slot is free.
fn full<A: Silicon>(arch: A) {
    on(arch, PAGES, |on| {
        let parent = on.space();
        let child = parent.fork().unwrap();
        on.reclaim_all(&[&parent, &child]);
        assert_eq!(on.counts(), [PAGES, PAGES, 0]);
        on.read(&parent);
        assert_eq!(on.counts(), [PAGES; 3], "the child maps the same page");
        assert!(on.machine.swaps().has_room(on.sim));
        on.reclaim_all(&[&parent, &child]);
        assert_eq!((on.frames(&parent), on.counts()), (vec![], [PAGES, PAGES, 0]));
        assert!(!on.machine.swaps().has_room(on.sim));
        on.read(&child);
    });
}

fn locked<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let space = on.space();
        on.out(&space);
        space.lock(BASE, PAGES * on.page, true).unwrap();
        on.read(&space);
        assert_eq!(on.counts(), [PAGES, 0, 0]);
    });
}

fn detached<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let [space, other] = [on.space(), on.space()];
        let child = space.fork().unwrap();
        on.reclaim_all(&[&space, &child, &other]);
        on.read(&space);
        on.read(&other);
        on.machine.swaps().close(on.sim, 0).unwrap();
        [&space, &child, &other].into_iter().for_each(|space| space.swap_off(0).unwrap());
        assert_eq!(on.frames(&space), on.frames(&child));
        on.detach();
        assert_eq!(on.disk.used(), 0);
        // A stale slot number may not be taken for a slot of the next device.
        on.attach(4 * PAGES);
        on.out(&other);
        [&space, &child, &other].into_iter().for_each(|space| on.read(space));
        on.reclaim_all(&[&space, &child]);
        [&child, &space].into_iter().for_each(|space| on.read(space));
    });
}

fn dropped<A: Silicon>(arch: A) {
    on(arch, 4 * PAGES, |on| {
        let space = on.space();
        on.out(&space);
        on.read(&space);
        space.advise(BASE, 8 * on.page, Advise::DontNeed).unwrap();
        space.unmap(on.at(8), 8 * on.page).unwrap();
        assert_eq!(on.counts(), [PAGES, PAGES - 16, PAGES - 16]);
        assert_eq!(on.load(&space, 0), 0);
    });
}

/// A huge page in the swap cache keeps its slots whole, is mapped in a child as one PTE, and gives
/// up all slots when it is written.
#[test]
fn huge_swap_cache_pages_keep_their_slots_whole() {
    on(X86_64::four_levels(), 8192, |on| {
        on.machine.policy().set(9, Knob::Always);
        let prot = Prot::READ | Prot::WRITE;
        let space = AddressSpace::new(on.machine, on.arch, on.memcg, Limits::default()).unwrap();
        space.map(MapRequest { addr: BASE, len: 2 << 20, prot, flags: MapFlags::FIXED }).unwrap();
        on.store(&space, 7, 7);
        let shapes = |space: &Space<'_, X86_64>| {
            let mut shapes = Vec::new();
            space.runs(VirtRange { start: BASE, end: BASE + (2 << 20) }, |run| shapes.push((run.kind, run.level)));
            shapes
        };
        let child = space.fork().unwrap();
        for _ in 0..2 {
            on.reclaim_all(&[&space, &child]);
            assert_eq!(on.counts(), [512, 512, 0]);
            assert_eq!([&space, &child].map(shapes), [[(Kind::Swap, 2)]; 2]);
            [&space, &child].into_iter().for_each(|space| space.advise(BASE, 2 << 20, Advise::WillNeed).unwrap());
            assert_eq!([&space, &child].map(|space| on.load(space, 7)), [7; 2]);
            assert_eq!([&space, &child].map(shapes), [[(Kind::Leaf, 2)]; 2]);
            assert_eq!(on.counts(), [512; 3]);
        }
        drop(child);
        on.store(&space, 8, 8);
        assert_eq!((shapes(&space), on.counts()), (vec![(Kind::Leaf, 2)], [512, 0, 0]));
        assert_eq!((on.load(&space, 7), on.load(&space, 8)), (7, 8));
    });
}

/// A child's huge swap entry, of which its parent has swapped in single pages, is swapped in as
/// single pages.
#[test]
fn part_of_a_huge_swap_cache_page_is_shared() {
    on(X86_64::four_levels(), 8192, |on| {
        on.machine.policy().set(9, Knob::Always);
        let prot = Prot::READ | Prot::WRITE;
        let space = AddressSpace::new(on.machine, on.arch, on.memcg, Limits::default()).unwrap();
        space.map(MapRequest { addr: BASE, len: 2 << 20, prot, flags: MapFlags::FIXED }).unwrap();
        (0..512).for_each(|page| on.store(&space, page, 1000 + page));
        let child = space.fork().unwrap();
        on.reclaim_all(&[&space, &child]);
        on.machine.policy().set(9, Knob::Never);
        let reads = |space: &Space<'_, X86_64>| {
            (0..512).for_each(|page| assert_eq!(on.load(space, page), 1000 + page));
        };
        assert_eq!(on.load(&space, 100), 1100);
        reads(&child);
        reads(&space);
        assert_eq!(on.counts(), [512; 3]);
    });
}
