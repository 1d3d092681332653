//! Memory is swapped out or in while other CPUs use or change it, or fork.

use vellum::arch::{Arch, Attrs, Kind};
use vellum::space::{Access, Advise, FaultError, RemapFlags, RemapRequest};
use vellum::vma::Prot;
use vellum_sim::{Fault, Refusal};

use crate::fixtures::schedules::one_space::{Context, PAGES, counted, counts, out, together};
use crate::fixtures::schedules::{PAGE, at};

/// Runs [`together`] on memory that was swapped out before if `away`.
fn at_once(
    away: bool,
    one: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    let begin = move |on: &Context<'_, '_>| {
        if away {
            out(on);
            assert_eq!(on.swapped(on.space), PAGES);
        }
    };
    together((1500, PAGES), begin, one, other, look);
}

#[test]
fn stores_race_swap_out() {
    at_once(false, out, counts, counted);
}

#[test]
fn stores_race_failed_swap_out() {
    let in_vain = |on: &Context<'_, '_>| {
        on.disk.refuse_writes(Refusal::Nth(2));
        out(on);
    };
    at_once(false, in_vain, counts, counted);
}

#[test]
fn two_swap_outs_of_one_page() {
    at_once(false, out, out, |on| on.holds(on.space, 0..PAGES));
}

#[test]
fn two_swap_ins_of_one_page() {
    at_once(true, counts, |on| on.holds(on.space, (0..PAGES).rev()), counted);
}

/// A CPU does not swap in the old contents of a page that another CPU has swapped in, written and
/// swapped out again meanwhile.
#[test]
fn swap_in_races_swap_in_and_out_again() {
    let back_and_out = |on: &Context<'_, '_>| {
        counts(on);
        out(on);
    };
    at_once(true, back_and_out, |on| on.holds(on.space, 0..PAGES), counted);
}

#[test]
fn swap_out_races_swap_in() {
    at_once(true, counts, out, counted);
}

#[test]
fn munmap_races_swap_in() {
    let unmap = |on: &Context<'_, '_>| on.space.unmap(at(1), 2 * PAGE).unwrap();
    let read = |on: &Context<'_, '_>| {
        [1, 2].iter().for_each(|page| {
            let found = on.load(on.space, *page);
            assert!(
                found == Ok(100 + page) || matches!(found, Err(Fault::Handler(FaultError::Unmapped(_)))),
                "{found:?}"
            );
        });
    };
    for away in [true, false] {
        at_once(away, unmap, if away { read } else { out }, |on| on.holds(on.space, [0, 3]));
    }
}

#[test]
fn dontneed_races_swap_in() {
    let forget = |on: &Context<'_, '_>| on.space.advise(at(1), 2 * PAGE, Advise::DontNeed).unwrap();
    for away in [true, false] {
        let other = if away { |on: &Context<'_, '_>| on.holds(on.space, [3, 0]) } else { out };
        at_once(away, forget, other, |on| {
            on.holds(on.space, [0, 3]);
            assert_eq!((on.load(on.space, 1), on.load(on.space, 2)), (Ok(0), Ok(0)));
        });
    }
}

#[test]
fn mremap_races_swap_out_and_in() {
    let moves = |on: &Context<'_, '_>| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let request = RemapRequest { addr: at(1), old_len: 2 * PAGE, new_len: 2 * PAGE, flags, new_addr: at(700) };
        assert_eq!(on.space.remap(request), Ok(at(700)));
    };
    for away in [true, false] {
        let other = if away { |on: &Context<'_, '_>| on.holds(on.space, [3, 0]) } else { out };
        at_once(away, moves, other, |on| {
            on.holds(on.space, [0, 3]);
            assert_eq!((on.load(on.space, 700), on.load(on.space, 701)), (Ok(101), Ok(102)));
        });
    }
}

#[test]
fn mprotect_races_swap_out_and_in() {
    let protect = |on: &Context<'_, '_>| on.space.protect(at(1), 2 * PAGE, Prot::READ).unwrap();
    for away in [true, false] {
        let other = if away { |on: &Context<'_, '_>| on.holds(on.space, [3, 2, 1, 0]) } else { out };
        at_once(away, protect, other, |on| {
            on.holds(on.space, 0..PAGES);
            let denied = on.cpu.enter(on.space).store_u64(at(1), 0);
            assert!(matches!(denied, Err(Fault::Handler(FaultError::Denied(_)))));
            assert_eq!(on.cpu.enter(on.space).store_u64(at(0), 7), Ok(()));
        });
    }
}

