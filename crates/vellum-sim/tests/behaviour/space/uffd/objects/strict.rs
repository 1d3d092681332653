//! Userfaultfd in memory that objects back: missing pages, minor faults, write protection, forks.

use std::num::NonZeroU16;

use vellum::addr::VirtRange;
use vellum::memcg::MemcgId;
use vellum::page_cache::Object;
use vellum::space::{
    self, Access, Advise, FaultError, MapFlags, MapRequest, UffdEvent, UffdFillError, UffdFillStopped, UffdMode,
};
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum_sim::{Fault, Silicon, Strict};

use crate::fixtures::bench::{self, BASE, Setup, Space, USUAL, in_every_format};

const UFFD: UffdId = UffdId(NonZeroU16::new(7).unwrap());
const RW: Prot = Prot::READ.union(Prot::WRITE);
const PAGES: u64 = 64;

/// An object of 64 pages that is mapped by a registered VMA, and by another at `ALIAS`.
struct Bench<'b, 'm, A: Silicon> {
    on: &'b bench::Bench<'m, A>,
    space: Space<'m, A>,
    object: Object<'m, Strict<A>>,
    page: u64,
}

/// The distance of the second mapping, in pages.
const ALIAS: u64 = 4096;

fn on<A: Silicon>(arch: A, flags: MapFlags, modes: VmaFlags, test: impl FnOnce(&Bench<'_, '_, A>)) {
    bench::on(arch, Setup { slots: 1024, ..USUAL }, |on| {
        let (space, page) = (on.space(), on.page);
        let object = Object::new(on.machine, space.arch(), MemcgId::ROOT, 1, PAGES * page).unwrap();
        let map = |addr, flags| {
            let request = MapRequest { addr, len: PAGES * page, prot: RW, flags: flags | MapFlags::FIXED };
            space.map_object(request, &object, 0).unwrap();
        };
        map(BASE, flags);
        map(BASE + ALIAS * page, MapFlags::SHARED);
        space.uffd_register(VirtRange { start: BASE, end: BASE + PAGES * page }, UFFD, modes).unwrap();
        test(&Bench { on, space, object, page });
    });
}

impl<A: Silicon> Bench<'_, '_, A> {
    fn at(&self, page: u64) -> u64 {
        BASE + page * self.page
    }

    fn pages(&self, first: u64, count: u64) -> VirtRange {
        VirtRange { start: self.at(first), end: self.at(first + count) }
    }

    fn load(&self, page: u64) -> Result<u64, Fault<FaultError>> {
        self.on.cpu.enter(&self.space).load_u64(self.at(page))
    }

    fn store(&self, page: u64, value: u64) -> Result<(), Fault<FaultError>> {
        self.on.cpu.enter(&self.space).store_u64(self.at(page), value)
    }

    fn event<T>(&self, page: u64, access: Access, mode: UffdMode) -> Result<T, Fault<FaultError>> {
        let addr = self.at(page);
        Err(Fault::Handler(FaultError::Uffd(UffdEvent { uffd: UFFD, page: addr, addr, access, mode })))
    }

    /// Fills pages, each with its number plus 1000 in its first word.
    fn fill(&self, first: u64, count: u64, protect: bool) -> Result<(), UffdFillStopped> {
        let page = self.page;
        self.space.uffd_copy(self.pages(first, count), protect, |at, bytes| {
            bytes.fill(0);
            for (i, bytes) in bytes.chunks_mut(page as usize).enumerate() {
                bytes[..8].copy_from_slice(&(1000 + first + at / page + i as u64).to_ne_bytes());
            }
            Ok(())
        })
    }

    /// Maps the pages that the object has, or stops at a page with this error.
    fn stopped(&self, done: u64, error: UffdFillError) -> Result<(), UffdFillStopped> {
        Err(UffdFillStopped { done: done * self.page, error })
    }
}

in_every_format! {
    missing_pages_of_an_object_are_reported_and_inserted => missing,
    a_private_mapping_is_filled_by_private_copies => private,
    pages_that_an_object_has_are_minor_faults => minor,
    uffd_continue_maps_by_the_run => by_the_run,
    shared_pages_are_write_protected => protected,
    dropping_shared_pages_keeps_their_write_protection => dropped,
    a_child_that_follows_stays_registered_and_protected => followed,
    fills_beyond_the_end_of_an_object_are_refused => beyond,
}

