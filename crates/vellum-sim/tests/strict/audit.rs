//! The audit: finds nothing on a machine at rest, and each kind of difference where a space is kept
//! from it.

use vellum::audit::{Sums, Unsound, What, audit, span};
use vellum::space::Advise;
use vellum_sim::Silicon;

use crate::bench::{BASE, Bench, Setup, Space, USUAL, in_every_format, map};

const PAGES: u64 = 24;

fn audited<A: Silicon>(on: &Bench<'_, A>, spaces: &[&Space<'_, A>]) -> (Sums, Vec<Unsound>) {
    let mut counts = vec![0; span(on.machine).1];
    let mut found = Vec::new();
    let sums = audit(on.machine, spaces.iter().copied(), &mut counts, &mut |unsound| found.push(unsound));
    (sums, found)
}

in_every_format! {
    an_audit_finds_nothing_at_rest_and_what_a_missing_space_maps => all_and_not_all,
}

fn all_and_not_all<A: Silicon>(arch: A) {
    crate::bench::on(arch, Setup { slots: 1024, ..USUAL }, |on| {
        let parent = on.space();
        map(&parent, BASE, PAGES * on.page);
        (0..PAGES).for_each(|page| on.store(&parent, BASE + page * on.page, page));
        let child = parent.fork().unwrap();
        // Of the child's own, of both, swapped out, and in the swap cache.
        (0..4).for_each(|page| on.store(&child, BASE + page * on.page, page));
        child.advise(BASE + 8 * on.page, 8 * on.page, Advise::PageOut).unwrap();
        parent.advise(BASE + 8 * on.page, 8 * on.page, Advise::PageOut).unwrap();
        assert_eq!(on.load(&child, BASE + 9 * on.page), 9);
        let (sums, found) = audited(on, &[&parent, &child]);
        assert_eq!(found, []);
        assert_eq!((sums.spaces, sums.charged_else), (2, 0), "{sums:?}");
        let (_, found) = audited(on, &[&parent]);
        let has = |like: fn(What) -> bool| {
            let differs = |unsound: &Unsound| matches!(unsound, Unsound::Differs { what, .. } if like(*what));
            assert!(found.iter().any(differs), "{found:?}");
        };
        has(|what| matches!(what, What::Mappings(_)));
        has(|what| what == What::Tables);
    });
}
