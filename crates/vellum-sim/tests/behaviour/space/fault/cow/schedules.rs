//! A folio that a parent and a child share is copied, with no lock held, while another CPU changes
//! the range whose entries are busy.

use vellum::addr::VirtRange;
use vellum::arch::Kind;
use vellum::space::{Advise, FaultError, RemapFlags, RemapRequest};
use vellum::stats::Counter;
use vellum::vma::Prot;
use vellum_sim::Fault;

use crate::fixtures::schedules::family::{Context, family};
use crate::fixtures::schedules::{PAGE, at};

/// Schedules, and the order of the folio: a part of a page table, and a huge PTE, which gets fewer
/// schedules.
const SIZES: [(usize, u8); 2] = [(400, 2), (12, 9)];
/// The value that the parent writes to the first page.
const WRITTEN: u64 = 300;

/// Writes to the first page in the parent beside another operation. Pages for which `changed`
/// returns true are not checked by this function, but by `look`.
fn meanwhile(
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    changed: fn(u64) -> bool,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    for size in SIZES {
        let write = |on: &Context<'_, '_>| on.store(on.parent, 0, WRITTEN);
        let look = look.clone();
        family(
            size,
            |_| (),
            write,
            other.clone(),
            move |on| {
                look(on);
                let pages = on.pages;
                let few = || (1..pages).filter(|page| *page < 4 || *page == pages - 1).filter(|page| !changed(*page));
                on.holds(on.parent, few());
            },
        );
    }
}

/// Returns whether this is the value before or after the parent's write.
fn old_or_new(found: u64) -> bool {
    found == 100 || found == WRITTEN
}

#[test]
fn fork_during_a_copy_is_all_or_nothing() {
    let fork = |on: &Context<'_, '_>| {
        let grandchild = on.parent.fork().unwrap();
        assert!(old_or_new(on.load(&grandchild, 0)));
        on.holds(&grandchild, [1, 2, on.pages - 1]);
        on.store(&grandchild, 1, 7);
    };
    meanwhile(
        fork,
        |_| false,
        |on| {
            assert_eq!(on.load(on.parent, 0), WRITTEN);
            on.holds(on.child, [0, 1, 2]);
        },
    );
}

#[test]
fn both_spaces_write_to_one_shared_page() {
    meanwhile(
        |on| on.store(on.child, 0, 400),
        |_| false,
        |on| {
            assert_eq!((on.load(on.parent, 0), on.load(on.child, 0)), (WRITTEN, 400));
            on.holds(on.child, [1, 2, on.pages - 1]);
        },
    );
}

#[test]
fn two_threads_write_to_one_shared_page() {
    let count = |on: &Context<'_, '_>| {
        let program = on.cpu.enter(on.parent);
        for n in 0..3 {
            assert_eq!(program.add_u64(at(1) + 8, 1), Ok(n));
        }
    };
    meanwhile(
        count,
        |_| false,
        |on| {
            assert_eq!(on.load(on.parent, 0), WRITTEN);
            assert_eq!(on.cpu.enter(on.parent).load_u64(at(1) + 8), Ok(3));
            assert_eq!(on.cpu.enter(on.child).load_u64(at(1) + 8), Ok(0));
        },
    );
}

#[test]
fn exit_of_the_other_space_races_cow() {
    let unmap = |on: &Context<'_, '_>| on.child.unmap(at(0), on.pages * PAGE).unwrap();
    meanwhile(unmap, |_| false, |on| assert_eq!(on.load(on.parent, 0), WRITTEN));
}

#[test]
fn munmap_and_dontneed_race_cow() {
    meanwhile(
        |on| on.parent.unmap(at(2), PAGE).unwrap(),
        |page| page == 2,
        |on| {
            assert_eq!(on.load(on.parent, 0), WRITTEN);
            let found = on.cpu.enter(on.parent).load_u64(at(2));
            assert!(matches!(found, Err(Fault::Handler(FaultError::Unmapped(_)))), "{found:?}");
        },
    );
    meanwhile(
        |on| on.parent.advise(at(2), PAGE, Advise::DontNeed).unwrap(),
        |page| page == 2,
        |on| {
            assert_eq!((on.load(on.parent, 0), on.load(on.parent, 2)), (WRITTEN, 0));
            on.holds(on.child, [0, 1, 2]);
        },
    );
}

#[test]
fn reclaim_races_cow() {
    meanwhile(
        |on| on.reclaim(2 * on.pages),
        |_| false,
        |on| {
            assert_eq!(on.load(on.parent, 0), WRITTEN);
            on.holds(on.child, [0, 1, 2]);
            on.slots_are_had();
        },
    );
}

#[test]
fn swap_out_races_cow() {
    let out = |on: &Context<'_, '_>| on.parent.advise(at(0), on.pages * PAGE, Advise::PageOut).unwrap();
    meanwhile(
        out,
        |_| false,
        |on| {
            assert_eq!(on.load(on.parent, 0), WRITTEN);
            on.holds(on.child, [0, 1, 2]);
        },
    );
}

#[test]
fn mprotect_and_mremap_race_cow() {
    meanwhile(
        |on| on.parent.protect(at(2), PAGE, Prot::READ).unwrap(),
        |_| false,
        |on| {
            assert_eq!(on.load(on.parent, 0), WRITTEN);
            let denied = on.cpu.enter(on.parent).store_u64(at(2), 0);
            assert!(matches!(denied, Err(Fault::Handler(FaultError::Denied(_)))), "{denied:?}");
        },
    );
    let moves = |on: &Context<'_, '_>| {
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let request = RemapRequest { addr: at(2), old_len: PAGE, new_len: PAGE, flags, new_addr: at(1700) };
        assert_eq!(on.parent.remap(request), Ok(at(1700)));
    };
    meanwhile(
        moves,
        |page| page == 2,
        |on| {
            assert_eq!((on.load(on.parent, 0), on.load(on.parent, 1700)), (WRITTEN, 102));
        },
    );
}

/// A busy entry is waited for: it is neither missing nor skipped.
#[test]
fn busy_ptes_are_waited_for() {
    let look = |on: &Context<'_, '_>| {
        let (mut found, end) = (0, at(on.pages));
        on.parent.runs(VirtRange { start: at(0), end }, |run| {
            assert_eq!(run.kind, Kind::Leaf, "{run:?}");
            let range = run.range(on.parent.arch());
            found += (range.end.min(end) - range.start.max(at(0))) / PAGE;
        });
        assert_eq!(found, on.pages);
        assert!(on.parent.stats().anon >= on.pages * PAGE);
    };
    meanwhile(
        look,
        |_| false,
        |on| {
            assert_eq!(on.load(on.parent, 0), WRITTEN);
            assert!(on.machine.counter(Counter::CowCopies) > 0, "nothing was in the way");
        },
    );
}
