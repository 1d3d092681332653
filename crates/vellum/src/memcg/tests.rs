//! Tests of charges, limits and LRU lists on the engine's own test host.

use std::vec::Vec;

use super::*;
use crate::frame::{BootOptions, Counts, ListEnd, Use};
use crate::testing::{Dice, Host};

/// Returns a new folio's first frame, its descriptor, and its lruvec index.
fn folio<'p>(frames: &Frames<'p, Host>, order: u8) -> (Pfn, &'p Frame, usize) {
    let (pfn, index) = frames.alloc_at_lruvec(order, false, Use::Folio).unwrap();
    (pfn, frames.make_folio(pfn, order, 0, Counts { refs: 1, maps: 0 }), index)
}

/// INV-9: the charge of a memcg and of each ancestor is the pages that were charged and not
/// uncharged, whichever CPUs did so and in whatever order. The LRU lists hold the same pages, and
/// the lists of each node hold the pages of that node.
#[test]
fn charges_and_lru_lists_match_the_folios_that_are_charged() {
    check_charges_and_lists(&Host::with_frames(20_000, 4));
    // The first node is small, so folios soon come from the second.
    check_charges_and_lists(
        &Host::new(&[(16, 3000, true), (3016, 17_000, true)], 4).with_nodes(&[0, 1], &[0, 1, 0, 1]),
    );
}

/// Charges and uncharges random folios, and compares the memcgs' counts with the folios held.
fn check_charges_and_lists(host: &Host) {
    let frames = Frames::boot(host, BootOptions::default()).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let parent = memcgs.create(&frames, MemcgId::ROOT, u64::MAX).unwrap();
    let child = memcgs.create(&frames, parent, u64::MAX).unwrap();
    let mut held: Vec<(Pfn, u8, MemcgId, LruList)> = Vec::new();
    let mut dice = Dice(3);
    for round in 0..5_000 {
        host.on_cpu(dice.roll(4) as usize);
        if dice.roll(5) < 3 {
            let order = dice.roll(5) as u8;
            let memcg = [MemcgId::ROOT, parent, child][dice.roll(3) as usize];
            let list = [LruList::Anon, LruList::Unevictable, LruList::Shmem, LruList::Lazyfree][dice.roll(4) as usize];
            let folio = folio(&frames, order);
            memcgs.charge_frames(&frames, memcg, folio, order, Some(list)).unwrap();
            held.push((folio.0, order, memcg, list));
        } else {
            let mut uncharger = Uncharger::new(&frames, &memcgs);
            // Folios from both ends and the middle of the lists, in the order in which an unmap
            // might free them.
            for _ in 0..dice.roll(6).min(held.len() as u64) {
                let (pfn, order, ..) = held.swap_remove(dice.roll(held.len() as u64) as usize);
                uncharger.uncharge(pfn, frames.frame(pfn), 1 << order);
            }
        }
        if round % 97 == 0 {
            for (memcg, members) in [(MemcgId::ROOT, 3), (parent, 2), (child, 1)] {
                let below = &[child, parent, MemcgId::ROOT][..members];
                let usage = memcgs.usage(&frames, memcg).unwrap();
                let pages = |list: Option<LruList>, only: bool| -> u64 {
                    held.iter()
                        .filter(|(_, _, g, _)| if only { *g == memcg } else { below.contains(g) })
                        .filter(|(.., l)| list.is_none_or(|list| list == *l))
                        .map(|(_, order, ..)| 1 << order)
                        .sum()
                };
                assert_eq!(usage.charged, pages(None, false) + usage.lruvecs, "{memcg:?}");
                // The lruvecs of four CPUs fit into one frame for each memcg below the root.
                assert_eq!(usage.lruvecs, members as u64 - 1);
                assert_eq!(usage.lru, LruList::ALL.map(|l| pages(Some(l), true)), "{memcg:?}");
                for node in 0..frames.nodes() {
                    let here = held.iter().filter(|(pfn, _, g, _)| *g == memcg && frames.node_of(*pfn) == node);
                    let listed = memcgs.listed_on(&frames, memcg, node).unwrap();
                    assert_eq!(listed.iter().sum::<u64>(), here.map(|(_, order, ..)| 1 << order).sum(), "node {node}");
                }
            }
        }
    }
}

