//! Folios that are mapped in part: their mapped pages migrate to new folios when memory is short.

use vellum::addr::VirtRange;
use vellum::arch::Kind;
use vellum::frame::policy::Knob;
use vellum::memcg::{LruList, MemcgUsage};
use vellum::space::{Access, Advise, RemapFlags, RemapRequest};
use vellum::stats::SizeCounter;
use vellum_sim::{Refusal, Silicon};

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, Space, USUAL, in_every_format, map};

/// The order of a huge page.
const ORDER: u8 = 9;

/// Runs a test on a machine with this many swap slots, with huge folios.
fn on<A: Silicon>(arch: A, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { slots, cpus: 2, ..USUAL }, |on| {
        on.machine.policy().set(ORDER, Knob::Always);
        test(on);
    });
}

impl<'m, A: Silicon> Bench<'m, A> {
    /// Returns a space with one huge folio, each page of which holds its number plus 1.
    fn huge(&self) -> Space<'m, A> {
        let space = self.space();
        map(&space, BASE, HUGE);
        (0..HUGE / self.page).for_each(|i| self.store(&space, BASE + i * self.page, i + 1));
        assert_eq!(self.folios(&space), [(0, ORDER)]);
        space
    }

    /// Drops these pages.
    fn forget(&self, space: &Space<'_, A>, from: u64, count: u64) {
        space.advise(BASE + from * self.page, count * self.page, Advise::DontNeed).unwrap();
    }

    fn usage(&self) -> MemcgUsage {
        self.machine.memcgs().usage(self.machine.frames(), self.memcg).unwrap()
    }

    /// Returns the mapped folios, by the 4 KiB page of the block at which each begins, and their
    /// order.
    fn folios(&self, space: &Space<'_, A>) -> Vec<(u64, u8)> {
        let mut folios = Vec::new();
        space.runs(VirtRange { start: BASE, end: BASE + HUGE }, |run| {
            if run.kind == Kind::Leaf {
                for i in 0..run.frames(&self.arch) {
                    let pfn = run.pfn(&self.arch).add(i);
                    let (head, frame) = self.machine.frames().head(pfn);
                    let page = ((run.va - BASE) >> 12) + u64::from(i) - u64::from(pfn.0 - head.0);
                    folios.push((page, frame.order()));
                }
            }
        });
        folios.dedup();
        folios
    }

    /// Returns the counts of split folios, and of failed splits.
    fn splits(&self) -> [u64; 2] {
        [SizeCounter::Split, SizeCounter::SplitFailed].map(|counter| self.machine.size_counter(counter, ORDER))
    }

    /// Checks that each kept page holds its first value.
    fn check(&self, space: &Space<'_, A>, kept: impl Fn(u64) -> bool) {
        let program = self.cpu.enter(space);
        for i in (0..HUGE / self.page).filter(|i| kept(*i)) {
            assert_eq!(program.load_u64(BASE + i * self.page), Ok(i + 1), "page {i}");
        }
    }
}

in_every_format! {
    splitting_frees_unmapped_pages => freed,
    split_pieces_are_ordinary_folios => pieces,
    split_pieces_stay_shared => shared,
    without_memory_folios_are_not_split => no_room,
    folios_mapped_by_two_page_tables_are_split => apart,
    folios_whose_split_frees_too_little_are_left => not_worth_it,
    pinned_folios_are_not_split => pinned,
    pieces_of_a_lazyfree_folio_are_lazyfree => lazy,
    split_finds_moved_folios => moved,
}

/// The largest fully mapped pieces stay, cont blocks included; the rest is freed, and nothing is
/// swapped out for it.
fn freed<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        on.forget(&space, 0, 1);
        on.forget(&space, all / 2, all / 4);
        assert_eq!(on.usage().deferred, 1);
        let (before, free) = (on.usage(), on.machine.frames().free_frames());
        let blocks = space.usage(VirtRange { start: BASE, end: BASE + HUGE }).cont_blocks;
        let gone = (1 + all / 4) * (on.page >> 12);
        assert_eq!(on.reclaim_all(&[&space]), gone);
        let after = on.usage();
        assert_eq!((after.charged, after.deferred), (before.charged - gone, 0));
        assert_eq!(after.lru[LruList::Anon as usize], (1 << ORDER) - gone);
        assert_eq!(on.machine.frames().free_frames(), free + gone);
        assert_eq!(space.usage(VirtRange { start: BASE, end: BASE + HUGE }).cont_blocks, blocks);
        let mut expected: Vec<_> = (arch.page_order()..ORDER - 1).map(|order| (1 << order, order)).collect();
        expected.push((3 << (ORDER - 2), ORDER - 2));
        assert_eq!(on.folios(&space), expected);
        on.check(&space, |i| i != 0 && !(all / 2..all / 4 * 3).contains(&i));
        assert_eq!(on.splits(), [1, 0]);
        // There is nothing more to split, and fully mapped folios are not looked at.
        assert_eq!((on.reclaim_all(&[&space]), on.splits()), (0, [1, 0]));
    });
}