#[test]
fn mlock_races_swap_out_and_in() {
    let lock = |on: &Context<'_, '_>| on.space.lock(at(1), 2 * PAGE, false).unwrap();
    for away in [true, false] {
        let other = if away { |on: &Context<'_, '_>| on.holds(on.space, [3, 0]) } else { out };
        at_once(away, lock, other, |on| {
            let mut resident = [false; 2];
            on.space.mincore(at(1), 2 * PAGE, &mut resident).unwrap();
            assert_eq!(resident, [true; 2], "locked memory is in memory");
            on.holds(on.space, 0..PAGES);
        });
    }
}

/// A write through a pin goes to the page of the space.
#[test]
fn pins_race_swap_out_and_in() {
    let pin = |on: &Context<'_, '_>| {
        let pin = on.space.pin(at(1), Access::Write).unwrap();
        pin.write(0, &55u64.to_ne_bytes());
        assert_eq!(on.load(on.space, 1), Ok(55));
        pin.write(0, &66u64.to_ne_bytes());
    };
    for away in [true, false] {
        let other = if away { |on: &Context<'_, '_>| on.holds(on.space, [3, 0]) } else { out };
        at_once(away, pin, other, |on| {
            on.holds(on.space, [0, 2, 3]);
            assert_eq!(on.load(on.space, 1), Ok(66));
        });
    }
}

/// A child has the memory of its parent, wherever it was, and neither sees what the other writes.
#[test]
fn fork_races_swap_out_and_in() {
    let fork = |on: &Context<'_, '_>| {
        let child = on.space.fork().unwrap();
        on.holds(&child, 0..2);
        let program = on.cpu.enter(&child);
        (0..PAGES).for_each(|page| program.store_u64(at(page), 200 + page).unwrap());
        (0..PAGES).for_each(|page| assert_eq!(program.load_u64(at(page)), Ok(200 + page)));
    };
    for away in [true, false] {
        let other = if away { |on: &Context<'_, '_>| on.holds(on.space, [3, 0]) } else { out };
        at_once(away, fork, other, |on| on.holds(on.space, 0..PAGES));
    }
}

/// Fork while a failed swap-out restores the PTEs: the child's memory is not writable by the
/// parent.
#[test]
fn fork_races_failed_swap_out() {
    let fork = |on: &Context<'_, '_>| {
        let child = on.space.fork().unwrap();
        let program = on.cpu.enter(on.space);
        (0..PAGES).for_each(|page| program.store_u64(at(page), 300 + page).unwrap());
        on.holds(&child, 0..PAGES);
    };
    let in_vain = |on: &Context<'_, '_>| {
        on.disk.refuse_writes(Refusal::From(1));
        out(on);
    };
    at_once(false, fork, in_vain, |on| {
        (0..PAGES).for_each(|page| assert_eq!(on.load(on.space, page), Ok(300 + page)));
    });
}

/// Swapoff while programs swap in the same pages.
#[test]
fn swapoff_races_swap_in() {
    let off = |on: &Context<'_, '_>| {
        on.machine.swaps().close(on.sim, 0).unwrap();
        assert_eq!(on.space.swap_off(0), Ok(()));
        assert_eq!(on.swapped(on.space), 0);
    };
    at_once(true, off, counts, counted);
}

/// Soft-dirty reports all writes since it was cleared, also of pages that were swapped out
/// meanwhile.
#[test]
fn soft_dirty_scans_race_swap_out_and_in() {
    let ask = |on: &Context<'_, '_>| {
        on.space.clear_soft_dirty().unwrap();
        on.cpu.enter(on.space).store_u64(at(1), 9).unwrap();
    };
    for away in [true, false] {
        let other = if away { |on: &Context<'_, '_>| on.holds(on.space, [3, 0]) } else { out };
        at_once(away, ask, other, |on| {
            let mut written = Vec::new();
            let arch = on.space.arch();
            on.space.runs(vellum::addr::VirtRange { start: at(0), end: at(PAGES) }, |run| {
                let attrs = if run.kind == Kind::Swap { arch.swap_entry(run.raw).attrs } else { run.attrs(arch) };
                let first = (run.va - at(0)) / PAGE;
                written.extend((first..first + run.len as u64).filter(|_| attrs.contains(Attrs::SOFT_DIRTY)));
            });
            assert_eq!(written, [1]);
            assert_eq!(on.load(on.space, 1), Ok(9));
            on.holds(on.space, [0, 2, 3]);
        });
    }
}
