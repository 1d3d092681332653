//! Moves of pages to missing pages of a registered VMA (`UFFDIO_MOVE`).

use std::num::NonZeroU16;

use vellum::addr::VirtRange;
use vellum::frame::policy::Knob;
use vellum::space::{self, Access, Advise, FaultError, MapFlags, MapRequest, UffdFillError, UffdFillStopped};
use vellum::stats::Counter;
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum_sim::{Fault, Silicon};

use crate::fixtures::bench::{self, BASE, HUGE, Setup, Space, USUAL, in_every_format, map, resident};

const UFFD: UffdId = UffdId(NonZeroU16::new(7).unwrap());
const OTHER: UffdId = UffdId(NonZeroU16::new(8).unwrap());
/// The address of the range from which pages move.
const FROM: u64 = BASE + (64 << 30);
const PAGES: u64 = 64;

/// A range of 64 pages that is registered, and another from which pages move to it.
struct Bench<'b, 'm, A: Silicon> {
    on: &'b bench::Bench<'m, A>,
    space: Space<'m, A>,
    page: u64,
}

fn on<A: Silicon>(arch: A, order: u8, test: impl FnOnce(&Bench<'_, '_, A>)) {
    bench::on(arch, Setup { slots: 1024, ..USUAL }, |on| {
        on.machine.policy().set(order, Knob::Always);
        let (space, page) = (on.space(), on.page);
        [BASE, FROM].iter().for_each(|&start| map(&space, start, PAGES * page));
        let to = VirtRange { start: BASE, end: BASE + PAGES * page };
        space.uffd_register(to, UFFD, VmaFlags::UFFD_MISSING).unwrap();
        test(&Bench { on, space, page });
    });
}

/// Runs a test with folios of a page, and with larger ones.
fn in_orders<A: Silicon>(arch: A, test: impl Fn(&Bench<'_, '_, A>)) {
    [0, 4, 5].iter().for_each(|order| on(arch, *order, &test));
}

impl<A: Silicon> Bench<'_, '_, A> {
    fn pages(&self, start: u64, first: u64, count: u64) -> VirtRange {
        VirtRange { start: start + first * self.page, end: start + (first + count) * self.page }
    }

    fn load(&self, start: u64, page: u64) -> Result<u64, Fault<FaultError>> {
        self.on.cpu.enter(&self.space).load_u64(start + page * self.page)
    }

    fn store(&self, start: u64, page: u64, value: u64) {
        self.on.store(&self.space, start + page * self.page, value);
    }

    /// Moves pages from `FROM` to `BASE`.
    fn relocate(&self, to: u64, from: u64, count: u64, holes: bool) -> Result<(), UffdFillStopped> {
        space::uffd_move(&self.space, UFFD, [self.pages(BASE, to, count), self.pages(FROM, from, count)], holes)
    }

    fn stopped(&self, done: u64, error: UffdFillError) -> Result<(), UffdFillStopped> {
        Err(UffdFillStopped { done: done * self.page, error })
    }

    fn is_missing(&self, page: u64) -> bool {
        matches!(self.load(BASE, page), Err(Fault::Handler(FaultError::Uffd(_))))
    }
}

in_every_format! {
    pages_move_and_leave_holes => |arch| in_orders(arch, moved),
    parts_of_folios_move => |arch| in_orders(arch, parts),
    holes_move_only_if_allowed => |arch| in_orders(arch, holes),
    pages_do_not_replace_others => |arch| in_orders(arch, occupied),
    moved_pages_are_reclaimed_and_come_back => |arch| in_orders(arch, reclaimed),
    shared_and_pinned_pages_stay => |arch| in_orders(arch, busy),
    unlike_vmas_are_refused => |arch| on(arch, 0, refused),
}

