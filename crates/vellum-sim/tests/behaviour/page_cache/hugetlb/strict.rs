//! Mappings of huge pages of the machine's pool.

use vellum::HugePages;
use vellum::audit::{audit, counts_len};
use vellum::memcg::MemcgId;
use vellum::page_cache::{Hugetlb, Object};
use vellum::space::{
    Access, Advise, AdviseError, FaultError, MapError, MapFlags, MapRequest, ProtectError, RemapError, RemapFlags,
    RemapRequest, UnmapError, unmap_removed,
};
use vellum::vma::{Prot, VmaFlags};
use vellum_sim::{Silicon, Strict};

use crate::fixtures::bench::{BASE, Bench, HUGE, Space, USUAL, in_every_format, range};

const WRITABLE: Prot = Prot::READ.union(Prot::WRITE);

/// Runs a test with a pool of `pages` pages, in a format that can map them. The pool must have all
/// of them again at the end.
fn on<A: Silicon>(arch: A, pages: u64, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, USUAL, |on| {
        if on.arch.level_shift(2) != HUGE.ilog2() {
            let object = Hugetlb::new_object(on.machine, on.memcg, 0, HUGE).unwrap();
            let request = MapRequest { addr: 0, len: HUGE, prot: WRITABLE, flags: MapFlags::SHARED };
            assert_eq!(on.space().map_object(request, &object, 0), Err(MapError::PageSizeMismatch));
            return;
        }
        assert_eq!(on.machine.huge_pool().resize(pages), pages);
        assert_eq!(pool(on), counts(pages, pages, 0));
        test(on);
        on.machine.huge_pool().set_overcommit(0);
        assert_eq!(pool(on), counts(pages, pages, 0));
        assert_eq!(on.machine.huge_pool().resize(0), 0);
    });
}

in_every_format! {
    the_pool_grows_shrinks_and_overcommits => resized,
    shared_mappings_reserve_pages_of_the_object => shared,
    without_reservation_an_empty_pool_is_a_bus_error => unreserved,
    private_mappings_reserve_pages_for_their_space => private,
    a_forked_child_shares_and_copies_whole_huge_pages => forked,
    a_private_mapping_of_an_object_copies_its_pages => private_object,
    vmas_change_by_whole_huge_pages => whole,
    huge_pages_move_with_their_vma => moved,
    advice_that_huge_pages_do_not_take_is_refused => advised,
    truncation_and_holes_return_pages => truncated,
    huge_pages_are_no_part_of_the_resident_set => counted,
}

fn pool<A: Silicon>(on: &Bench<'_, A>) -> HugePages {
    on.machine.huge_pool().counts()
}

fn counts(total: u64, free: u64, reserved: u64) -> HugePages {
    HugePages { total, free, reserved, ..HugePages::default() }
}

fn object<'m, A: Silicon>(on: &Bench<'m, A>, pages: u64) -> Object<'m, Strict<A>> {
    Hugetlb::new_object(on.machine, on.memcg, 0, pages * HUGE).unwrap()
}

fn request(pages: u64, flags: MapFlags) -> MapRequest {
    MapRequest { addr: BASE, len: pages * HUGE, prot: WRITABLE, flags: MapFlags::FIXED | flags }
}

/// Maps private huge pages at [`BASE`].
fn map<A: Silicon>(space: &Space<'_, A>, pages: u64, flags: MapFlags) -> Result<u64, MapError> {
    space.map(request(pages, MapFlags::HUGETLB | flags))
}

/// Checks that an audit finds no discrepancy.
#[track_caller]
fn check<'m, A: Silicon>(on: &Bench<'m, A>, spaces: &[&Space<'m, A>]) {
    let mut found = Vec::new();
    let mut memory = vec![0; counts_len(on.machine)];
    audit(on.machine, spaces.iter().copied(), &mut memory, &mut |unsound| found.push(unsound));
    assert_eq!(found, []);
}

