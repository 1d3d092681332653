//! Collapse: small pages become one large folio.

use std::num::NonZeroU16;
use vellum::memcg::Refused;

use vellum::addr::Pfn;
use vellum::arch::{Attrs, Kind};
use vellum::errno::Errno;
use vellum::frame::policy::{Knob, LargeFolios};
use vellum::space::{Access, Advise, AdviseError, CollapseError, CollapseLimits, Collapsed};
use vellum::stats::{Counter, SizeCounter};
use vellum::vma::{Prot, UffdId, VmaFlags};
use vellum_sim::{Refusal, Silicon};

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map, range};

/// Runs a test on a machine with a swap device, where no folio is large by itself.
fn on<A: Silicon>(arch: A, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { slots: 4096, ..USUAL }, |on| {
        on.machine.policy().set_global(Knob::Never);
        test(on);
    });
}

impl<'m, A: Silicon> Bench<'m, A> {
    /// Returns a space with this many bytes mapped.
    fn mapped(&self, len: u64) -> Space<'m, A> {
        let space = self.space();
        map(&space, BASE, len);
        space
    }

    /// Stores its number plus 1 to each of these pages.
    fn fill(&self, space: &Space<'_, A>, pages: impl Iterator<Item = u64>) {
        pages.for_each(|i| self.store(space, BASE + i * self.page, i + 1));
    }

    /// Checks that each chosen page of the first block holds its number plus 1, and all others
    /// zeros.
    fn holds(&self, space: &Space<'_, A>, chosen: impl Fn(u64) -> bool) {
        for i in 0..HUGE / self.page {
            assert_eq!(self.load(space, BASE + i * self.page), if chosen(i) { i + 1 } else { 0 }, "page {i}");
        }
    }

    /// Returns the folio that maps all of a block: by one huge PTE or, in a format in which that is
    /// larger, by one run.
    fn folio(&self, space: &Space<'_, A>, start: u64) -> Option<Pfn> {
        let mut found = None;
        space.runs(range(start, HUGE), |run| {
            let all = run.va <= start && run.range(&self.arch).end >= start + HUGE;
            if run.kind == Kind::Leaf && all && run.level == if self.page == 4096 { 2 } else { 1 } {
                let pfn = run.pfn(&self.arch).add(((start - run.va) >> 12) as u32);
                found = Some(pfn).filter(|pfn| self.machine.frames().head(*pfn).1.order() == 9 && pfn.is_aligned(9));
            }
        });
        found
    }

    fn collapsed(&self, order: u8) -> u64 {
        self.machine.size_counter(SizeCounter::Collapsed, order)
    }
}

fn collapse<A: Silicon>(space: &Space<'_, A>, len: u64) -> Result<(), CollapseError> {
    space.advise(BASE, len, Advise::Collapse).map_err(|error| match error {
        AdviseError::Collapse(error) => error,
        other => panic!("{other:?}"),
    })
}

in_every_format! {
    scattered_pages_collapse_into_one_folio => scattered,
    swapped_pages_are_swapped_in_before_collapse => swapped,
    collapse_copies_shared_pages => shared,
    pinned_pages_are_not_collapsed => pinned,
    collapse_refuses_unmapped_and_unsuitable_ranges => refused,
    collapse_without_memory_changes_nothing => no_memory,
    collapse_restores_a_split_huge_pte => promoted,
    collapsed_folios_have_the_protection_of_the_vma => rights,
    background_collapse_respects_its_limits => limited,
    collapse_makes_smaller_folios_by_policy => small,
    collapse_keeps_uffd_missing_and_wp_pages => watched,
    a_space_may_have_no_large_folios => denied,
}