fn moved<A: Silicon>(on: &Bench<'_, '_, A>) {
    (0..PAGES).for_each(|page| on.store(FROM, page, 100 + page));
    let before = (on.space.usage(on.pages(FROM, 0, PAGES)), on.on.count(Counter::CowCopies));
    on.relocate(0, 0, PAGES, false).unwrap();
    assert_eq!(on.space.usage(on.pages(BASE, 0, PAGES)).runs, before.0.runs, "whole folios move by the run");
    assert_eq!(on.on.count(Counter::CowCopies), before.1, "nothing was copied");
    assert_eq!(resident(&on.space, FROM, PAGES * on.page), 0);
    for page in 0..PAGES {
        assert_eq!((on.load(BASE, page), on.load(FROM, page)), (Ok(100 + page), Ok(0)));
        on.store(BASE, page, page);
    }
    // The zero page moves too.
    on.space.advise(BASE, on.page, Advise::DontNeed).unwrap();
    on.relocate(0, 1, 1, false).unwrap();
    assert_eq!(on.load(BASE, 0), Ok(0));
    on.store(BASE, 0, 7);
    assert_eq!((on.load(BASE, 0), on.load(FROM, 1)), (Ok(7), Ok(0)));
}

fn parts<A: Silicon>(on: &Bench<'_, '_, A>) {
    (0..PAGES).for_each(|page| on.store(FROM, page, 100 + page));
    // Addresses that are not aligned alike.
    on.relocate(1, 6, 21, false).unwrap();
    for page in 0..PAGES {
        assert_eq!(on.is_missing(page), !(1..22).contains(&page));
        let stays = !(6..27).contains(&page);
        assert_eq!(on.load(FROM, page), Ok(if stays { 100 + page } else { 0 }));
    }
    (1..22).for_each(|page| assert_eq!(on.load(BASE, page), Ok(105 + page)));
}

fn holes<A: Silicon>(on: &Bench<'_, '_, A>) {
    [0, 1, 3].iter().for_each(|&page| on.store(FROM, page, 100 + page));
    on.space.advise(FROM + 2 * on.page, on.page, Advise::DontNeed).unwrap();
    assert_eq!(on.relocate(0, 0, 4, false), on.stopped(2, UffdFillError::Hole(FROM + 2 * on.page)));
    assert_eq!((on.load(BASE, 1), on.is_missing(2)), (Ok(101), true));
    on.relocate(2, 2, 62, true).unwrap();
    assert_eq!((on.is_missing(2), on.load(BASE, 3)), (true, Ok(103)));
    // The order of the folios decides whether this page was in memory.
    let empty = space::uffd_move(&on.space, UFFD, [on.pages(BASE, 2, 1), on.pages(FROM, 1, 1)], false);
    assert_eq!(empty, on.stopped(0, UffdFillError::Hole(FROM + on.page)));
}

fn occupied<A: Silicon>(on: &Bench<'_, '_, A>) {
    (0..PAGES).for_each(|page| on.store(FROM, page, 100 + page));
    on.space.uffd_zeropage(on.pages(BASE, 20, 1)).unwrap();
    assert_eq!(on.relocate(0, 0, PAGES, true), on.stopped(20, UffdFillError::Exists(BASE + 20 * on.page)));
    assert_eq!((on.load(BASE, 19), on.load(BASE, 20), on.load(FROM, 20)), (Ok(119), Ok(0), Ok(120)));
    on.space.uffd_poison(on.pages(BASE, 21, 1)).unwrap();
    assert_eq!(on.relocate(21, 21, 1, true), on.stopped(0, UffdFillError::Exists(BASE + 21 * on.page)));
    on.space.advise(FROM + 30 * on.page, on.page, Advise::GuardInstall).unwrap();
    assert_eq!(on.relocate(30, 30, 1, true), on.stopped(0, UffdFillError::NoContents(FROM + 30 * on.page)));
}

fn reclaimed<A: Silicon>(on: &Bench<'_, '_, A>) {
    (0..PAGES).for_each(|page| on.store(FROM, page, 100 + page));
    on.space.advise(FROM, 8 * on.page, Advise::PageOut).unwrap();
    // Pages on a swap device move as well.
    on.relocate(0, 0, 32, false).unwrap();
    // The rmap finds them at their new addresses.
    assert_eq!(on.on.reclaim_all(&[&on.space]), PAGES * (on.page >> 12));
    assert_eq!(resident(&on.space, BASE, PAGES * on.page), 0);
    (0..32).for_each(|page| assert_eq!(on.load(BASE, page), Ok(100 + page)));
    (32..PAGES).for_each(|page| assert_eq!(on.load(FROM, page), Ok(100 + page)));
}