fn resized<A: Silicon>(arch: A) {
    on(arch, 3, |on| {
        let (huge_pool, space) = (on.machine.huge_pool(), on.space());
        assert_eq!(huge_pool.resize(1 << 40), pool(on).total, "as many as there is memory for");
        assert!(pool(on).total > 20);
        assert_eq!(huge_pool.resize(3), 3);
        map(&space, 2, MapFlags::empty()).unwrap();
        on.store(&space, BASE, 1);
        // One page is in use and one reserved.
        assert_eq!(huge_pool.resize(0), 0);
        assert_eq!(pool(on), HugePages { surplus: 2, ..counts(2, 1, 1) });
        assert_eq!(huge_pool.resize(1), 1);
        assert_eq!(pool(on), HugePages { surplus: 1, ..counts(2, 1, 1) });
        on.store(&space, BASE + HUGE, 1);
        space.unmap(BASE + HUGE, HUGE).unwrap();
        assert_eq!(pool(on), counts(1, 0, 0), "a surplus page leaves the pool");
        space.unmap(BASE, HUGE).unwrap();
        assert_eq!(pool(on), counts(1, 1, 0));
        // Reservations and faults add surplus pages.
        huge_pool.set_overcommit(2);
        let overcommit = |surplus, counts| HugePages { overcommit: 2, surplus, ..counts };
        assert_eq!(map(&space, 4, MapFlags::empty()), Err(MapError::NoHugePages));
        assert_eq!(pool(on), overcommit(0, counts(1, 1, 0)));
        map(&space, 2, MapFlags::empty()).unwrap();
        assert_eq!(pool(on), overcommit(1, counts(2, 2, 2)));
        space.map(MapRequest { addr: BASE + 2 * HUGE, ..request(2, MapFlags::HUGETLB | MapFlags::NORESERVE) }).unwrap();
        on.store(&space, BASE + 2 * HUGE, 1);
        assert_eq!(pool(on), overcommit(2, counts(3, 2, 2)));
        let fault = space.fault(BASE + 3 * HUGE, Access::Write);
        assert_eq!(fault, Err(FaultError::NoHugePage(BASE + 3 * HUGE)));
        check(on, &[&space]);
        space.unmap(BASE, 4 * HUGE).unwrap();
        assert_eq!(pool(on), overcommit(0, counts(1, 1, 0)));
        assert_eq!(huge_pool.resize(3), 3);
    });
}

fn shared<A: Silicon>(arch: A) {
    on(arch, 3, |on| {
        let (object, spaces) = (object(on, 4), [on.space(), on.space()]);
        let map = |space: &Space<'_, A>, pages, at| space.map_object(request(pages, MapFlags::SHARED), &object, at);
        assert_eq!(map(&spaces[0], 4, 0), Err(MapError::NoHugePages));
        assert_eq!((pool(on), spaces[0].stats().vmas), (counts(3, 3, 0), 0));
        map(&spaces[0], 2, 0).unwrap();
        assert_eq!(pool(on), counts(3, 3, 2));
        // The pages in common are reserved once.
        map(&spaces[1], 2, HUGE).unwrap();
        assert_eq!(pool(on), counts(3, 3, 3));
        on.store(&spaces[0], BASE + HUGE + 8, 7);
        assert_eq!(pool(on), counts(3, 2, 2));
        assert_eq!(on.load(&spaces[1], BASE + 8), 7);
        assert_eq!(on.load(&spaces[1], BASE + HUGE - 8), 0);
        assert_eq!((pool(on), object.resident()), (counts(3, 2, 2), 1));
        assert_eq!(spaces.each_ref().map(|space| space.usage(range(BASE, 2 * HUGE)).hugetlb_shared), [HUGE; 2]);
        check(on, &[&spaces[0], &spaces[1]]);
        // Pages and reservations are the object's: they outlive the mappings.
        drop(spaces);
        assert_eq!(pool(on), counts(3, 2, 2));
        check(on, &[]);
    });
}

fn unreserved<A: Silicon>(arch: A) {
    on(arch, 1, |on| {
        let (object, space) = (object(on, 2), on.space());
        space.map_object(request(2, MapFlags::SHARED | MapFlags::NORESERVE), &object, 0).unwrap();
        on.store(&space, BASE, 1);
        assert_eq!(pool(on), counts(1, 0, 0));
        for access in [Access::Read, Access::Write] {
            assert_eq!(space.fault(BASE + HUGE + 8, access), Err(FaultError::NoHugePage(BASE + HUGE + 8)));
        }
        unmap_removed(&[&space][..], &object, &object.punch_hole(0..HUGE).unwrap());
        on.store(&space, BASE + HUGE, 1);
        assert_eq!(space.fault(BASE, Access::Read), Err(FaultError::NoHugePage(BASE)));
        check(on, &[&space]);
    });
}