/// Contents are kept, untouched pages become zeros, and the page table is freed.
fn scattered<A: Silicon>(arch: A) {
    on(arch, |on| {
        let space = on.mapped(2 * HUGE);
        // In no order, so that no two folios are adjacent.
        let pages = HUGE / on.page;
        on.fill(&space, (0..pages).map(|i| i * 7 % pages).filter(|i| i % 3 == 0));
        // A read maps zeros, which are no memory of the space.
        assert_eq!(on.load(&space, BASE + on.page), 0);
        let before = space.stats();
        collapse(&space, HUGE).unwrap();
        assert!(on.folio(&space, BASE).is_some());
        on.holds(&space, |i| i % 3 == 0);
        let after = space.stats();
        assert_eq!(after.anon, HUGE);
        let table = if on.page == 4096 { 1 << 12 } else { 0 };
        assert_eq!(after.tables + table, before.tables);
        assert_eq!(
            on.machine.memcgs().usage(on.machine.frames(), on.memcg).unwrap().charged << 12,
            HUGE + after.tables + after.kernel
        );
        assert_eq!((on.collapsed(9), space.usage(range(BASE, HUGE)).anonymous), (1, HUGE));
        // The folio is written in place, and split as any other.
        on.store(&space, BASE + on.page, 5);
        assert_eq!(on.machine.counter(Counter::CowCopies), 0);
        space.unmap(BASE, HUGE / 2).unwrap();
        assert_eq!(
            on.load(&space, BASE + HUGE / 2 + on.page * ((3 - pages / 2 % 3) % 3)),
            pages / 2 + (3 - pages / 2 % 3) % 3 + 1
        );
        // A second collapse changes nothing.
        let space = on.mapped(HUGE);
        on.fill(&space, [3].into_iter());
        collapse(&space, HUGE).unwrap();
        let folio = on.folio(&space, BASE);
        collapse(&space, HUGE).unwrap();
        assert_eq!((on.folio(&space, BASE), on.collapsed(9)), (folio, 2));
    });
}

fn swapped<A: Silicon>(arch: A) {
    on(arch, |on| {
        let space = on.mapped(HUGE);
        on.fill(&space, 0..HUGE / on.page);
        space.advise(BASE + 4 * on.page, HUGE / 2, Advise::PageOut).unwrap();
        assert_eq!(space.stats().swap, HUGE / 2);
        let child = space.fork().unwrap();
        collapse(&space, HUGE).unwrap();
        assert!(on.folio(&space, BASE).is_some());
        assert_eq!((space.stats().swap, child.stats().swap), (0, HUGE / 2));
        on.holds(&space, |_| true);
        on.holds(&child, |_| true);
        // All pages are swapped out.
        drop(child);
        space.advise(BASE, HUGE, Advise::PageOut).unwrap();
        assert_eq!(space.stats().swap, HUGE);
        collapse(&space, HUGE).unwrap();
        assert!(on.folio(&space, BASE).is_some());
        on.holds(&space, |_| true);
    });
}

/// Parent and child don't see each other's writes, before and after.
fn shared<A: Silicon>(arch: A) {
    on(arch, |on| {
        let space = on.mapped(HUGE);
        on.fill(&space, 0..HUGE / on.page);
        let child = space.fork().unwrap();
        on.store(&space, BASE + on.page, 77);
        collapse(&space, HUGE).unwrap();
        assert!(on.folio(&space, BASE).is_some() && on.folio(&child, BASE).is_none());
        on.store(&space, BASE + 2 * on.page, 88);
        on.holds(&child, |_| true);
        on.store(&child, BASE + 3 * on.page, 99);
        assert_eq!([1, 2, 3].map(|i| on.load(&space, BASE + i * on.page)), [77, 88, 4]);
        collapse(&child, HUGE).unwrap();
        assert!(on.folio(&child, BASE).is_some());
        assert_eq!([1, 2, 3].map(|i| on.load(&child, BASE + i * on.page)), [2, 3, 99]);
    });
}

/// A write through a pin goes to the page of the space.
fn pinned<A: Silicon>(arch: A) {
    on(arch, |on| {
        let space = on.mapped(2 * HUGE);
        on.fill(&space, 0..2 * HUGE / on.page);
        let pin = space.pin(BASE + 5 * on.page, Access::Write).unwrap();
        // The other block is collapsed all the same.
        assert_eq!(collapse(&space, 2 * HUGE), Err(CollapseError::Busy(range(BASE, HUGE))));
        assert_eq!(CollapseError::Busy(range(BASE, HUGE)).errno(), Errno::EAGAIN);
        assert!(on.folio(&space, BASE).is_none() && on.folio(&space, BASE + HUGE).is_some());
        pin.write(0, &6u64.to_ne_bytes());
        on.holds(&space, |_| true);
        drop(pin);
        collapse(&space, 2 * HUGE).unwrap();
        assert!(on.folio(&space, BASE).is_some());
        on.holds(&space, |_| true);
    });
}

