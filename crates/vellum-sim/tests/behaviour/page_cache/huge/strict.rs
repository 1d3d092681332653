//! Huge PTEs that map pages of objects (INV-23).

use std::num::NonZeroU16;

use vellum::arch::Attrs;
use vellum::frame::policy::{ShmemFolios, ShmemKnob};
use vellum::memcg::MemcgId;
use vellum::page_cache::{Changes, Object, ObjectError};
use vellum::space::{
    Access, Advise, CollapseError, CollapseLimits, FaultError, MapFlags, MapRequest, collapse_object, unmap_removed,
};
use vellum::stats::Counter;
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum_sim::{Fault, Hostility, Refusal, Silicon, Simulated, Strict};

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, range, resident};

/// log2 of the number of frames of a huge folio.
const ORDER: u8 = 9;
const UFFD: UffdId = UffdId(NonZeroU16::MIN);

fn on<A: Silicon>(arch: A, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { slots: 4096, hostility: Hostility::NONE, ..USUAL }, |on| {
        on.machine.policy().shmem().set(ORDER, ShmemKnob::WithinSize);
        test(on);
        assert_eq!(huge_folios(on), 0, "no object is left");
    });
}

/// Returns the number of huge folios that objects without a store have.
fn huge_folios<A: Silicon>(on: &Bench<'_, A>) -> u64 {
    on.count(Counter::ShmemHugePages) >> ORDER
}

in_every_format! {
    one_huge_pte_maps_a_huge_folio => mapped,
    a_huge_folio_counts_until_all_its_pages_are_removed => counted,
    a_huge_pte_is_split_where_pages_are_removed => punched,
    pages_are_removed_though_a_huge_pte_cannot_be_split => refused,
    a_private_vma_copies_single_pages => copied,
    only_whole_blocks_are_mapped_huge => partly,
    a_vma_that_tracks_writes_has_no_huge_ptes => tracked,
    huge_folios_are_swapped_out_and_in => swapped,
    policy_decides_where_folios_are_huge => policy,
    small_folios_collapse_into_a_huge_one => collapsed,
    a_block_in_use_does_not_collapse => in_use,
    advice_collapses_what_a_range_maps => advised,
    a_scan_collapses_what_policy_wants => scanned,
}

/// An object of two huge folios.
fn object<'m, A: Silicon>(on: &Bench<'m, A>) -> Object<'m, Strict<A>> {
    Object::new(on.machine, &on.arch, MemcgId::ROOT, 0, 2 * HUGE).unwrap()
}

fn share<'m, A: Silicon>(on: &Bench<'m, A>, object: &Object<'m, Strict<A>>, flags: MapFlags) -> Space<'m, A> {
    let space = on.space_of(MemcgId::ROOT);
    let prot = Prot::READ | Prot::WRITE;
    let request = MapRequest { addr: BASE, len: 2 * HUGE, prot, flags: MapFlags::FIXED | flags };
    space.map_object(request, object, 0).unwrap();
    space
}

/// Returns the bytes that huge PTEs map, in units of the huge folio. Formats whose huge PTE is
/// larger have none.
fn huge<A: Silicon>(space: &Space<'_, A>) -> u64 {
    let usage = space.usage(range(BASE, 2 * HUGE));
    assert_eq!(usage.huge, usage.huge_shmem);
    usage.huge / HUGE
}

/// Returns `count` if huge PTEs of the format map huge folios, and 0 otherwise.
fn if_huge<A: Silicon>(on: &Bench<'_, A>, count: u64) -> u64 {
    if on.arch.level_shift(2) == HUGE.ilog2() { count } else { 0 }
}

/// Stores its number plus 7 in each page, from the last on.
fn fill<A: Silicon>(on: &Bench<'_, A>, space: &Space<'_, A>) {
    (0..2 * HUGE / on.page).rev().for_each(|page| on.store(space, BASE + page * on.page + 8, page + 7));
}

