//! Pages are collapsed into a folio, or migrated out of one that is mapped in part, while other
//! CPUs use or change them, or fork.

use vellum::frame::policy::Knob;
use vellum::memcg::MemcgId;
use vellum::reclaim::reclaim;
use vellum::space::{Access, Advise, AdviseError, CollapseLimits, FaultError, RemapFlags, RemapRequest};
use vellum::stats::{Counter, SizeCounter};
use vellum::vma::Prot;
use vellum_sim::Fault;

use crate::fixtures::schedules::one_space::{Context, PAGES, counted, counts, out, together};
use crate::fixtures::schedules::{PAGE, at};

/// Pages of a huge page.
const HUGE: u64 = 512;

/// The operation on the pages.
#[derive(Clone, Copy, PartialEq)]
enum Pieces {
    /// Collapse into a huge folio, mapped by one PTE in place of a page table.
    Huge,
    /// Collapse into a folio that a part of a page table maps.
    Four,
    /// Migration of all pages of a folio but the second, which is unmapped.
    Split,
    /// The same without the last page, after the first was moved to another page table.
    Apart,
}

const ALL: [Pieces; 4] = [Pieces::Huge, Pieces::Four, Pieces::Split, Pieces::Apart];
/// The new place of the first page.
const AWAY: u64 = 1600;

impl Pieces {
    fn begin(self, on: &Context<'_, '_>) {
        if self != Pieces::Huge {
            on.machine.policy().set(2, Knob::Always);
        }
        if matches!(self, Pieces::Split | Pieces::Apart) {
            on.space.advise(at(0), PAGES * PAGE, Advise::DontNeed).unwrap();
            let program = on.cpu.enter(on.space);
            (0..PAGES).for_each(|page| program.store_u64(at(page), 100 + page).unwrap());
            on.space.advise(at(1), PAGE, Advise::DontNeed).unwrap();
        }
        if self == Pieces::Apart {
            on.space.advise(at(3), PAGE, Advise::DontNeed).unwrap();
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED | RemapFlags::DONTUNMAP;
            let request = RemapRequest { addr: at(0), old_len: PAGE, new_len: PAGE, flags, new_addr: at(AWAY) };
            assert_eq!(on.space.remap(request), Ok(at(AWAY)));
        }
    }

    /// Returns the pages whose contents are checked.
    fn pages(self) -> impl Iterator<Item = u64> + Clone {
        (0..PAGES).filter(move |page| match self {
            Pieces::Huge | Pieces::Four => true,
            Pieces::Split => *page != 1,
            Pieces::Apart => *page == 2,
        })
    }

    fn act(self, on: &Context<'_, '_>) {
        match self {
            // The range may be unmapped or in use.
            Pieces::Huge => match on.space.advise(at(0), HUGE * PAGE, Advise::Collapse) {
                Ok(()) | Err(AdviseError::Collapse(_) | AdviseError::NotMapped) => {}
                error => panic!("{error:?}"),
            },
            Pieces::Four => {
                on.space.collapse_some(0, 4096, &CollapseLimits::default(), |_, _| Ok(false)).unwrap();
            }
            Pieces::Split | Pieces::Apart => {
                reclaim(on.machine, [on.space].as_slice(), MemcgId::ROOT, 1).unwrap();
            }
        }
    }

    /// Returns whether the operation took place.
    fn done(self, on: &Context<'_, '_>) -> bool {
        let (counter, order) = match self {
            Pieces::Huge => (SizeCounter::Collapsed, 9),
            Pieces::Four => (SizeCounter::Collapsed, 2),
            Pieces::Split | Pieces::Apart => (SizeCounter::Split, 2),
        };
        on.machine.size_counter(counter, order) > 0
    }
}

/// Returns whether a store copied a page during the migration. Such a copy holds a reference to the
/// folio meanwhile, so reclaim leaves the folio in place, queues it again, and migrates it when the
/// reference is gone; or the store is the folio's last user, and frees it.
fn copied_meanwhile(on: &Context<'_, '_>) -> bool {
    let usage = on.machine.memcgs().usage(on.machine.frames(), MemcgId::ROOT).unwrap();
    if usage.deferred > 0 {
        Pieces::Apart.act(on);
        assert!(Pieces::Apart.done(on), "nothing is in the way");
    }
    on.machine.counter(Counter::CowCopies) == 1
}

/// Checks that all charged memory is mapped.
fn no_folio_is_mapped_in_part(on: &Context<'_, '_>) {
    let usage = on.machine.memcgs().usage(on.machine.frames(), MemcgId::ROOT).unwrap();
    let listed = usage.lru.iter().sum::<u64>() * PAGE;
    assert_eq!((usage.deferred, listed), (0, on.space.stats().anon), "bytes listed, and mapped");
}

/// Runs an operation beside another one, and checks the pages.
fn meanwhile(
    pieces: Pieces,
    other: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>) + Clone + Send + Sync + 'static,
) {
    let mapped = if pieces == Pieces::Huge { HUGE } else { PAGES };
    let act = move |on: &Context<'_, '_>| pieces.act(on);
    let look = move |on: &Context<'_, '_>| {
        look(on);
        if pieces == Pieces::Apart {
            assert_eq!(on.load(on.space, AWAY), Ok(100));
        }
    };
    together((400, mapped), move |on| pieces.begin(on), act, other, look);
}

