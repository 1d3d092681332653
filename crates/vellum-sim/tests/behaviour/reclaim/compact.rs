//! Compaction: pageblocks that are emptied, what moves, and what stays.

use vellum::addr::Pfn;
use vellum::arch::Kind;
use vellum::frame::policy::{Defrag, Knob};
use vellum::frame::{HUGE_ORDER, Use};
use vellum::reclaim::compact;
use vellum::space::{Access, Advise};
use vellum::stats::Counter;
use vellum_sim::Silicon;

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map, on, range};

in_every_format! {
    compaction_makes_large_blocks_of_pieces => makes_blocks,
    compaction_moves_what_a_fork_family_shares => moves_shared,
    compaction_leaves_a_pageblock_with_a_pinned_page => leaves_pinned,
    compaction_leaves_a_pageblock_with_locked_memory => leaves_locked,
    a_fault_gets_a_large_folio_after_compaction => serves_a_fault,
    a_full_memcg_is_not_compacted => respects_limits,
    compaction_moves_folios_of_all_sizes => moves_all_sizes,
}

/// The memory of the tests' machine in which single pages lie.
const FILLED: u64 = 32 << 20;

/// Returns the number of free blocks of 2 MiB, a larger block as the several that it is.
fn free_huge<A: Silicon>(on: &Bench<'_, A>) -> u64 {
    on.machine.frames().drain();
    let blocks = on.machine.frames().free_blocks_on(0);
    (HUGE_ORDER..).zip(&blocks[usize::from(HUGE_ORDER)..]).map(|(order, count)| count << (order - HUGE_ORDER)).sum()
}

/// Runs a test on a machine whose free memory lies in pieces: no free block of 2 MiB is left, and
/// every fourth page of a space from [`BASE`] on is mapped, and holds its number. The test gets
/// blocks of memory that keep the rest away from it, and frees nothing of these.
fn in_pieces<A: Silicon>(arch: A, test: impl FnOnce(&Bench<'_, A>, &Space<'_, A>)) {
    on(arch, Setup { bytes: FILLED * 2, cpus: 2, ..USUAL }, |on| {
        let frames = on.machine.frames();
        let space = on.space();
        map(&space, BASE, FILLED);
        (0..FILLED / on.page).for_each(|page| on.store(&space, BASE + page * on.page, page));
        let mut rest = Vec::<Pfn>::new();
        while free_huge(on) > 0 {
            rest.push(frames.alloc(HUGE_ORDER, false, Use::Kernel).unwrap());
        }
        for page in (0..FILLED / on.page).filter(|page| page % 4 != 0) {
            space.advise(BASE + page * on.page, on.page, Advise::DontNeed).unwrap();
        }
        assert_eq!(free_huge(on), 0, "the pages that are left lie in all pageblocks");
        test(on, &space);
        // SAFETY: allocated above, and never used.
        rest.into_iter().for_each(|pfn| unsafe { frames.free(pfn, 1 << HUGE_ORDER, false, Use::Kernel) });
    });
}

/// Checks that a space has the pages that [`in_pieces`] left, with their contents.
fn check<A: Silicon>(on: &Bench<'_, A>, space: &Space<'_, A>) {
    for page in (0..FILLED / on.page).step_by(4) {
        assert_eq!(on.load(space, BASE + page * on.page), page, "page {page}");
    }
}

