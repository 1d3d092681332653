//! Charges and lists against what they promise.

use std::vec::Vec;

use super::*;
use crate::frame::{BootOptions, Counts, Use};
use crate::testing::{Dice, Host};

fn folio<'p>(frames: &Frames<'p, Host>, order: u8) -> (Pfn, &'p Frame, usize) {
    let (pfn, shard) = frames.alloc_at_lruvec(order, false, Use::Folio).unwrap();
    (pfn, frames.make_folio(pfn, order, 0, Counts { refs: 1, maps: 0 }), shard)
}

/// INV-9: what is charged is what was admitted and has not left, in the memcg and in every ancestor, whichever CPUs did it
/// and in whatever order; and the lists hold as much, those of each node what is on it.
#[test]
fn charges_and_lists_add_up() {
    add_up(&Host::with_frames(20_000, 4));
    // The first node is soon in use.
    add_up(&Host::new(&[(16, 3000, true), (3016, 17_000, true)], 4).with_nodes(&[0, 1], &[0, 1, 0, 1]));
}

fn add_up(host: &Host) {
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
            let list = [LruList::Anon, LruList::Unevictable, LruList::Shmem, LruList::Lazy][dice.roll(4) as usize];
            let folio = folio(&frames, order);
            memcgs.admit(&frames, memcg, folio, order, Some(list)).unwrap();
            held.push((folio.0, order, memcg, list));
        } else {
            let mut leavers = Leavers::new(&frames, &memcgs);
            // A stretch of the list, from both ends and from the middle, as unmapping might free them.
            for _ in 0..dice.roll(6).min(held.len() as u64) {
                let (pfn, order, ..) = held.swap_remove(dice.roll(held.len() as u64) as usize);
                leavers.leave(pfn, frames.frame(pfn), 1 << order);
            }
        }
        if round % 97 == 0 {
            for (memcg, members) in [(MemcgId::ROOT, 3), (parent, 2), (child, 1)] {
                let below = &[child, parent, MemcgId::ROOT][..members];
                let usage = memcgs.usage(&frames, memcg).unwrap();
                let pages = |list: Option<LruList>, only: bool| -> u64 {
                    held.iter()
                        .filter(|(_, _, g, l)| if only { *g == memcg } else { below.contains(g) } && list.is_none_or(|x| x == *l))
                        .map(|(_, order, ..)| 1 << order)
                        .sum()
                };
                assert_eq!(usage.charged, pages(None, false) + usage.shards, "{memcg:?}");
                // Of four CPUs, the shards of a memcg are in one frame.
                assert_eq!(usage.shards, members as u64 - 1);
                assert_eq!(
                    usage.lru,
                    [LruList::Anon, LruList::Unevictable, LruList::Shmem, LruList::Lazy].map(|l| pages(Some(l), true)),
                    "{memcg:?}"
                );
                for node in 0..frames.nodes() {
                    let here = held.iter().filter(|(pfn, _, g, _)| *g == memcg && frames.node_of(*pfn) == node);
                    let listed = memcgs.listed_on(&frames, memcg, node).unwrap();
                    assert_eq!(listed.iter().sum::<u64>(), here.map(|(_, order, ..)| 1 << order).sum(), "node {node}");
                }
            }
        }
    }
}

/// A limit holds to the page, although CPUs charge in advance; it binds descendants; and a refused charge leaves no trace.
#[test]
fn a_limit_is_reached_and_not_passed() {
    let host = Host::with_frames(20_000, 4);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let parent = memcgs.create(&frames, MemcgId::ROOT, 100).unwrap();
    let child = memcgs.create(&frames, parent, u64::MAX).unwrap();
    let mut admitted = 0;
    let over = loop {
        host.on_cpu(admitted % 4);
        match memcgs.admit(&frames, child, folio(&frames, 0), 0, Some(LruList::Anon)) {
            Ok(()) => admitted += 1,
            Err(over) => break over,
        }
    };
    // One page is the child's own memory.
    assert_eq!((admitted, over), (99, Refused::OverLimit(parent)));
    assert_eq!(memcgs.usage(&frames, child).unwrap().charged, 99);
    assert_eq!(memcgs.usage(&frames, parent).unwrap().charged, 100);
    let large = folio(&frames, 3);
    assert_eq!(memcgs.admit(&frames, child, large, 3, None), Err(Refused::OverLimit(parent)));
    memcgs.set_limit(parent, 108).unwrap();
    assert_eq!(memcgs.admit(&frames, child, large, 3, None), Ok(()));
}