/// A limit is exact to the page, although CPUs charge in advance. It holds for descendants. A
/// refused charge changes nothing.
#[test]
fn a_limit_is_reached_exactly_and_not_passed() {
    let host = Host::with_frames(20_000, 4);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let parent = memcgs.create(&frames, MemcgId::ROOT, 100).unwrap();
    let child = memcgs.create(&frames, parent, u64::MAX).unwrap();
    let mut admitted = 0;
    let over = loop {
        host.on_cpu(admitted % 4);
        match memcgs.charge_frames(&frames, child, folio(&frames, 0), 0, Some(LruList::Anon)) {
            Ok(()) => admitted += 1,
            Err(over) => break over,
        }
    };
    // One page is charged to the parent for the child's lruvecs.
    assert_eq!((admitted, over), (99, Refused::OverLimit(parent)));
    assert_eq!(memcgs.usage(&frames, child).unwrap().charged, 99);
    assert_eq!(memcgs.usage(&frames, parent).unwrap().charged, 100);
    let large = folio(&frames, 3);
    assert_eq!(memcgs.charge_frames(&frames, child, large, 3, None), Err(Refused::OverLimit(parent)));
    memcgs.set_limit(parent, 108).unwrap();
    assert_eq!(memcgs.charge_frames(&frames, child, large, 3, None), Ok(()));
}