fn private<A: Silicon>(arch: A) {
    on(arch, 3, |on| {
        let (space, other) = (on.space(), on.space());
        assert_eq!(map(&space, 4, MapFlags::empty()), Err(MapError::NoHugePages));
        map(&space, 2, MapFlags::empty()).unwrap();
        assert_eq!(pool(on), counts(3, 3, 2));
        assert_eq!(map(&other, 2, MapFlags::empty()), Err(MapError::NoHugePages));
        map(&other, 2, MapFlags::NORESERVE).unwrap();
        assert_eq!(on.load(&other, BASE + 8), 0);
        // The rest is reserved.
        assert_eq!(other.fault(BASE + HUGE, Access::Read), Err(FaultError::NoHugePage(BASE + HUGE)));
        on.store(&space, BASE + 8, 5);
        assert_eq!((on.load(&space, BASE + 8), on.load(&space, BASE + HUGE - 8)), (5, 0));
        assert_eq!(pool(on), counts(3, 1, 1));
        // Dropped contents are reserved again.
        space.advise(BASE, HUGE, Advise::DontNeed).unwrap();
        assert_eq!(pool(on), counts(3, 2, 2));
        assert_eq!(on.load(&space, BASE + 8), 0);
        check(on, &[&space, &other]);
        // Unmapping a part gives up its reservation.
        space.unmap(BASE + HUGE, HUGE).unwrap();
        assert_eq!(pool(on), counts(3, 1, 0));
        map(&space, 1, MapFlags::empty()).unwrap();
        assert_eq!(pool(on), counts(3, 2, 1), "a mapping is replaced");
        space.unmap_all();
        assert_eq!(pool(on), counts(3, 2, 0));
    });
}

fn forked<A: Silicon>(arch: A) {
    on(arch, 4, |on| {
        let parent = on.space();
        map(&parent, 2, MapFlags::empty()).unwrap();
        on.store(&parent, BASE, 1);
        let child = parent.fork().unwrap();
        assert_eq!(pool(on), counts(4, 3, 1));
        assert_eq!(on.load(&child, BASE), 1);
        assert_eq!((child.stats().hugetlb, child.stats().anon), (HUGE, 0));
        check(on, &[&parent, &child]);
        on.store(&child, BASE + HUGE - 8, 2);
        assert_eq!((on.load(&child, BASE), on.load(&parent, BASE + HUGE - 8)), (1, 0));
        assert_eq!(pool(on), counts(4, 2, 1));
        // The parent is alone again: it writes in place.
        on.store(&parent, BASE, 3);
        assert_eq!(pool(on), counts(4, 2, 1));
        // The child takes a page that is not reserved, the parent the reserved one.
        on.store(&child, BASE + HUGE, 4);
        assert_eq!(pool(on), counts(4, 1, 1));
        assert_eq!(child.usage(range(BASE, 2 * HUGE)).hugetlb_private, 2 * HUGE);
        check(on, &[&parent, &child]);
        // The parent's reservation does not outlive its mapping, though the child's goes on.
        drop(parent);
        assert_eq!(pool(on), counts(4, 2, 0));
        assert_eq!((on.load(&child, BASE + HUGE - 8), on.load(&child, BASE + HUGE)), (2, 4));
    });
}

fn private_object<A: Silicon>(arch: A) {
    on(arch, 4, |on| {
        let (object, writer, space) = (object(on, 2), on.space(), on.space());
        writer.map_object(request(2, MapFlags::SHARED), &object, 0).unwrap();
        space.map_object(request(2, MapFlags::empty()), &object, 0).unwrap();
        on.store(&writer, BASE, 1);
        assert_eq!(on.load(&space, BASE), 1);
        on.store(&writer, BASE, 2);
        assert_eq!(on.load(&space, BASE), 2, "not copied yet");
        on.store(&space, BASE + 8, 3);
        on.store(&writer, BASE, 4);
        assert_eq!((on.load(&space, BASE), on.load(&space, BASE + 8), on.load(&writer, BASE + 8)), (2, 3, 0));
        // A hole of the object becomes a page of the space, not of the object.
        assert_eq!(on.load(&space, BASE + HUGE), 0);
        assert_eq!((object.resident(), pool(on)), (1, counts(4, 1, 1)));
        check(on, &[&writer, &space]);
        unmap_removed(&[&writer, &space][..], &object, &object.punch_hole(0..HUGE).unwrap());
        assert_eq!((on.load(&space, BASE + 8), on.load(&writer, BASE)), (0, 0), "the copy is gone, too");
    });
}