fn check<A: Silicon>(on: &Bench<'_, A>, space: &Space<'_, A>, pages: impl Iterator<Item = u64>) {
    pages.for_each(|page| assert_eq!(on.load(space, BASE + page * on.page + 8), page + 7, "page {page}"));
}

fn mapped<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        let spaces = [(); 2].map(|()| share(on, &object, MapFlags::SHARED));
        on.store(&spaces[0], BASE + HUGE - 8, 1);
        assert_eq!(resident(&spaces[0], BASE, 2 * HUGE), HUGE);
        assert_eq!(huge(&spaces[0]), if_huge(on, 1));
        // Where a hint of the CPU's has to be dropped first, each takes one more.
        let faults = on.count(Counter::Faults);
        fill(on, &spaces[0]);
        assert_eq!(on.count(Counter::Faults), 2 * faults, "each folio takes the same");
        check(on, &spaces[1], 0..2 * HUGE / on.page);
        for space in &spaces {
            assert_eq!(huge(space), if_huge(on, 2));
            assert_eq!(space.stats().shmem, 2 * HUGE);
        }
        // Its middle is unmapped from one of the spaces.
        spaces[0].unmap(BASE + HUGE / 2, HUGE).unwrap();
        assert_eq!((spaces[0].stats().shmem, huge(&spaces[0]), huge(&spaces[1])), (HUGE, 0, if_huge(on, 2)));
        let quarter = HUGE / 2 / on.page;
        check(on, &spaces[0], (0..quarter).chain(3 * quarter..4 * quarter));
        check(on, &spaces[1], 0..4 * quarter);
    });
}

fn counted<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        drop(object.page_or_new(0, on.memcg).unwrap());
        drop(object.page_or_new(2 * HUGE / on.page - 1, on.memcg).unwrap());
        assert_eq!(huge_folios(on), 2);
        punch(on, &object, &[]);
        assert_eq!((huge_folios(on), on.count(Counter::ShmemPages) << 12), (2, 2 * HUGE - 4 * on.page));
        assert!(object.punch_hole(0..HUGE).is_ok_and(|removed| removed.end == HUGE / on.page));
        assert_eq!(huge_folios(on), 1);
        assert!(object.set_size(HUGE).is_ok());
        assert_eq!(huge_folios(on), 0);
    });
}

/// Punches a hole of three pages into the first folio and one into the second.
fn punch<A: Silicon>(on: &Bench<'_, A>, object: &Object<'_, Strict<A>>, spaces: &[&Space<'_, A>]) {
    let middle = HUGE / 2;
    for hole in [middle..middle + 3 * on.page, HUGE..HUGE + on.page] {
        let removed = object.punch_hole(hole).unwrap();
        unmap_removed(spaces, object, &removed);
    }
}

/// The pages that [`punch`] leaves.
fn left<A: Silicon>(on: &Bench<'_, A>) -> impl Iterator<Item = u64> + use<A> {
    let middle = HUGE / 2 / on.page;
    (0..middle).chain(middle + 3..2 * middle).chain(2 * middle + 1..4 * middle)
}

fn punched<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        let spaces = [MapFlags::SHARED, MapFlags::SHARED, MapFlags::empty()].map(|flags| share(on, &object, flags));
        fill(on, &spaces[0]);
        spaces[1..].iter().for_each(|space| check(on, space, 0..2 * HUGE / on.page));
        assert_eq!(spaces.each_ref().map(huge), [if_huge(on, 2); 3]);
        punch(on, &object, &[&spaces[0], &spaces[1], &spaces[2]]);
        for space in &spaces {
            assert_eq!(resident(space, BASE, 2 * HUGE), 2 * HUGE - 4 * on.page);
            check(on, space, left(on));
            assert_eq!(on.load(space, BASE + HUGE / 2 + 8), 0);
        }
    });
}

fn refused<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        let spaces = [MapFlags::SHARED, MapFlags::empty()].map(|flags| share(on, &object, flags));
        fill(on, &spaces[0]);
        check(on, &spaces[1], 0..2 * HUGE / on.page);
        on.sim.refuse(Refusal::Percent(100));
        punch(on, &object, &[&spaces[0], &spaces[1]]);
        on.sim.refuse(Refusal::Never);
        for space in &spaces {
            check(on, space, left(on));
            assert_eq!(on.load(space, BASE + HUGE / 2 + 8), 0);
        }
    });
}

