//! The audit finds no discrepancy on a machine at rest, and each kind of discrepancy if a space is
//! withheld from it, or if a reference exists that it does not know. (The engine's own tests plant
//! discrepancies that no host can cause.)

use vellum::audit::{Discrepancy, Quantity, Sums, audit, counts_len};
use vellum::page_cache::Object;
use vellum::space::{Access, Advise, MapFlags, MapRequest};
use vellum::swap::{Slots, SwapRun};
use vellum::vma::Prot;
use vellum_sim::Silicon;

use crate::fixtures::bench::{BASE, Bench, Setup, Space, USUAL, in_every_format, map};

const PAGES: u64 = 24;
/// The address of the object's mapping.
const SHARED: u64 = BASE + (1 << 30);

fn audited<A: Silicon>(on: &Bench<'_, A>, spaces: &[&Space<'_, A>]) -> (Sums, Vec<Discrepancy>) {
    let mut counts = vec![0; counts_len(on.machine)];
    let mut found = Vec::new();
    let sums = audit(on.machine, spaces.iter().copied(), &mut counts, &mut |unsound| found.push(unsound));
    (sums, found)
}

/// Returns the two numbers, counted and found, of the first such discrepancy.
#[track_caller]
fn differs(found: &[Discrepancy], like: impl Fn(Quantity) -> bool) -> (u64, u64) {
    let numbers = |unsound: &Discrepancy| match unsound {
        Discrepancy::Differs { what, counted, found } if like(*what) => Some((*counted, *found)),
        _ => None,
    };
    found.iter().find_map(numbers).unwrap_or_else(|| panic!("{found:?}"))
}

in_every_format! {
    an_audit_is_clean_at_rest_and_reports_a_missing_space => all_and_not_all,
    an_audit_finds_leaked_slot_references => slot_referred_to_once_more,
    an_audit_counts_pins_and_host_memory => pins_and_the_hosts_memory,
}

/// Runs a test with a parent and a child: memory of each, shared memory, memory in swap and in the
/// swap cache, and an object.
fn with_two_spaces<A: Silicon>(arch: A, test: impl FnOnce(&Bench<'_, A>, &Space<'_, A>, &Space<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { slots: 1024, ..USUAL }, |on| {
        let parent = on.space();
        map(&parent, BASE, PAGES * on.page);
        (0..PAGES).for_each(|page| on.store(&parent, BASE + page * on.page, page));
        let object = Object::new(on.machine, &on.arch, on.memcg, 0, PAGES * on.page).unwrap();
        let (prot, flags) = (Prot::READ | Prot::WRITE, MapFlags::FIXED | MapFlags::SHARED);
        let len = PAGES / 2 * on.page;
        parent.map_object(MapRequest { addr: SHARED, len, prot, flags }, &object, 0).unwrap();
        // Another part of the object, so that the two are not one VMA.
        parent.map_object(MapRequest { addr: SHARED + 2 * len, len, prot, flags }, &object, len).unwrap();
        (0..PAGES / 4).for_each(|page| on.store(&parent, SHARED + page * on.page, page));
        object.page_or_new(3 << 20, on.memcg).unwrap();
        parent.advise(BASE + 8 * on.page, 8 * on.page, Advise::PageOut).unwrap();
        let child = parent.fork().unwrap();
        (0..4).for_each(|page| on.store(&child, BASE + page * on.page, page));
        assert_eq!(on.load(&child, BASE + 9 * on.page), 9);
        on.reclaim(&[&parent, &child], on.memcg, 4);
        test(on, &parent, &child);
    });
}

fn all_and_not_all<A: Silicon>(arch: A) {
    with_two_spaces(arch, |on, parent, child| {
        let (sums, found) = audited(on, &[parent, child]);
        assert_eq!(found, []);
        assert_eq!((sums.spaces, sums.pinned, sums.host), (2, 0, 0), "{sums:?}");
        let (_, found) = audited(on, &[child]);
        differs(&found, |what| matches!(what, Quantity::Mappings(_)));
        differs(&found, |what| what == Quantity::PageTables);
        differs(&found, |what| what == Quantity::Structures);
        let (references, named) = differs(&found, |what| matches!(what, Quantity::Slot(0, _)));
        assert!(references > named, "{found:?}");
        assert_eq!(differs(&found, |what| matches!(what, Quantity::Vmas(_))), (4, 2));
        assert_eq!(differs(&found, |what| matches!(what, Quantity::Writers(_))), (4, 2));
    });
}

fn slot_referred_to_once_more<A: Silicon>(arch: A) {
    with_two_spaces(arch, |on, parent, child| {
        let mut named = None;
        parent.runs(crate::fixtures::bench::range(BASE, PAGES * on.page), |run| {
            named = named.or((run.kind == vellum::arch::Kind::Swap).then(|| parent.arch().swap_entry(run.raw)));
        });
        let named = named.expect("something is in swap");
        let first = (named.slot as u32) << on.arch.page_order();
        let run = SwapRun { device: named.device, slots: Slots { first, count: 1 } };
        // SAFETY: a swap entry has a reference, and keeps it.
        unsafe { on.machine.swaps().duplicate(on.sim, run) }.unwrap();
        let (_, found) = audited(on, &[parent, child]);
        let (references, entries) = differs(&found, |what| what == Quantity::Slot(0, first));
        assert_eq!((found.len(), references), (1, entries + 1), "{found:?}");
        // SAFETY: the reference taken above.
        unsafe { on.machine.swaps().release(on.machine.frames(), run) };
    });
}

fn pins_and_the_hosts_memory<A: Silicon>(arch: A) {
    with_two_spaces(arch, |on, parent, child| {
        let pin = parent.pin(BASE, Access::Read).unwrap();
        let page = parent.pin(SHARED, Access::Read).unwrap();
        let (memcgs, frames) = (on.machine.memcgs(), on.machine.frames());
        let own = [
            memcgs.alloc_for_host(frames, on.memcg, 2).unwrap(),
            memcgs.alloc_beyond_limit(frames, on.memcg, 2).unwrap(),
        ];
        let (sums, found) = audited(on, &[parent, child]);
        assert_eq!((sums.pinned, sums.host, found), (2, 8, vec![]), "{sums:?}");
        // SAFETY: allocated above, and not used.
        own.iter().for_each(|pfn| unsafe { memcgs.free_for_host(frames, *pfn, 2) });
        drop((pin, page));
        let (sums, found) = audited(on, &[parent, child]);
        assert_eq!((sums.pinned, sums.host, found), (0, 0, vec![]), "{sums:?}");
    });
}