/// A memcg is removed only when it is empty, and its number is used again.
#[test]
fn only_an_empty_memcg_is_removed_and_its_number_is_reused() {
    let host = Host::with_frames(20_000, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let memcg = memcgs.create(&frames, MemcgId::ROOT, u64::MAX).unwrap();
    let child = memcgs.create(&frames, memcg, u64::MAX).unwrap();
    let (pfn, frame, index) = folio(&frames, 2);
    memcgs.charge_frames(&frames, child, (pfn, frame, index), 2, Some(LruList::Anon)).unwrap();
    assert_eq!(memcgs.remove(&frames, memcg), Err(MemcgError::Busy(memcg)), "a memcg with a child was removed");
    assert_eq!(memcgs.remove(&frames, child), Err(MemcgError::Busy(child)), "a memcg with charged pages was removed");
    Uncharger::new(&frames, &memcgs).uncharge(pfn, frame, 4);
    assert_eq!(memcgs.remove(&frames, child), Ok(()));
    assert_eq!(memcgs.remove(&frames, child), Err(MemcgError::NoSuchMemcg(child)));
    assert_eq!(memcgs.remove(&frames, MemcgId::ROOT), Err(MemcgError::Busy(MemcgId::ROOT)));
    assert_eq!(memcgs.create(&frames, memcg, 5), Ok(child));
    assert_eq!(memcgs.usage(&frames, child).unwrap(), MemcgUsage { limit: 5, ..MemcgUsage::default() });
}

/// INV-9: a full memcg can use all stocks below it. Whatever the CPUs did before, charges succeed
/// up to the last page, and the memcg's counter is never less than its charge.
#[test]
fn a_full_memcg_drains_the_stocks_of_all_cpus() {
    const CPUS: u64 = 40;
    let host = Host::new(&[(16, 9000, true), (9016, 31_000, true)], CPUS as usize)
        .with_nodes(&[0, 1], &core::array::from_fn::<_, { CPUS as usize }, _>(|cpu| cpu % 2));
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let mut dice = Dice(7);
    for limit in [50, 400, 3000, 20_000] {
        let top = memcgs.create(&frames, MemcgId::ROOT, limit).unwrap();
        let below = [0; 3].map(|_| memcgs.create(&frames, top, u64::MAX).unwrap());
        let mut held: Vec<(Pfn, u8)> = Vec::new();
        for _ in 0..20 {
            let mut left = dice.roll(limit);
            while left > 0 {
                left -= 1;
                host.on_cpu(dice.roll(CPUS) as usize);
                if dice.roll(3) == 0 && !held.is_empty() {
                    let (pfn, order) = held.swap_remove(dice.roll(held.len() as u64) as usize);
                    Uncharger::new(&frames, &memcgs).uncharge(pfn, frames.frame(pfn), 1 << order);
                    // SAFETY: only the test has the frames.
                    unsafe { frames.free(pfn, 1 << order, false, Use::Folio) };
                    continue;
                }
                let order = if dice.roll(8) == 0 { 2 } else { 0 };
                let folio = folio(&frames, order);
                let memcg = below[dice.roll(3) as usize];
                match memcgs.charge_frames(&frames, memcg, folio, order, Some(LruList::Anon)) {
                    Ok(()) => held.push((folio.0, order)),
                    Err(refused) => {
                        assert_eq!(refused, Refused::OverLimit(top));
                        let usage = memcgs.usage(&frames, top).unwrap();
                        assert!(
                            usage.charged + (1 << order) > limit,
                            "a charge of {} pages was refused below the limit: {usage:?}",
                            1 << order
                        );
                        // SAFETY: only the test has the frames.
                        unsafe { frames.free(folio.0, 1 << order, false, Use::Folio) };
                    }
                }
                let (all, charged) =
                    (memcgs.counters(top).unwrap().charged, memcgs.usage(&frames, top).unwrap().charged);
                assert!(charged <= all && all <= limit, "charged {charged}, counter {all}, limit {limit}");
            }
        }
        for (pfn, order) in held {
            Uncharger::new(&frames, &memcgs).uncharge(pfn, frames.frame(pfn), 1 << order);
            // SAFETY: only the test has the frames.
            unsafe { frames.free(pfn, 1 << order, false, Use::Folio) };
        }
        below.iter().chain([&top]).for_each(|memcg| memcgs.remove(&frames, *memcg).unwrap());
        assert_eq!(memcgs.usage(&frames, MemcgId::ROOT).unwrap().charged, 0);
    }
}

/// The number of locks that a refused charge takes does not depend on the numbers of CPUs and
/// memcgs. Neither does the number that statistics take depend on how many CPUs use the memcg.
#[test]
fn a_refused_charge_takes_one_lock_on_any_number_of_cpus_and_memcgs() {
    let costs = [(4, 10), (256, 10), (256, 500)].map(|(cpus, below)| {
        let host = Host::with_frames(40_000, cpus);
        let frames = Frames::boot(&host, BootOptions::default()).unwrap();
        let memcgs = Memcgs::boot(&frames).unwrap();
        let top = memcgs.create(&frames, MemcgId::ROOT, 1000 + below).unwrap();
        let children: Vec<_> = (0..below).map(|_| memcgs.create(&frames, top, u64::MAX).unwrap()).collect();
        // Each memcg has been used on some CPU, and each CPU has used some memcg.
        let held: Vec<_> = (0..cpus.max(below as usize))
            .map(|i| {
                host.on_cpu(i % cpus);
                let folio = folio(&frames, 0);
                let admitted =
                    memcgs.charge_frames(&frames, children[i % children.len()], folio, 0, Some(LruList::Anon));
                (folio.0, admitted.is_ok())
            })
            .collect();
        held.iter().filter(|(_, admitted)| *admitted).for_each(|(pfn, _)| {
            Uncharger::new(&frames, &memcgs).uncharge(*pfn, frames.frame(*pfn), 1);
        });
        host.on_cpu(0);
        while memcgs.charge_frames(&frames, children[0], folio(&frames, 0), 0, None).is_ok() {}
        let cost = |what: &dyn Fn()| {
            let before = host.locked.load(core::sync::atomic::Ordering::Relaxed);
            what();
            host.locked.load(core::sync::atomic::Ordering::Relaxed) - before
        };
        let page = folio(&frames, 0);
        let refused = cost(&|| assert!(memcgs.charge_frames(&frames, children[0], page, 0, None).is_err()));
        let charged = cost(&|| assert_eq!(memcgs.counters(top).unwrap().charged, 1000 + below));
        // One lock to charge; the load of `stocks` after that shows that no stock is left.
        assert_eq!((refused, charged), (1, 0), "{cpus} CPUs, {below} memcgs");
        cost(&|| assert_eq!(memcgs.usage(&frames, top).unwrap().charged, 1000 + below))
    });
    assert!(costs.iter().all(|cost| *cost <= 10), "{costs:?}");
}

/// A host's own structures are charged to the memcg that they are for. An allocation that can't be
/// refused passes the limit, and any other allocation is refused from then on.
#[test]
fn memory_of_the_host_is_charged_to_its_memcg() {
    let host = Host::with_frames(4_000, 2);
    let frames = Frames::boot(&host, BootOptions { min_free: 16, ..BootOptions::default() }).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let parent = memcgs.create(&frames, MemcgId::ROOT, 8).unwrap();
    let child = memcgs.create(&frames, parent, u64::MAX).unwrap();
    let charged = |id| memcgs.counters(id).unwrap().charged;
    // One page is charged to the parent for the child's lruvecs.
    let has_room = |pages| memcgs.has_room(&frames, child, pages);
    assert_eq!((charged(parent), has_room(7), has_room(8)), (1, Ok(()), Err(OverLimit(parent))));
    let held: Vec<_> = (0..7).map(|_| memcgs.alloc_for_host(&frames, child, 0).unwrap()).collect();
    assert_eq!((charged(parent), has_room(0), has_room(1)), (8, Ok(()), Err(OverLimit(parent))));
    let over = Refused::from(OverLimit(parent));
    assert_eq!(memcgs.alloc_for_host(&frames, child, 0), Err(over));
    // CPU 1 has not charged the memcg yet.
    host.on_cpu(1);
    let beyond = memcgs.alloc_beyond_limit(&frames, child, 2).unwrap();
    assert_eq!((charged(parent), charged(child), charged(MemcgId::ROOT)), (12, 11, 13));
    assert_eq!(memcgs.counters(parent).unwrap().peak, 12);
    assert_eq!(memcgs.alloc_for_host(&frames, child, 0), Err(over));
    // SAFETY: the frames were allocated above, with these orders, and are not used.
    unsafe { memcgs.free_for_host(&frames, beyond, 2) };
    // SAFETY: as above.
    held.iter().for_each(|pfn| unsafe { memcgs.free_for_host(&frames, *pfn, 0) });
    assert_eq!(memcgs.usage(&frames, parent).unwrap().charged, 1);
    memcgs.remove(&frames, child).unwrap();
    let gone = Err(Refused::from(OverLimit(child)));
    assert_eq!(memcgs.alloc_for_host(&frames, child, 0), gone);
    assert_eq!(memcgs.alloc_beyond_limit(&frames, child, 0), gone);
    assert_eq!(memcgs.has_room(&frames, child, 0), Err(OverLimit(child)));
}

/// Folios that are moved are at the end of the list to which they were moved, each once. Folios
/// that stay keep their order, and folios of other lists do not move.
#[test]
fn moved_folios_are_at_the_end_where_they_were_moved_to() {
    let host = Host::with_frames(20_000, 4);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let mut dice = Dice(5);
    let mut folios = Vec::new();
    for _ in 0..200 {
        host.on_cpu(dice.roll(2) as usize);
        let order = dice.roll(2) as u8;
        let folio = folio(&frames, order);
        memcgs.charge_frames(&frames, MemcgId::ROOT, folio, order, Some(LruList::Anon)).unwrap();
        folios.push((folio.0, 1 << order));
    }
    folios.sort();
    let listed = |list| {
        let mut lruvecs = Vec::new();
        memcgs.lru(&frames).each_list(MemcgId::ROOT, |at, counted, folios| {
            let youngest_last: Vec<Pfn> = folios.map(|(pfn, _)| pfn).collect();
            let pages: u64 = youngest_last.iter().map(|pfn| 1 << frames.frame(*pfn).order()).sum();
            assert_eq!((counted.folios, counted.pages), (youngest_last.len() as u64, pages));
            if at == list {
                lruvecs.push(youngest_last);
            }
        });
        lruvecs
    };
    for round in 0..200 {
        let lists = [LruList::Anon, LruList::Lazyfree];
        let (from, to) = (lists[dice.roll(2) as usize], lists[dice.roll(2) as usize]);
        let end = if round % 2 == 0 { ListEnd::Front } else { ListEnd::Back };
        let (before, target_before) = (listed(from), listed(to));
        let mut list_move = ListMove::new(from, to, end);
        let mut chosen = Vec::new();
        let stretch = 1 + dice.roll(20) as usize;
        for chunk in folios.chunks(stretch).filter(|_| dice.roll(2) == 0) {
            chunk.iter().for_each(|(pfn, pages)| list_move.add(&memcgs, &frames, *pfn, *pages));
            chosen.extend(chunk.iter().map(|(pfn, _)| *pfn));
        }
        list_move.finish(&memcgs, &frames);
        for (lruvec, after) in listed(to).into_iter().enumerate() {
            let moved: Vec<Pfn> = before[lruvec].iter().copied().filter(|pfn| chosen.contains(pfn)).collect();
            let stayed: Vec<Pfn> =
                target_before[lruvec].iter().copied().filter(|pfn| from != to || !moved.contains(pfn)).collect();
            let (old, young) = match end {
                ListEnd::Front => after.split_at(after.len() - moved.len()),
                ListEnd::Back => {
                    let (moved, stayed) = after.split_at(moved.len());
                    (stayed, moved)
                }
            };
            assert_eq!(old, stayed, "round {round}");
            assert!(moved.iter().all(|pfn| young.contains(pfn)), "round {round}: {moved:?} in {young:?}");
        }
        let left: Vec<Vec<Pfn>> = before
            .iter()
            .map(|list| list.iter().copied().filter(|pfn| from == to || !chosen.contains(pfn)).collect())
            .collect();
        if from != to {
            assert_eq!(listed(from), left, "round {round}");
        }
    }
}
