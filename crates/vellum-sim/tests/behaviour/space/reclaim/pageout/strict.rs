//! Pageout: memory is written to a swap device.

use vellum::arch::{Attrs, Kind, X86_64};
use vellum::frame::policy::Knob;
use vellum::space::{Access, Advise};
use vellum::stats::{Counter, SizeCounter};
use vellum::vma::Prot;
use vellum_sim::Silicon;

use crate::fixtures::bench::{BASE, Bench, HUGE, Setup, USUAL, held, in_every_format, map, range};

/// Runs a test on a machine with this many bytes of memory and swap slots.
fn on<A: Silicon>(arch: A, bytes: u64, slots: u32, test: impl FnOnce(&Bench<'_, A>)) {
    crate::fixtures::bench::on(arch, Setup { bytes, slots, ..USUAL }, test);
}

in_every_format! {
    paged_out_pages_are_swapped_in => goes_and_comes,
    swapped_pages_are_shared_until_each_space_swaps_in => family,
    pinned_pages_are_not_paged_out => pinned,
    without_slots_pageout_changes_nothing => no_room,
    slots_are_freed_with_their_swap_entries => unmaps,
    swap_entries_keep_soft_dirty => tracked,
}

/// Contents are swapped in, and all counters are as before.
fn goes_and_comes<A: Silicon>(arch: A) {
    for order in [0, 2, 4] {
        on(arch, 64 << 20, 4096, |on| {
            on.machine.policy().set(order, Knob::Always);
            let page = 1 << arch.page_shift();
            let space = on.space();
            map(&space, BASE, 64 * page);
            (0..60).for_each(|i| on.store(&space, BASE + i * page, 1000 + i));
            let all = range(BASE, 64 * page);
            let (resident, _) = held(&space, all);
            let blocks = space.usage(all).cont_blocks;
            assert_eq!(blocks[0] != 0, A::CONT != 0 && order == 4 && arch.page_shift() == 12, "{blocks:?}");
            space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
            assert_eq!(held(&space, all), (0, resident), "order {order}");
            assert_eq!(on.used() as u64, resident >> 12);
            for i in (0..64).rev() {
                assert_eq!(on.load(&space, BASE + i * page), if i < 60 { 1000 + i } else { 0 });
            }
            (0..60).for_each(|i| on.store(&space, BASE + i * page, 2000 + i));
            assert_eq!(space.usage(all).cont_blocks, blocks, "blocks are folded again");
            assert_eq!(held(&space, range(BASE, 60 * page)), (60 * page, 0));
            assert_eq!(on.used(), 0);
            assert_eq!(on.count(Counter::SwapIn), on.count(Counter::SwapOut));
            (0..60).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), 2000 + i));
        });
    }
}

/// Parent and child share slots, and each gets a copy of its own.
fn family<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let parent = on.space();
        map(&parent, BASE, 32 * page);
        (0..32).for_each(|i| on.store(&parent, BASE + i * page, i));
        parent.advise(BASE, 16 * page, Advise::PageOut).unwrap();
        let child = parent.fork().unwrap();
        // Shared memory is not paged out.
        parent.advise(BASE, 32 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&parent, range(BASE, 32 * page)), (16 * page, 16 * page));
        assert_eq!(held(&child, range(BASE, 32 * page)), (16 * page, 16 * page));
        (0..32).for_each(|i| on.store(&child, BASE + i * page, 100 + i));
        (0..32).for_each(|i| assert_eq!(on.load(&parent, BASE + i * page), i));
        (0..32).for_each(|i| assert_eq!(on.load(&child, BASE + i * page), 100 + i));
        // The child has copied the shared memory, so it is the parent's only.
        parent.advise(BASE, 32 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&parent, range(BASE, 32 * page)), (0, 32 * page));
        (0..32).for_each(|i| assert_eq!(on.load(&parent, BASE + i * page), i));
    });
}

/// A write through a pin goes to the page of the space.
fn pinned<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        let pin = space.pin(BASE + 20 * page, Access::Write).unwrap();
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        let (resident, swapped) = held(&space, range(BASE, 64 * page));
        assert!(resident >= page && resident <= page.max(16 << 12) && resident + swapped == 64 * page);
        assert_eq!(held(&space, range(BASE + 20 * page, page)).0, page);
        drop(pin);
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&space, range(BASE, 64 * page)).0, 0);
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
    });
}

/// Without free slots, PTEs keep their bits, and memory that was not swapped out is written without
/// a copy.
fn no_room<A: Silicon>(arch: A) {
    let page: u64 = 1 << arch.page_shift();
    on(arch, 64 << 20, (20 * (page >> 12)) as u32, |on| {
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        let all = range(BASE, 64 * page);
        let mut before = Vec::new();
        space.runs(all, |run| before.push((run.range(&arch), run.attrs(&arch))));
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!(held(&space, all), (44 * page, 20 * page));
        space.runs(all, |run| {
            if run.kind == Kind::Leaf {
                let was = before.iter().find(|(range, _)| range.covers(&run.range(&arch)));
                let hardware = Attrs::HARDWARE;
                assert_eq!(was.map(|was| was.1 - hardware), Some(run.attrs(&arch) - hardware));
            }
        });
        let copies = on.count(Counter::CowCopies) + on.count(Counter::CowReuses);
        (20..64).for_each(|i| on.store(&space, BASE + i * page, 100 + i));
        assert_eq!(on.count(Counter::CowCopies) + on.count(Counter::CowReuses), copies);
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), if i < 20 { i } else { 100 + i }));
    });
}