#[test]
fn stores_race_collapse() {
    for pieces in [Pieces::Huge, Pieces::Four] {
        meanwhile(pieces, counts, move |on| {
            assert!(pieces.done(on), "nothing was in the way");
            counted(on);
        });
    }
    for pieces in [Pieces::Split, Pieces::Apart] {
        let count = move |on: &Context<'_, '_>| {
            let program = on.cpu.enter(on.space);
            (0..3).for_each(|n| pieces.pages().for_each(|page| assert_eq!(program.add_u64(at(page) + 8, 1), Ok(n))));
        };
        meanwhile(pieces, count, move |on| {
            let copied = pieces == Pieces::Apart && copied_meanwhile(on);
            assert!(pieces.done(on) || copied, "nothing was in the way");
            no_folio_is_mapped_in_part(on);
            on.holds(on.space, pieces.pages());
            let program = on.cpu.enter(on.space);
            pieces.pages().for_each(|page| assert_eq!(program.load_u64(at(page) + 8), Ok(3)));
        });
    }
}

/// Untouched pages are touched, one of them in a block that is about to be copied.
#[test]
fn first_touches_race_collapse() {
    for pieces in ALL {
        let touch = |on: &Context<'_, '_>| {
            let program = on.cpu.enter(on.space);
            [1, PAGES - 1].iter().for_each(|page| program.store_u64(at(*page) + 16, 5).unwrap());
        };
        meanwhile(pieces, touch, move |on| {
            on.holds(on.space, pieces.pages());
            let program = on.cpu.enter(on.space);
            [1, PAGES - 1].iter().for_each(|page| assert_eq!(program.load_u64(at(*page) + 16), Ok(5)));
        });
    }
}

#[test]
fn two_collapses_of_one_range() {
    for pieces in ALL {
        meanwhile(pieces, move |on| pieces.act(on), move |on| on.holds(on.space, pieces.pages()));
    }
}

/// A child has the memory of its parent, and neither sees what the other writes.
#[test]
fn fork_races_collapse() {
    for pieces in ALL {
        let fork = move |on: &Context<'_, '_>| {
            let child = on.space.fork().unwrap();
            on.holds(&child, pieces.pages());
            let program = on.cpu.enter(&child);
            pieces.pages().for_each(|page| program.store_u64(at(page), 200 + page).unwrap());
            pieces.pages().for_each(|page| assert_eq!(program.load_u64(at(page)), Ok(200 + page)));
        };
        meanwhile(pieces, fork, move |on| on.holds(on.space, pieces.pages()));
    }
}

/// A write through a pin goes to the page of the space.
#[test]
fn pins_race_collapse() {
    for pieces in ALL {
        let pin = |on: &Context<'_, '_>| {
            let pin = on.space.pin(at(2), Access::Write).unwrap();
            pin.write(0, &55u64.to_ne_bytes());
            assert_eq!(on.load(on.space, 2), Ok(55));
            pin.write(0, &66u64.to_ne_bytes());
        };
        meanwhile(pieces, pin, move |on| {
            on.holds(on.space, pieces.pages().filter(|page| *page != 2));
            assert_eq!(on.load(on.space, 2), Ok(66));
        });
    }
}

#[test]
fn swap_out_races_collapse() {
    for pieces in ALL {
        let out_and_back = |on: &Context<'_, '_>| {
            out(on);
            assert_eq!(on.load(on.space, 2), Ok(102));
        };
        meanwhile(pieces, out_and_back, move |on| on.holds(on.space, pieces.pages()));
    }
}

#[test]
fn munmap_and_dontneed_race_collapse() {
    for pieces in ALL {
        let unmap = |on: &Context<'_, '_>| on.space.unmap(at(2), PAGE).unwrap();
        meanwhile(pieces, unmap, move |on| {
            on.holds(on.space, pieces.pages().filter(|page| *page != 2));
            let found = on.load(on.space, 2);
            assert!(matches!(found, Err(Fault::Handler(FaultError::Unmapped(_)))), "{found:?}");
        });
        let forget = |on: &Context<'_, '_>| on.space.advise(at(2), PAGE, Advise::DontNeed).unwrap();
        meanwhile(pieces, forget, move |on| {
            on.holds(on.space, pieces.pages().filter(|page| *page != 2));
            assert_eq!(on.load(on.space, 2), Ok(0));
        });
    }
}

#[test]
fn mprotect_races_collapse() {
    for pieces in ALL {
        let protect = |on: &Context<'_, '_>| on.space.protect(at(2), PAGE, Prot::READ).unwrap();
        meanwhile(pieces, protect, move |on| {
            on.holds(on.space, pieces.pages());
            let denied = on.cpu.enter(on.space).store_u64(at(2), 0);
            assert!(matches!(denied, Err(Fault::Handler(FaultError::Denied(_)))));
            assert_eq!(on.cpu.enter(on.space).store_u64(at(0), 7), Ok(()));
        });
    }
}

#[test]
fn mremap_races_collapse() {
    for pieces in ALL {
        let moves = |on: &Context<'_, '_>| {
            let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            let request = RemapRequest { addr: at(2), old_len: PAGE, new_len: PAGE, flags, new_addr: at(1700) };
            assert_eq!(on.space.remap(request), Ok(at(1700)));
        };
        meanwhile(pieces, moves, move |on| {
            on.holds(on.space, pieces.pages().filter(|page| *page != 2));
            assert_eq!(on.load(on.space, 1700), Ok(102));
        });
    }
}