/// The pieces are unmapped in part, queued, and split again; a child shares them; they are swapped
/// out and in; and each is freed by itself.
fn pieces<A: Silicon>(arch: A) {
    on(arch, 4096, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        on.forget(&space, 0, all / 2);
        let half = on.reclaim(&[&space], on.memcg, 1);
        assert_eq!((half, on.folios(&space)), (1 << (ORDER - 1), vec![(1 << (ORDER - 1), ORDER - 1)]));
        on.forget(&space, all / 2, all / 4);
        let quarter = on.reclaim(&[&space], on.memcg, 1);
        assert_eq!((quarter, on.folios(&space)), (1 << (ORDER - 2), vec![(3 << (ORDER - 2), ORDER - 2)]));
        let child = space.fork().unwrap();
        on.store(&child, BASE + (all - 1) * on.page, 7);
        on.check(&space, |i| i >= all / 4 * 3);
        on.check(&child, |i| i >= all / 4 * 3 && i != all - 1);
        drop(child);
        on.forget(&space, all - 1, 1);
        on.reclaim_all(&[&space]);
        assert_eq!((space.stats().anon, on.usage().lru), (0, [0; LruList::COUNT]));
        on.check(&space, |i| i >= all / 4 * 3 && i != all - 1);
    });
}

/// Shared pages migrate to folios that both spaces share: neither gets a copy before it writes.
fn shared<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        let child = space.fork().unwrap();
        [&space, &child].iter().for_each(|space| on.forget(space, 0, all / 4 * 3));
        // One of them maps fewer pages than the other.
        on.forget(&child, all - 1, 1);
        let (before, used) = (on.usage(), space.usage(VirtRange { start: BASE, end: BASE + HUGE }));
        assert_eq!((on.reclaim_all(&[&space, &child]), on.splits()), (3 << (ORDER - 2), [1, 0]));
        let after = on.usage();
        assert_eq!((after.charged + (3 << (ORDER - 2)), after.deferred), (before.charged, 0));
        assert_eq!(after.lru[LruList::Anon as usize], 1 << (ORDER - 2));
        assert_eq!(on.folios(&space), [(3 << (ORDER - 2), ORDER - 2)]);
        assert_eq!(on.folios(&child), on.folios(&space));
        let now = space.usage(VirtRange { start: BASE, end: BASE + HUGE });
        assert_eq!((now.cont_blocks, now.anonymous), (used.cont_blocks, used.anonymous));
        on.check(&child, |i| i >= all / 4 * 3 && i < all - 1);
        on.store(&child, BASE + (all - 2) * on.page, 5);
        on.check(&space, |i| i >= all / 4 * 3);
        drop(space);
        assert_eq!(on.load(&child, BASE + (all - 2) * on.page), 5);
        on.check(&child, |i| i >= all / 4 * 3 && i < all - 2);
    });
}

/// Without memory for the new folios nothing changes, except for those that there is memory for.
fn no_room<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        let child = space.fork().unwrap();
        // At least two pieces.
        let kept = |i: u64| i >= all / 4 * 3 && i != all / 8 * 7;
        for space in [&space, &child] {
            on.forget(space, 0, all / 4 * 3);
            on.forget(space, all / 8 * 7, 1);
        }
        let (charged, free) = (on.usage().charged, on.machine.frames().free_frames());
        let unchanged = || {
            assert_eq!((on.reclaim_all(&[&space, &child]), on.splits()[0]), (0, 0));
            assert_eq!((on.usage().charged, on.usage().deferred), (charged, 1));
            assert_eq!(on.machine.frames().free_frames(), free);
            [&space, &child].iter().for_each(|space| on.check(space, kept));
        };
        on.machine.memcgs().set_limit(on.memcg, charged + 100).unwrap();
        unchanged();
        on.machine.memcgs().set_limit(on.memcg, u64::MAX).unwrap();
        on.sim.refuse(Refusal::From(1));
        unchanged();
        on.sim.refuse(Refusal::From(2));
        assert_eq!(on.reclaim_all(&[&space, &child]), 0);
        assert!(on.usage().charged > charged && on.usage().charged < charged + (1 << (ORDER - 2)));
        [&space, &child].iter().for_each(|space| on.check(space, kept));
        on.sim.refuse(Refusal::Never);
        assert!(on.reclaim_all(&[&space, &child]) >= 3 << (ORDER - 2));
        assert_eq!((on.splits()[0], on.usage().deferred), (1, 0));
        assert_eq!(on.usage().charged + (3 << (ORDER - 2)) + (on.page >> 12), charged);
        [&space, &child].iter().for_each(|space| on.check(space, kept));
    });
}