/// Unmapping, dropping and exit free the slots of swap entries.
fn unmaps<A: Silicon>(arch: A) {
    on(arch, 64 << 20, 4096, |on| {
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        let child = space.fork().unwrap();
        space.unmap(BASE, 10 * page).unwrap();
        space.advise(BASE + 20 * page, 10 * page, Advise::DontNeed).unwrap();
        assert_eq!(on.used() as u64, 64 * (page >> 12));
        child.unmap(BASE + 5 * page, 20 * page).unwrap();
        assert_eq!(on.used() as u64, 54 * (page >> 12));
        drop(space);
        assert_eq!(on.used() as u64, 44 * (page >> 12));
        assert_eq!(on.load(&child, BASE + 30 * page), 30);
    });
}

/// Soft-dirty is kept in swap entries, and is the same after swap-in.
fn tracked<A: Silicon>(arch: A) {
    if !arch.supported().contains(Attrs::SOFT_DIRTY) {
        return;
    }
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(4, Knob::Always);
        let page = 1 << arch.page_shift();
        let space = on.space();
        map(&space, BASE, 64 * page);
        (0..64).for_each(|i| on.store(&space, BASE + i * page, i));
        let written = || {
            let mut pages = Vec::new();
            space.runs(range(BASE, 64 * page), |run| {
                let attrs = if run.kind == Kind::Swap { arch.swap_entry(run.raw).attrs } else { run.attrs(&arch) };
                let first = (run.va - BASE) / page;
                let all = first..first + run.range(&arch).len() / page;
                pages.extend(all.filter(|_| attrs.contains(Attrs::SOFT_DIRTY)));
            });
            pages
        };
        space.advise(BASE, 32 * page, Advise::PageOut).unwrap();
        assert_eq!((written(), held(&space, range(BASE, 64 * page)).1), ((0..64).collect(), 32 * page));
        space.clear_soft_dirty().unwrap();
        assert_eq!(written(), []);
        // A read does not set soft-dirty; a write sets it before a swap-out or after it.
        [3, 40].iter().for_each(|i| assert_eq!(on.load(&space, BASE + i * page), *i));
        [5, 41].iter().for_each(|i| on.store(&space, BASE + i * page, *i));
        assert_eq!(written(), [5, 41]);
        space.advise(BASE, 64 * page, Advise::PageOut).unwrap();
        assert_eq!((written(), held(&space, range(BASE, 64 * page)).0), (vec![5, 41], 0));
        (0..64).for_each(|i| assert_eq!(on.load(&space, BASE + i * page), i));
        assert_eq!(written(), [5, 41]);
    });
}

/// A huge PTE is swapped out as one entry, and swapped in as one by an access that accesses came up
/// to; another access swaps in its page. Unmapping a part of it before frees only the slots of that
/// part.
#[test]
fn huge_ptes_are_swapped_out_whole() {
    let arch = X86_64::four_levels();
    on(arch, 64 << 20, 4096, |on| {
        on.machine.policy().set(9, Knob::Always);
        let space = on.space();
        map(&space, BASE, 3 * HUGE);
        on.store(&space, BASE, 1);
        on.store(&space, BASE + HUGE, 3);
        on.store(&space, BASE + 2 * HUGE + 0x5000, 2);
        space.advise(BASE, 3 * HUGE, Advise::PageOut).unwrap();
        let mut levels = Vec::new();
        space.runs(range(BASE, 3 * HUGE), |run| levels.push((run.kind, run.level, run.len)));
        assert_eq!(levels, [(Kind::Swap, 2, 1); 3]);
        assert_eq!((on.load(&space, BASE), on.load(&space, BASE + HUGE - 0x1000)), (1, 0));
        assert_eq!(held(&space, range(BASE, HUGE)), (0x2000, HUGE - 0x2000));
        assert_eq!(on.machine.size_counter(SizeCounter::SwapIn, 9), 0);
        assert_eq!(on.load(&space, BASE + HUGE), 3);
        assert_eq!(on.machine.size_counter(SizeCounter::SwapIn, 9), 1);
        let child = space.fork().unwrap();
        space.unmap(BASE + 2 * HUGE, 0x3000).unwrap();
        assert_eq!(
            on.used(),
            1536,
            "parent and child map what was swapped in, which keeps its slots; the child's third is still swapped out"
        );
        drop(child);
        assert_eq!((on.load(&space, BASE + 2 * HUGE + 0x5000), on.load(&space, BASE + 2 * HUGE + 0x7000)), (2, 0));
        space.protect(BASE, 0x1000, Prot::READ).unwrap();
        assert_eq!(on.load(&space, BASE), 1);
    });
}