fn whole<A: Silicon>(arch: A) {
    on(arch, 4, |on| {
        let space = on.space();
        space.map(MapRequest { len: 3 * HUGE - on.page, ..request(0, MapFlags::HUGETLB) }).unwrap();
        assert_eq!(space.stats().mapped, 3 * HUGE);
        let unaligned = MapRequest { addr: BASE + on.page, ..request(1, MapFlags::HUGETLB) };
        assert_eq!(space.map(unaligned), Err(MapError::Unaligned(BASE + on.page)));
        let at = BASE + HUGE + on.page;
        assert_eq!(space.unmap(at, 2 * HUGE - on.page), Err(UnmapError::CutsHuge(at)));
        assert_eq!(space.unmap(BASE, on.page), Err(UnmapError::CutsHuge(BASE + on.page)));
        assert_eq!(space.protect(BASE, HUGE + on.page, Prot::READ), Err(ProtectError::Unaligned(at)));
        let small = MapRequest { addr: at, len: on.page, prot: WRITABLE, flags: MapFlags::FIXED };
        assert_eq!(space.map(small), Err(MapError::Unaligned(at)));
        assert_eq!(space.stats().vmas, 1);
        on.store(&space, BASE + HUGE, 1);
        space.protect(BASE + HUGE, HUGE, Prot::READ).unwrap();
        assert_eq!(space.stats().vmas, 3);
        assert_eq!(space.fault(BASE + HUGE, Access::Write), Err(FaultError::Denied(BASE + HUGE)));
        // `mlock` leaves huge pages as they are, even by parts.
        space.lock(at, on.page, false).unwrap();
        assert_eq!(space.stats().locked, 0);
        space.vmas(0, |vma| {
            assert!(vma.flags.contains(VmaFlags::HUGETLB));
            true
        });
        // An address that the engine chooses is aligned, whatever the hint.
        let hint =
            MapRequest { addr: BASE + (1 << 30) + on.page, len: on.page, prot: WRITABLE, flags: MapFlags::HUGETLB };
        assert_eq!(space.map(hint), Ok(BASE + (1 << 30) + HUGE));
        assert_eq!(
            space.map(MapRequest { addr: 0, len: on.page, prot: WRITABLE, flags: MapFlags::empty() }).map(|_| ()),
            Ok(())
        );
        let request = MapRequest { flags: MapFlags::HUGETLB | MapFlags::NORESERVE, addr: 0, ..hint };
        assert!(space.map(request).is_ok_and(|at| at % HUGE == 0));
        check(on, &[&space]);
    });
}

fn moved<A: Silicon>(arch: A) {
    on(arch, 3, |on| {
        let space = on.space();
        map(&space, 3, MapFlags::empty()).unwrap();
        on.store(&space, BASE, 1);
        let to = BASE + (1 << 30);
        let remap = |new_len, flags, new_addr| {
            space.remap(RemapRequest { addr: BASE, old_len: 3 * HUGE, new_len, flags, new_addr })
        };
        let fixed = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        assert_eq!(remap(4 * HUGE, RemapFlags::MAYMOVE, 0), Err(RemapError::Flags(RemapFlags::MAYMOVE)));
        assert_eq!(remap(3 * HUGE, fixed, to + on.page), Err(RemapError::Unaligned(to + on.page)));
        assert_eq!(remap(2 * HUGE - on.page, RemapFlags::empty(), 0), Ok(BASE));
        assert_eq!((pool(on), space.stats().mapped), (counts(3, 2, 1), 2 * HUGE));
        let request = RemapRequest { addr: BASE, old_len: 2 * HUGE, new_len: 2 * HUGE, flags: fixed, new_addr: to };
        assert_eq!(space.remap(request), Ok(to));
        assert_eq!((on.load(&space, to), pool(on)), (1, counts(3, 2, 1)));
        on.store(&space, to + HUGE, 2);
        assert_eq!(pool(on), counts(3, 1, 0));
        check(on, &[&space]);
    });
}

