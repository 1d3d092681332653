//! Memory that grows by writes takes folios as large as what is there already.

use vellum::addr::VirtRange;
use vellum::arch::Kind;
use vellum::frame::policy::Knob;
use vellum::space::{Advise, MapFlags};

use crate::fixtures::root_memcg::{BASE, Bench, PAGE, map, range, x86};

/// 16, 32 and 64 KiB.
const ORDERS: u32 = 0b11100;

/// Maps `vma`, a range of pages, and writes to its pages `at`, in this order. Returns the pages of
/// the folio that each fault maps.
fn grow(on: &Bench<'_>, vma: (u64, u64), at: impl Iterator<Item = u64>, advice: Option<Advise>) -> Vec<u64> {
    let space = on.space();
    let start = BASE + vma.0 * PAGE;
    map(&space, start, vma.1 * PAGE, MapFlags::empty());
    if let Some(advice) = advice {
        space.advise(start, vma.1 * PAGE, advice).unwrap();
    }
    let mapped = |range: VirtRange| {
        let mut pages = 0;
        space.runs(range, |run| {
            if run.kind == Kind::Leaf {
                pages += run.range(space.arch()).len() / PAGE;
            }
        });
        pages
    };
    let (mut sizes, whole) = (Vec::new(), range(start, vma.1 * PAGE));
    for page in at {
        let before = mapped(whole);
        on.store(&space, BASE + page * PAGE, page);
        sizes.extend(Some(mapped(whole) - before).filter(|new| *new > 0));
    }
    sizes
}

#[test]
fn a_fault_that_continues_a_stretch_maps_a_folio_no_larger_than_it() {
    x86(16 << 20, |on| {
        on.machine.policy().set_growth_orders(ORDERS);
        assert_eq!(grow(on, (0, 64), 0..64, None), [1, 1, 1, 1, 4, 8, 16, 16, 16]);
        assert_eq!(grow(on, (0, 64), (0..64).rev(), None), [1, 1, 1, 1, 4, 8, 16, 16, 16], "a stack");
        // A stretch in a VMA that begins in the middle of a block, and one that ends there.
        assert_eq!(grow(on, (2, 62), 2..12, None), [1, 1, 1, 1, 1, 1, 4]);
        assert_eq!(grow(on, (0, 10), 0..10, None), [1, 1, 1, 1, 4, 1, 1]);
        // The last page table's end is no stretch's, as only one page table is looked at.
        assert_eq!(grow(on, (504, 16), 504..520, None), [1, 1, 1, 1, 4, 1, 1, 1, 1, 4]);
    });
}

#[test]
fn other_faults_map_single_pages() {
    x86(16 << 20, |on| {
        let ones = |count| vec![1; count];
        assert_eq!(grow(on, (0, 64), 0..64, None), ones(64), "policy permits none by default");
        on.machine.policy().set_growth_orders(ORDERS);
        assert_eq!(grow(on, (0, 64), (0..64).step_by(2), None), ones(32), "there are holes");
        assert_eq!(grow(on, (0, 64), [0, 1, 2, 3, 6, 5, 4, 12, 8].into_iter(), None), ones(9), "in the middle");
        assert_eq!(grow(on, (0, 16), 0..16, Some(Advise::NoHuge)), ones(16));
        // Where a setting permits large folios, it alone counts.
        on.machine.policy().set(2, Knob::Always);
        assert_eq!(grow(on, (0, 16), 0..16, None), [4; 4]);
    });
}