fn missing<A: Silicon>(arch: A) {
    on(arch, MapFlags::SHARED, VmaFlags::UFFD_MISSING, |on| {
        assert_eq!(on.load(3), on.event(3, Access::Read, UffdMode::Missing));
        assert_eq!(on.store(3, 1), on.event(3, Access::Write, UffdMode::Missing));
        assert_eq!(on.object.page_counts().resident, 0, "nothing was inserted");
        on.fill(3, 2, false).unwrap();
        assert_eq!((on.load(3), on.load(4), on.load(5 + ALIAS)), (Ok(1003), Ok(1004), Ok(0)));
        // The other mapping has inserted page 5, which is not missing any more.
        assert_eq!(on.fill(5, 1, false), on.stopped(0, UffdFillError::Exists(on.at(5))));
        assert_eq!(on.load(5), Ok(0));
        on.store(ALIAS + 4, 44).unwrap();
        assert_eq!((on.load(4), on.store(3, 33), on.load(ALIAS + 3)), (Ok(44), Ok(()), Ok(33)));
        on.space.uffd_zeropage(on.pages(6, 1)).unwrap();
        assert_eq!(on.fill(6, 1, false), on.stopped(0, UffdFillError::Exists(on.at(6))));
        assert_eq!((on.store(6, 6), on.load(ALIAS + 6)), (Ok(()), Ok(6)));
        // Pages on a swap device are not missing, and unmapped ones neither.
        on.on.reclaim_all(&[&on.space]);
        on.space.advise(on.at(3), 4 * on.page, Advise::DontNeed).unwrap();
        assert_eq!((on.load(3), on.load(4), on.load(6)), (Ok(33), Ok(44), Ok(6)));
        on.space.uffd_poison(on.pages(7, 1)).unwrap();
        assert_eq!(on.load(7), Err(Fault::Handler(FaultError::Poisoned(on.at(7)))));
        assert_eq!(on.load(ALIAS + 7), Ok(0));
    });
}

fn private<A: Silicon>(arch: A) {
    on(arch, MapFlags::empty(), VmaFlags::UFFD_MISSING, |on| {
        assert_eq!(on.load(0), on.event(0, Access::Read, UffdMode::Missing));
        assert_eq!(on.store(1, 1), on.event(1, Access::Write, UffdMode::Missing));
        on.fill(0, 1, false).unwrap();
        on.space.uffd_zeropage(on.pages(1, 2)).unwrap();
        assert_eq!((on.load(0), on.load(1), on.object.page_counts().resident), (Ok(1000), Ok(0), 0));
        on.store(ALIAS + 2, 2).unwrap();
        on.store(ALIAS + 3, 3).unwrap();
        // The copies are private; what the object has is not missing.
        assert_eq!((on.load(2), on.load(3), on.store(3, 33), on.load(ALIAS + 3)), (Ok(0), Ok(3), Ok(()), Ok(3)));
        on.store(1, 11).unwrap();
        assert_eq!((on.load(1), on.load(ALIAS + 1)), (Ok(11), Ok(0)));
    });
}

fn minor<A: Silicon>(arch: A) {
    on(arch, MapFlags::SHARED, VmaFlags::UFFD_MINOR, |on| {
        (0..4).for_each(|page| on.store(ALIAS + page, 10 + page).unwrap());
        assert_eq!(on.load(1), on.event(1, Access::Read, UffdMode::Minor));
        assert_eq!(on.store(1, 1), on.event(1, Access::Write, UffdMode::Minor));
        space::uffd_continue(&on.space, on.pages(1, 2), false).unwrap();
        assert_eq!((on.load(1), on.load(2)), (Ok(11), Ok(12)));
        assert_eq!((on.store(1, 1), on.load(ALIAS + 1)), (Ok(()), Ok(1)));
        assert_eq!(on.load(3), on.event(3, Access::Read, UffdMode::Minor));
        let exists = on.stopped(1, UffdFillError::Exists(on.at(1)));
        assert_eq!(space::uffd_continue(&on.space, on.pages(0, 4), false), exists);
        let none = on.stopped(1, UffdFillError::NoPage(on.at(4)));
        assert_eq!(space::uffd_continue(&on.space, on.pages(3, 2), false), none);
        // A page that the object does not have is no minor fault.
        assert_eq!(on.load(9), Ok(0));
        let protect = space::uffd_continue(&on.space, on.pages(9, 1), true);
        assert_eq!(protect, on.stopped(0, UffdFillError::Unsuitable(on.at(9))));
    });
}

fn by_the_run<A: Silicon>(arch: A) {
    on(arch, MapFlags::SHARED, VmaFlags::UFFD_MINOR | VmaFlags::UFFD_WP, |on| {
        on.object.allocate(0..PAGES * on.page, MemcgId::ROOT).unwrap();
        let calls = on.on.count(vellum::stats::Counter::Faults);
        space::uffd_continue(&on.space, on.pages(0, PAGES), false).unwrap();
        assert_eq!(on.on.count(vellum::stats::Counter::Faults), calls);
        (0..PAGES).for_each(|page| assert_eq!(on.store(page, page), Ok(())));
        on.space.advise(BASE, PAGES * on.page, Advise::DontNeed).unwrap();
        space::uffd_continue(&on.space, on.pages(0, PAGES), true).unwrap();
        assert_eq!((on.load(5), on.store(5, 0)), (Ok(5), on.event(5, Access::Write, UffdMode::Write)));
    });
}

