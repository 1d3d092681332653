//! Proportional set size and shared bytes of a range.

use vellum::space::{MapFlags, UsageSplit};

use crate::fixtures::root_memcg::{BASE, PAGE, Space, map, range, x86};

/// Proportional set size: a page of two spaces counts half in each; a copied page counts whole in
/// both.
#[test]
fn proportional_set_sizes_add_up() {
    x86(16 << 20, |on| {
        let parent = on.space();
        map(&parent, BASE, 8 * PAGE, MapFlags::empty());
        (0..8).for_each(|i| on.store(&parent, BASE + i * PAGE, i));
        let usage = |space: &Space<'_, _>, from: u64, pages: u64| space.usage(range(BASE + from * PAGE, pages * PAGE));
        let split = |all| UsageSplit { all, anonymous: all, dirty: all };
        let alone = usage(&parent, 0, 8);
        assert_eq!((alone.pss, alone.shared), (split(8 * PAGE), split(0)));
        assert_eq!((alone.anonymous, alone.dirty), (8 * PAGE, 8 * PAGE));
        let child = parent.fork().unwrap();
        for space in [&parent, &child] {
            let both = usage(space, 0, 8);
            assert_eq!((both.resident, both.pss, both.shared), (8 * PAGE, split(4 * PAGE), split(8 * PAGE)));
        }
        on.store(&child, BASE + 3 * PAGE, 9);
        for space in [&parent, &child] {
            assert_eq!((usage(space, 3, 1).pss, usage(space, 3, 1).shared), (split(PAGE), split(0)));
            // For a part of the mapped pages, their share.
            assert_eq!(usage(space, 2, 3).pss, split(2 * PAGE));
        }
    });
}