fn copied<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        let [shared, private] = [MapFlags::SHARED, MapFlags::empty()].map(|flags| share(on, &object, flags));
        fill(on, &shared);
        check(on, &private, 0..2 * HUGE / on.page);
        let space = private.stats();
        assert_eq!((space.anon, space.shmem, huge(&private)), (0, 2 * HUGE, if_huge(on, 2)));
        on.store(&private, BASE + 5 * on.page + 8, 1);
        let space = private.stats();
        assert_eq!((space.anon, space.shmem, huge(&private)), (on.page, 2 * HUGE - on.page, if_huge(on, 1)));
        assert_eq!((on.load(&private, BASE + 5 * on.page + 8), on.load(&shared, BASE + 5 * on.page + 8)), (1, 12));
        let child = private.fork().unwrap();
        on.store(&shared, BASE + 8, 3);
        assert_eq!((on.load(&child, BASE + 5 * on.page + 8), on.load(&child, BASE + 8)), (1, 3));
    });
}

fn partly<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        on.machine.policy().shmem().set(ORDER, ShmemKnob::Never);
        object.page_or_new(HUGE / on.page, MemcgId::ROOT).unwrap();
        on.machine.policy().shmem().set(ORDER, ShmemKnob::WithinSize);
        let space = on.space_of(MemcgId::ROOT);
        let map = |addr: u64, len: u64, offset: u64| {
            let prot = Prot::READ | Prot::WRITE;
            let request = MapRequest { addr, len, prot, flags: MapFlags::FIXED | MapFlags::SHARED };
            space.map_object(request, &object, offset).unwrap();
        };
        // A page less than the folio; all of it, a page further; all of it, of one that asks for
        // none.
        map(BASE, HUGE - on.page, 0);
        map(BASE + 4 * HUGE, HUGE, on.page);
        map(BASE + 6 * HUGE, HUGE, 0);
        space.advise(BASE + 6 * HUGE, HUGE, Advise::NoHuge).unwrap();
        map(BASE + 8 * HUGE, HUGE, 0);
        // The other folio has a page already.
        map(BASE + 10 * HUGE, HUGE, HUGE);
        for at in [8, 6, 4, 0, 10] {
            on.store(&space, BASE + at * HUGE + on.page, at);
        }
        let of = |at: u64| space.usage(range(BASE + at * HUGE, HUGE)).huge / HUGE;
        assert_eq!([0, 4, 6, 8, 10].map(of), [0, 0, 0, if_huge(on, 1), 0]);
        // All of the folio, where a page table maps a page already.
        space.unmap(BASE + 8 * HUGE + on.page, HUGE - on.page).unwrap();
        map(BASE + 8 * HUGE + on.page, HUGE - on.page, on.page);
        on.store(&space, BASE + 8 * HUGE + on.page, 1);
        assert_eq!(of(8), 0);
    });
}

fn tracked<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        let space = share(on, &object, MapFlags::SHARED);
        fill(on, &space);
        let modes = VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC;
        space.uffd_register(range(BASE, HUGE), UFFD, modes).unwrap();
        assert_eq!(huge(&space), if_huge(on, 1));
        check(on, &space, 0..2 * HUGE / on.page);
        assert_eq!(huge(&space), if_huge(on, 1));
        space.uffd_unregister(range(BASE, HUGE), UFFD).unwrap();
        if space.clear_soft_dirty().is_err() {
            return;
        }
        assert_eq!(huge(&space), 0);
        on.store(&space, BASE + HUGE + 3 * on.page, 1);
        check(on, &space, 0..2 * HUGE / on.page);
        let mut written = 0;
        space.runs(range(BASE, 2 * HUGE), |run| {
            written += if run.attrs(&on.arch).contains(Attrs::SOFT_DIRTY) { run.len } else { 0 };
        });
        assert_eq!((huge(&space), written), (0, 1));
    });
}