fn busy<A: Silicon>(on: &Bench<'_, '_, A>) {
    (0..PAGES).for_each(|page| on.store(FROM, page, 100 + page));
    let pinned = on.space.pin(FROM + 40 * on.page, Access::Write).unwrap();
    assert_eq!(on.relocate(40, 40, 1, false), on.stopped(0, UffdFillError::Busy(FROM + 40 * on.page)));
    drop(pinned);
    on.relocate(40, 40, 1, false).unwrap();
    let child = on.space.fork().unwrap();
    assert_eq!(on.relocate(0, 0, 1, false), on.stopped(0, UffdFillError::Busy(FROM)));
    assert_eq!(on.on.cpu.enter(&child).load_u64(FROM), Ok(100));
    drop(child);
    on.relocate(0, 0, 1, false).unwrap();
    assert_eq!((on.load(BASE, 0), on.load(FROM, 0)), (Ok(100), Ok(0)));
}

fn refused<A: Silicon>(on: &Bench<'_, '_, A>) {
    on.store(FROM, 0, 1);
    let unsuitable = on.stopped(0, UffdFillError::Unsuitable(BASE));
    let by = |uffd| space::uffd_move(&on.space, uffd, [on.pages(BASE, 0, 1), on.pages(FROM, 0, 1)], false);
    assert_eq!(by(OTHER), unsuitable);
    on.space.protect(FROM, PAGES * on.page, Prot::READ).unwrap();
    assert_eq!(by(UFFD), unsuitable);
    on.space.protect(FROM, PAGES * on.page, Prot::READ | Prot::WRITE).unwrap();
    on.space.lock(FROM, on.page, false).unwrap();
    assert_eq!(by(UFFD), unsuitable);
    on.space.unlock(FROM, on.page).unwrap();
    assert_eq!(on.relocate(0, PAGES - 1, 2, true), unsuitable, "the range is not in one VMA");
    let far = on.pages(FROM, 2 * PAGES, 1);
    let unmapped = space::uffd_move(&on.space, UFFD, [on.pages(BASE, 0, 1), far], true);
    assert_eq!(unmapped, on.stopped(0, UffdFillError::NotRegistered(far.start)));
    let flags = MapFlags::FIXED | MapFlags::SHARED;
    on.space.map(MapRequest { addr: far.start, len: on.page, prot: Prot::READ | Prot::WRITE, flags }).unwrap();
    assert_eq!(space::uffd_move(&on.space, UFFD, [on.pages(BASE, 0, 1), far], true), unsuitable);
    assert_eq!(by(UFFD), Ok(()));
}

#[test]
fn a_huge_page_moves_as_it_is() {
    let arch = vellum::arch::X86_64::four_levels();
    bench::on(arch, USUAL, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.space();
        [BASE, FROM].iter().for_each(|&start| map(&space, start, 2 * HUGE));
        space.uffd_register(VirtRange { start: BASE, end: BASE + 2 * HUGE }, UFFD, VmaFlags::UFFD_MISSING).unwrap();
        [0, HUGE].iter().for_each(|&at| on.store(&space, FROM + at, 5));
        let relocate = |to: u64, from: u64, len: u64| {
            let ranges = [bench::range(BASE + to, len), bench::range(FROM + from, len)];
            space::uffd_move(&space, UFFD, ranges, false).unwrap();
        };
        relocate(0, 0, HUGE);
        assert_eq!(space.usage(bench::range(BASE, HUGE)).runs, 1);
        assert_eq!((on.load(&space, BASE), resident(&space, FROM, HUGE)), (5, 0));
        // A part of a huge page.
        relocate(HUGE, HUGE, on.page);
        assert_eq!((on.load(&space, BASE + HUGE), resident(&space, FROM + HUGE, HUGE)), (5, HUGE - on.page));
    });
}