fn refused<A: Silicon>(arch: A) {
    on(arch, |on| {
        let space = on.mapped(2 * HUGE);
        let all = range(BASE, 2 * HUGE);
        let unfit = |start| Err(CollapseError::Unfit(range(start, HUGE)));
        assert_eq!(collapse(&space, HUGE), unfit(BASE), "the range is empty");
        on.fill(&space, [1].into_iter());
        space.advise(BASE + 8 * on.page, on.page, Advise::GuardInstall).unwrap();
        assert_eq!(collapse(&space, HUGE), unfit(BASE), "the range has a guard");
        space.advise(BASE + 8 * on.page, on.page, Advise::GuardRemove).unwrap();
        space.advise(BASE, 2 * HUGE, Advise::NoHuge).unwrap();
        assert_eq!(collapse(&space, HUGE), Err(CollapseError::NotAllowed(all)));
        space.advise(BASE, 2 * HUGE, Advise::Huge).unwrap();
        space.set_limits(|limits| limits.large_folios = LargeFolios::None);
        assert_eq!(collapse(&space, HUGE), Err(CollapseError::NotAllowed(all)), "the space has no large folios");
        space.set_limits(|limits| limits.large_folios = LargeFolios::All);
        // A part of a block is not collapsed, nor a VMA without a whole block.
        space.advise(BASE + on.page, on.page, Advise::Collapse).unwrap();
        assert_eq!((on.folio(&space, BASE), collapse(&space, on.page)), (None, Ok(())));
        let small = on.mapped(HUGE - on.page);
        on.store(&small, BASE, 1);
        assert_eq!(collapse(&small, on.page), Err(CollapseError::NotAllowed(range(BASE, HUGE - on.page))));
        on.load(&space, BASE + HUGE);
        assert_eq!(collapse(&space, 2 * HUGE), unfit(BASE + HUGE), "the first is done all the same");
        assert!(on.folio(&space, BASE).is_some());
        space.unmap(BASE, 2 * HUGE).unwrap();
        assert_eq!(space.advise(BASE, HUGE, Advise::Collapse), Err(AdviseError::NotMapped));
        for error in [CollapseError::NotAllowed(all), CollapseError::Unfit(all), CollapseError::Poisoned(BASE)] {
            assert_eq!(error.errno(), Errno::EINVAL);
        }
    });
}

/// Policy decides for the memory alone that the space permits; a child permits the same.
fn denied<A: Silicon>(arch: A) {
    on(arch, |on| {
        on.machine.policy().set_global(Knob::Always);
        let space = on.mapped(4 * HUGE);
        space.advise(BASE + HUGE, HUGE, Advise::Huge).unwrap();
        let grown = |block: u64| {
            let before = space.stats().anon;
            on.store(&space, BASE + block * HUGE, 1);
            space.stats().anon - before
        };
        space.set_limits(|limits| limits.large_folios = LargeFolios::None);
        assert_eq!((grown(0), collapse(&space, HUGE).is_err()), (on.page, true));
        assert_eq!(space.fork().unwrap().limits().large_folios, LargeFolios::None);
        space.set_limits(|limits| limits.large_folios = LargeFolios::Advised);
        assert_eq!((grown(1), grown(2), collapse(&space, HUGE)), (HUGE, on.page, Ok(())));
        space.set_limits(|limits| limits.large_folios = LargeFolios::All);
        assert_eq!(grown(3), HUGE);
    });
}

fn no_memory<A: Silicon>(arch: A) {
    on(arch, |on| {
        let space = on.mapped(HUGE);
        on.fill(&space, (0..HUGE / on.page).filter(|i| i % 2 == 0));
        let before = (space.stats().anon, on.machine.frames().free_frames());
        on.sim.refuse(Refusal::From(1));
        assert_eq!(collapse(&space, HUGE).map_err(|e| e.errno()), Err(Errno::ENOMEM));
        on.sim.refuse(Refusal::Never);
        on.machine.memcgs().set_limit(on.memcg, (HUGE >> 12) + 4).unwrap();
        assert_eq!(collapse(&space, HUGE), Err(CollapseError::NoMemory(Refused::OverLimit(on.memcg))));
        assert_eq!(CollapseError::NoMemory(Refused::OverLimit(on.memcg)).errno(), Errno::EBUSY);
        on.machine.memcgs().set_limit(on.memcg, u64::MAX).unwrap();
        assert_eq!((space.stats().anon, on.machine.frames().free_frames()), before);
        assert_eq!(on.machine.size_counter(SizeCounter::CollapseFailed, 9), 2);
        on.holds(&space, |i| i % 2 == 0);
        collapse(&space, HUGE).unwrap();
        on.holds(&space, |i| i % 2 == 0);
    });
}