fn swapped<A: Silicon>(arch: A) {
    on(arch, |on| {
        let object = object(on);
        let spaces = [(); 2].map(|()| share(on, &object, MapFlags::SHARED));
        let both = [&spaces[0], &spaces[1]];
        fill(on, &spaces[0]);
        check(on, &spaces[1], 0..HUGE / on.page);
        on.reclaim(&both, MemcgId::ROOT, u64::MAX);
        on.reclaim(&both, MemcgId::ROOT, u64::MAX);
        assert_eq!((object.resident(), both.map(|space| space.stats().shmem)), (0, [0; 2]));
        check(on, &spaces[1], 0..2 * HUGE / on.page);
        assert_eq!(huge(&spaces[1]), if_huge(on, 2), "they are read back whole");
        // By one space, which maps both folios alone.
        drop(spaces);
        let space = share(on, &object, MapFlags::SHARED);
        check(on, &space, 0..2 * HUGE / on.page);
        space.advise(BASE, 2 * HUGE, Advise::PageOut).unwrap();
        assert_eq!((object.resident(), space.stats().shmem), (0, 0));
        let error = {
            on.sim.refuse(Refusal::Percent(100));
            let error = space.fault(BASE, Access::Read).unwrap_err();
            on.sim.refuse(Refusal::Never);
            error
        };
        assert!(matches!(error, FaultError::NoMemory(_)));
        check(on, &space, 0..2 * HUGE / on.page);
    });
}

fn policy<A: Silicon>(arch: A) {
    use ShmemKnob::{Always, Deny, Force, Never, WithinSize};
    on(arch, |on| {
        let frames = on.page >> 12;
        // The frames that a store to the first page inserts: into an object of that size, with that
        // advice.
        let inserted = |size: u64, folios: ShmemFolios, advice: Advise| {
            let object = Object::new(on.machine, &on.arch, MemcgId::ROOT, 0, size).unwrap();
            object.set_folios(folios);
            let space = share(on, &object, MapFlags::SHARED);
            space.advise(BASE, HUGE, advice).unwrap();
            on.store(&space, BASE, 1);
            if size < HUGE {
                let beyond = on.cpu.enter(&space).load_u64(BASE + size);
                assert_eq!(beyond, Err(Fault::Handler(FaultError::BeyondEnd(BASE + size))));
            }
            object.resident() * frames
        };
        let (one, all) = (frames, HUGE >> 12);
        let cases = |folios| {
            [(HUGE, Advise::NoHuge), (HUGE, Advise::DontDump), (on.page, Advise::DontDump), (on.page, Advise::Huge)]
                .map(|(size, advice)| inserted(size, folios, advice))
        };
        let expected = [
            (Never, [one, one, one, one]),
            (ShmemKnob::Advise, [one, one, one, all]),
            (WithinSize, [one, all, one, all]),
            (Always, [one, all, all, all]),
        ];
        for (knob, expected) in expected {
            on.machine.policy().shmem().set(ORDER, knob);
            assert_eq!(cases(ShmemFolios::Sizes), expected, "{knob:?}");
            assert_eq!(cases(ShmemFolios::Own(knob)), expected, "{knob:?}");
        }
        on.machine.policy().shmem().set(ORDER, Always);
        for (knob, expected) in [(Deny, one), (Force, all)] {
            on.machine.policy().shmem().set_machine(knob);
            let own = [Never, Always].map(|own| inserted(on.page, ShmemFolios::Own(own), Advise::DontDump));
            assert_eq!(own, [expected; 2], "{knob:?}");
        }
        // The host's writes, which have no advice.
        for (folios, expected) in [(ShmemFolios::Own(Always), all), (ShmemFolios::Own(ShmemKnob::Advise), one)] {
            on.machine.policy().shmem().set_machine(Never);
            let object = Object::new(on.machine, &on.arch, MemcgId::ROOT, 0, 0).unwrap();
            object.set_folios(folios);
            object.page_or_new(1, MemcgId::ROOT).unwrap();
            assert_eq!(object.resident() * frames, expected);
        }
    });
}