/// A folio whose migration would take more than it frees stays, and so does a pinned one.
fn not_worth_it<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        let quarter = |flags, from: u64, to: u64| RemapRequest {
            addr: BASE + from,
            old_len: HUGE / 4,
            new_len: HUGE / 4,
            flags,
            new_addr: BASE + to,
        };
        let moves = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        space.remap(quarter(moves, HUGE / 4 * 3, 64 * HUGE)).unwrap();
        on.forget(&space, 0, all / 4);
        let charged = on.usage().charged;
        assert_eq!((on.reclaim_all(&[&space]), on.splits(), on.usage().charged), (0, [0, 1], charged));
        on.forget(&space, all / 4, all / 4);
        let pin = space.pin(BASE + HUGE / 2, Access::Read).unwrap();
        assert_eq!((on.reclaim_all(&[&space]), on.splits(), on.usage().charged), (0, [0, 2], charged));
        drop(pin);
        assert_eq!((on.reclaim_all(&[&space]), on.splits()), (1 << (ORDER - 1), [1, 2]));
        on.check(&space, |i| i >= all / 2 && i < all / 4 * 3);
    });
}

/// A folio that was partly moved: two page tables of one space map a part each.
fn apart<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let (from, to) = (BASE + HUGE / 4 * 3, BASE + 64 * HUGE);
        let quarter = RemapRequest { addr: from, old_len: HUGE / 4, new_len: HUGE / 4, flags, new_addr: to };
        space.remap(quarter).unwrap();
        on.forget(&space, 1, all / 2);
        let gone = (all / 2) * (on.page >> 12);
        assert_eq!((on.reclaim_all(&[&space]), on.splits()), (gone, [1, 0]));
        assert_eq!((on.usage().deferred, space.stats().anon), (0, HUGE / 2));
        on.check(&space, |i| i == 0 || i > all / 2 && i < all / 4 * 3);
        (0..all / 4).for_each(|i| assert_eq!(on.load(&space, to + i * on.page), all / 4 * 3 + i + 1));
        // Each part is found at its present address.
        on.forget(&space, all / 2 + 1, 1);
        space.unmap(to + on.page, HUGE / 8).unwrap();
        on.reclaim_all(&[&space]);
        assert_eq!(on.usage().deferred, 0);
    });
}

fn pinned<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        let pins = [2, all - 1].map(|i| space.pin(BASE + i * on.page, Access::Write).unwrap());
        on.forget(&space, 0, all / 4 * 3);
        assert_eq!((on.reclaim_all(&[&space]), on.splits()), (0, [0, 1]));
        pins[0].write(0, &77u64.to_ne_bytes());
        pins[1].write(8, &78u64.to_ne_bytes());
        assert_eq!(on.load(&space, BASE + (all - 1) * on.page + 8), 78);
        drop(pins);
        assert_eq!((on.reclaim_all(&[&space]), on.splits()), (3 << (ORDER - 2), [1, 1]));
        on.check(&space, |i| i >= all / 4 * 3);
    });
}

/// Pieces of a lazyfree folio are lazyfree, and are reclaimed without swap unless they are written.
fn lazy<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let all = HUGE / on.page;
        space.advise(BASE, HUGE, Advise::Free).unwrap();
        on.forget(&space, 0, all / 2);
        on.store(&space, BASE + (all - 1) * on.page, all);
        let freed = on.reclaim(&[&space], on.memcg, 1);
        assert_eq!(freed, 1 << (ORDER - 1));
        assert_eq!(on.usage().lru[LruList::Lazyfree as usize], 1 << (ORDER - 1));
        // A written piece is kept.
        assert_eq!(on.reclaim_all(&[&space]), 0);
        on.check(&space, |i| i >= all / 2);
    });
}

fn moved<A: Silicon>(arch: A) {
    on(arch, 0, |on| {
        let space = on.huge();
        let flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
        let to = BASE + 64 * HUGE;
        space.remap(RemapRequest { addr: BASE, old_len: HUGE, new_len: HUGE, flags, new_addr: to }).unwrap();
        space.unmap(to, HUGE / 2).unwrap();
        assert_eq!((on.reclaim_all(&[&space]), on.splits()), (1 << (ORDER - 1), [1, 0]));
        assert_eq!(on.usage().deferred, 0);
        assert_eq!(on.load(&space, to + HUGE - on.page), HUGE / on.page);
    });
}