/// A memcg goes only when it is empty, and its name is used again.
#[test]
fn memcgs_come_and_go() {
    let host = Host::with_frames(20_000, 2);
    let frames = Frames::boot(&host, BootOptions::default()).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let memcg = memcgs.create(&frames, MemcgId::ROOT, u64::MAX).unwrap();
    let child = memcgs.create(&frames, memcg, u64::MAX).unwrap();
    let (pfn, frame, shard) = folio(&frames, 2);
    memcgs.admit(&frames, child, (pfn, frame, shard), 2, Some(LruList::Anon)).unwrap();
    assert_eq!(memcgs.remove(&frames, memcg), Err(MemcgError::Busy(memcg)), "it has a child");
    assert_eq!(memcgs.remove(&frames, child), Err(MemcgError::Busy(child)), "it has pages");
    Leavers::new(&frames, &memcgs).leave(pfn, frame, 4);
    assert_eq!(memcgs.remove(&frames, child), Ok(()));
    assert_eq!(memcgs.remove(&frames, child), Err(MemcgError::NoSuchMemcg(child)));
    assert_eq!(memcgs.remove(&frames, MemcgId::ROOT), Err(MemcgError::Busy(MemcgId::ROOT)));
    assert_eq!(memcgs.create(&frames, memcg, 5), Ok(child));
    assert_eq!(memcgs.usage(&frames, child).unwrap(), MemcgUsage { limit: 5, ..MemcgUsage::default() });
}

/// INV-9: of what CPUs have in stock nothing is lost to a memcg that is full: whatever they did
/// before, charges go on to the last page. What the memcg's counter says is no less than what it is
/// charged for.
#[test]
fn what_others_have_in_stock_can_be_had() {
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
                    Leavers::new(&frames, &memcgs).leave(pfn, frames.frame(pfn), 1 << order);
                    // SAFETY: the test's alone.
                    unsafe { frames.free(pfn, 1 << order, false, Use::Folio) };
                    continue;
                }
                let order = if dice.roll(8) == 0 { 2 } else { 0 };
                let folio = folio(&frames, order);
                let memcg = below[dice.roll(3) as usize];
                match memcgs.admit(&frames, memcg, folio, order, Some(LruList::Anon)) {
                    Ok(()) => held.push((folio.0, order)),
                    Err(why) => {
                        assert_eq!(why, Refused::OverLimit(top));
                        let usage = memcgs.usage(&frames, top).unwrap();
                        assert!(usage.charged + (1 << order) > limit, "refused {} with {usage:?}", 1 << order);
                        // SAFETY: the test's alone.
                        unsafe { frames.free(folio.0, 1 << order, false, Use::Folio) };
                    }
                }
                let (all, charged) =
                    (memcgs.counters(top).unwrap().charged, memcgs.usage(&frames, top).unwrap().charged);
                assert!(charged <= all && all <= limit, "{charged}, {all}");
            }
        }
        for (pfn, order) in held {
            Leavers::new(&frames, &memcgs).leave(pfn, frames.frame(pfn), 1 << order);
            // SAFETY: the test's alone.
            unsafe { frames.free(pfn, 1 << order, false, Use::Folio) };
        }
        below.iter().chain([&top]).for_each(|memcg| memcgs.remove(&frames, *memcg).unwrap());
        assert_eq!(memcgs.usage(&frames, MemcgId::ROOT).unwrap().charged, 0);
    }
}