/// An object of two blocks of small pages, mapped by spaces with these flags, and the pages of its
/// first block: in memory, missing (the second), and swapped out (from the tenth on).
fn small<'m, A: Silicon, const N: usize>(
    on: &Bench<'m, A>,
    flags: [MapFlags; N],
) -> (Object<'m, Strict<A>>, [Space<'m, A>; N]) {
    on.machine.policy().shmem().set(ORDER, ShmemKnob::Never);
    let object = object(on);
    let spaces = flags.map(|flags| share(on, &object, flags));
    let end = HUGE / on.page;
    (9..end).for_each(|page| on.store(&spaces[0], BASE + page * on.page + 8, page + 7));
    let all: Vec<_> = spaces.iter().collect();
    on.reclaim(&all, MemcgId::ROOT, u64::MAX);
    on.reclaim(&all, MemcgId::ROOT, u64::MAX);
    assert_eq!((object.resident(), object.swapped()), (0, end - 9));
    (0..9).filter(|page| *page != 1).for_each(|page| on.store(&spaces[0], BASE + page * on.page + 8, page + 7));
    (object, spaces)
}

fn collapsed<A: Silicon>(arch: A) {
    on(arch, |on| {
        let (object, spaces) = small(on, [MapFlags::SHARED, MapFlags::SHARED, MapFlags::empty()]);
        let all = [&spaces[0], &spaces[1], &spaces[2]];
        let end = HUGE / on.page;
        on.store(&spaces[2], BASE + 4 * on.page + 8, 1);
        on.load(&spaces[1], BASE + 8);
        let collapse = |page| collapse_object(&all[..], &object, page, MemcgId::ROOT);
        assert_eq!((collapse(end + 3), collapse(2 * end)), (Ok(false), Ok(false)), "no page, and beyond the end");
        assert_eq!(collapse(5), Ok(true));
        assert_eq!((object.resident(), object.swapped()), (end, 0));
        let one = object.page(7).unwrap().unwrap().pfn();
        assert_eq!(on.machine.frames().head(one).1.order(), ORDER);
        for space in &spaces[..2] {
            check(on, space, (0..end).filter(|page| *page != 1));
            assert_eq!((on.load(space, BASE + on.page + 8), huge(space)), (0, if_huge(on, 1)));
        }
        // The private copy is still there, and keeps the rest from being mapped by a huge PTE.
        assert_eq!((on.load(&spaces[2], BASE + 4 * on.page + 8), huge(&spaces[2])), (1, 0));
        check(on, &spaces[2], (0..end).filter(|page| ![1, 4].contains(page)));
        assert_eq!(collapse(5), Ok(true), "it is one already");
        // Holes at its start and in its middle are filled by other folios, and it collapses again.
        for page in [0, end / 2] {
            let gone = object.punch_hole(page * on.page..(page + 1) * on.page).unwrap();
            unmap_removed(&all[..], &object, &gone);
            on.store(&spaces[0], BASE + page * on.page + 8, page + 7);
        }
        assert_eq!((collapse(0), huge(&spaces[0])), (Ok(true), 0), "the next access maps it");
        check(on, &spaces[1], (0..end).filter(|page| *page != 1));
        assert_eq!((object.resident(), huge(&spaces[1])), (end, if_huge(on, 1)));
    });
}

