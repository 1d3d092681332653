//! uffd-registered memory, while other CPUs use it.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

use shuttle::thread;
use vellum::addr::VirtRange;
use vellum::space::{
    Access, Advise, Categories, FaultError, MapFlags, Region, Scan, UffdEvent, UffdFillError, UffdMode,
};
use vellum::vma::{UffdId, VmaFlags};
use vellum_sim::{Cpu, Fault, Strict};

use crate::fixtures::schedules::{BASE, PAGE, Space, at, every_swapping, fixed, space};

const PAGES: u64 = 2;
const UFFD: UffdId = UffdId(NonZeroU16::MIN);
const ALL: VirtRange = VirtRange { start: BASE, end: BASE + PAGES * PAGE };

/// Registers the first pages of a space, runs two functions and `other` at once, and then `other`
/// again, with true, when the two have ended.
fn at_once(
    what: VmaFlags,
    populate: bool,
    work: [fn(&Space<'_>, &Cpu<'_, Strict>); 2],
    other: impl Fn(&Space<'_>, &Cpu<'_, Strict>, bool) + Clone + Send + Sync + 'static,
) {
    every_swapping(move |sim, boot, machine, _| {
        let space = space(machine);
        let flags = if populate { MapFlags::POPULATE } else { MapFlags::empty() };
        space.map(fixed(0, PAGES, flags)).unwrap();
        space.map(fixed(PAGES, 1, MapFlags::POPULATE)).unwrap();
        space.uffd_register(ALL, UFFD, what).unwrap();
        thread::scope(|s| {
            for (n, work) in work.into_iter().enumerate() {
                let (sim, space) = (&sim, &space);
                s.spawn(move || work(space, &sim.cpu(n + 1)));
            }
            other(&space, boot, false);
        });
        other(&space, boot, true);
    });
}

/// Counts up in each page in turn.
fn counts(space: &Space<'_>, cpu: &Cpu<'_, Strict>) {
    let program = cpu.enter(space);
    for n in 0..2 {
        (0..PAGES).for_each(|page| assert_eq!(program.add_u64(at(page), 1), Ok(n)));
    }
}

fn goes_out(space: &Space<'_>, _: &Cpu<'_, Strict>) {
    (0..2).for_each(|_| space.advise(at(0), PAGES * PAGE, Advise::PageOut).unwrap());
}

fn has_a_child(space: &Space<'_>, _: &Cpu<'_, Strict>) {
    drop(space.fork().unwrap());
}

/// Returns the pages that were written, and protects them again.
fn written(space: &Space<'_>) -> Vec<u64> {
    let select = |is: Categories| is.contains(Categories::WRITTEN).then_some(Categories::WRITTEN);
    let mut out = [Region::default(); PAGES as usize];
    let scan = Scan { select, max_pages: u64::MAX, write_protect: true, only_async: true };
    let found = space.scan(ALL, scan, Some(&mut out)).unwrap();
    let pages = |r: &Region| (r.range.start - at(0)) / PAGE..(r.range.end - at(0)) / PAGE;
    out[..found.regions].iter().flat_map(pages).collect()
}

/// Copies written pages again and again. In the end the copy has every write: each was reported by
/// the scan after it.
fn no_write_is_lost(others: [fn(&Space<'_>, &Cpu<'_, Strict>); 2], populate: bool) {
    at_once(VmaFlags::UFFD_WP | VmaFlags::UFFD_WP_ASYNC, populate, others, |space, cpu, last| {
        // The copies are in the next page, which no other CPU touches.
        let program = cpu.enter(space);
        for _ in 0..if last { 1 } else { 2 } {
            for page in written(space) {
                let seen = program.load_u64(at(page)).unwrap();
                program.store_u64(at(PAGES) + 8 * page, seen).unwrap();
            }
        }
        if last {
            for page in 0..PAGES {
                let copy = program.load_u64(at(PAGES) + 8 * page);
                assert_eq!(copy, program.load_u64(at(page)), "page {page} was written without a report");
                assert_eq!(copy, Ok(2), "page {page}");
            }
        }
    });
}

#[test]
fn no_write_is_lost_beside_swapping() {
    no_write_is_lost([counts, goes_out], true);
}

#[test]
fn no_write_is_lost_beside_fork() {
    no_write_is_lost([counts, has_a_child], true);
}

#[test]
fn no_write_is_lost_on_missing_pages() {
    no_write_is_lost([counts, has_a_child], false);
}

fn is_told(page: u64, access: Access, what: UffdMode) -> Fault<FaultError> {
    Fault::Handler(FaultError::Uffd(UffdEvent { uffd: UFFD, page: at(page), addr: at(page), access, mode: what }))
}

/// A write-protected page is not written until it is unprotected.
#[test]
fn write_protected_pages_are_not_written() {
    fn writes(space: &Space<'_>, cpu: &Cpu<'_, Strict>) {
        let program = cpu.enter(space);
        for n in 1..4 {
            for page in 0..PAGES {
                let stored = program.store_u64(at(page), n);
                assert!(stored == Ok(()) || stored == Err(is_told(page, Access::Write, UffdMode::Write)), "{stored:?}");
            }
        }
    }
    for other in [goes_out, has_a_child] {
        at_once(VmaFlags::UFFD_WP, true, [writes, other], |space, cpu, last| {
            if last {
                return;
            }
            space.uffd_write_protect(ALL, true).unwrap();
            let program = cpu.enter(space);
            let look = || (0..PAGES).map(|page| program.load_u64(at(page)).unwrap()).collect::<Vec<_>>();
            let seen = look();
            assert_eq!(look(), seen);
            space.uffd_write_unprotect(ALL).unwrap();
        });
    }
}

/// Of two CPUs that fill a missing page one succeeds, and each access finds its contents, in full.
#[test]
fn missing_pages_are_filled_once() {
    fn supplies(space: &Space<'_>, _: &Cpu<'_, Strict>) {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        for page in 0..PAGES {
            let number = NEXT.fetch_add(1, SeqCst);
            let range = VirtRange { start: at(page), end: at(page + 1) };
            let filled = space.uffd_copy(range, false, |_, bytes| {
                bytes.chunks_mut(8).for_each(|word| word.copy_from_slice(&number.to_ne_bytes()));
                Ok(())
            });
            assert!(filled.is_ok() || filled.unwrap_err().error == UffdFillError::Exists(at(page)));
        }
    }
    at_once(VmaFlags::UFFD_MISSING, false, [supplies, supplies], |space, cpu, last| {
        let program = cpu.enter(space);
        for page in 0..PAGES {
            match program.load_u64(at(page)) {
                Ok(number) => assert!(number != 0 && program.load_u64(at(page) + PAGE - 8) == Ok(number)),
                Err(error) => assert!(!last && error == is_told(page, Access::Read, UffdMode::Missing)),
            }
        }
    });
}

/// Zeros that were filled in are not missing when they are written.
#[test]
fn written_zeros_are_not_missing() {
    fn writes(space: &Space<'_>, cpu: &Cpu<'_, Strict>) {
        let program = cpu.enter(space);
        for page in 0..PAGES {
            let told = is_told(page, Access::Read, UffdMode::Missing);
            while program.load_u64(at(page)) == Err(told) {
                thread::yield_now();
            }
            program.add_u64(at(page), 1).unwrap();
        }
    }
    at_once(VmaFlags::UFFD_MISSING, false, [writes, writes], |space, cpu, last| {
        if !last {
            return space.uffd_zeropage(ALL).unwrap();
        }
        (0..PAGES).for_each(|page| assert_eq!(cpu.enter(space).load_u64(at(page)), Ok(2)));
    });
}