fn makes_blocks<A: Silicon>(arch: A) {
    in_pieces(arch, |on, space| {
        let frames = on.machine.frames();
        let charged = || on.machine.memcgs().usage(frames, on.memcg).unwrap();
        let (before, stats, free) = (charged(), space.stats(), frames.free_frames());
        let spaces = [space];
        assert_eq!(compact(on.machine, &spaces[..], None, 2).blocks, 2);
        assert_eq!(free_huge(on), 2);
        // Three quarters of 32 MiB are free: 12 blocks, if the rest were in as few as possible.
        let done = compact(on.machine, &spaces[..], Some(0), u64::MAX);
        assert!(done.blocks >= 6, "{done:?}");
        assert_eq!(free_huge(on), 2 + done.blocks);
        assert_eq!(compact(on.machine, &spaces[..], Some(1), u64::MAX).blocks, 0, "there is no such node");
        assert_eq!((charged(), space.stats(), frames.free_frames()), (before, stats, free));
        assert_eq!(on.count(Counter::CompactSuccesses), 2 + done.blocks);
        // What was exclusive still is: a write copies nothing, and makes nothing exclusive anew.
        for page in (0..FILLED / on.page).step_by(4) {
            assert_eq!(on.load(space, BASE + page * on.page), page, "page {page}");
            on.store(space, BASE + page * on.page, page);
        }
        assert_eq!((on.count(Counter::CowCopies), on.count(Counter::CowReuses)), (0, 0));
    });
}

fn moves_shared<A: Silicon>(arch: A) {
    in_pieces(arch, |on, space| {
        let child = space.fork().unwrap();
        let grandchild = child.fork().unwrap();
        let free = on.machine.frames().free_frames();
        let done = compact(on.machine, &[space, &child, &grandchild][..], None, u64::MAX);
        assert!(done.blocks >= 4, "{done:?}");
        assert_eq!(on.machine.frames().free_frames(), free, "what was shared still is");
        [space, &child, &grandchild].iter().for_each(|space| check(on, space));
        on.store(space, BASE, 77);
        assert_eq!([space, &child, &grandchild].map(|space| on.load(space, BASE)), [77, 0, 0]);
    });
}

fn leaves_pinned<A: Silicon>(arch: A) {
    in_pieces(arch, |on, space| {
        // A page in each pageblock.
        let pins: Vec<_> =
            (0..FILLED).step_by(1 << 20).map(|at| space.pin(BASE + at, Access::Write).unwrap()).collect();
        let free = on.machine.frames().free_frames();
        let done = compact(on.machine, &[space][..], None, u64::MAX);
        assert_eq!((done.blocks, free_huge(on)), (0, 0), "{done:?}");
        assert!(on.count(Counter::CompactFailures) > 0);
        assert_eq!(on.machine.frames().free_frames(), free);
        for (pin, at) in pins.iter().zip((0..FILLED).step_by(1 << 20)) {
            pin.write(8, &at.to_ne_bytes());
            assert_eq!(on.load(space, BASE + at + 8), at, "the pin refers to the page that is mapped");
        }
        drop(pins);
        check(on, space);
        assert!(compact(on.machine, &[space][..], None, u64::MAX).blocks > 0);
        check(on, space);
    });
}

fn leaves_locked<A: Silicon>(arch: A) {
    in_pieces(arch, |on, space| {
        let free = on.machine.frames().free_frames();
        // A page in each pageblock.
        (0..FILLED).step_by(1 << 20).for_each(|at| space.lock(BASE + at, on.page, false).unwrap());
        assert_eq!(compact(on.machine, &[space][..], None, u64::MAX).blocks, 0);
        assert!(free - on.machine.frames().free_frames() < 16, "nothing but VMA nodes was allocated");
        check(on, space);
    });
}