fn in_use<A: Silicon>(arch: A) {
    on(arch, |on| {
        let (object, spaces) = small(on, [MapFlags::SHARED]);
        let all = [&spaces[0]];
        let collapse = || collapse_object(&all[..], &object, 0, MemcgId::ROOT);
        let unchanged = || check(on, &spaces[0], (0..HUGE / on.page).filter(|page| *page != 1));
        let pinned = spaces[0].pin(BASE + 20 * on.page, Access::Write).unwrap();
        assert_eq!(collapse(), Err(ObjectError::InUse));
        unchanged();
        drop(pinned);
        let held = object.page(3).unwrap();
        assert_eq!(collapse(), Err(ObjectError::InUse));
        drop(held);
        let modes = VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC;
        spaces[0].uffd_register(range(BASE, HUGE), UFFD, modes).unwrap();
        assert_eq!(collapse(), Err(ObjectError::InUse));
        spaces[0].uffd_unregister(range(BASE, HUGE), UFFD).unwrap();
        unchanged();
        on.sim.refuse(Refusal::Percent(100));
        assert!(matches!(collapse(), Err(ObjectError::NoMemory(_))));
        on.sim.refuse(Refusal::Never);
        let removed = on.machine.memcgs().create(on.machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
        on.machine.memcgs().remove(on.machine.frames(), removed).unwrap();
        assert!(matches!(collapse_object(&all[..], &object, 0, removed), Err(ObjectError::NoMemory(_))));
        unchanged();
        assert_eq!((collapse(), object.resident()), (Ok(true), HUGE / on.page));
        unchanged();
    });
}

fn advised<A: Silicon>(arch: A) {
    on(arch, |on| {
        let (object, spaces) = small(on, [MapFlags::SHARED]);
        let space = &spaces[0];
        let file = Object::with_store(on.machine, &on.arch, MemcgId::ROOT, 7, HUGE, Changes::ToStore).unwrap();
        let prot = Prot::READ | Prot::WRITE;
        let request = |at: u64, len| MapRequest { addr: BASE + at, len, prot, flags: MapFlags::FIXED };
        space.map_object(request(4 * HUGE, HUGE), &file, 0).unwrap();
        space.map(request(6 * HUGE, HUGE)).unwrap();
        space.map_object(request(8 * HUGE, HUGE), &object, on.page).unwrap();
        let mut rest = range(BASE, 10 * HUGE);
        let mut results = Vec::new();
        while rest.start < rest.end {
            let collapse =
                |object: &Object<'_, Strict<A>>, page| collapse_object(&[space][..], object, page, MemcgId::ROOT);
            results.push(space.collapse_next(&mut rest, collapse));
        }
        let vma = |at: u64| range(BASE + at * HUGE, HUGE);
        let expected = [
            Ok(()),
            Err(CollapseError::Unfit(vma(1))),
            // Its pages are being read first.
            Err(CollapseError::Busy(vma(4))),
            Err(CollapseError::NotAllowed(vma(8))),
            Ok(()),
        ];
        assert_eq!(results, expected);
        assert_eq!(huge(space), if_huge(on, 1), "it is mapped at once");
        let files = on.sim.hardware().files();
        while files.finish_any(on.machine).is_some() {}
    });
}

fn scanned<A: Silicon>(arch: A) {
    on(arch, |on| {
        let (object, spaces) = small(on, [MapFlags::SHARED]);
        let space = &spaces[0];
        let frames = on.page >> 12;
        let scan = |limits: CollapseLimits| {
            let collapse =
                |object: &Object<'_, Strict<A>>, page| collapse_object(&[space][..], object, page, MemcgId::ROOT);
            space.collapse_some(0, u64::MAX, &limits, collapse).unwrap().collapsed
        };
        // A page is missing, and all but eight are swapped out.
        let (none, swapped) = (frames as u32, (HUGE / on.page - 9) as u32 * frames as u32);
        let limits = CollapseLimits { none, swapped, shared: 0 };
        assert_eq!(scan(limits), 0, "policy wants none");
        on.machine.policy().shmem().set(ORDER, ShmemKnob::WithinSize);
        assert_eq!(scan(CollapseLimits { none: none - 1, ..limits }), 0);
        assert_eq!(scan(CollapseLimits { swapped: swapped - 1, ..limits }), 0);
        assert_eq!((scan(limits), scan(limits)), (1, 0), "once, and the other block has no page");
        check(on, space, (0..HUGE / on.page).filter(|page| *page != 1));
        assert_eq!((object.resident(), huge(space)), (HUGE / on.page, if_huge(on, 1)));
    });
}