fn protected<A: Silicon>(arch: A) {
    on(arch, MapFlags::SHARED, VmaFlags::UFFD_WP, |on| {
        on.store(0, 1).unwrap();
        on.space.uffd_write_protect(on.pages(0, 8), false).unwrap();
        // Missing pages are protected too.
        for page in [0, 5] {
            assert_eq!(on.store(page, 9), on.event(page, Access::Write, UffdMode::Write));
            assert_eq!(on.load(page), Ok(1 - page / 5));
            assert_eq!(on.store(page, 9), on.event(page, Access::Write, UffdMode::Write));
            on.store(ALIAS + page, 2).unwrap();
            assert_eq!(on.load(page), Ok(2));
        }
        on.store(8, 8).unwrap();
        on.space.uffd_write_unprotect(on.pages(0, 8)).unwrap();
        (0..8).for_each(|page| on.store(page, 3).unwrap());
    });
    on(arch, MapFlags::empty(), VmaFlags::UFFD_WP, |on| {
        on.space.uffd_write_protect(on.pages(0, 8), false).unwrap();
        on.store(ALIAS + 1, 1).unwrap();
        assert_eq!((on.load(1), on.store(1, 2)), (Ok(1), on.event(1, Access::Write, UffdMode::Write)));
        on.space.uffd_write_unprotect(on.pages(1, 1)).unwrap();
        assert_eq!((on.store(1, 2), on.load(1), on.load(ALIAS + 1)), (Ok(()), Ok(2), Ok(1)));
    });
    on(arch, MapFlags::SHARED, VmaFlags::UFFD_WP | VmaFlags::UFFD_MISSING, |on| {
        on.space.uffd_write_protect(on.pages(0, 8), false).unwrap();
        assert_eq!(on.load(2), on.event(2, Access::Read, UffdMode::Missing));
        on.fill(2, 2, true).unwrap();
        assert_eq!((on.load(3), on.store(3, 1)), (Ok(1003), on.event(3, Access::Write, UffdMode::Write)));
        on.fill(4, 1, false).unwrap();
        assert_eq!(on.store(4, 4), Ok(()));
    });
}

fn dropped<A: Silicon>(arch: A) {
    on(arch, MapFlags::SHARED, VmaFlags::UFFD_WP, |on| {
        (0..4).for_each(|page| on.store(page, page).unwrap());
        on.space.uffd_write_protect(on.pages(1, 2), false).unwrap();
        on.space.advise(BASE, 4 * on.page, Advise::DontNeed).unwrap();
        on.store(0, 0).unwrap();
        on.store(3, 3).unwrap();
        for page in [1, 2] {
            assert_eq!(on.load(page), Ok(page), "the object has the page");
            assert_eq!(on.store(page, 9), on.event(page, Access::Write, UffdMode::Write));
        }
        on.space.unmap(on.at(1), on.page).unwrap();
        assert_eq!(on.store(2, 9), on.event(2, Access::Write, UffdMode::Write));
    });
}

fn followed<A: Silicon>(arch: A) {
    for flags in [MapFlags::SHARED, MapFlags::empty()] {
        on(arch, flags, VmaFlags::UFFD_WP, |on| {
            (0..4).for_each(|page| on.store(page, page).unwrap());
            on.store(ALIAS + 4, 4).unwrap();
            assert_eq!(on.load(4), Ok(4));
            // A page that was written, one that was read, and one that is missing.
            [1, 4, 6].iter().for_each(|&page| on.space.uffd_write_protect(on.pages(page, 1), false).unwrap());
            let child = space::fork_with_uffds(&on.space, |uffd| uffd == UFFD).unwrap();
            let program = on.on.cpu.enter(&child);
            for page in [1, 4, 6] {
                let store = program.store_u64(on.at(page), 9);
                assert_eq!(store, on.event(page, Access::Write, UffdMode::Write), "page {page}");
            }
            program.store_u64(on.at(2), 9).unwrap();
            assert_eq!(program.load_u64(on.at(4)), Ok(4));
            drop(program);
            drop(child);
            let child = space::fork_with_uffds(&on.space, |_| false).unwrap();
            [1, 4, 6].iter().for_each(|&page| on.on.store(&child, on.at(page), 9));
        });
    }
}

fn beyond<A: Silicon>(arch: A) {
    for flags in [MapFlags::SHARED, MapFlags::empty()] {
        on(arch, flags, VmaFlags::UFFD_MISSING, |on| {
            let _removed = on.object.set_size(8 * on.page).unwrap();
            assert_eq!(on.fill(6, 4, false), on.stopped(2, UffdFillError::NoPage(on.at(8))));
            assert_eq!(on.space.uffd_zeropage(on.pages(8, 1)), on.stopped(0, UffdFillError::NoPage(on.at(8))));
            assert_eq!(on.space.uffd_poison(on.pages(9, 1)), on.stopped(0, UffdFillError::NoPage(on.at(9))));
            assert_eq!(on.load(8), Err(Fault::Handler(FaultError::BeyondEnd(on.at(8)))));
        });
    }
}
