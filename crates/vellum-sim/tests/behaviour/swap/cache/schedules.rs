//! Swap-cache pages are collapsed into one folio or migrated to several, while another CPU finds
//! them by their slots, uses or changes them, or forks.

use vellum::frame::policy::Knob;
use vellum::space::{Advise, CollapseLimits, MapFlags, RemapFlags, RemapRequest};

use crate::fixtures::schedules::family::{Context, family};
use crate::fixtures::schedules::{PAGE, Space, at, fixed};

/// A folio of four pages.
const ORDER: u8 = 2;
const PAGES: u64 = 1 << ORDER;

/// The operation on pages that the parent has read after both were swapped out.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Pieces {
    /// All pages but the second are migrated out of a folio that is mapped in part.
    Split,
    /// The first and the last page are migrated; the last was moved to another page table.
    Apart,
    /// Four folios are collapsed into one.
    Collapse,
}

/// The new place of the last page.
const AWAY: u64 = 1600;
const ALL: [Pieces; 3] = [Pieces::Split, Pieces::Apart, Pieces::Collapse];

impl Pieces {
    fn begin(self, on: &Context<'_, '_>) {
        on.reclaim(u64::MAX);
        if self == Pieces::Collapse {
            [1, ORDER].iter().for_each(|order| on.machine.policy().set(*order, Knob::Never));
        }
        on.holds(on.parent, 0..PAGES);
        let slot = |pfn| on.machine.swaps().slot_of(on.machine.platform(), pfn);
        assert!(on.frames(on.parent).into_iter().all(|pfn| slot(pfn).is_some()), "they were read");
        let order = on.machine.frames().head(on.frames(on.parent)[1]).1.order();
        assert_eq!(order, if self == Pieces::Collapse { 0 } else { ORDER });
        match self {
            Pieces::Split => on.parent.advise(at(1), PAGE, Advise::DontNeed).unwrap(),
            Pieces::Apart => {
                let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
                let request = RemapRequest { addr: at(3), old_len: PAGE, new_len: PAGE, flags, new_addr: at(AWAY) };
                assert_eq!(on.parent.remap(request), Ok(at(AWAY)));
                on.parent.map(fixed(3, 1, MapFlags::empty())).unwrap();
                on.parent.advise(at(1), 2 * PAGE, Advise::DontNeed).unwrap();
            }
            Pieces::Collapse => on.machine.policy().set(ORDER, Knob::Always),
        }
    }

    fn act(self, on: &Context<'_, '_>) {
        if self == Pieces::Collapse {
            let limits = CollapseLimits { none: 512, swapped: 512, shared: 512 };
            on.parent.collapse_some(0, 4096, &limits, |_, _| Ok(false)).unwrap();
        } else {
            on.reclaim(1);
        }
    }

    /// Returns the pages that the parent still maps at their old place.
    fn parents(self) -> impl Iterator<Item = u64> {
        (0..PAGES).filter(move |page| match self {
            Pieces::Split => *page != 1,
            Pieces::Apart => *page == 0,
            Pieces::Collapse => true,
        })
    }
}

/// Runs each operation beside another one. Then all slots have an owner, and pages hold the
/// expected values, also after another swap-out and swap-in.
fn meanwhile(
    other: impl Fn(&Context<'_, '_>, Pieces) + Copy + Send + Sync + 'static,
    look: impl Fn(&Context<'_, '_>, Pieces) + Copy + Send + Sync + 'static,
) {
    for pieces in ALL {
        let look = move |on: &Context<'_, '_>| {
            if pieces == Pieces::Apart {
                assert_eq!(on.load(on.parent, AWAY), 103);
            }
            look(on, pieces);
        };
        let look = move |on: &Context<'_, '_>| {
            on.slots_are_had();
            look(on);
            on.slots_are_had();
            on.reclaim(u64::MAX);
            on.slots_are_had();
            look(on);
        };
        let other = move |on: &Context<'_, '_>| other(on, pieces);
        family((200, ORDER), move |on| pieces.begin(on), move |on| pieces.act(on), other, look);
    }
}

fn as_they_were(on: &Context<'_, '_>, pieces: Pieces) {
    on.holds(on.parent, pieces.parents());
    on.holds(on.child, 0..PAGES);
}

/// Writes other values to all pages.
fn write(on: &Context<'_, '_>, space: &Space<'_>) {
    (0..PAGES).for_each(|page| on.store(space, page, 300 + page));
}

fn written(on: &Context<'_, '_>, space: &Space<'_>) {
    (0..PAGES).for_each(|page| assert_eq!(on.load(space, page), 300 + page));
}

fn forget(space: &Space<'_>) {
    space.advise(at(0), PAGES * PAGE, Advise::DontNeed).unwrap();
}

#[test]
fn swap_cache_pages_are_found_by_the_child() {
    meanwhile(|on, _| on.holds(on.child, 0..PAGES), as_they_were);
}

#[test]
fn the_child_writes_to_a_swap_cache_page() {
    meanwhile(
        |on, _| write(on, on.child),
        |on, pieces| {
            on.holds(on.parent, pieces.parents());
            written(on, on.child);
        },
    );
}

#[test]
fn the_parent_writes_to_a_swap_cache_page() {
    meanwhile(
        |on, _| write(on, on.parent),
        |on, _| {
            written(on, on.parent);
            on.holds(on.child, 0..PAGES);
        },
    );
}

#[test]
fn the_parent_forks_a_swap_cache_page() {
    let fork = |on: &Context<'_, '_>, pieces: Pieces| {
        let child = on.parent.fork().unwrap();
        on.holds(&child, pieces.parents());
        write(on, &child);
        written(on, &child);
    };
    meanwhile(fork, as_they_were);
}

#[test]
fn the_parent_drops_a_swap_cache_page() {
    meanwhile(
        |on, _| forget(on.parent),
        |on, _| {
            (0..PAGES).for_each(|page| assert_eq!(on.load(on.parent, page), 0));
            on.holds(on.child, 0..PAGES);
        },
    );
}

#[test]
fn the_child_drops_a_swap_cache_page() {
    meanwhile(
        |on, _| forget(on.child),
        |on, pieces| {
            on.holds(on.parent, pieces.parents());
            (0..PAGES).for_each(|page| assert_eq!(on.load(on.child, page), 0));
        },
    );
}
