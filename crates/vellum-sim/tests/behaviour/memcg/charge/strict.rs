//! Charges of a space that moves to another memcg.

use vellum::memcg::{MemcgError, MemcgId};
use vellum::space::MapFlags;

use crate::fixtures::root_memcg::{BASE, PAGE, map, x86};

/// A space that moves to another memcg leaves its charges behind, and its new memory is charged to
/// the new memcg; so is that of its child.
#[test]
fn a_moved_space_charges_its_new_memcg() {
    x86(16 << 20, |on| {
        let memcgs = on.machine.memcgs();
        let memcg = memcgs.create(on.machine.frames(), MemcgId::ROOT, u64::MAX).unwrap();
        let charged = || memcgs.usage(on.machine.frames(), memcg).unwrap().charged;
        let space = on.space();
        map(&space, BASE, 8 * PAGE, MapFlags::empty());
        (0..4).for_each(|i| on.store(&space, BASE + i * PAGE, i));
        assert_eq!(charged(), 0);
        space.set_memcg(memcg).unwrap();
        assert_eq!((space.memcg(), charged()), (memcg, 0));
        (0..6).for_each(|i| on.store(&space, BASE + i * PAGE, i));
        assert_eq!(charged(), 2);
        let child = space.fork().unwrap();
        // Page tables: one for each level, as the pages are adjacent; a VMA node, and the per-CPU
        // slots.
        assert_eq!((child.stats().kernel, child.memcg(), charged()), (2 << 12, memcg, 2 + 4 + 2));
        drop((space, child));
        assert_eq!(charged(), 0);
        memcgs.remove(on.machine.frames(), memcg).unwrap();
        assert_eq!(on.space().set_memcg(memcg), Err(MemcgError::NoSuchMemcg(memcg)));
    });
}