fn advised<A: Silicon>(arch: A) {
    on(arch, 2, |on| {
        let space = on.space();
        map(&space, 2, MapFlags::empty()).unwrap();
        on.store(&space, BASE, 1);
        let vma = range(BASE, 2 * HUGE);
        for advice in [Advise::Free, Advise::Cold, Advise::PageOut, Advise::GuardInstall, Advise::WipeOnFork] {
            assert_eq!(space.advise(BASE, HUGE, advice), Err(AdviseError::NotPrivate(vma)), "{advice:?}");
        }
        let at = BASE + on.page;
        assert_eq!(space.advise(at, HUGE - on.page, Advise::DontNeed), Err(AdviseError::Unaligned(at)));
        // The part of a page at the end stays.
        space.advise(BASE, HUGE - on.page, Advise::DontNeed).unwrap();
        assert_eq!((on.load(&space, BASE), pool(on)), (1, counts(2, 1, 1)));
        space.advise(BASE, HUGE + on.page, Advise::DontNeed).unwrap();
        assert_eq!(pool(on), counts(2, 2, 2));
        space.advise(BASE, 2 * HUGE, Advise::PopulateWrite).unwrap();
        assert_eq!(pool(on), counts(2, 0, 0));
        let mut resident = vec![false; (HUGE / on.page) as usize];
        space.mincore(BASE, HUGE, &mut resident).unwrap();
        assert!(resident.iter().all(|resident| *resident));
        assert_eq!(on.reclaim_all(&[&space]), 0);
        check(on, &[&space]);
    });
}

fn truncated<A: Silicon>(arch: A) {
    on(arch, 4, |on| {
        let (object, space) = (object(on, 4), on.space());
        space.map_object(request(4, MapFlags::SHARED), &object, 0).unwrap();
        (0..3).for_each(|page| on.store(&space, BASE + page * HUGE, page + 1));
        assert_eq!(pool(on), counts(4, 1, 1));
        let removed = object.punch_hole(HUGE..2 * HUGE).unwrap();
        assert_eq!((removed.first, removed.end), (1, 2));
        unmap_removed(&[&space][..], &object, &removed);
        assert_eq!(pool(on), counts(4, 2, 1));
        // The parts of huge pages are zeroed.
        let _ = object.punch_hole(0..on.page).unwrap();
        assert_eq!((on.load(&space, BASE), on.load(&space, BASE + 2 * HUGE), pool(on)), (0, 3, counts(4, 2, 1)));
        unmap_removed(&[&space][..], &object, &object.set_size(HUGE).unwrap());
        assert_eq!(pool(on), counts(4, 3, 0));
        assert_eq!(space.fault(BASE + 2 * HUGE, Access::Read), Err(FaultError::BeyondEnd(BASE + 2 * HUGE)));
        object.allocate(0..HUGE, MemcgId::ROOT).unwrap();
        assert_eq!(pool(on), counts(4, 3, 0));
        check(on, &[&space]);
    });
}

fn counted<A: Silicon>(arch: A) {
    on(arch, 2, |on| {
        let (object, space) = (object(on, 1), on.space());
        let charged = on.machine.memcgs().counters(on.memcg).unwrap().charged;
        space.map_object(request(1, MapFlags::SHARED), &object, 0).unwrap();
        space.map(MapRequest { addr: BASE + HUGE, ..request(1, MapFlags::HUGETLB) }).unwrap();
        (0..2).for_each(|page| on.store(&space, BASE + page * HUGE, 1));
        let stats = space.stats();
        assert_eq!((stats.anon, stats.shmem, stats.hugetlb, stats.peak_rss), (0, 0, 2 * HUGE, 0));
        let usage = space.usage(range(BASE, 2 * HUGE));
        assert_eq!((usage.resident, usage.hugetlb_private, usage.huge), (0, 2 * HUGE, 0));
        let more = on.machine.memcgs().counters(on.memcg).unwrap().charged - charged;
        assert!(more < 64, "{more} pages: page tables, and heads of objects");
        check(on, &[&space]);
        space.unmap(BASE, 2 * HUGE).unwrap();
        assert_eq!(space.stats().hugetlb, 0);
    });
}