fn serves_a_fault<A: Silicon>(arch: A) {
    in_pieces(arch, |on, space| {
        on.machine.policy().set(HUGE_ORDER, Knob::Madvise);
        assert_eq!(on.machine.policy().defrag(), Defrag::Madvise);
        let at = BASE + (1 << 30);
        map(space, at, 4 * HUGE);
        space.advise(at, 4 * HUGE, Advise::Huge).unwrap();
        // This host does not compact when it is asked.
        on.store(space, at, 1);
        assert_eq!(on.count(Counter::CompactStalls), 1);
        assert_eq!(on.count(Counter::LargeFolios), 0);
        assert!(compact(on.machine, &[space][..], None, 1).blocks == 1);
        on.store(space, at + HUGE, 2);
        assert_eq!((on.count(Counter::CompactStalls), on.count(Counter::LargeFolios)), (1, 1));
        on.machine.policy().set_defrag(Defrag::Never);
        on.store(space, at + 2 * HUGE, 3);
        assert_eq!(on.count(Counter::CompactStalls), 1);
        on.machine.policy().set_defrag(Defrag::Madvise);
        // After an attempt without success the next fault falls back.
        assert_eq!(compact(on.machine, &[][..] as &[&Space<'_, A>], None, 1).blocks, 0);
        on.store(space, at + 3 * HUGE, 4);
        assert_eq!(on.count(Counter::CompactStalls), 1);
        let mut runs = 0;
        space.runs(range(at + HUGE, HUGE), |run| runs += u64::from(run.kind == Kind::Leaf));
        assert_eq!(runs, 1, "one folio");
        check(on, space);
    });
}

fn respects_limits<A: Silicon>(arch: A) {
    in_pieces(arch, |on, space| {
        let (memcgs, frames) = (on.machine.memcgs(), on.machine.frames());
        let (charged, free) = (memcgs.usage(frames, on.memcg).unwrap().charged, frames.free_frames());
        memcgs.set_limit(on.memcg, charged).unwrap();
        // What a CPU has charged in advance may serve for some copies, and no more.
        let limited = compact(on.machine, &[space][..], None, u64::MAX);
        assert_eq!((memcgs.usage(frames, on.memcg).unwrap().charged, frames.free_frames()), (charged, free));
        check(on, space);
        memcgs.set_limit(on.memcg, u64::MAX).unwrap();
        assert!(compact(on.machine, &[space][..], None, u64::MAX).blocks > limited.blocks, "{limited:?}");
        check(on, space);
    });
}

fn moves_all_sizes<A: Silicon>(arch: A) {
    on(arch, Setup { bytes: FILLED * 2, cpus: 2, ..USUAL }, |on| {
        let frames = on.machine.frames();
        let spaces = [on.space(), on.space()];
        spaces.iter().for_each(|space| map(space, BASE, FILLED));
        let mut rest = Vec::<Pfn>::new();
        // In each 256 KiB a folio of another size, in turn in both spaces.
        let piece = 256 << 10;
        for n in 0..FILLED / piece {
            let order = [0, 4, 6, 2][n as usize % 4];
            (1..=HUGE_ORDER).for_each(|other| {
                on.machine.policy().set(other, if other == order { Knob::Always } else { Knob::Never });
            });
            for page in (0..piece).step_by(on.page as usize) {
                on.store(&spaces[n as usize % 2], BASE + n * piece + page, n * piece + page);
            }
        }
        while free_huge(on) > 0 {
            rest.push(frames.alloc(HUGE_ORDER, false, Use::Kernel).unwrap());
        }
        let stays = |at: u64| (at / piece).is_multiple_of(8) || at / (16 << 10) % 16 == 3;
        for at in (0..FILLED).step_by(on.page as usize).filter(|at| !stays(*at)) {
            spaces[(at / piece) as usize % 2].advise(BASE + at, on.page, Advise::DontNeed).unwrap();
        }
        let before = free_huge(on);
        let done = compact(on.machine, &[&spaces[0], &spaces[1]][..], None, u64::MAX);
        assert_eq!(free_huge(on), before + done.blocks);
        assert!(done.blocks >= 8, "{done:?}, {before} before, {} failures", on.count(Counter::CompactFailures));
        for at in (0..FILLED).step_by(on.page as usize).filter(|at| stays(*at)) {
            assert_eq!(on.load(&spaces[(at / piece) as usize % 2], BASE + at), at);
        }
        // SAFETY: allocated above, and never used.
        rest.into_iter().for_each(|pfn| unsafe { frames.free(pfn, 1 << HUGE_ORDER, false, Use::Kernel) });
    });
}
