//! The folio of zeros and its neighbours in memory.

use vellum::addr::Pfn;
use vellum::arch::Kind;
use vellum::frame::FrameKind;
use vellum::space::MapFlags;

use crate::fixtures::root_memcg::{BASE, PAGE, map, range, x86};

/// The frames next to the folio of zeros are never allocated to a program, so zeros and counted
/// folios never form one run.
#[test]
fn the_zero_folio_has_no_adjacent_frames() {
    x86(12 << 20, |on| {
        let space = on.space();
        map(&space, BASE, 4 * PAGE, MapFlags::empty());
        on.load(&space, BASE);
        let mut zeros = Pfn(0);
        space.runs(range(BASE, PAGE), |run| {
            assert_eq!(run.kind, Kind::Leaf);
            zeros = run.pfn(space.arch());
        });
        let (head, frame) = on.machine.frames().head(zeros);
        let beside = [Pfn(head.0 - 1), head.add(1 << frame.order())];
        // All free memory.
        map(&space, BASE + (1 << 30), 12 << 20, MapFlags::POPULATE | MapFlags::NORESERVE);
        assert_eq!(on.machine.frames().free_frames(), 0);
        for pfn in beside {
            assert_ne!(on.machine.frames().head(pfn).1.kind(), FrameKind::Folio, "{pfn:?}");
        }
    });
}