/// A huge PTE that was split is restored, with the same folio, even if it is shared or pinned.
fn promoted<A: Silicon>(arch: A) {
    on(arch, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.mapped(HUGE);
        on.fill(&space, 0..HUGE / on.page);
        let folio = on.folio(&space, BASE).unwrap();
        for write in [Prot::empty(), Prot::WRITE] {
            space.protect(BASE + 16 * on.page, 3 * on.page, Prot::READ | write).unwrap();
        }
        let child = space.fork().unwrap();
        let pin = child.pin(BASE, Access::Read).unwrap();
        let tables = space.stats().tables;
        if on.page == 4096 {
            assert_eq!(on.folio(&space, BASE), None);
        }
        collapse(&space, HUGE).unwrap();
        assert_eq!((on.folio(&space, BASE), on.collapsed(9)), (Some(folio), 0));
        if on.page == 4096 {
            assert_eq!(space.stats().tables + 4096, tables);
        }
        drop(pin);
        on.holds(&child, |_| true);
        on.store(&space, BASE, 50);
        assert_eq!(on.load(&child, BASE), 1);
        drop(child);
        assert_eq!((on.load(&space, BASE), on.load(&space, BASE + on.page)), (50, 2));
    });
}

/// The folio is mapped with the protection of the VMA.
fn rights<A: Silicon>(arch: A) {
    on(arch, |on| {
        for prot in [Prot::READ, Prot::empty(), Prot::READ | Prot::EXEC] {
            let space = on.mapped(HUGE);
            on.fill(&space, 0..HUGE / on.page / 2);
            space.protect(BASE, HUGE, prot).unwrap();
            collapse(&space, HUGE).unwrap();
            assert!(on.folio(&space, BASE).is_some());
            assert!(on.cpu.enter(&space).store_u64(BASE, 9).is_err());
            assert_eq!(on.cpu.enter(&space).load_u64(BASE).is_ok(), prot.contains(Prot::READ));
            space.protect(BASE, HUGE, Prot::READ | Prot::WRITE).unwrap();
            on.holds(&space, |i| i < HUGE / on.page / 2);
        }
    });
}

/// A collapse in the background respects each limit, and scans this many pages at a time.
fn limited<A: Silicon>(arch: A) {
    on(arch, |on| {
        let whole = CollapseLimits { none: 0, swapped: 0, shared: 0 };
        let pages = (HUGE >> 12) as u32;
        let space = on.mapped(4 * HUGE);
        let some = |from, limits| space.collapse_some(from, u64::from(pages), &limits, |_, _| Ok(false)).unwrap();
        let step = |n: u64, collapsed| Collapsed { scanned: pages.into(), collapsed, next: Some(BASE + n * HUGE) };
        // The first block has a hole, the second is half swapped out, the third is shared with a
        // child, the fourth was not accessed.
        on.fill(&space, 1..4 * HUGE / on.page);
        assert_eq!(
            space.collapse_some(0, 1 << 20, &whole, |_, _| Ok(false)).unwrap(),
            Collapsed::default(),
            "policy allows no large folios"
        );
        let third = BASE + 2 * HUGE;
        let child = space.fork().unwrap();
        (0..4 * HUGE).step_by(on.page as usize).filter(|at| !(2 * HUGE..3 * HUGE).contains(at) && *at != 0).for_each(
            |at| {
                on.store(&space, BASE + at, at / on.page + 1);
            },
        );
        space.advise(BASE + HUGE, HUGE / 2, Advise::PageOut).unwrap();
        space.clear_accessed_dirty(range(BASE + 3 * HUGE, HUGE), Attrs::ACCESSED, |_, _| ());
        on.machine.policy().set(9, Knob::Always);
        assert_eq!(some(0, whole), step(1, 0));
        assert_eq!(some(BASE + HUGE, whole), step(2, 0));
        assert_eq!(some(third, whole), step(3, 0));
        assert_eq!(some(third + HUGE, whole), step(4, 0));
        // Each kind has its own limit.
        let hole = (on.page >> 12) as u32;
        assert_eq!(some(0, CollapseLimits { none: hole - 1, swapped: pages, shared: pages }), step(1, 0));
        assert_eq!(some(0, CollapseLimits { none: hole, ..whole }), step(1, 1));
        assert_eq!(
            some(BASE + HUGE, CollapseLimits { swapped: pages / 2 - 1, none: pages, shared: pages }),
            step(2, 0)
        );
        assert_eq!(some(BASE + HUGE, CollapseLimits { swapped: pages / 2, ..whole }), step(2, 1));
        assert_eq!(some(third, CollapseLimits { shared: pages - 1, none: pages, swapped: pages }), step(3, 0));
        assert_eq!(some(third, CollapseLimits { shared: pages, ..whole }), step(3, 1));
        assert_eq!(some(third + HUGE, CollapseLimits { none: pages, swapped: pages, shared: pages }), step(4, 0));
        on.load(&space, third + HUGE);
        assert_eq!(some(third + HUGE, whole), step(4, 1));
        // Nothing is left to do, and the end is reported.
        let rest = space.collapse_some(0, 1 << 20, &whole, |_, _| Ok(false)).unwrap();
        assert_eq!(rest, Collapsed { scanned: 4 * u64::from(pages), collapsed: 0, next: None });
        on.holds(&space, |i| i != 0);
        drop(child);
    });
}