/// What a refused charge takes of locks does not depend on how many CPUs and memcgs there are; nor
/// what statistics take on how many others use them.
#[test]
fn a_refused_charge_costs_the_same_everywhere() {
    let costs = [(4, 10), (256, 10), (256, 500)].map(|(cpus, below)| {
        let host = Host::with_frames(40_000, cpus);
        let frames = Frames::boot(&host, BootOptions::default()).unwrap();
        let memcgs = Memcgs::boot(&frames).unwrap();
        let top = memcgs.create(&frames, MemcgId::ROOT, 1000 + below).unwrap();
        let children: Vec<_> = (0..below).map(|_| memcgs.create(&frames, top, u64::MAX).unwrap()).collect();
        // Each has been in use, on some CPU, and each CPU has used one.
        let held: Vec<_> = (0..cpus.max(below as usize))
            .map(|i| {
                host.on_cpu(i % cpus);
                let folio = folio(&frames, 0);
                let admitted = memcgs.admit(&frames, children[i % children.len()], folio, 0, Some(LruList::Anon));
                (folio.0, admitted.is_ok())
            })
            .collect();
        held.iter().filter(|(_, admitted)| *admitted).for_each(|(pfn, _)| {
            Leavers::new(&frames, &memcgs).leave(*pfn, frames.frame(*pfn), 1);
        });
        host.on_cpu(0);
        while memcgs.admit(&frames, children[0], folio(&frames, 0), 0, None).is_ok() {}
        let cost = |what: &dyn Fn()| {
            let before = host.locked.load(core::sync::atomic::Ordering::Relaxed);
            what();
            host.locked.load(core::sync::atomic::Ordering::Relaxed) - before
        };
        let page = folio(&frames, 0);
        let refused = cost(&|| assert!(memcgs.admit(&frames, children[0], page, 0, None).is_err()));
        let charged = cost(&|| assert_eq!(memcgs.counters(top).unwrap().charged, 1000 + below));
        // One lock to charge; after that it is known that no stock is left.
        assert_eq!((refused, charged), (1, 0), "{cpus} CPUs, {below} groups");
        cost(&|| assert_eq!(memcgs.usage(&frames, top).unwrap().charged, 1000 + below))
    });
    assert!(costs.iter().all(|cost| *cost <= 10), "{costs:?}");
}

/// A host's own structures are charged to the memcg that they are for. What can't be refused passes
/// the limit, and is what the next refusal, of anything else, is about.
#[test]
fn what_a_host_allocates_is_charged() {
    let host = Host::with_frames(4_000, 2);
    let frames = Frames::boot(&host, BootOptions { kept: 16, ..BootOptions::default() }).unwrap();
    let memcgs = Memcgs::boot(&frames).unwrap();
    let parent = memcgs.create(&frames, MemcgId::ROOT, 8).unwrap();
    let child = memcgs.create(&frames, parent, u64::MAX).unwrap();
    let charged = |id| memcgs.counters(id).unwrap().charged;
    // One is for the child's shards.
    let has_room = |pages| memcgs.has_room(&frames, child, pages);
    assert_eq!((charged(parent), has_room(7), has_room(8)), (1, Ok(()), Err(OverLimit(parent))));
    let held: Vec<_> = (0..7).map(|_| memcgs.alloc_for_host(&frames, child, 0).unwrap()).collect();
    assert_eq!((charged(parent), has_room(0), has_room(1)), (8, Ok(()), Err(OverLimit(parent))));
    let over = Refused::from(OverLimit(parent));
    assert_eq!(memcgs.alloc_for_host(&frames, child, 0), Err(over));
    // On a processor where the memcg has nothing yet.
    host.on_cpu(1);
    let beyond = memcgs.alloc_beyond_limit(&frames, child, 2).unwrap();
    assert_eq!((charged(parent), charged(child), charged(MemcgId::ROOT)), (12, 11, 13));
    assert_eq!(memcgs.counters(parent).unwrap().peak, 12);
    assert_eq!(memcgs.alloc_for_host(&frames, child, 0), Err(over));
    // SAFETY: allocated above, of these orders, and nobody uses them.
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
