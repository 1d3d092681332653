//! The folio of zeros.

use vellum::addr::Pfn;
use vellum::arch::Kind;
use vellum::frame::FrameKind;
use vellum::space::MapFlags;

use crate::fixtures::root_memcg::{BASE, PAGE, map, range, x86};

/// No frame beside the zeros that reads map is ever a program's: so zeros and what is counted never make one run.
#[test]
fn zeros_have_no_neighbours() {
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
        // All the memory there is.
        map(&space, BASE + (1 << 30), 12 << 20, MapFlags::POPULATE | MapFlags::NORESERVE);
        assert_eq!(on.machine.frames().free_frames(), 0);
        for pfn in beside {
            assert_ne!(on.machine.frames().head(pfn).1.kind(), FrameKind::Folio, "{pfn:?}");
        }
    });
}