/// 64 KiB of pages become one folio, which one cont block maps where the format has those.
fn small<A: Silicon>(arch: A) {
    if arch.page_shift() == 16 {
        return;
    }
    on(arch, |on| {
        let space = on.mapped(256 << 10);
        let pages = (256 << 10) / on.page;
        on.fill(&space, (0..pages).rev());
        on.machine.policy().set(4, Knob::Always);
        let done = space.collapse_some(0, 1 << 20, &CollapseLimits::default(), |_, _| Ok(false)).unwrap();
        assert_eq!(done, Collapsed { scanned: 64, collapsed: 4, next: None });
        assert_eq!(on.collapsed(4), 4);
        let usage = space.usage(range(BASE, 256 << 10));
        assert_eq!(usage.cont_blocks[0] != 0, A::CONT != 0 && on.page == 4096, "{usage:?}");
        (0..pages).for_each(|i| assert_eq!(on.load(&space, BASE + i * on.page), i + 1));
        assert_eq!(space.stats().anon, 256 << 10);
    });
}

/// In a uffd-registered VMA, missing pages are not filled with zeros, and write-protected pages are
/// not collapsed.
fn watched<A: Silicon>(arch: A) {
    on(arch, |on| {
        let later = VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC;
        let (all, last) = (range(BASE, HUGE), HUGE / on.page - 1);
        let page = |i: u64| range(BASE + i * on.page, on.page);
        for what in [VmaFlags::UFFD_MISSING, VmaFlags::UFFD_WP, VmaFlags::UFFD_MISSING | VmaFlags::UFFD_WP, later] {
            let space = on.mapped(HUGE);
            on.fill(&space, (0..=last).filter(|i| *i != 1));
            space.uffd_register(all, UffdId(NonZeroU16::MIN), what).unwrap();
            assert_eq!(collapse(&space, HUGE), Err(CollapseError::BeyondLimits(all)), "{what:?}");
            on.machine.policy().set(9, Knob::Always);
            let limits = CollapseLimits { none: 512, swapped: 512, shared: 512 };
            assert_eq!(space.collapse_some(0, 1 << 20, &limits, |_, _| Ok(false)).unwrap().collapsed, 0);
            on.machine.policy().set(9, Knob::Never);
            assert_eq!((space.stats().anon, on.folio(&space, BASE)), (HUGE - on.page, None));
            let zero = |_, bytes: &mut [u8]| {
                bytes.fill(0);
                Ok(())
            };
            let fill = |i| space.uffd_copy(page(i), false, zero);
            fill(1).unwrap();
            if what.contains(VmaFlags::UFFD_WP) {
                // A resident page, a swapped one, and a missing one.
                space.advise(page(last).start, on.page, Advise::PageOut).unwrap();
                space.advise(page(4).start, on.page, Advise::DontNeed).unwrap();
                for i in [3, last, 4] {
                    space.uffd_write_protect(page(i), true).unwrap();
                    assert_eq!(collapse(&space, HUGE), Err(CollapseError::Unfit(all)), "page {i}");
                    assert_eq!(space.collapse_some(0, 1 << 20, &limits, |_, _| Ok(false)).unwrap().collapsed, 0);
                    if what != later {
                        assert!(on.cpu.enter(&space).store_u64(page(i).start, 1).is_err(), "page {i}");
                    }
                    space.uffd_write_unprotect(page(i)).unwrap();
                }
                fill(4).unwrap();
            }
            collapse(&space, HUGE).unwrap();
            assert!(on.folio(&space, BASE).is_some());
            on.holds(&space, |i| i != 1 && (i != 4 || !what.contains(VmaFlags::UFFD_WP)));
            // A huge PTE is one folio already, with all its bits.
            if what.contains(VmaFlags::UFFD_WP) {
                space.uffd_write_protect(all, true).unwrap();
                collapse(&space, HUGE).unwrap();
            }
        }
    });
}
