//! Pinned pages: unmapped and written while they are pinned.

use vellum::space::{Access, MapFlags};
use vellum::stats::Counter;

use crate::fixtures::root_memcg::{BASE, PAGE, map, x86};

/// A pinned page stays allocated after it is unmapped, until it is unpinned; a write to it while it
/// is shared copies it.
#[test]
fn pinned_pages_outlive_their_mapping() {
    x86(16 << 20, |on| {
        let space = on.space();
        map(&space, BASE, 2 * PAGE, MapFlags::empty());
        on.store(&space, BASE + PAGE, 5);
        drop(space.fork().unwrap());
        let pin = space.pin(BASE + PAGE + 8, Access::Read).unwrap();
        on.store(&space, BASE + PAGE, 6);
        assert_eq!((on.count(Counter::CowCopies), on.count(Counter::CowReuses)), (1, 0), "the pin holds a reference");
        let mut word = [0; 8];
        pin.read(0, &mut word);
        assert_eq!(u64::from_ne_bytes(word), 5);
        drop(pin);
        let pin = space.pin(BASE, Access::Write).unwrap();
        pin.write(16, &7u64.to_ne_bytes());
        assert_eq!(on.load(&space, BASE + 16), 7);
        let free = on.machine.frames().free_frames();
        space.unmap(BASE, PAGE).unwrap();
        assert_eq!(on.machine.frames().free_frames(), free);
        drop(pin);
        assert_eq!(on.machine.frames().free_frames(), free + 1);
        assert!(space.pin(BASE, Access::Read).is_err());
        assert!(space.pin(u64::MAX, Access::Read).is_err());
    });
}
